//! Lazy connection to etcd: a daemon that has worked with etcd before does not need it to start.
//!
//! Every call tries to connect until one has succeeded; after that the client reconnects by itself. The client
//! can't detect that the machine's own address has disappeared from under its connections: whoever detects it calls
//! [`LazyStore::reconnect`]. A connection that etcd refuses to serve for its user is replaced by one that logs in
//! again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::sync::{Notify, OnceCell};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::dial::{MemberTurn, refuses_certificate};
use super::{Access, EtcdStore};
use crate::mutex::lock;
use crate::store::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, Store, StoreError, TxnOutcome, WatchBatch,
};

/// Longest wait of one call for a connection; the callers retry, with backoff.
const PATIENCE: Duration = Duration::from_secs(2);
/// Calls in a row without an answer after which connections to one of several members are given up. A single one may be
/// slow by itself, and all watches end with the connections.
const UNANSWERED_MAX: usize = 2;

/// A store on an etcd that may not be reachable yet.
pub struct LazyStore {
    /// Notified when etcd has denied a call.
    denied: Notify,
    access: Mutex<Arc<Access>>,
    /// Member to connect to next.
    turn: Mutex<MemberTurn>,
    line: Mutex<Arc<ConnectionGeneration>>,
}

/// A generation of connections, with all calls on them.
#[derive(Default)]
struct ConnectionGeneration {
    connected: OnceCell<EtcdStore>,
    /// Number of calls in a row without an answer.
    unanswered: AtomicUsize,
    /// Cancelled when these connections are given up.
    cut: CancellationToken,
}

impl LazyStore {
    /// Creates a store that will connect on demand.
    pub fn new(access: Access) -> Self {
        Self {
            denied: Notify::new(),
            turn: Mutex::new(MemberTurn::first(&access)),
            access: Mutex::new(Arc::new(access)),
            line: Mutex::default(),
        }
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

    /// Returns true if etcd refuses this client's certificate: see [`refuses_certificate`].
    pub async fn refuses_certificate(&self) -> bool {
        let access = Arc::clone(&lock(&self.access));
        refuses_certificate(&access).await
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
            *lock(&self.turn) = MemberTurn::first(&access);
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
        let connecting = line
            .connected
            .get_or_try_init(|| Box::pin(EtcdStore::connect_in_turn(&access, patience, &self.turn)));
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
        match &said {
            Err(StoreError::Unauthenticated { .. }) => self.give_up(line),
            Err(StoreError::Unavailable { .. } | StoreError::Timeout { .. }) => {
                let unanswered = line.unanswered.fetch_add(1, Ordering::Relaxed) + 1;
                // A member that is cut off from the others keeps its connections.
                if unanswered == UNANSWERED_MAX && lock(&self.access).endpoints.len() > 1 {
                    self.give_up(line);
                    let mut turn = lock(&self.turn);
                    *turn = turn.next();
                }
            }
            _ => line.unanswered.store(0, Ordering::Relaxed),
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::RETRY_PAUSE;
    use super::super::dial::PROBE_MAX;
    use super::*;

    fn store(endpoints: &[String]) -> LazyStore {
        LazyStore::new(Access { prefers_first: true, ..Access::anonymous(endpoints) })
    }

    // Nothing answers, so the clock jumps from timer to timer. Would fail with the first member first at each attempt.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_accepts_connections_and_hangs_holds_up_one_attempt() {
        let silent = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let (first, second) = (silent(), silent());
        let endpoints =
            [&first, &second].map(|listener| format!("http://{}", listener.local_addr().unwrap()));
        let lazy = store(&endpoints);
        let patience = PROBE_MAX + RETRY_PAUSE / 2;
        assert!(lazy.connect(patience).await.is_err());
        assert!(first.accept().is_ok() && second.accept().is_err());
        assert!(lazy.connect(patience).await.is_err());
        assert!(second.accept().is_ok());
    }

    #[tokio::test]
    async fn connections_are_given_up_after_two_calls_in_a_row_without_an_answer() {
        let endpoints = ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(str::to_owned);
        let (one, two) = (store(&endpoints[..1]), store(&endpoints));
        let slow = || Err(StoreError::Timeout { act: "a read", after: PATIENCE });
        for (lazy, next) in [(one, None), (two, Some(1))] {
            let line = lazy.line();
            for (said, is_last) in [(slow(), false), (Ok(()), false), (slow(), false), (slow(), true)] {
                let _ = lazy.until_cut(&line, "a read", async move { said }).await;
                assert_eq!(line.cut.is_cancelled(), is_last && next.is_some());
            }
            assert_eq!(lock(&lazy.turn).number, next.unwrap_or(0));
        }
    }
}
