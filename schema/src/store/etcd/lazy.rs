//! Lazy connection to etcd: a daemon that has worked with etcd before does not need it to start.
//!
//! Every call tries to connect until one has succeeded; after that the client reconnects by itself. The client
//! can't detect that the machine's own address has disappeared from under its connections: whoever detects it calls
//! [`LazyStore::reconnect`]. A connection that etcd refuses to serve for its user is replaced by one that logs in
//! again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::sync::{Notify, OnceCell};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Access, EtcdStore};
use crate::mutex::lock;
use crate::store::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, Store, StoreError, TxnOutcome, WatchBatch,
};

/// Longest wait of one call for a connection; the callers retry, with backoff.
const PATIENCE: Duration = Duration::from_secs(2);

/// A store on an etcd that may not be reachable yet.
pub struct LazyStore {
    /// Notified when etcd has denied a call.
    denied: Notify,
    access: Mutex<Arc<Access>>,
    line: Mutex<Arc<ConnectionGeneration>>,
}

/// A generation of connections, with all calls on them.
#[derive(Default)]
struct ConnectionGeneration {
    connected: OnceCell<EtcdStore>,
    /// Cancelled when these connections are given up.
    cut: CancellationToken,
}

impl LazyStore {
    /// Creates a store that will connect on demand.
    pub fn new(access: Access) -> Self {
        Self { denied: Notify::new(), access: Mutex::new(Arc::new(access)), line: Mutex::default() }
    }

    /// Connects now.
    ///
    /// # Errors
    /// [`StoreError::Connect`] if no etcd answers within `patience`.
    pub async fn connect(&self, patience: Duration) -> Result<(), StoreError> {
        self.connected(&self.line(), patience).await.map(|_| ())
    }

    /// Returns once etcd has denied a call, even an earlier one.
    ///
    /// Cancel-safe: a denial that was not returned stays so.
    pub async fn denied(&self) {
        self.denied.notified().await;
    }

    /// Replaces the connections with new ones, which the next call makes. Calls in progress fail immediately, and
    /// watches end: the client itself would take at least 10 s to detect a connection whose address is gone.
    pub fn reconnect(&self) {
        self.give_up(&self.line());
    }

    /// Replaces etcd's addresses. Connections to other ones are replaced, as by [`LazyStore::reconnect`].
    pub fn set_endpoints(&self, endpoints: Vec<String>) {
        {
            let mut access = lock(&self.access);
            if access.endpoints == endpoints {
                return;
            }
            let former = Access::clone(&access);
            *access = Arc::new(Access { endpoints, ..former });
        }
        self.reconnect();
    }

    /// Gives up these connections, but no newer ones.
    fn give_up(&self, line: &Arc<ConnectionGeneration>) {
        let mut current = lock(&self.line);
        if Arc::ptr_eq(&current, line) {
            *current = Arc::default();
        }
        line.cut.cancel();
    }

    fn line(&self) -> Arc<ConnectionGeneration> {
        Arc::clone(&lock(&self.line))
    }

    async fn connected<'a>(
        &self,
        line: &'a ConnectionGeneration,
        patience: Duration,
    ) -> Result<&'a EtcdStore, StoreError> {
        let access = Arc::clone(&lock(&self.access));
        // Boxed: connecting is a large future, and every call holds one.
        let connecting = line.connected.get_or_try_init(|| Box::pin(EtcdStore::connect(&access, patience)));
        // Only one call connects at a time; the others wait for it, and no longer than they would themselves.
        timeout(patience, connecting).await.unwrap_or_else(|_| {
            let endpoints = access.endpoints.join(",");
            Err(StoreError::Connect { endpoints, message: format!("no answer within {patience:?}") })
        })
    }

    /// Returns the call's result, or an error if the connections are given up first.
    async fn until_cut<T>(
        &self,
        line: &Arc<ConnectionGeneration>,
        act: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        // As after any other error, it is unknown what became of a call that is cut off.
        let said = line.cut.run_until_cancelled(call).await.unwrap_or_else(|| {
            Err(StoreError::Request { act, message: "the connection was replaced by a new one".to_owned() })
        });
        if matches!(said, Err(StoreError::Denied { .. })) {
            self.denied.notify_one();
        }
        let is_useless = match &said {
            Err(StoreError::Unauthenticated { .. }) => true,
            // A member that is cut off from the others keeps its connections.
            Err(StoreError::Unavailable { .. } | StoreError::Timeout { .. }) => {
                lock(&self.access).endpoints.len() > 1
            }
            _ => false,
        };
        if is_useless {
            self.give_up(line);
        }
        said
    }

    async fn on<'a>(&self, line: &'a ConnectionGeneration) -> Result<&'a EtcdStore, StoreError> {
        self.connected(line, PATIENCE).await
    }
}

#[async_trait]
impl Store for LazyStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        let line = self.line();
        self.until_cut(&line, "a read", async { self.on(&line).await?.get(key).await }).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let line = self.line();
        self.until_cut(&line, "a read", async { self.on(&line).await?.list(prefix).await }).await
    }

    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<NewestKeys, StoreError> {
        let line = self.line();
        let read = async { self.on(&line).await?.newest(prefix, limit, before).await };
        self.until_cut(&line, "a read", read).await
    }

    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        let line = self.line();
        self.until_cut(&line, "a transaction", async { self.on(&line).await?.txn(guards, ops).await }).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        let line = self.line();
        let opening = async { self.on(&line).await?.watch(prefix, from_revision).await };
        let batches = self.until_cut(&line, "a watch", opening).await?;
        let (cut, prefix) = (line.cut.clone(), prefix.to_owned());
        // A watch that ended by itself has reported why.
        let end = stream::once(async move { cut.is_cancelled().then_some(StoreError::WatchEnded(prefix)) });
        let end = end.filter_map(|why| async { why.map(Err) });
        Ok(batches.take_until(line.cut.clone().cancelled_owned()).chain(end).boxed())
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let line = self.line();
        self.until_cut(&line, "a new lease", async { self.on(&line).await?.lease_grant(ttl).await }).await
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let line = self.line();
        self.until_cut(&line, "a keep-alive", async { self.on(&line).await?.lease_keep_alive(lease).await })
            .await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let line = self.line();
        self.until_cut(&line, "a lease revocation", async { self.on(&line).await?.lease_revoke(lease).await })
            .await
    }
}
