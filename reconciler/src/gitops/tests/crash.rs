//! A store whose process dies at a chosen write: nothing gets through after that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use schema::store::memory::MemoryStore;
use schema::store::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, Store, StoreError, TxnOutcome, WatchBatch,
};

/// The store behind a crash.
#[derive(Debug, Clone)]
pub(super) struct CrashingStore {
    inner: MemoryStore,
    /// Number of writes until the crash, and whether the crashing write is still carried out.
    crash: Arc<Mutex<Option<(u32, bool)>>>,
}

impl CrashingStore {
    pub(super) fn new(inner: MemoryStore) -> Self {
        Self { inner, crash: Arc::default() }
    }

    pub(super) fn set(&self, crash: Option<(u32, bool)>) {
        *self.crash.lock().unwrap() = crash;
    }

    fn dead(&self) -> Result<(), StoreError> {
        match *self.crash.lock().unwrap() {
            Some((0, _)) => Err(gone()),
            _ => Ok(()),
        }
    }
}

fn gone() -> StoreError {
    StoreError::Timeout { act: "anything", after: Duration::ZERO }
}

#[async_trait]
impl Store for CrashingStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.dead()?;
        self.inner.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.dead()?;
        self.inner.list(prefix).await
    }

    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<NewestKeys, StoreError> {
        self.dead()?;
        self.inner.newest(prefix, limit, before).await
    }

    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        self.dead()?;
        let dies = {
            let mut crash = self.crash.lock().unwrap();
            match crash.as_mut() {
                None => None,
                Some((left, lost)) => {
                    *left -= 1;
                    (*left == 0).then_some(*lost)
                }
            }
        };
        match dies {
            None => self.inner.txn(guards, ops).await,
            Some(true) => {
                let _ = self.inner.txn(guards, ops).await;
                Err(gone())
            }
            Some(false) => Err(gone()),
        }
    }

    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        self.inner.watch(prefix, from_revision).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.inner.lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.lease_keep_alive(lease).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.lease_revoke(lease).await
    }
}
