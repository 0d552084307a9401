//! Carries a plan out: guarded transactions, several in flight, in the plan's order of kinds.
//!
//! Every transaction carries the leader's fence and a guard per key. A conflict is split until the
//! one key is found that changed meanwhile; it is left to the next plan. A lost fence ends it all.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use schema::codec;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::store::election::Fence;
use schema::store::{Guard, Op, SharedStore, StoreError, TXN_OPS_MAX, TxnOutcome};

use super::plan::{Act, Over, Step};

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
    /// The status that the plan rests on could not be written ahead of it.
    #[error(transparent)]
    Ahead(super::record::RecordError),
    /// An object does not fit under its key.
    #[error("{object} cannot be written: {why}")]
    Encode {
        /// Which.
        object: ObjectRef,
        /// Why.
        why: codec::CodecError,
    },
}

impl Applied {
    /// Every step is done.
    pub fn is_complete(&self) -> bool {
        self.stopped.is_none() && self.conflicts.is_empty()
    }

    fn take(&mut self, other: Applied) {
        self.done += other.done;
        self.conflicts.extend(other.conflicts);
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

/// Does `steps`: kind by kind, removals only once everything else is done.
pub async fn apply(store: &SharedStore, fence: Fence, steps: &[Step]) -> Applied {
    let mut applied = Applied::default();
    let wave_of = |step: &Step| (step.object.kind, matches!(step.act, Act::Delete));
    for wave in steps.chunk_by(|one, next| wave_of(one) == wave_of(next)) {
        let removes = wave.first().is_some_and(|step| matches!(step.act, Act::Delete));
        if removes && !applied.is_complete() {
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
            Err(stopped) => {
                applied.stopped = Some(stopped);
                return applied;
            }
        }
    }
    let batches = stream::iter(batches(writes)).map(|batch| apply_batch(store, fence, batch));
    let mut outcomes = batches.buffer_unordered(IN_FLIGHT_MAX);
    while let Some(outcome) = outcomes.next().await {
        applied.take(outcome);
        if applied.stopped.is_some() {
            // Those in flight end or not: either way the next plan is made against what is there.
            break;
        }
    }
    applied
}

async fn write_of(store: &SharedStore, step: &Step) -> Result<Write, Stopped> {
    let key = Key::Object(step.object.clone()).to_string();
    let guard = match step.over {
        Over::Nothing => Guard::Absent(key.clone()),
        Over::Revision(revision) => Guard::ModRevision(key.clone(), revision),
        Over::Unreadable => guard_of_present(store, &key).await?,
    };
    let op = match &step.act {
        Act::Create(object) | Act::Update(object) | Act::Replace(object) => {
            Op::put(&key, encode(&step.object, object)?)
        }
        Act::Delete => Op::delete(&key),
    };
    Ok(Write { object: step.object.clone(), guard, op })
}

/// A guard on a key as it is now, readable or not.
pub(super) async fn guard_of_present(store: &SharedStore, key: &str) -> Result<Guard, StoreError> {
    let found = store.get(key).await?;
    Ok(found.map_or_else(
        || Guard::Absent(key.to_owned()),
        |item| Guard::ModRevision(item.key, item.mod_revision),
    ))
}

fn encode(reference: &ObjectRef, object: &Arc<Object>) -> Result<Bytes, Stopped> {
    let encoded = codec::encode(&**object);
    encoded.map(Bytes::from).map_err(|why| Stopped::Encode { object: reference.clone(), why })
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

/// One transaction under the fence. `None`: it was not done, because something changed meanwhile
/// or another one leads.
pub(super) async fn guarded(
    store: &SharedStore,
    fence: Fence,
    guards: Vec<Guard>,
    ops: Vec<Op>,
) -> Result<Option<i64>, StoreError> {
    let guards = std::iter::once(fence.guard()).chain(guards).collect();
    match store.txn(guards, ops).await? {
        TxnOutcome::Committed(revision) => Ok(Some(revision)),
        TxnOutcome::Conflict => Ok(None),
    }
}

/// This fence still is the leader's.
pub(super) async fn fence_holds(store: &SharedStore, fence: Fence) -> Result<bool, StoreError> {
    let leader = store.get(&Key::Leader.to_string()).await?;
    Ok(leader.is_some_and(|leader| leader.create_revision == fence.create_revision))
}

/// How many steps there are by kind, for logs.
pub fn summary(steps: &[Step]) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    for step in steps {
        *counts.entry(step.object.kind).or_default() += 1;
    }
    counts
}
