//! Executes a plan: guarded transactions, several in flight, in the plan's order of kinds.
//!
//! Every transaction carries the leader's fence and a guard per key. A key that changed in the meantime is left to
//! the next plan. A lost fence ends the whole run.

use std::collections::BTreeMap;

use bytes::Bytes;
use schema::codec;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::store::election::Fence;
use schema::store::{Guard, Op, SharedStore, StoreError};

pub mod record;
pub(super) mod triggered;

use crate::gitops::plan::{Act, Precondition, Step, waves};
use crate::guarded_writes::{self, PARALLEL, WriteGroup, guard_of_present};

/// Outcome of executing a plan.
#[derive(Debug, Default)]
pub struct ApplyResult {
    /// Number of steps done.
    pub done: usize,
    /// Objects that changed in the meantime; the next plan reads their new state.
    pub conflicts: Vec<ObjectRef>,
    /// Objects that can't be encoded, with the reason; the others are written.
    pub failed: Vec<(ObjectRef, codec::CodecError)>,
    /// Set if conflicts or failures kept the removals from starting.
    pub removals_left: bool,
    /// Reason for an early end.
    pub stopped: Option<StopReason>,
    /// Newest store revision written.
    pub revision: i64,
}

/// Reason why a plan was not executed to its end.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// Another reconciler leads.
    #[error("another reconciler leads now")]
    FenceLost,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The record of the source's objects could not be written beforehand.
    #[error("cannot write the source's owned objects next to its mirror: {0}")]
    OwnedRecord(std::io::Error),
    /// The status that the plan relies on could not be written beforehand.
    #[error(transparent)]
    Ahead(record::RecordError),
}

impl ApplyResult {
    /// True if every step is done.
    pub fn is_complete(&self) -> bool {
        self.stopped.is_none() && self.conflicts.is_empty() && self.failed.is_empty()
    }

    /// Describes the failures in a sentence that names no object that was written.
    pub fn failure(&self) -> Option<String> {
        const NAMED_MAX: usize = 5;
        if let Some(why) = &self.stopped {
            return Some(format!("cannot apply to etcd: {why}; retrying"));
        }
        let named = self.failed.iter().take(NAMED_MAX).map(|(object, why)| format!("{object}: {why}"));
        let named: Vec<String> = named.collect();
        let more = self.failed.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        (!named.is_empty())
            .then(|| format!("cannot apply to etcd: {}{more}; {}", named.join("; "), self.besides()))
    }

    fn besides(&self) -> &'static str {
        if self.removals_left {
            "all other changes are applied, but nothing is removed until these are"
        } else {
            "all others are applied"
        }
    }

    fn take(&mut self, other: ApplyResult) {
        self.done += other.done;
        self.conflicts.extend(other.conflicts);
        self.failed.extend(other.failed);
        self.revision = self.revision.max(other.revision);
        self.stopped = self.stopped.take().or(other.stopped);
    }
}

/// Executes `steps` wave by wave, removals only once everything else is done.
pub async fn apply(store: &SharedStore, fence: Fence, steps: &[Step]) -> ApplyResult {
    let mut applied = ApplyResult::default();
    for wave in waves(steps) {
        let removes = wave.first().is_some_and(|step| matches!(step.act, Act::Delete));
        if removes && !applied.is_complete() {
            applied.removals_left = true;
            break;
        }
        applied.take(apply_wave(store, fence, wave).await);
        if applied.stopped.is_some() {
            break;
        }
    }
    applied
}

async fn apply_wave(store: &SharedStore, fence: Fence, wave: &[Step]) -> ApplyResult {
    let mut applied = ApplyResult::default();
    let (mut objects, mut groups) = (Vec::with_capacity(wave.len()), Vec::with_capacity(wave.len()));
    for step in wave {
        match group_of(store, step).await {
            Ok(group) => {
                objects.push(&step.object);
                groups.push(group);
            }
            Err(WriteError::Encode(why)) => applied.failed.push((step.object.clone(), why)),
            Err(WriteError::Store(error)) => {
                applied.stopped = Some(error.into());
                return applied;
            }
        }
    }
    let removes = wave.first().is_some_and(|step| matches!(step.act, Act::Delete));
    let parallel = if removes { 1 } else { PARALLEL };
    let written = guarded_writes::write(store.as_ref(), fence, &groups, parallel).await;
    applied.done = written.done.len();
    applied.revision = written.revision;
    applied.conflicts.extend(written.conflicts.into_iter().map(|number| objects[number].clone()));
    applied.stopped = written.stopped.map(|stopped| match stopped {
        guarded_writes::StopReason::FenceLost => StopReason::FenceLost,
        guarded_writes::StopReason::Store(error) => error.into(),
    });
    applied
}

/// Reason why a step did not become a write.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Encode(#[from] codec::CodecError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

async fn group_of(store: &SharedStore, step: &Step) -> Result<WriteGroup, WriteError> {
    let key = Key::Object(step.object.clone()).to_string();
    let guard = match step.precondition {
        Precondition::Nothing => Guard::Absent(key.clone()),
        Precondition::Revision(revision) => Guard::ModRevision(key.clone(), revision),
        Precondition::Unreadable => guard_of_present(store, &key).await?,
    };
    let op = match step.object_after() {
        Some(object) => Op::put(&key, Bytes::from(codec::encode(&**object)?)),
        None => Op::delete(&key),
    };
    Ok(vec![(guard, op)])
}

/// Counts steps by kind, for logs.
pub fn summary(steps: &[Step]) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    for step in steps {
        *counts.entry(step.object.kind).or_default() += 1;
    }
    counts
}
