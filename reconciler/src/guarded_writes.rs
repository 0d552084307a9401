//! Writes of the leader: many in one transaction, and a few transactions at a time.
//!
//! Every transaction carries the leader's fence. One that meets a conflict is tried in halves, so
//! that one key that moved on holds up no other. [`caught_up`] keeps a loop from planning on a snapshot
//! that is older than what it wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use schema::keys::Key;
use schema::snapshot::Snapshot;
use schema::store::election::Fence;
use schema::store::reflector::SnapshotReader;
use schema::store::{
    Guard, Op, SharedStore, Store, StoreError, TXN_MAX_BYTES, TXN_OPS_MAX, TxnOutcome, newest_revision,
};
use tokio::time::timeout;

/// Transactions under way at once. Measured on etcd: 16 do 10,000 values in 0.12 s; 8 leave it headroom.
pub(crate) const PARALLEL: usize = 8;
/// Longest wait within one run for the snapshot to hold the loop's own writes. Seen: a few milliseconds; a
/// reflector that lists again after an outage takes longer, and the next run waits on.
const CATCH_UP: Duration = Duration::from_secs(2);
/// Guards of a transaction besides the fence.
const GUARDS_MAX: usize = TXN_OPS_MAX - 1;
/// A transaction is closed before it grows beyond: half of what etcd takes.
const BYTES_MAX: usize = TXN_MAX_BYTES / 2;

/// Writes that happen together or not at all, each with what must hold for its key.
pub(crate) type WriteGroup = Vec<(Guard, Op)>;

/// Keys travel in the guard and in the operation.
fn size_bytes(group: &WriteGroup) -> usize {
    let size = |(_, op): &(Guard, Op)| match op {
        Op::Put { key, value, .. } => 2 * key.len() + value.len(),
        Op::Delete { key } => 2 * key.len(),
    };
    group.iter().map(size).sum()
}

/// What became of groups, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Those that are done, ascending.
    pub(crate) done: Vec<usize>,
    /// Those with a key that was not as its guard says, ascending.
    pub(crate) conflicts: Vec<usize>,
    /// Newest revision of a write that is done; 0 when none is.
    pub(crate) revision: i64,
    /// Why the others were not tried, or their outcome is not known.
    pub(crate) stopped: Option<Stopped>,
}

/// Why nothing more was written.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Another reconciler leads.
    FenceLost,
    /// The outcome of a write is not known, or after a conflict the store could not say who leads.
    Store(StoreError),
}

/// Does what can be done of `groups` under `fence`, with at most `parallel` transactions at a time.
pub(crate) async fn write(
    store: &dyn Store,
    fence: Fence,
    groups: &[WriteGroup],
    parallel: usize,
) -> Written {
    let stop = AtomicBool::new(false);
    let batches: Vec<_> =
        pack(groups).into_iter().map(|batch| write_batch(store, fence, batch, &stop)).collect();
    let parts: Vec<Written> = stream::iter(batches).buffer_unordered(parallel).collect().await;
    let mut all = parts.into_iter().fold(Written::default(), Written::and);
    all.done.sort_unstable();
    all.conflicts.sort_unstable();
    all
}

impl Written {
    fn and(mut self, other: Self) -> Self {
        self.done.extend(other.done);
        self.conflicts.extend(other.conflicts);
        self.revision = self.revision.max(other.revision);
        self.stopped = match (self.stopped, other.stopped) {
            (Some(Stopped::FenceLost), _) | (_, Some(Stopped::FenceLost)) => Some(Stopped::FenceLost),
            (one, other) => one.or(other),
        };
        self
    }
}

/// Groups one after the other, with the number of the first.
type Batch<'g> = (usize, &'g [WriteGroup]);

/// Cuts the groups into transactions of at most [`GUARDS_MAX`] writes and [`BYTES_MAX`] bytes.
fn pack(groups: &[WriteGroup]) -> Vec<Batch<'_>> {
    let mut batches = Vec::new();
    let (mut start, mut count, mut bytes) = (0, 0, 0);
    for (at, group) in groups.iter().enumerate() {
        if at > start && (count + group.len() > GUARDS_MAX || bytes + size_bytes(group) > BYTES_MAX) {
            batches.push((start, &groups[start..at]));
            (start, count, bytes) = (at, 0, 0);
        }
        count += group.len();
        bytes += size_bytes(group);
    }
    if start < groups.len() {
        batches.push((start, &groups[start..]));
    }
    batches
}

/// One batch, in halves where it meets a conflict: at most 2n − 1 transactions.
async fn write_batch(store: &dyn Store, fence: Fence, batch: Batch<'_>, stop: &AtomicBool) -> Written {
    let mut out = Written::default();
    let mut todo = vec![batch];
    while let Some((first, groups)) = todo.pop().filter(|_| !stop.load(Ordering::Relaxed)) {
        let numbers = first..first + groups.len();
        let is_whole = groups.len() == batch.1.len();
        let stopped = match transact(store, fence, groups).await {
            Ok(TxnOutcome::Committed(revision)) => {
                out.revision = out.revision.max(revision);
                out.done.extend(numbers);
                None
            }
            Ok(TxnOutcome::Conflict) => {
                let leads = if is_whole { fence_holds(store, fence).await } else { Ok(true) };
                match leads {
                    Ok(true) if groups.len() == 1 => {
                        out.conflicts.extend(numbers);
                        None
                    }
                    Ok(true) => {
                        let middle = groups.len() / 2;
                        todo.push((first + middle, &groups[middle..]));
                        todo.push((first, &groups[..middle]));
                        None
                    }
                    Ok(false) => Some(Stopped::FenceLost),
                    Err(error) => Some(Stopped::Store(error)),
                }
            }
            Err(error) => Some(Stopped::Store(error)),
        };
        if stopped.is_some() {
            out.stopped = stopped;
            stop.store(true, Ordering::Relaxed);
        }
    }
    out
}

async fn transact(store: &dyn Store, fence: Fence, groups: &[WriteGroup]) -> Result<TxnOutcome, StoreError> {
    let (guards, ops): (Vec<Guard>, Vec<Op>) = groups.iter().flatten().cloned().unzip();
    store.txn(std::iter::once(fence.guard()).chain(guards).collect(), ops).await
}

/// One transaction under the fence. `None`: it was not done, because something changed meanwhile
/// or another one leads.
pub(crate) async fn guarded(
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

/// The snapshot, once it holds all up to `floor`, which the caller wrote: on an older one it would decide the same
/// thing twice. A floor above all that etcd has is that of another etcd, which was lost with everything in it: there
/// is nothing to wait for, and it becomes 0.
pub(crate) async fn caught_up(
    store: &dyn Store,
    snapshot: &mut SnapshotReader,
    floor: &mut i64,
) -> Result<Arc<Snapshot>, String> {
    let reached = async {
        loop {
            let now = snapshot.current();
            if now.synced && now.revision >= *floor {
                return now;
            }
            snapshot.changed().await;
        }
    };
    // Cancel-safe: only waits.
    if let Ok(reached) = timeout(CATCH_UP, reached).await {
        return Ok(reached);
    }
    let is_listed = snapshot.current().synced;
    // Etcd may be away, too: the next run asks again.
    if newest_revision(store).await.is_ok_and(|newest| newest < *floor) {
        *floor = 0;
    }
    Err(if is_listed { "the last writes are not seen yet" } else { "etcd is not listed yet" }.to_owned())
}

/// A guard on a key as it is now, readable or not.
pub(crate) async fn guard_of_present(store: &SharedStore, key: &str) -> Result<Guard, StoreError> {
    let found = store.get(key).await?;
    Ok(found.map_or_else(
        || Guard::Absent(key.to_owned()),
        |item| Guard::ModRevision(item.key, item.mod_revision),
    ))
}

/// This fence still is the leader's.
///
/// # Errors
/// The store does not answer.
pub(crate) async fn fence_holds(store: &dyn Store, fence: Fence) -> Result<bool, StoreError> {
    let leader = store.get(&Key::Leader.to_string()).await?;
    Ok(leader.is_some_and(|leader| leader.create_revision == fence.create_revision))
}

#[cfg(test)]
mod tests {
    use schema::store::memory::MemoryStore;

    use super::*;

    async fn put(store: &MemoryStore, key: &str) -> i64 {
        match store.txn(Vec::new(), vec![Op::put(key, "{}")]).await.unwrap() {
            TxnOutcome::Committed(revision) => revision,
            TxnOutcome::Conflict => panic!("it has no guard"),
        }
    }

    async fn led() -> (MemoryStore, Fence) {
        let store = MemoryStore::new();
        let create_revision = put(&store, &Key::Leader.to_string()).await;
        (store, Fence { create_revision })
    }

    fn new(name: &str) -> (Guard, Op) {
        (Guard::Absent(name.to_owned()), Op::put(name, "new"))
    }

    // Seen red with numbers that begin anew in the right half.
    #[tokio::test]
    async fn a_key_that_moved_on_holds_up_its_own_group_alone() {
        let (store, fence) = led().await;
        put(&store, "/k03b").await;
        put(&store, "/k07").await;
        let group = |number: usize| {
            let name = format!("/k{number:02}");
            let joined = (number == 3).then(|| new(&format!("{name}b")));
            [new(&name)].into_iter().chain(joined).collect()
        };
        let groups: Vec<WriteGroup> = (0..10).map(group).collect();
        let written = write(&store, fence, &groups, PARALLEL).await;
        assert_eq!((written.done, written.conflicts), (vec![0, 1, 2, 4, 5, 6, 8, 9], vec![3, 7]));
        assert!(written.stopped.is_none());
        assert_eq!(written.revision, newest_revision(&store, "/").await);
        assert!(store.get("/k03").await.unwrap().is_none(), "half of a group is written");
        assert_eq!(&store.get("/k07").await.unwrap().unwrap().value[..], b"{}");
    }

    // Seen red without the look at the leader: all of them count as conflicts.
    #[tokio::test]
    async fn a_reconciler_that_leads_no_longer_writes_nothing() {
        let (store, fence) = led().await;
        let _ = store.txn(Vec::new(), vec![Op::delete(Key::Leader)]).await.unwrap();
        put(&store, &Key::Leader.to_string()).await;
        let groups: Vec<WriteGroup> = (0..300).map(|number| vec![new(&format!("/k{number}"))]).collect();
        let written = write(&store, fence, &groups, PARALLEL).await;
        assert!(matches!(written.stopped, Some(Stopped::FenceLost)), "{written:?}");
        assert_eq!((written.done, written.conflicts), (vec![], vec![]));
        assert!(store.list("/k").await.unwrap().items.is_empty());
    }

    async fn newest_revision(store: &MemoryStore, below: &str) -> i64 {
        let items = store.list(below).await.unwrap().items;
        items.iter().map(|item| item.mod_revision).max().unwrap_or_default()
    }
}
