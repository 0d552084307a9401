//! Store on a real etcd.
//!
//! Every call has a deadline. The client reconnects by itself: a handle outlives any number of restarts of etcd.
//! Lists are paged at one revision; all watches share one stream (`watch.rs`).

mod access;
mod auth;
mod dial;
mod lazy;
mod members;
mod watch;

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, GetResponse, KvClient, LeaseClient,
    PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};
use futures::stream::BoxStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::dial::{MemberTurn, PROBE_MAX};
use self::watch::{Watches, key_value};
use super::{
    Guard, KeyValue, LeaseId, Listing, NewestKeys, Op, Store, StoreError, TxnOutcome, WatchBatch,
    check_txn_size,
};
use crate::keys::Key;
use crate::mutex::lock;
use watch::{
    is_auth_off, is_compacted, is_denied, is_lease_not_found, is_unauthenticated, is_unavailable,
    request_error,
};

pub use self::access::{Access, Login};
pub use self::auth::{AuthState, Grant, GrantAccess};
pub use self::dial::refuses_certificate;
pub use self::lazy::LazyStore;
pub use self::members::{ListedMember, MemberAlarm};

/// Longest wait for the answer to one request. A healthy etcd answers in milliseconds; one that
/// elects a leader needs 1–2 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Keys per page of a list. With values of at most 64 KiB a page stays below
/// [`DECODE_MAX_BYTES`].
const PAGE_KEYS: i64 = 500;
/// Largest answer that is decoded. gRPC's own default of 4 MiB is less than a page may be.
const DECODE_MAX_BYTES: usize = 64 * 1024 * 1024;
/// Attempts of a list that a compaction overtakes between its pages.
const LIST_ATTEMPTS: usize = 3;
/// Pause before a retry of a read that reached no member, and while connecting.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Attempts of a read: with several members, one of which is down, the next attempt reaches another.
const READ_ATTEMPTS: usize = 3;

/// Store on a real etcd.
pub struct EtcdStore {
    kv: KvClient,
    lease: LeaseClient,
    watches: Watches,
    /// Keeps the set of endpoints, which the three clients share, and their user alive.
    client: Client,
}

impl EtcdStore {
    /// Connects and checks that etcd answers, retrying until `patience` is over.
    ///
    /// # Errors
    /// [`StoreError::Connect`] with the last reason if nothing answered in time; immediately if an endpoint is no
    /// URL, or the user or password is wrong.
    pub async fn connect(access: &Access, patience: Duration) -> Result<Self, StoreError> {
        let turn = Mutex::new(MemberTurn::first(access));
        // Boxed, because it is large.
        Box::pin(Self::connect_in_turn(access, patience, &turn)).await
    }

    /// Connects to the member whose turn it is, or to the next one that answers.
    async fn connect_in_turn(
        access: &Access,
        patience: Duration,
        turn: &Mutex<MemberTurn>,
    ) -> Result<Self, StoreError> {
        let refused =
            |message: String| StoreError::Connect { endpoints: access.endpoints.join(","), message };
        let login = access.login.as_ref().map(Login::read).transpose();
        let login = login.map_err(|error| refused(format!("cannot read the password: {error}")))?;
        let deadline = Instant::now() + patience;
        let mut why = format!("no answer within {patience:?}");
        loop {
            let (member, begun) = (*lock(turn), Instant::now());
            let mut store = Self::begin(access, member.number).await.map_err(refused)?;
            let bound = match access.endpoints.len() {
                1 => deadline,
                members => deadline.min(begun + member.probe_max(members)),
            };
            match timeout_at(bound, store.probe(login.as_ref())).await {
                Ok(Ok(())) => {
                    *lock(turn) = member.answered();
                    return Ok(store);
                }
                Ok(Err(error)) if is_denied(&error) => return Err(request_error("a connection", &error)),
                Ok(Err(error)) if is_unauthenticated(&error) => {
                    return Err(refused(watch::message_of(&error)));
                }
                Ok(Err(error)) => why = watch::message_of(&error),
                // It had less time than it may need: its turn stays.
                Err(_) if begun.elapsed() < PROBE_MAX => return Err(refused(why)),
                Err(_) => {}
            }
            *lock(turn) = member.next();
            if timeout_at(deadline, sleep(RETRY_PAUSE)).await.is_err() {
                return Err(refused(why));
            }
        }
    }

    /// Creates a client that will connect to a member.
    async fn begin(access: &Access, member: usize) -> Result<Self, String> {
        let options = ConnectOptions::new()
            .with_require_leader(true)
            // A token expires with the etcd that issued it, and after 5 min without a request.
            .with_auto_token_refresh(true);
        let client = Client::from_channel(dial::channel(access, member)?, Some(options));
        let client = client.await.map_err(|error| watch::message_of(&error))?;
        Ok(Self {
            kv: client.kv_client().max_decoding_message_size(DECODE_MAX_BYTES),
            lease: client.lease_client(),
            watches: Watches::new(client.watch_client().max_decoding_message_size(DECODE_MAX_BYTES)),
            client,
        })
    }

    /// Logs in, and reads a key that everyone may read.
    async fn probe(&mut self, login: Option<&(String, String)>) -> Result<(), Error> {
        if let Some(login) = login {
            match self.client.update_user(Some(login.clone())).await {
                Err(error) if is_auth_off(&error) => {}
                said => said?,
            }
        }
        let probe = GetOptions::new().with_count_only();
        self.kv.clone().get(Key::Leader.to_string(), Some(probe)).await.map(drop)
    }

    async fn range(&self, key: &[u8], options: GetOptions) -> Result<GetResponse, StoreError> {
        let mut attempt = 1;
        loop {
            let request = self.kv.clone();
            let answer = timeout(REQUEST_TIMEOUT, { request }.get(key, Some(options.clone()))).await;
            match answer {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) if is_compacted(&error) => return Err(StoreError::Compacted(0)),
                Ok(Err(error)) if is_unavailable(&error) && attempt < READ_ATTEMPTS => {
                    attempt += 1;
                    sleep(RETRY_PAUSE).await;
                }
                Ok(Err(error)) => return Err(request_error("a read", &error)),
                Err(_) => return Err(timed_out("a read")),
            }
        }
    }

    /// Reads every page, the later ones at the revision of the first.
    async fn list_once(&self, prefix: &str) -> Result<Listing, StoreError> {
        let end = prefix_end(prefix.as_bytes());
        let mut from = prefix.as_bytes().to_vec();
        let mut listing = Listing::default();
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE_KEYS)
                .with_revision(listing.revision);
            let mut page = self.range(&from, options).await?;
            if listing.revision == 0 {
                listing.revision = page.header().map_or(0, etcd_client::ResponseHeader::revision);
            }
            listing.items.extend(page.take_kvs().into_iter().map(key_value));
            match listing.items.last() {
                Some(last) if page.more() => {
                    // The smallest key after the last one.
                    from = last.key.as_bytes().to_vec();
                    from.push(0);
                }
                _ => return Ok(listing),
            }
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        let mut response = self.range(key.as_bytes(), GetOptions::new()).await?;
        Ok(response.take_kvs().into_iter().next().map(key_value))
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        for _ in 1..LIST_ATTEMPTS {
            match self.list_once(prefix).await {
                // The revision of the first page is compacted: start again at a newer one.
                Err(StoreError::Compacted(_)) => {}
                said => return said,
            }
        }
        self.list_once(prefix).await
    }

    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<NewestKeys, StoreError> {
        // A bound of 0 would mean no bound.
        if before.is_some_and(|before| before <= 1) {
            return Ok(NewestKeys::default());
        }
        let options = GetOptions::new()
            .with_range(prefix_end(prefix.as_bytes()))
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(i64::from(limit))
            .with_max_create_revision(before.map_or(0, |before| before - 1));
        let mut page = self.range(prefix.as_bytes(), options).await?;
        Ok(NewestKeys { has_more: page.more(), items: page.take_kvs().into_iter().map(key_value).collect() })
    }

    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        check_txn_size(&guards, &ops)?;
        let lease = ops.iter().find_map(|op| match op {
            Op::Put { lease, .. } => *lease,
            Op::Delete { .. } => None,
        });
        let request = Txn::new()
            .when(guards.into_iter().map(compare).collect::<Vec<_>>())
            .and_then(ops.into_iter().map(operation).collect::<Vec<_>>());
        // Never retried here: after a lost answer it is unknown whether it was done, and only the caller knows what
        // its guards make of a second attempt.
        let response = match timeout(REQUEST_TIMEOUT, self.kv.clone().txn(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                return Err(match lease {
                    Some(LeaseId(id)) if is_lease_not_found(&error) => StoreError::LeaseLost(id),
                    _ => request_error("a transaction", &error),
                });
            }
            Err(_) => return Err(timed_out("a transaction")),
        };
        let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(if response.succeeded() { TxnOutcome::Committed(revision) } else { TxnOutcome::Conflict })
    }

    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        timeout(REQUEST_TIMEOUT, self.watches.open(prefix, from_revision))
            .await
            .unwrap_or_else(|_| Err(timed_out("a watch")))
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        // etcd counts whole seconds; round up, a lease must not end early.
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        match timeout(REQUEST_TIMEOUT, self.lease.clone().grant(seconds, None)).await {
            Ok(Ok(response)) => Ok(LeaseId(response.id())),
            Ok(Err(error)) => Err(request_error("a new lease", &error)),
            Err(_) => Err(timed_out("a new lease")),
        }
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        match timeout(REQUEST_TIMEOUT, self.lease.clone().keep_alive(lease.0)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if is_lease_not_found(&error) => Err(StoreError::LeaseLost(lease.0)),
            Ok(Err(error)) => Err(request_error("a keep-alive", &error)),
            Err(_) => Err(timed_out("a keep-alive")),
        }
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        match timeout(REQUEST_TIMEOUT, self.lease.clone().revoke(lease.0)).await {
            Ok(Ok(_)) => Ok(()),
            // The lease ended by itself: the desired result.
            Ok(Err(error)) if is_lease_not_found(&error) => Ok(()),
            Ok(Err(error)) => Err(request_error("a lease revocation", &error)),
            Err(_) => Err(timed_out("a lease revocation")),
        }
    }
}

fn timed_out(act: &'static str) -> StoreError {
    StoreError::Timeout { act, after: REQUEST_TIMEOUT }
}

fn compare(guard: Guard) -> Compare {
    match guard {
        Guard::Absent(key) => Compare::create_revision(key, CompareOp::Equal, 0),
        Guard::ModRevision(key, revision) => Compare::mod_revision(key, CompareOp::Equal, revision),
        Guard::CreateRevision(key, revision) => Compare::create_revision(key, CompareOp::Equal, revision),
    }
}

fn operation(op: Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let options = lease.map(|LeaseId(id)| PutOptions::new().with_lease(id));
            TxnOp::put(key, value, options)
        }
        Op::Delete { key } => TxnOp::delete(key, None),
    }
}

/// Returns the smallest key above all that begin with `prefix`; `\0` (to the end) if there is none.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

async fn within<T>(
    act: &'static str,
    after: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    match timeout(after, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(request_error(act, &error)),
        Err(_) => Err(StoreError::Timeout { act, after }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_after_all_below_it() {
        assert_eq!(prefix_end(b"/minik8s/pods/"), b"/minik8s/pods0");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"\0");
    }

    // Nothing answers in both tests, so their clock jumps from timer to timer. Seen red with tries without end.
    #[tokio::test(start_paused = true)]
    async fn connecting_to_nothing_fails_in_time_and_names_the_endpoint() {
        // Bound but no longer listening: nothing answers on this port.
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let endpoint = format!("http://127.0.0.1:{port}");
        let started = Instant::now();
        let result = EtcdStore::connect(
            &Access::anonymous(std::slice::from_ref(&endpoint)),
            Duration::from_millis(600),
        )
        .await;
        let took = started.elapsed();
        let Err(StoreError::Connect { endpoints, message }) = result else { panic!("it connected") };
        assert_eq!(endpoints, endpoint);
        assert!(message.contains("refused"), "{message}");
        assert!(took < Duration::from_secs(3), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn connecting_to_a_silent_listener_fails_in_time() {
        // Accepts connections into its backlog and never answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let started = Instant::now();
        let result = EtcdStore::connect(&Access::anonymous(&[endpoint]), Duration::from_millis(600)).await;
        assert!(matches!(result, Err(StoreError::Connect { .. })));
        assert!(started.elapsed() < Duration::from_secs(3));
    }

    #[tokio::test]
    async fn an_endpoint_that_is_no_url_fails_at_once() {
        let result =
            EtcdStore::connect(&Access::anonymous(&["http://[nope".to_owned()]), Duration::from_secs(60))
                .await;
        assert!(matches!(result, Err(StoreError::Connect { .. })));
    }
}
