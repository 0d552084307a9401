//! Metrics of the requests to the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::{Counters, FamilyInfo, Histograms, MetricSet, SHORT_BUCKETS};
use crate::store::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, SharedStore, Store, StoreError, TxnOutcome, WatchBatch,
};

static REQUESTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_store_requests",
    "Requests to etcd; a watch counts when it begins",
    &["operation", "outcome"],
);
static LATENCY: FamilyInfo = FamilyInfo::histogram(
    "minik8s_store_request_duration_seconds",
    "Duration of requests to etcd",
    &["operation"],
    SHORT_BUCKETS,
);
static WATCH_ENDS: FamilyInfo = FamilyInfo::counter(
    "minik8s_store_watch_ends",
    "Watches that etcd or its connection ended, by the error; each begins again",
    &["outcome"],
);

/// Counts the requests to the store, and the ends of watches.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    requests: Counters,
    latency: Histograms,
    watch_ends: Counters,
}

impl StoreMetrics {
    /// Adds the families to a set.
    pub fn new(set: &mut MetricSet) -> Self {
        Self {
            requests: set.counters(&REQUESTS),
            latency: set.histograms(&LATENCY),
            watch_ends: set.counters(&WATCH_ENDS).at_zero([["ended"], ["compacted"]]),
        }
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
        Some(StoreError::Request { .. } | StoreError::Unavailable { .. } | StoreError::Denied { .. }) => {
            "refused"
        }
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
        let batches = self.count("watch", self.store.watch(prefix, from_revision)).await?;
        let ends = self.metrics.watch_ends.clone();
        let count_end = move |batch: &Result<WatchBatch, StoreError>| {
            if let Err(error) = batch {
                ends.inc(&[outcome_word(Some(error))]);
            }
        };
        Ok(batches.inspect(count_end).boxed())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn a_watch_counts_when_it_begins_and_when_it_ends_with_an_error() {
        let (memory, mut set) = (Arc::new(MemoryStore::new()), MetricSet::default());
        let store = StoreMetrics::new(&mut set).metered(memory.clone());
        let (mut cut, dropped) = (store.watch("/", 1).await.unwrap(), store.watch("/", 1).await.unwrap());
        drop(dropped);
        memory.cut_watches();
        assert!(cut.next().await.unwrap().is_err());
        assert!(cut.next().await.is_none());
        let text = set.text(Vec::new());
        for line in [
            "minik8s_store_requests_total{operation=\"watch\",outcome=\"ok\"} 2",
            "minik8s_store_watch_ends_total{outcome=\"ended\"} 1",
            "minik8s_store_watch_ends_total{outcome=\"compacted\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
        }
    }
}
