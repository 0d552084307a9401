//! Metrics of the requests to the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::{Counters, FamilyInfo, Histograms, MetricSet};
use crate::store::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, SharedStore, Store, StoreError, TxnOutcome, WatchBatch,
};

static REQUESTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_store_requests",
    "Requests to etcd. A watch counts when it begins, so more of them than at the start are restarts",
    &["operation", "outcome"],
);
static LATENCY: FamilyInfo = FamilyInfo::histogram(
    "minik8s_store_request_duration_seconds",
    "Duration of requests to etcd",
    &["operation"],
);

/// Counts the requests to the store.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    requests: Counters,
    latency: Histograms,
}

impl StoreMetrics {
    /// Adds the families to a set.
    pub fn new(set: &mut MetricSet) -> Self {
        Self { requests: set.counters(&REQUESTS), latency: set.histograms(&LATENCY) }
    }

    /// Returns the store, with its requests counted.
    pub fn metered(&self, store: SharedStore) -> SharedStore {
        Arc::new(MeteredStore { store, metrics: self.clone() })
    }
}

/// A store that counts its requests.
pub struct MeteredStore {
    store: SharedStore,
    metrics: StoreMetrics,
}

impl MeteredStore {
    async fn count<T>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let outcome = request.await;
        self.metrics.latency.observe(&[operation], began.elapsed());
        self.metrics.requests.inc(&[operation, outcome_word(outcome.as_ref().err())]);
        outcome
    }
}

fn outcome_word(error: Option<&StoreError>) -> &'static str {
    match error {
        None => "ok",
        Some(StoreError::Connect { .. }) => "unreachable",
        Some(StoreError::Timeout { .. }) => "timeout",
        Some(StoreError::Request { .. }) => "refused",
        Some(StoreError::Unauthenticated { .. }) => "unauthenticated",
        Some(StoreError::Compacted(_)) => "compacted",
        Some(StoreError::WatchEnded(_)) => "ended",
        Some(StoreError::LeaseLost(_)) => "lease_lost",
    }
}

#[async_trait]
impl Store for MeteredStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.count("get", self.store.get(key)).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.count("list", self.store.list(prefix)).await
    }

    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<NewestKeys, StoreError> {
        self.count("list", self.store.newest(prefix, limit, before)).await
    }

    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        self.count("txn", self.store.txn(guards, ops)).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        self.count("watch", self.store.watch(prefix, from_revision)).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.count("lease_grant", self.store.lease_grant(ttl)).await
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.count("lease_keep_alive", self.store.lease_keep_alive(lease)).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.count("lease_revoke", self.store.lease_revoke(lease)).await
    }
}
