//! Writes a source's status, revisions and events.
//!
//! Status and revision go in one transaction: a commit is applied with its revision or not at all.

use schema::codec;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{EventType, Revision, SourceStatus, Waiting};
use schema::snapshot::Snapshot;
use schema::store::election::Fence;
use schema::store::events::{EventDraft, EventRecorder};
use schema::store::{Guard, Op, SharedStore, StoreError};

use super::history;
use crate::gitops::{bounds, status};
use crate::guarded_writes::{fence_holds, guard_of_present, guarded};

/// Limit on old revisions removed along with a new one.
const EXPIRED_PER_RUN_MAX: usize = 50;

/// Reason why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The status does not fit under its key.
    #[error("the status of the source cannot be written: {0}")]
    Encode(#[from] codec::CodecError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored status is not the one in the snapshot.
    #[error("the status of the source changed meanwhile")]
    Changed,
    /// Another reconciler leads.
    #[error("another reconciler leads now")]
    FenceLost,
}

/// Target of a status write: the store, the leader's fence and the revision to replace.
pub(in crate::gitops) struct Place<'a> {
    pub(in crate::gitops) store: &'a SharedStore,
    pub(in crate::gitops) fence: Fence,
    pub(in crate::gitops) snapshot: &'a Snapshot,
    /// Revision of the existing status; `None` if there is none.
    pub(in crate::gitops) before: Option<i64>,
}

impl Place<'_> {
    /// Writes status and revision; returns the store's revision.
    pub(in crate::gitops) async fn write(
        &self,
        status: &SourceStatus,
        revision: Option<&Revision>,
    ) -> Result<i64, RecordError> {
        let name = &status.name;
        let key = Key::Source(name.clone()).to_string();
        let mut guards = vec![self.guard(&key).await?];
        let mut ops = vec![Op::put(&key, codec::encode(status)?)];
        if let Some(revision) = revision {
            let key = Key::Revision(name.clone(), revision.sequence).to_string();
            guards.push(Guard::Absent(key.clone()));
            ops.push(Op::put(key, codec::encode(&bounds::revision(revision.clone()))?));
            for (sequence, at) in history::expired(&self.snapshot.revisions, name, EXPIRED_PER_RUN_MAX) {
                let key = Key::Revision(name.clone(), sequence).to_string();
                guards.push(Guard::ModRevision(key.clone(), at));
                ops.push(Op::delete(key));
            }
        }
        match guarded(self.store, self.fence, guards, ops).await? {
            Some(at) => Ok(at),
            None if fence_holds(self.store.as_ref(), self.fence).await? => Err(RecordError::Changed),
            None => Err(RecordError::FenceLost),
        }
    }

    async fn guard(&self, key: &str) -> Result<Guard, StoreError> {
        match self.before {
            Some(revision) => Ok(Guard::ModRevision(key.to_owned(), revision)),
            None if self.snapshot.malformed.contains_key(key) => guard_of_present(self.store, key).await,
            None => Ok(Guard::Absent(key.to_owned())),
        }
    }
}

/// Reports an event about a source.
pub(in crate::gitops) fn record_about(
    events: &EventRecorder,
    source: &str,
    kind: EventType,
    reason: &str,
    message: String,
) {
    events.record(EventDraft::of(kind, "Source", &NamespacedName::new("", source), reason, message));
}

/// Reports objects that were written although their dependencies are not healthy.
pub(in crate::gitops) fn record_overdue(events: &EventRecorder, source: &str, overdue: &[Waiting]) {
    for Waiting { object, on, why, .. } in overdue {
        let message =
            format!("{object} no longer waits for {on}, which did not become healthy in time: {why}");
        record_about(events, source, EventType::Warning, "WaitOver", message);
    }
}

/// Reports that content of a commit could not be stored on this reconciler's disk.
pub(in crate::gitops) fn record_unkept(events: &EventRecorder, source: &str, why: &str) {
    let message =
        format!("{why}; agents get it only if it can be rebuilt when they ask: make room on that disk");
    record_about(events, source, EventType::Warning, "ContentNotKept", message);
}

/// Reports commits without a run although a trigger names them.
pub(in crate::gitops) fn record_unstarted(events: &EventRecorder, source: &str, why: &str) {
    let message = format!("{why}; start what is missing with 'minik8s run'");
    record_about(events, source, EventType::Warning, "TriggerNotStarted", message);
}

/// Reports the news between two statuses.
pub(in crate::gitops) fn record_news(
    events: &EventRecorder,
    before: Option<&SourceStatus>,
    after: &SourceStatus,
    revision: Option<&Revision>,
) {
    for news in status::news(before, after, revision) {
        let kind = if news.warning { EventType::Warning } else { EventType::Normal };
        record_about(events, &after.name, kind, news.reason, news.message);
    }
}
