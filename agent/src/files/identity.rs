//! The cluster's identity as this node has it in memory: what most secrets are encrypted to.

use std::sync::{Arc, Mutex};

use age::x25519::Identity;
use schema::control::lock;
use schema::files::BlobRef;
use tokio::sync::watch;

use crate::converge::publish;

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
        self.has(self.wanted().as_ref())
    }

    /// This is what is there.
    pub(super) fn has(&self, wanted: Option<&BlobRef>) -> bool {
        wanted.map(|blob| &blob.digest) == self.held().as_ref().map(|held| &held.digest)
    }

    /// Holds this from now on.
    pub(super) fn hold(&self, found: Option<(BlobRef, Vec<Identity>)>) {
        let recipient = found.as_ref().and_then(|(_, all)| Some(all.first()?.to_public().to_string()));
        *lock(&self.held) =
            found.map(|(blob, identities)| Arc::new(Held { digest: blob.digest, identities }));
        publish(&self.recipients, recipient);
    }

    pub(super) fn recipients(&self) -> watch::Receiver<Option<String>> {
        self.recipients.subscribe()
    }
}
