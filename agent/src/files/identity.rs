//! The cluster's identity in this node's memory. Most secrets are encrypted to it.

use std::sync::{Arc, Mutex};

use age::x25519::Identity;
use schema::content_refs::BlobRef;
use schema::control::lock;
use tokio::sync::watch;

use schema::control::publish;

/// The wanted and the loaded version of the cluster's identity.
pub(super) struct ClusterKeys {
    wanted: Mutex<Option<BlobRef>>,
    held: Mutex<Option<Arc<LoadedIdentity>>>,
    recipients: watch::Sender<Option<String>>,
}

/// A decrypted version of the cluster's identity.
pub(super) struct LoadedIdentity {
    digest: String,
    /// The identity in use first, then older ones until every secret is encrypted again.
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

    pub(super) fn loaded(&self) -> Option<Arc<LoadedIdentity>> {
        lock(&self.held).clone()
    }

    /// True if the loaded version is the wanted one.
    pub(super) fn is_current(&self) -> bool {
        self.has(self.wanted().as_ref())
    }

    /// True if `wanted` is the loaded version.
    pub(super) fn has(&self, wanted: Option<&BlobRef>) -> bool {
        wanted.map(|blob| &blob.digest) == self.loaded().as_ref().map(|held| &held.digest)
    }

    /// Replaces the loaded version and publishes its recipient.
    pub(super) fn replace(&self, found: Option<(BlobRef, Vec<Identity>)>) {
        let recipient = found.as_ref().and_then(|(_, all)| Some(all.first()?.to_public().to_string()));
        *lock(&self.held) =
            found.map(|(blob, identities)| Arc::new(LoadedIdentity { digest: blob.digest, identities }));
        publish(&self.recipients, recipient);
    }

    pub(super) fn recipients(&self) -> watch::Receiver<Option<String>> {
        self.recipients.subscribe()
    }
}
