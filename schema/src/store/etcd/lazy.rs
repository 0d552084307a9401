//! etcd, connected to when it can be: a daemon that has worked with it before does not need it to start.
//!
//! Every call tries to connect until one has succeeded; after that the client reconnects by
//! itself. What the client can't see is that the machine's own address is gone from under its
//! connections: what knows says so by [`LazyStore::reconnect`]. A connection that etcd refuses to serve
//! for its user is replaced by one that logs in anew.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Access, EtcdStore};
use crate::mutex::lock;
use crate::store::{
    Guard, KeyValue, LeaseId, Listing, Newest, Op, Store, StoreError, TxnOutcome, WatchBatch,
};

/// Longest wait of one call for a connection; the callers come again, with backoff.
const PATIENCE: Duration = Duration::from_secs(2);

/// A store on an etcd that may not be there yet.
pub struct LazyStore {
    access: Access,
    line: Mutex<Arc<Line>>,
}

/// The connections of one time, and all that goes on on them.
#[derive(Default)]
struct Line {
    connected: OnceCell<EtcdStore>,
    /// They are given up.
    cut: CancellationToken,
}

impl LazyStore {
    /// A store that will connect to these.
    pub fn new(access: Access) -> Self {
        Self { access, line: Mutex::default() }
    }

    /// Connects now, or says why it can't.
    ///
    /// # Errors
    /// [`StoreError::Connect`]: no etcd answers there within `patience`.
    pub async fn connect(&self, patience: Duration) -> Result<(), StoreError> {
        self.connected(&self.line(), patience).await.map(|_| ())
    }

    /// Gives the connections up for new ones, which the next call makes. Calls under way fail at once, and
    /// watches end: of a connection whose address is gone the client would hear in 10 s at best.
    pub fn reconnect(&self) {
        self.give_up(&self.line());
    }

    /// Gives up these connections and no newer ones.
    fn give_up(&self, line: &Arc<Line>) {
        let mut current = lock(&self.line);
        if Arc::ptr_eq(&current, line) {
            *current = Arc::default();
        }
        line.cut.cancel();
    }

    fn line(&self) -> Arc<Line> {
        Arc::clone(&lock(&self.line))
    }

    async fn connected<'a>(&self, line: &'a Line, patience: Duration) -> Result<&'a EtcdStore, StoreError> {
        // Boxed: connecting is a large future, and every call holds one.
        let connecting =
            line.connected.get_or_try_init(|| Box::pin(EtcdStore::connect(&self.access, patience)));
        // One tries at a time; the others wait for it, and no longer than they would themselves.
        timeout(patience, connecting).await.unwrap_or_else(|_| {
            let endpoints = self.access.endpoints.join(",");
            Err(StoreError::Connect { endpoints, message: format!("no answer within {patience:?}") })
        })
    }

    /// What the call says, unless the connections are given up before.
    async fn until_cut<T>(
        &self,
        line: &Arc<Line>,
        act: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        // What is cut off can't know what became of the call, as after any other error.
        let said = line.cut.run_until_cancelled(call).await.unwrap_or_else(|| {
            Err(StoreError::Request { act, message: "the connection was given up for a new one".to_owned() })
        });
        if matches!(said, Err(StoreError::Unauthenticated { .. })) {
            self.give_up(line);
        }
        said
    }

    async fn on<'a>(&self, line: &'a Line) -> Result<&'a EtcdStore, StoreError> {
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

    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<Newest, StoreError> {
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
        // One that ended by itself has said why.
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
        self.until_cut(&line, "the end of a lease", async { self.on(&line).await?.lease_revoke(lease).await })
            .await
    }
}
