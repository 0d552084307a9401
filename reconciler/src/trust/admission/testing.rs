//! An admission over a store in memory, with an authority of its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use schema::store::memory::MemoryStore;
use schema::testing::at;
use schema::trust::{AUTHORITY_DAYS, KeyPair, LEAF_DAYS};

use super::super::setup::{TrustSettings, open};
use super::*;

/// Users of etcd that exist only as a list of calls, and the names of members. Clones share both.
#[derive(Clone, Default)]
pub(super) struct FakeAccounts {
    pub(super) calls: Arc<Mutex<Vec<String>>>,
    pub(super) denies: bool,
    pub(super) members: Arc<Mutex<BTreeSet<String>>>,
    /// Set while members cannot be removed.
    pub(super) keeps_members: Arc<AtomicBool>,
}

impl FakeAccounts {
    fn outcome(&self, act: &str, identity: &Identity) -> Result<UserOutcome, StoreError> {
        lock(&self.calls).push(format!("{act} {identity}"));
        Ok(if self.denies { UserOutcome::NotAllowed("denied".to_owned()) } else { UserOutcome::Done })
    }
}

#[async_trait]
impl Accounts for FakeAccounts {
    async fn ensure(&self, identity: &Identity) -> Result<UserOutcome, StoreError> {
        self.outcome("ensure", identity)
    }

    async fn remove(&self, identity: &Identity) -> Result<UserOutcome, StoreError> {
        self.outcome("remove", identity)
    }

    async fn remove_member(&self, name: &str) -> Result<bool, StoreError> {
        if self.keeps_members.load(Ordering::Relaxed) {
            let message = "etcdserver: re-configuration failed due to not enough started members".to_owned();
            return Err(StoreError::Request { act: "the removal of a member", message });
        }
        Ok(lock(&self.members).remove(name))
    }
}

/// Dependencies of the admission of reconciler `r1`, whose state is in `dir`.
pub(super) fn deps(dir: &Path, store: &Arc<MemoryStore>, snapshot: SnapshotReader) -> AdmissionDeps {
    let lifetime = SignedDuration::from_hours(24 * i64::from(LEAF_DAYS));
    let settings = TrustSettings {
        name: "r1".to_owned(),
        addresses: Vec::new(),
        authority_days: AUTHORITY_DAYS,
        certificate_lifetime: lifetime,
    };
    AdmissionDeps {
        store: store.clone(),
        snapshot,
        events: EventRecorder::disabled(),
        own: open(dir, &settings, at(0)).unwrap(),
        accounts: Box::new(FakeAccounts::default()),
        owns_etcd: true,
        etcd: vec!["https://10.0.0.5:7079".to_owned()],
        api: vec!["https://10.0.0.5:7070".to_owned()],
        lifetime,
    }
}

/// The admission of reconciler `r1`, for tests in which no key is revoked: its folder is gone.
pub(crate) fn admission(store: &Arc<MemoryStore>, snapshot: SnapshotReader) -> Arc<Admission> {
    let dir = tempfile::tempdir().unwrap();
    Arc::new(Admission::new(deps(dir.path(), store, snapshot)))
}

/// A signing request of a new key, and its fingerprint.
pub(crate) fn signing_request(identity: &str) -> (String, KeyFingerprint) {
    let key = KeyPair::generate().unwrap();
    let request = key.signing_request(&identity.parse().unwrap()).unwrap();
    (request, key.public_key().unwrap().fingerprint().unwrap())
}
