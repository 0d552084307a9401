//! In-memory store for tests: etcd's semantics, tokio's clock, and faults on demand.
//!
//! The data and its rules are in `state.rs`, without any waiting; this module has the calls, the watch streams and
//! the faults.

mod state;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::state::State;
use super::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, Store, StoreError, TxnOutcome, WatchBatch,
    check_txn_size,
};
use crate::mutex::lock;

/// An in-memory store. Clones share the same data.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<SharedState>,
}

#[derive(Debug)]
struct SharedState {
    inner: Mutex<Inner>,
    /// Counts up whenever a watch may have news.
    pulse: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    faults: Faults,
}

/// Faults to inject.
#[derive(Debug, Default)]
struct Faults {
    /// Number of transactions that will fail without being applied.
    fail_txns: u32,
    /// Number of transactions that will be applied but lose their answers.
    lose_answers: u32,
    /// Transactions with an operation on one of these keys fail without being applied.
    refused_keys: BTreeSet<String>,
    /// True if every call fails.
    refuse: bool,
    /// Delay of [`Store::get`].
    get_takes: Duration,
    /// Number of cuts: watches opened before the last one carry a smaller number, and end.
    cuts: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Creates an empty store at revision 1, like a new etcd.
    pub fn new() -> Self {
        let (pulse, _) = watch::channel(0);
        Self { shared: Arc::new(SharedState { inner: Mutex::new(Inner::default()), pulse }) }
    }

    /// Returns the current revision: unchanged means that nothing was written.
    pub fn revision(&self) -> i64 {
        self.shared.lock().state.revision()
    }

    /// Forgets the history up to and including `revision`: watches from there fail.
    pub fn compact(&self, revision: i64) {
        self.shared.lock().state.compact(revision);
        self.shared.wake();
    }

    /// Makes the next `count` transactions fail without being applied.
    pub fn fail_next_txns(&self, count: u32) {
        self.shared.lock().faults.fail_txns = count;
    }

    /// Makes transactions with an operation on one of these keys fail from now on, without being applied.
    pub fn refuse_keys(&self, keys: impl IntoIterator<Item = String>) {
        self.shared.lock().faults.refused_keys = keys.into_iter().collect();
    }

    /// Makes the next `count` transactions lose their answers, though they are applied.
    pub fn lose_next_answers(&self, count: u32) {
        self.shared.lock().faults.lose_answers = count;
    }

    /// Ends every open watch.
    pub fn cut_watches(&self) {
        self.shared.lock().faults.cuts += 1;
        self.shared.wake();
    }

    /// Becomes a new etcd: empty, at revision 1, every lease gone, every watch ended.
    pub fn lose_everything(&self) {
        let mut inner = self.shared.lock();
        inner.state = State::default();
        inner.faults.cuts += 1;
        drop(inner);
        self.shared.wake();
    }

    /// Delays the answers of [`Store::get`] by this time from now on.
    pub fn slow_gets(&self, takes: Duration) {
        self.shared.lock().faults.get_takes = takes;
    }

    /// Makes every call fail while `true`, and ends open watches. Leases still expire.
    pub fn refuse_everything(&self, refuse: bool) {
        let mut inner = self.shared.lock();
        inner.faults.refuse = refuse;
        if refuse {
            inner.faults.cuts += 1;
        }
        drop(inner);
        self.shared.wake();
    }

    fn answer<T>(
        &self,
        act: &'static str,
        with: impl FnOnce(&mut Inner) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut inner = self.shared.lock();
        if inner.faults.refuse {
            return Err(fault(act));
        }
        with(&mut inner)
    }
}

fn fault(act: &'static str) -> StoreError {
    StoreError::Request { act, message: "a fault injected by a test".to_owned() }
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked while it held the lock has failed anyway; let the others continue.
        lock(&self.inner)
    }

    fn wake(&self) {
        self.pulse.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        let takes = self.shared.lock().faults.get_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        self.answer("a read", |inner| Ok(inner.state.get(key)))
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.answer("a read", |inner| Ok(inner.state.list(prefix)))
    }

    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<NewestKeys, StoreError> {
        let mut items = self.list(prefix).await?.items;
        items.retain(|item| before.is_none_or(|before| item.create_revision < before));
        items.sort_by_key(|item| std::cmp::Reverse(item.create_revision));
        let has_more = items.len() > usize::from(limit);
        items.truncate(usize::from(limit));
        Ok(NewestKeys { items, has_more })
    }

    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        check_txn_size(&guards, &ops)?;
        let act = "a transaction";
        let outcome = self.answer(act, |inner| {
            if inner.faults.fail_txns > 0 {
                inner.faults.fail_txns -= 1;
                return Err(fault(act));
            }
            let key = |op: &Op| match op {
                Op::Put { key, .. } | Op::Delete { key } => key.clone(),
            };
            if ops.iter().any(|op| inner.faults.refused_keys.contains(&key(op))) {
                return Err(fault(act));
            }
            let outcome = inner.state.txn(&guards, ops)?;
            if inner.faults.lose_answers > 0 {
                inner.faults.lose_answers -= 1;
                return Err(StoreError::Timeout { act, after: Duration::ZERO });
            }
            Ok(outcome)
        });
        self.shared.wake();
        outcome
    }

    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        let cuts = self.answer("a watch", |inner| Ok(inner.faults.cuts))?;
        let watching = OpenWatch {
            shared: Arc::clone(&self.shared),
            pulse: self.shared.pulse.subscribe(),
            prefix: prefix.to_owned(),
            next_revision: from_revision.max(1),
            cuts,
        };
        let batches = stream::unfold(Some(watching), |watching| async move {
            let mut watching = watching?;
            match watching.next().await {
                Ok(batch) => Some((Ok(batch), Some(watching))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(batches.boxed())
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let lease = self.answer("a new lease", |inner| Ok(inner.state.lease_grant(ttl, Instant::now())))?;
        // Ends with the lease, or with the store.
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(async move {
            while let Some(end) = shared.upgrade().and_then(|shared| shared.lock().state.lease_end(lease)) {
                sleep_until(end).await;
                let Some(shared) = shared.upgrade() else { return };
                if shared.lock().state.lease_expire(lease, Instant::now()) {
                    shared.wake();
                }
            }
        });
        Ok(lease)
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.answer("a keep-alive", |inner| inner.state.lease_keep_alive(lease, Instant::now()))
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.answer("a lease revocation", |inner| {
            inner.state.lease_revoke(lease);
            Ok(())
        })?;
        self.shared.wake();
        Ok(())
    }
}

/// An open watch.
struct OpenWatch {
    shared: Arc<SharedState>,
    pulse: watch::Receiver<u64>,
    prefix: String,
    next_revision: i64,
    cuts: u64,
}

impl OpenWatch {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            self.pulse.mark_unchanged();
            {
                let inner = self.shared.lock();
                if inner.faults.cuts != self.cuts {
                    return Err(StoreError::WatchEnded(self.prefix.clone()));
                }
                let newest = inner.state.revision();
                let events = inner.state.since(&self.prefix, self.next_revision)?;
                // A start revision in the future stays unchanged, as in etcd.
                self.next_revision = self.next_revision.max(newest + 1);
                if !events.is_empty() {
                    return Ok(WatchBatch { events, revision: newest });
                }
            }
            if self.pulse.changed().await.is_err() {
                return Err(StoreError::WatchEnded(self.prefix.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Vec<Op> {
        vec![Op::put(key, "x")]
    }

    #[tokio::test]
    async fn an_injected_failure_does_nothing_and_passes() {
        let store = MemoryStore::new();
        store.fail_next_txns(1);
        assert!(store.txn(vec![], put("/a")).await.is_err());
        assert_eq!(store.revision(), 1);
        assert_eq!(store.txn(vec![], put("/a")).await.unwrap(), TxnOutcome::Committed(2));
    }

    #[tokio::test]
    async fn a_lost_answer_is_an_error_of_something_done() {
        let store = MemoryStore::new();
        store.lose_next_answers(1);
        assert!(matches!(store.txn(vec![], put("/a")).await, Err(StoreError::Timeout { .. })));
        assert!(store.get("/a").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn refusing_everything_ends_open_watches() {
        let store = MemoryStore::new();
        let mut watch = store.watch("/", 1).await.unwrap();
        store.refuse_everything(true);
        assert!(matches!(watch.next().await, Some(Err(StoreError::WatchEnded(_)))));
        assert!(watch.next().await.is_none());
        assert!(store.list("/").await.is_err());
        store.refuse_everything(false);
        assert!(store.list("/").await.is_ok());
    }
}
