//! etcd, connected to when it can be: a daemon that has worked with it before does not need it to start.
//!
//! Every call tries to connect as long as nobody succeeded; after that the client reconnects by
//! itself.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::EtcdStore;
use crate::store::{Guard, KeyValue, LeaseId, Listing, Op, Store, StoreError, TxnOutcome, WatchBatch};

/// Longest wait of one call for a connection; the callers come again, with backoff.
const PATIENCE: Duration = Duration::from_secs(2);

/// A store on an etcd that may not be there yet.
pub struct LazyStore {
    endpoints: Vec<String>,
    connected: OnceCell<EtcdStore>,
}

impl LazyStore {
    /// A store that will connect to these.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self { endpoints, connected: OnceCell::new() }
    }

    /// Connects now, or says why it can't.
    ///
    /// # Errors
    /// [`StoreError::Connect`]: no etcd answers there within `patience`.
    pub async fn connect(&self, patience: Duration) -> Result<(), StoreError> {
        self.store_within(patience).await.map(|_| ())
    }

    async fn store(&self) -> Result<&EtcdStore, StoreError> {
        self.store_within(PATIENCE).await
    }

    async fn store_within(&self, patience: Duration) -> Result<&EtcdStore, StoreError> {
        // Boxed: connecting is a large future, and every call holds one.
        let connecting =
            self.connected.get_or_try_init(|| Box::pin(EtcdStore::connect(&self.endpoints, patience)));
        // One tries at a time; the others wait for it, and no longer than they would themselves.
        timeout(patience, connecting).await.unwrap_or_else(|_| {
            let endpoints = self.endpoints.join(",");
            Err(StoreError::Connect { endpoints, message: format!("no answer within {patience:?}") })
        })
    }
}

#[async_trait]
impl Store for LazyStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.store().await?.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.store().await?.list(prefix).await
    }

    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        self.store().await?.txn(guards, ops).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        self.store().await?.watch(prefix, from_revision).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store().await?.lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store().await?.lease_keep_alive(lease).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store().await?.lease_revoke(lease).await
    }
}
