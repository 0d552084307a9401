//! Carries a plan out: guarded transactions, several in flight, in the plan's order of kinds.
//!
//! Every transaction carries the leader's fence and a guard per key. A conflict is split until the
//! one key is found that changed meanwhile; it is left to the next plan. A lost fence ends it all.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use schema::codec;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::store::election::Fence;
use schema::store::{Guard, Op, SharedStore, StoreError, TXN_OPS_MAX, TxnOutcome};

mod guarded;
pub mod history;
pub mod record;
pub(super) mod triggered;

pub(super) use guarded::{fence_holds, guard_of_present, guarded};

use crate::gitops::plan::{Act, Over, Step, waves};

/// Transactions under way at once. More gain nothing on a single etcd, which writes in order.
const IN_FLIGHT_MAX: usize = 8;
/// Bytes of one transaction, well below etcd's 1.5 MiB.
const TXN_BYTES_MAX: usize = 1024 * 1024;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// Steps done.
    pub done: usize,
    /// Objects that changed meanwhile; the next plan sees them as they are.
    pub conflicts: Vec<ObjectRef>,
    /// Objects that can't be written as they are, and why; the others are.
    pub failed: Vec<(ObjectRef, codec::CodecError)>,
    /// Removals were not begun, because of these.
    pub removals_left: bool,
    /// Why it ended early.
    pub stopped: Option<Stopped>,
    /// Newest revision of the store that was written.
    pub revision: i64,
}

/// Why a plan was not carried out to its end.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// Another reconciler leads.
    #[error("another reconciler leads now")]
    FenceLost,
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the source owns could not be written down ahead of it.
    #[error("what the source owns can't be written beside its mirror: {0}")]
    OwnedRecord(std::io::Error),
    /// The status that the plan rests on could not be written ahead of it.
    #[error(transparent)]
    Ahead(record::RecordError),
}

impl Applied {
    /// Every step is done.
    pub fn is_complete(&self) -> bool {
        self.stopped.is_none() && self.conflicts.is_empty() && self.failed.is_empty()
    }

    /// What of it was not done, in a sentence that names no object that was.
    pub fn failure(&self) -> Option<String> {
        const NAMED_MAX: usize = 5;
        if let Some(why) = &self.stopped {
            return Some(format!("cannot apply to etcd: {why}; it is tried again"));
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
            "all other changes are applied, but nothing is removed before these are"
        } else {
            "all others are applied"
        }
    }

    fn take(&mut self, other: Applied) {
        self.done += other.done;
        self.conflicts.extend(other.conflicts);
        self.failed.extend(other.failed);
        self.revision = self.revision.max(other.revision);
        self.stopped = self.stopped.take().or(other.stopped);
    }
}

/// One guarded write of a batch.
#[derive(Debug, Clone)]
struct Write {
    object: ObjectRef,
    guard: Guard,
    op: Op,
}

/// Does `steps` wave by wave, removals only once everything else is done.
pub async fn apply(store: &SharedStore, fence: Fence, steps: &[Step]) -> Applied {
    let mut applied = Applied::default();
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

async fn apply_wave(store: &SharedStore, fence: Fence, wave: &[Step]) -> Applied {
    let mut applied = Applied::default();
    let mut writes = Vec::with_capacity(wave.len());
    for step in wave {
        match write_of(store, step).await {
            Ok(write) => writes.push(write),
            Err(Unwritten::Encode(why)) => applied.failed.push((step.object.clone(), why)),
            Err(Unwritten::Store(error)) => {
                applied.stopped = Some(error.into());
                return applied;
            }
        }
    }
    let removes = wave.first().is_some_and(|step| matches!(step.act, Act::Delete));
    let in_flight = if removes { 1 } else { IN_FLIGHT_MAX };
    let batches = stream::iter(batches(writes)).map(|batch| apply_batch(store, fence, batch));
    let mut outcomes = batches.buffer_unordered(in_flight);
    while let Some(outcome) = outcomes.next().await {
        applied.take(outcome);
        if applied.stopped.is_some() {
            // Those in flight end or not: either way the next plan is made against what is there.
            break;
        }
    }
    applied
}

/// Why a step did not become a write.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error(transparent)]
    Encode(#[from] codec::CodecError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

async fn write_of(store: &SharedStore, step: &Step) -> Result<Write, Unwritten> {
    let key = Key::Object(step.object.clone()).to_string();
    let guard = match step.over {
        Over::Nothing => Guard::Absent(key.clone()),
        Over::Revision(revision) => Guard::ModRevision(key.clone(), revision),
        Over::Unreadable => guard_of_present(store, &key).await?,
    };
    let op = match &step.act {
        Act::Create(object) | Act::Update(object) | Act::Replace(object) => {
            Op::put(&key, Bytes::from(codec::encode(&**object)?))
        }
        Act::Delete => Op::delete(&key),
    };
    Ok(Write { object: step.object.clone(), guard, op })
}

/// As few transactions as their limits allow; one guard each is the fence.
fn batches(writes: Vec<Write>) -> Vec<Vec<Write>> {
    let mut batches: Vec<Vec<Write>> = Vec::new();
    let mut bytes = 0;
    for write in writes {
        let size = match &write.op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
        };
        match batches.last_mut() {
            Some(batch) if batch.len() + 1 < TXN_OPS_MAX && bytes + size <= TXN_BYTES_MAX => {
                batch.push(write);
                bytes += size;
            }
            _ => {
                batches.push(vec![write]);
                bytes = size;
            }
        }
    }
    batches
}

/// Writes a batch; on a conflict its halves, down to the key that changed.
async fn apply_batch(store: &SharedStore, fence: Fence, batch: Vec<Write>) -> Applied {
    let mut applied = Applied::default();
    let mut todo = vec![batch];
    while let Some(mut batch) = todo.pop() {
        let guards =
            std::iter::once(fence.guard()).chain(batch.iter().map(|write| write.guard.clone())).collect();
        let ops = batch.iter().map(|write| write.op.clone()).collect();
        match store.txn(guards, ops).await {
            Ok(TxnOutcome::Committed(revision)) => {
                applied.done += batch.len();
                applied.revision = applied.revision.max(revision);
            }
            Ok(TxnOutcome::Conflict) => match fence_holds(store, fence).await {
                Ok(true) if batch.len() > 1 => {
                    todo.push(batch.split_off(batch.len() / 2));
                    todo.push(batch);
                }
                Ok(true) => applied.conflicts.extend(batch.into_iter().map(|write| write.object)),
                Ok(false) => applied.stopped = Some(Stopped::FenceLost),
                Err(error) => applied.stopped = Some(error.into()),
            },
            Err(error) => applied.stopped = Some(error.into()),
        }
        if applied.stopped.is_some() {
            break;
        }
    }
    applied
}

/// How many steps there are by kind, for logs.
pub fn summary(steps: &[Step]) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    for step in steps {
        *counts.entry(step.object.kind).or_default() += 1;
    }
    counts
}
