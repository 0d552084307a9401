//! Carries guarded writes out: transactions as large as etcd takes them, a few at a time.
//!
//! Every transaction carries the leader's fence. One that meets a conflict is tried in halves, so
//! that one key that moved on holds up no other.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::stream;
use schema::store::{Guard, Op, Store, StoreError, TXN_MAX_BYTES, TXN_OPS_MAX, TxnOutcome};

use super::writes::Write;

/// Transactions under way at once. Measured on etcd: 16 do 10,000 values in 0.12 s; 8 leave it air.
const PARALLEL: usize = 8;
/// Guards of a transaction besides the fence.
const WRITES_MAX: usize = TXN_OPS_MAX - 1;
/// A transaction is closed before it grows beyond: half of what etcd takes.
const BYTES_MAX: usize = TXN_MAX_BYTES / 2;

/// What became of a plan's writes.
#[derive(Debug, Default)]
pub(super) struct Committed {
    /// Numbers of the writes that are done, ascending.
    pub(super) done: Vec<usize>,
    /// Writes whose key was not as the plan saw it; the next plan sees it.
    pub(super) conflicts: usize,
    /// Newest revision of a write that is done; 0 when none is.
    pub(super) revision: i64,
    /// Another leads: nothing more was written.
    pub(super) fenced: bool,
    /// A write whose outcome is not known; nothing more was tried.
    pub(super) error: Option<StoreError>,
}

/// Writes that happen together, with their numbers.
type Unit<'a> = &'a [(usize, &'a Write)];

/// Does what can be done of `writes` under `fence`.
pub(super) async fn commit(store: &dyn Store, fence: &Guard, writes: &[Write]) -> Committed {
    let numbered: Vec<(usize, &Write)> = writes.iter().enumerate().collect();
    let units: Vec<Unit<'_>> = numbered.chunk_by(|_, (_, next)| next.joined).collect();
    let stop = AtomicBool::new(false);
    let batches: Vec<_> =
        pack(&units).into_iter().map(|batch| commit_batch(store, fence, batch, &stop)).collect();
    let parts: Vec<Committed> = stream::iter(batches).buffer_unordered(PARALLEL).collect().await;
    let mut all = parts.into_iter().fold(Committed::default(), Committed::and);
    all.done.sort_unstable();
    all
}

impl Committed {
    fn and(mut self, other: Self) -> Self {
        self.done.extend(other.done);
        self.conflicts += other.conflicts;
        self.revision = self.revision.max(other.revision);
        self.fenced |= other.fenced;
        self.error = self.error.or(other.error);
        self
    }
}

/// Cuts the units into transactions of at most [`WRITES_MAX`] writes and [`BYTES_MAX`] bytes.
fn pack<'a, 'u>(units: &'u [Unit<'a>]) -> Vec<&'u [Unit<'a>]> {
    let mut batches = Vec::new();
    let (mut start, mut count, mut bytes) = (0, 0, 0);
    for (at, unit) in units.iter().enumerate() {
        let unit_bytes: usize = unit.iter().map(|(_, write)| write.size_bytes()).sum();
        if at > start && (count + unit.len() > WRITES_MAX || bytes + unit_bytes > BYTES_MAX) {
            batches.push(&units[start..at]);
            (start, count, bytes) = (at, 0, 0);
        }
        count += unit.len();
        bytes += unit_bytes;
    }
    if start < units.len() {
        batches.push(&units[start..]);
    }
    batches
}

/// One batch, in halves where it meets a conflict: at most 2n − 1 transactions.
async fn commit_batch(store: &dyn Store, fence: &Guard, batch: &[Unit<'_>], stop: &AtomicBool) -> Committed {
    let mut out = Committed::default();
    let mut todo = vec![batch];
    while let Some(units) = todo.pop() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match transact(store, fence, units).await {
            Ok(TxnOutcome::Committed(revision)) => {
                out.revision = out.revision.max(revision);
                out.done.extend(units.iter().flat_map(|unit| unit.iter().map(|(number, _)| *number)));
            }
            Ok(TxnOutcome::Conflict) => {
                let whole = units.len() == batch.len();
                if whole && !fence_holds(store, fence).await {
                    out.fenced = true;
                    stop.store(true, Ordering::Relaxed);
                } else if units.len() == 1 {
                    out.conflicts += units[0].len();
                } else {
                    let (left, right) = units.split_at(units.len() / 2);
                    todo.push(right);
                    todo.push(left);
                }
            }
            Err(error) => {
                out.error = Some(error);
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
    out
}

async fn transact(store: &dyn Store, fence: &Guard, units: &[Unit<'_>]) -> Result<TxnOutcome, StoreError> {
    let writes = || units.iter().flat_map(|unit| unit.iter().map(|(_, write)| *write));
    let guards = std::iter::once(fence.clone()).chain(writes().map(Write::guard)).collect();
    let ops: Vec<Op> = writes().map(Write::op).collect();
    store.txn(guards, ops).await
}

/// Whether a conflict can't be the fence's. A read that fails counts as "may still hold": the next
/// transaction says.
async fn fence_holds(store: &dyn Store, fence: &Guard) -> bool {
    let Guard::CreateRevision(key, revision) = fence else { return true };
    match store.get(key).await {
        Ok(present) => present.is_some_and(|leader| leader.create_revision == *revision),
        Err(_) => true,
    }
}
