//! Single intake of sync requests: from webhooks and `minik8s sync`.
//!
//! First nudges the loop of this process, then writes the request, which wakes the leader if that is another
//! process. Without etcd there is only the nudge.

use std::time::Duration;

use jiff::Timestamp;
use schema::codec::{CodecError, decode, encode};
use schema::control::{Nudge, error_chain};
use schema::keys::Key;
use schema::records::{Provider, RequestOutcome, SyncRequest};
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, LeaseId, Op, SharedStore, StoreError, TxnOutcome};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::decide::Decision;
use super::payload::Hint;
use super::provider::{EventKind, event_kind};
use super::{decide, payload};
use crate::git::Reference;

#[derive(Debug, Clone)]
pub struct SourceTarget {
    pub source: String,
    pub follows: Reference,
    pub nudge: Nudge,
}

impl SourceTarget {
    /// Creates the target of a source that follows a branch.
    pub fn of_branch(source: &str, branch: &str, nudge: Nudge) -> Self {
        Self { source: source.to_owned(), follows: Reference::Branch(branch.to_owned()), nudge }
    }
}

pub struct Intake {
    targets: Vec<SourceTarget>,
    pub(super) snapshot: SnapshotReader,
    pub(super) requests: RequestStore,
    pub(super) identity: String,
}

/// An authenticated request.
#[derive(Debug, Clone)]
pub struct IncomingRequest {
    pub provider: Provider,
    /// The provider's name of the event.
    pub event: String,
    pub id: Option<String>,
    pub hint: Hint,
    /// SHA-256 of the body in hex; empty without a body.
    pub body: String,
    pub peer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub request: String,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    Accepted,
    Repeated,
    Duplicate,
    Ignored,
}

impl Intake {
    /// Creates an intake for `targets`, at the reconciler `identity`.
    pub fn new(
        targets: Vec<SourceTarget>,
        snapshot: SnapshotReader,
        store: SharedStore,
        identity: impl Into<String>,
    ) -> Self {
        Self { targets, snapshot, requests: RequestStore::new(store), identity: identity.into() }
    }

    pub fn targets(&self) -> &[SourceTarget] {
        &self.targets
    }

    /// Finds the source of that name; without a name, the only source.
    pub fn target(&self, source: Option<&str>) -> Option<&SourceTarget> {
        match (source, self.targets.as_slice()) {
            (Some(name), targets) => targets.iter().find(|target| target.source == name),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// Accepts a request. Never fails: a request that can't be written still nudges the loop.
    pub async fn accept(&self, target: &SourceTarget, incoming: IncomingRequest) -> Receipt {
        let ignored = match event_kind(&incoming.event) {
            EventKind::Push => payload::not_followed(&target.follows, &incoming.hint),
            EventKind::Ping => Some("a ping requests nothing".to_owned()),
            EventKind::Other => Some(format!("`{}` moves no branch or tag", incoming.event)),
        };
        // Before the nudge: the run that it wakes begins after this time, and answers the request.
        let received_at = Timestamp::now();
        if ignored.is_none() {
            // Before anything that may take time, and even for a repeated request.
            target.nudge.nudge();
        }
        let own_id = incoming.id.clone();
        let new = self.request(target, incoming, ignored, received_at);
        let taken = match self.note(&new, own_id.is_some()).await {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(
                    source = target.source,
                    error = error_chain(&error),
                    "sync request not written; this reconciler checks anyway if it leads"
                );
                let outcome = if new.outcome == RequestOutcome::Accepted {
                    Outcome::Accepted
                } else {
                    Outcome::Ignored
                };
                let note = format!(
                    "cannot write the sync request: {error}; this reconciler checks anyway if it leads"
                );
                Receipt { request: new.id.clone(), outcome, note: Some(note) }
            }
        };
        tracing::info!(
            source = new.source, request = taken.request, provider = %new.provider, event = new.event,
            peer = new.peer, outcome = ?taken.outcome, note = taken.note, "sync request received"
        );
        taken
    }

    fn request(
        &self,
        target: &SourceTarget,
        incoming: IncomingRequest,
        ignored: Option<String>,
        received_at: Timestamp,
    ) -> SyncRequest {
        let mut new = SyncRequest {
            id: String::new(),
            provider: incoming.provider,
            event: incoming.event,
            source: target.source.clone(),
            repository: incoming.hint.repository,
            reference: incoming.hint.reference,
            commit_hint: incoming.hint.commit,
            received_at,
            repeated_at: None,
            repeats: 0,
            peer: incoming.peer,
            body: incoming.body,
            by: self.identity.clone(),
            outcome: ignored.map_or(RequestOutcome::Accepted, |why| RequestOutcome::Ignored { why }),
        };
        new.id = decide::id(&new, incoming.id.as_deref());
        new
    }

    /// Writes the request, or counts it at the earlier one. Without a guard: the later of two stays and is answered.
    async fn note(&self, new: &SyncRequest, has_own_id: bool) -> Result<Receipt, SyncRequestError> {
        let requests = &self.snapshot.current().requests;
        let known = match requests.get(&new.id) {
            Some(known) => Some(known.value.clone()),
            // The earlier request may be very recent: etcd is newer than the snapshot.
            None => self.requests.read(&Key::Request(new.id.clone())).await?,
        };
        let (id, outcome) = match decide::decide(requests, known.as_ref(), new, has_own_id) {
            Decision::Duplicate { id } => (id, Outcome::Duplicate),
            Decision::Write { remove } => {
                self.write(new, &remove).await?;
                (new.id.clone(), Outcome::Accepted)
            }
            Decision::Repeat(request) => {
                self.write(&request, &[]).await?;
                (request.id.clone(), Outcome::Repeated)
            }
        };
        let (outcome, note) = match &new.outcome {
            RequestOutcome::Ignored { why } => (ignored(outcome), Some(why.clone())),
            RequestOutcome::Accepted => (outcome, None),
        };
        Ok(Receipt { request: id, outcome, note })
    }

    async fn write(&self, request: &SyncRequest, remove: &[Key]) -> Result<(), SyncRequestError> {
        let key = Key::Request(request.id.clone());
        self.requests.write(&key, request, Vec::new(), remove).await.map(|_| ())
    }
}

fn ignored(outcome: Outcome) -> Outcome {
    if outcome == Outcome::Duplicate { outcome } else { Outcome::Ignored }
}

/// Formats a SHA-256 in hex, as in a request.
pub(super) fn digest(hash: Sha256) -> String {
    hex::encode(hash.finalize())
}

// Writes `requests/` and `answers/` with a lease shared by all writes of an hour.

/// Lifetime of a lease. A request lives at least a day, since a lease accepts new ones for [`LEASE_SHARED`].
const LEASE_TTL: Duration = Duration::from_secs(25 * 3600);
/// Time during which a lease is used for new requests.
const LEASE_SHARED: Duration = Duration::from_secs(3600);
/// Longest time for a read or write: the sender waits for it, and most wait 10 s.
const ETCD_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(super) enum SyncRequestError {
    #[error("it is not valid JSON")]
    Encode(#[source] CodecError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("etcd did not answer within {}s", ETCD_TIMEOUT.as_secs())]
    Slow,
}

/// The requests in etcd, and the lease for new ones.
#[derive(Clone)]
pub(super) struct RequestStore {
    store: SharedStore,
    lease: std::sync::Arc<Mutex<Option<(LeaseId, Instant)>>>,
}

impl RequestStore {
    pub(super) fn new(store: SharedStore) -> Self {
        Self { store, lease: std::sync::Arc::default() }
    }

    /// Writes a key if the guards hold, and removes others in the same transaction.
    pub(super) async fn write(
        &self,
        key: &Key,
        value: &impl Serialize,
        guards: Vec<Guard>,
        remove: &[Key],
    ) -> Result<TxnOutcome, SyncRequestError> {
        let value = encode(value).map_err(SyncRequestError::Encode)?;
        let key = key.to_string();
        let written = timeout(ETCD_TIMEOUT, async {
            // The lease may be gone with an etcd that was recreated: then try again with a new one.
            for last in [false, true] {
                let lease = self.lease().await?;
                let put = Op::Put { key: key.clone(), value: value.clone().into(), lease: Some(lease) };
                let removed = remove.iter().map(Op::delete);
                let ops = std::iter::once(put).chain(removed).collect();
                match self.store.txn(guards.clone(), ops).await {
                    Err(StoreError::LeaseLost(_)) if !last => *self.lease.lock().await = None,
                    outcome => return Ok(outcome?),
                }
            }
            Ok(TxnOutcome::Conflict)
        });
        written.await.unwrap_or(Err(SyncRequestError::Slow))
    }

    /// Reads the current value in etcd; `None` if it is missing or unreadable.
    pub(super) async fn read<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, SyncRequestError> {
        let found = timeout(ETCD_TIMEOUT, self.store.get(&key.to_string())).await;
        let found = found.map_err(|_| SyncRequestError::Slow)??;
        Ok(found.and_then(|found| decode(&found.value).ok()))
    }

    async fn lease(&self) -> Result<LeaseId, StoreError> {
        let mut held = self.lease.lock().await;
        if let Some((lease, since)) = *held
            && since.elapsed() < LEASE_SHARED
        {
            return Ok(lease);
        }
        let since = Instant::now();
        let lease = self.store.lease_grant(LEASE_TTL).await?;
        *held = Some((lease, since));
        Ok(lease)
    }
}
