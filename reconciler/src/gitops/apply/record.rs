//! Writes a source's status, revisions and events.
//!
//! Status and revision go in one transaction: a commit is applied with its revision or not at all.

use std::time::Duration;

use schema::codec;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{EventType, Revision, SourceStatus, WaitingObject};
use schema::snapshot::{Snapshot, Table, VersionedValue};
use schema::store::election::Fence;
use schema::store::events::{EventDraft, EventRecorder};
use schema::store::{Guard, Op, SharedStore, StoreError};

use crate::git::FirstSeen;
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
pub(in crate::gitops) struct StatusTarget<'a> {
    pub(in crate::gitops) store: &'a SharedStore,
    pub(in crate::gitops) fence: Fence,
    pub(in crate::gitops) snapshot: &'a Snapshot,
    /// Revision of the existing status; `None` if there is none.
    pub(in crate::gitops) before: Option<i64>,
}

impl StatusTarget<'_> {
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
            for (sequence, at) in expired(&self.snapshot.revisions, name, EXPIRED_PER_RUN_MAX) {
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
    events.record(EventDraft::about(kind, "Source", &NamespacedName::new("", source), reason, message));
}

/// Reports objects that were written although their dependencies are not healthy.
pub(in crate::gitops) fn record_overdue(events: &EventRecorder, source: &str, overdue: &[WaitingObject]) {
    for WaitingObject { object, on, why, .. } in overdue {
        let message =
            format!("{object} no longer waits for {on}, which did not become healthy in time: {why}");
        record_about(events, source, EventType::Warning, "WaitOver", message);
    }
}

/// Reports that content of a commit could not be stored on this reconciler's disk.
pub(in crate::gitops) fn record_missing_content(events: &EventRecorder, source: &str, why: &str) {
    let message =
        format!("{why}; agents get it only if it can be rebuilt on request: free space on that disk");
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
    if let Some(revision) = revision {
        let (counts, took) = (&revision.counts, Duration::from_millis(revision.duration_ms));
        tracing::info!(
            created = counts.create,
            updated = counts.update,
            replaced = counts.replace,
            removed = counts.delete,
            held = counts.held,
            quarantined = counts.quarantined,
            waiting = counts.waiting,
            ?took,
            "commit applied"
        );
    }
    for news in status::news(before, after, revision) {
        if news.warning {
            tracing::warn!(reason = news.reason, error = news.message, "source needs attention");
        }
        let kind = if news.warning { EventType::Warning } else { EventType::Normal };
        record_about(events, &after.name, kind, news.reason, news.message);
    }
}

// Revisions of a source: the next number, the expired ones, the last complete one. Pure.

/// Number of revisions kept per source.
pub const KEPT: usize = 100;

/// Returns the number of the next revision. `last` is the number in the source's status.
pub fn next_sequence(revisions: &Table<(String, u64), Revision>, source: &str, last: u64) -> u64 {
    let newest = revisions_for(revisions, source).next_back().map_or(0, |(sequence, _)| sequence);
    newest.max(last) + 1
}

/// Returns at most `max` revisions to remove when one more is written, each with its mod revision.
pub fn expired(revisions: &Table<(String, u64), Revision>, source: &str, max: usize) -> Vec<(u64, i64)> {
    let surplus = (revisions_for(revisions, source).count() + 1).saturating_sub(KEPT);
    revisions_for(revisions, source)
        .take(surplus.min(max))
        .map(|(sequence, entry)| (sequence, entry.mod_revision))
        .collect()
}

/// Returns the newest commit whose removals were all done.
pub fn newest_pruned(revisions: &Table<(String, u64), Revision>, source: &str) -> Option<String> {
    newest(revisions, source, |revision| revision.counts.held == 0)
}

/// Returns the commits of a source that were applied, each with the first time.
pub fn first_applied(revisions: &Table<(String, u64), Revision>, source: &str) -> FirstSeen {
    let mut all = FirstSeen::new();
    for revision in revisions.values().map(|found| &found.value).filter(|revision| revision.source == source)
    {
        let first = all.entry(revision.commit.clone()).or_insert(revision.applied_at);
        *first = (*first).min(revision.applied_at);
    }
    all
}

/// Returns the newest commit that was applied completely; quarantined files were not applied.
pub fn newest_complete(revisions: &Table<(String, u64), Revision>, source: &str) -> Option<String> {
    newest(revisions, source, is_whole)
}

/// True if the whole commit was applied.
pub fn is_whole(revision: &Revision) -> bool {
    revision.counts.held == 0 && revision.counts.quarantined == 0
}

fn newest(
    revisions: &Table<(String, u64), Revision>,
    source: &str,
    is_it: impl Fn(&Revision) -> bool,
) -> Option<String> {
    let mut newest = revisions_for(revisions, source).rev();
    newest.find(|(_, entry)| is_it(&entry.value)).map(|(_, entry)| entry.value.commit.clone())
}

fn revisions_for<'a>(
    revisions: &'a Table<(String, u64), Revision>,
    source: &str,
) -> impl DoubleEndedIterator<Item = (u64, &'a VersionedValue<Revision>)> + use<'a> {
    let range = (source.to_owned(), 0)..=(source.to_owned(), u64::MAX);
    revisions.range(range).map(|((_, sequence), revision)| (*sequence, &**revision))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use schema::records::{ChangeCounts, Verdict};

    use super::*;

    fn table(sequences: impl IntoIterator<Item = u64>) -> Table<(String, u64), Revision> {
        let mut table = Table::new();
        for (source, sequence) in sequences.into_iter().flat_map(|n| [("main", n), ("other", n * 7)]) {
            let counts = ChangeCounts {
                held: sequence % 2,
                quarantined: u64::from(sequence % 4 == 0),
                ..ChangeCounts::default()
            };
            let value = Revision {
                source: source.into(),
                sequence,
                commit: format!("{source}-{sequence}"),
                author: String::new(),
                subject: String::new(),
                committed_at: Timestamp::UNIX_EPOCH,
                applied_at: Timestamp::UNIX_EPOCH,
                duration_ms: 0,
                counts,
                removed: vec![],
                verdict: Verdict::Applied,
                decided_at: None,
                plan: None,
                timeline: None,
            };
            let versioned = VersionedValue { value, create_revision: 1, mod_revision: 1 };
            table.insert((source.to_owned(), sequence), Arc::new(versioned));
        }
        table
    }

    #[test]
    fn numbers_go_on_even_when_the_history_is_lost() {
        assert_eq!(next_sequence(&table([]), "main", 0), 1);
        assert_eq!(next_sequence(&table([]), "main", 7), 8);
        assert_eq!(next_sequence(&table(1..=9), "main", 3), 10);
    }

    #[test]
    fn the_newest_hundred_are_kept() {
        assert!(expired(&table(1..=99), "main", 50).is_empty());
        assert_eq!(expired(&table(1..=100), "main", 50), [(1, 1)]);
        assert_eq!(expired(&table(1..=200), "main", 3), [(1, 1), (2, 1), (3, 1)]);
    }

    #[test]
    fn the_base_is_the_newest_without_a_held_prune() {
        assert_eq!(newest_pruned(&table([]), "main"), None);
        assert_eq!(newest_pruned(&table(1..=5), "main").as_deref(), Some("main-4"));
        assert_eq!(newest_complete(&table(1..=5), "main").as_deref(), Some("main-2"));
    }
}
