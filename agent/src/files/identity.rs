//! The cluster's identity as this node has it: what most secrets are encrypted to.
//!
//! Reads the catalog's settings, which name its newest version; fetches that, decrypts it with the node's own identity,
//! keeps it in memory. Its ciphertext stays on this node's disk for an agent that starts without etcd.

use std::sync::{Arc, Mutex};

use age::x25519::Identity;
use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation, Plan, lock};
use schema::files::BlobRef;
use tokio::sync::watch;

use super::{PodFiles, SecretError};
use crate::catalog::Catalog;
use crate::desired::Source;

/// What is wanted and what is there.
pub(super) struct ClusterKeys {
    wanted: Mutex<Option<BlobRef>>,
    held: Mutex<Option<Arc<Held>>>,
    recipients: watch::Sender<Option<String>>,
}

/// One version of the cluster's identity, decrypted.
pub(super) struct Held {
    digest: String,
    /// The one in use first, then older ones, until all secrets are encrypted anew.
    pub(super) identities: Vec<Identity>,
}

impl ClusterKeys {
    pub(super) fn new() -> Self {
        Self { wanted: Mutex::default(), held: Mutex::default(), recipients: watch::Sender::new(None) }
    }

    pub(super) fn want(&self, blob: Option<&BlobRef>) {
        *lock(&self.wanted) = blob.cloned();
    }

    pub(super) fn wanted(&self) -> Option<BlobRef> {
        lock(&self.wanted).clone()
    }

    pub(super) fn held(&self) -> Option<Arc<Held>> {
        lock(&self.held).clone()
    }

    /// What is there is what is wanted.
    pub(super) fn is_current(&self) -> bool {
        let wanted = self.wanted().map(|blob| blob.digest);
        wanted == self.held().map(|held| held.digest.clone())
    }

    /// Holds this from now on.
    pub(super) fn hold(&self, found: Option<(BlobRef, Vec<Identity>)>) {
        let recipient = found.as_ref().and_then(|(_, all)| Some(all.first()?.to_public().to_string()));
        *lock(&self.held) =
            found.map(|(blob, identities)| Arc::new(Held { digest: blob.digest, identities }));
        self.recipients.send_if_modified(|known| {
            let is_other = *known != recipient;
            *known = recipient;
            is_other
        });
    }

    pub(super) fn recipients(&self) -> watch::Receiver<Option<String>> {
        self.recipients.subscribe()
    }
}

/// Keeps the newest version on this node.
pub struct IdentityLoop {
    files: Arc<PodFiles>,
    catalog: watch::Receiver<Arc<Catalog>>,
}

impl IdentityLoop {
    /// A loop that has not looked yet.
    pub fn new(files: Arc<PodFiles>, catalog: watch::Receiver<Arc<Catalog>>) -> Self {
        Self { files, catalog }
    }
}

/// What a run does.
#[derive(Debug)]
pub struct IdentityPlan {
    fetch: bool,
}

impl Plan for IdentityPlan {
    fn is_empty(&self) -> bool {
        !self.fetch
    }
}

#[async_trait]
impl Loop for IdentityLoop {
    type Observed = bool;
    type Plan = IdentityPlan;
    type Outcome = Result<(), SecretError>;

    fn name(&self) -> &'static str {
        "identity"
    }

    async fn observe(&mut self) -> Result<Observation<bool>, LoopError> {
        let catalog = Arc::clone(&self.catalog.borrow());
        if catalog.source == Source::Unknown {
            return Ok(Observation::NotReady("nothing is known of the cluster yet".to_owned()));
        }
        self.files.want_identity(catalog.settings.identity.as_ref());
        Ok(Observation::Ready(self.files.has_wanted_identity()))
    }

    fn plan(is_current: &bool, _now: Timestamp) -> IdentityPlan {
        IdentityPlan { fetch: !is_current }
    }

    async fn act(&mut self, _: &bool, _: IdentityPlan) -> Result<(), SecretError> {
        self.files.take_identity().await
    }

    async fn report(&mut self, _: bool, outcome: Result<(), SecretError>) -> Result<Next, LoopError> {
        match outcome {
            Ok(()) => Ok(Next::Interval),
            Err(error) => {
                Err(LoopError::new("secrets that are encrypted to the cluster can't be read", error))
            }
        }
    }
}
