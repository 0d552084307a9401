//! Leader election: one key, put if absent, on a lease that the leader keeps alive.
//!
//! Reads and writes [`Key::Leader`] and nothing else. The fence it hands out goes into every transaction of the
//! reconciler, so a leader that slept past its lease can't write: being leader is only ever a hint, the fence
//! decides.

#[cfg(test)]
mod tests;

use std::time::Duration;

use futures::future::{BoxFuture, pending};
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Guard, LeaseId, Op, SharedStore, Store, StoreError, TxnOutcome, WatchEvent};
use crate::backoff::Backoff;
use crate::codec::{decode, encode};
use crate::keys::Key;

/// Longest wait between two attempts to become leader while the store fails.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Longest time for resigning; after that the lease expires by itself.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(2);

/// Value of [`Key::Leader`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// Name of the reconciler that leads.
    pub id: String,
    /// Start of its term.
    pub since: Timestamp,
    /// URL of its API (`https://address:port`), where agents fetch files; `None` if not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
}

/// Candidate in the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateInfo {
    /// Name of the reconciler.
    pub id: String,
    /// Address of its API, as in [`LeaderRecord`].
    pub api: Option<String>,
}

impl From<String> for CandidateInfo {
    fn from(id: String) -> Self {
        Self { id, api: None }
    }
}

/// Proof of leadership: holds as long as the leader key has this create revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// Create revision of the leader key.
    pub create_revision: i64,
}

impl Fence {
    /// Returns the guard that every write of the leader carries.
    pub fn guard(&self) -> Guard {
        Guard::CreateRevision(Key::Leader.to_string(), self.create_revision)
    }
}

/// A fence, and the time until which it counts without another keep-alive.
#[derive(Debug, Clone, Copy)]
struct HeldFence {
    fence: Fence,
    lease: Option<LeaseId>,
    /// `None` if it counts forever, in tests.
    until: Option<Instant>,
}

/// Reports whether this process leads. Clones report the same.
#[derive(Debug, Clone)]
pub struct FenceReader {
    held: watch::Receiver<Option<HeldFence>>,
}

impl FenceReader {
    /// Creates a reader of a fence that never changes.
    #[cfg(any(test, feature = "testing"))]
    pub fn fixed(fence: Option<Fence>) -> Self {
        let (_, held) = watch::channel(fence.map(|fence| HeldFence { fence, lease: None, until: None }));
        Self { held }
    }

    /// Returns the fence, if this process leads as far as it can know. Checks the clock: a process that was stopped
    /// past its lease has no fence from its first instruction on.
    pub fn current(&self) -> Option<Fence> {
        let held = (*self.held.borrow())?;
        let over = held.until.is_some_and(|until| Instant::now() >= until);
        (!over).then_some(held.fence)
    }

    /// Returns the lease on which leadership depends, while this process leads.
    pub fn lease(&self) -> Option<LeaseId> {
        (*self.held.borrow())?.lease
    }

    /// Waits until leadership is won or lost after the last return. Never returns once the election has ended.
    /// Cancel-safe.
    pub async fn changed(&mut self) {
        if self.held.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Interval at which agents look up the leader: a new leader seldom has another address.
pub const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);

/// Looks up the leader in the store.
///
/// # Errors
/// Same as [`Store::get`]; a value that can't be read counts as no leader.
pub async fn leader(store: &dyn Store) -> Result<Option<LeaderRecord>, StoreError> {
    let found = store.get(&Key::Leader.to_string()).await?;
    Ok(found.and_then(|item| decode(&item.value).ok()))
}

/// Stands for election until `shutdown`, then resigns: the caller must run the future. `ttl` is the time after
/// which another reconciler may lead if this process dies; etcd counts it in whole seconds.
pub fn stand_for_election(
    store: SharedStore,
    standing: impl Into<CandidateInfo>,
    ttl: Duration,
    shutdown: CancellationToken,
) -> (FenceReader, BoxFuture<'static, ()>) {
    let (held, reader) = watch::channel(None);
    let CandidateInfo { id, api } = standing.into();
    let candidate = Candidate { store, id, api, ttl, held };
    (FenceReader { held: reader }, candidate.run(shutdown).boxed())
}

struct Candidate {
    store: SharedStore,
    id: String,
    api: Option<String>,
    ttl: Duration,
    held: watch::Sender<Option<HeldFence>>,
}

/// Term of a leader.
struct Term {
    lease: LeaseId,
    fence: Fence,
    /// Time until which the lease lives at least.
    until: Instant,
}

impl Candidate {
    async fn run(self, shutdown: CancellationToken) {
        let mut backoff = Backoff::new(self.ttl / 30, BACKOFF_MAX.min(self.ttl));
        while !shutdown.is_cancelled() {
            // Cancel-safe: a lease or key left behind by a cancelled campaign ends with its ttl.
            let Some(campaign) = shutdown.run_until_cancelled(self.campaign()).await else { break };
            match campaign {
                Ok(term) => {
                    backoff.reset();
                    self.lead(term, &shutdown).await;
                }
                Err(why) => {
                    if backoff.failures() == 0 {
                        tracing::warn!(id = self.id, error = %why, "candidacy failed; it is tried again");
                    }
                    let wait = backoff.after_failure(rand::random());
                    shutdown.run_until_cancelled(sleep(wait)).await;
                }
            }
        }
    }

    /// Waits until there is no leader, then tries to lead. Returns once this process leads.
    async fn campaign(&self) -> Result<Term, StoreError> {
        loop {
            self.wait_until_vacant().await?;
            // Counted from before the request: etcd's own clock starts later, so this one runs out first.
            let until = Instant::now() + self.ttl;
            let lease = self.store.lease_grant(self.ttl).await?;
            match self.put_leader(lease).await {
                Ok(TxnOutcome::Committed(create_revision)) => {
                    return Ok(Term { lease, fence: Fence { create_revision }, until });
                }
                Ok(TxnOutcome::Conflict) => self.store.lease_revoke(lease).await?,
                Err(why) => {
                    // Perhaps the write succeeded and only the answer got lost. Without its lease the key goes, and
                    // the others don't wait a whole ttl for a leader that does not know it is one.
                    let _ = timeout(RESIGN_TIMEOUT, self.store.lease_revoke(lease)).await;
                    return Err(why);
                }
            }
        }
    }

    async fn put_leader(&self, lease: LeaseId) -> Result<TxnOutcome, StoreError> {
        let key = Key::Leader.to_string();
        let record = LeaderRecord { id: self.id.clone(), since: Timestamp::now(), api: self.api.clone() };
        let value = encode(&record).expect("a leader record is small JSON").into();
        let put = Op::Put { key: key.clone(), value, lease: Some(lease) };
        self.store.txn(vec![Guard::Absent(key)], vec![put]).await
    }

    /// Waits until there is no leader key; checks again after a ttl even without an event.
    async fn wait_until_vacant(&self) -> Result<(), StoreError> {
        let key = Key::Leader.to_string();
        loop {
            let listing = self.store.list(&key).await?;
            if !listing.items.iter().any(|item| item.key == key) {
                return Ok(());
            }
            let mut watch = self.store.watch(&key, listing.revision + 1).await?;
            let look_again = Instant::now() + self.ttl;
            // Cancel-safe: the next list makes up for a batch lost with the timeout.
            while let Ok(Some(batch)) = timeout_at(look_again, watch.next()).await {
                let gone =
                    |event: &WatchEvent| matches!(event, WatchEvent::Delete { key: k, .. } if *k == key);
                if batch?.events.iter().any(gone) {
                    break;
                }
            }
        }
    }

    /// Leads until shutdown, or until the lease no longer counts.
    async fn lead(&self, mut term: Term, shutdown: &CancellationToken) {
        tracing::info!(id = self.id, fence = term.fence.create_revision, "leadership won");
        self.held.send_replace(Some(HeldFence {
            fence: term.fence,
            lease: Some(term.lease),
            until: Some(term.until),
        }));
        let why = loop {
            tokio::select! {
                // Cancel-safe: the token stays cancelled.
                () = shutdown.cancelled() => break None,
                // Cancel-safe: a renewal cut short renews or does not; the lease is revoked next.
                renewed = self.renew(&term) => match renewed {
                    Ok(until) => {
                        term.until = until;
                        // Readers don't wait for this: only winning and losing leadership is news.
                        self.held.send_if_modified(|held| {
                            *held = Some(HeldFence { fence: term.fence, lease: Some(term.lease), until: Some(until) });
                            false
                        });
                    }
                    Err(why) => break Some(why),
                },
            }
        };
        // Locally first: from here on this process writes nothing as leader.
        self.held.send_replace(None);
        match why {
            None => tracing::info!(id = self.id, "leadership resigned"),
            Some(why) => tracing::warn!(id = self.id, error = %why, "leadership lost"),
        }
        let _ = timeout(RESIGN_TIMEOUT, self.store.lease_revoke(term.lease)).await;
    }

    /// Waits a third of the ttl and renews the lease, retrying until it is over. Returns the time until which it
    /// lives now.
    async fn renew(&self, term: &Term) -> Result<Instant, StoreError> {
        let next = term.until - self.ttl + self.ttl / 3;
        sleep_until(next).await;
        loop {
            let asked_at = Instant::now();
            let why = match timeout_at(term.until, self.prolong(term)).await {
                Ok(Ok(())) => return Ok(asked_at + self.ttl),
                Ok(Err(StoreError::LeaseLost(id))) => return Err(StoreError::LeaseLost(id)),
                Ok(Err(why)) => why,
                Err(_) => StoreError::Timeout { act: "a keep-alive", after: self.ttl },
            };
            let again = Instant::now() + self.ttl / 15;
            if again >= term.until {
                // The rest is too short for another try, but is used up all the same, or a short hiccup would end a
                // term early.
                sleep_until(term.until).await;
                return Err(why);
            }
            sleep_until(again).await;
        }
    }

    /// Sends a keep-alive and checks that the key still is this term's: a key removed by hand leaves the lease
    /// alive and every write refused.
    async fn prolong(&self, term: &Term) -> Result<(), StoreError> {
        self.store.lease_keep_alive(term.lease).await?;
        let found = self.store.get(&Key::Leader.to_string()).await?;
        let ours = found.is_some_and(|item| item.create_revision == term.fence.create_revision);
        if ours { Ok(()) } else { Err(StoreError::LeaseLost(term.lease.0)) }
    }
}
