//! Resolution of names outside the cluster: queries the upstream servers, with a cache.
//!
//! Hickory's own resolver (0.26.3) returns the refusal or failure of whichever of two upstreams answers first: of
//! 5,000 questions with one good and one refusing upstream 13 % failed. So `exchange.rs` decides which upstream is
//! queried; Hickory reads and writes the messages.

mod cache;
mod exchange;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use hickory_proto::op::{Message, Query, ResponseCode};
use schema::control::lock;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::cache::Cache;
use crate::clients::{Clients, ConnectionGuard, SHARE_DIVISOR};
use crate::metrics::{METRICS, Outcomes};
use exchange::UpstreamHealth;

/// Maximum number of concurrent questions. Each has two sockets at most, and an agent may have 1024 files open. One
/// client may have a quarter of them; further questions wait.
const QUESTIONS_MAX: usize = 256;

/// Longest time for one question: less than the 5 s after which a pod's resolver retries.
const DEADLINE: Duration = Duration::from_secs(4);

/// Longest time for one attempt at one upstream.
const ATTEMPT_MAX: Duration = Duration::from_millis(1500);

/// Time without an answer after which the next upstream is queried as well: half an attempt, so that at most two
/// are under way.
const STAGGER: Duration = Duration::from_millis(750);

/// Stagger for an upstream that is not known to answer: few questions arrive in that time.
const STAGGER_UNPROVEN: Duration = Duration::from_millis(50);

/// Times that each upstream is queried: packets get lost.
const ROUNDS: usize = 2;

/// Reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("this node has no upstream name server; give one in dns.upstreams of the Cluster object")]
    NoUpstream,
    /// Too many questions are under way, of this client or in total.
    #[error("too many queries to upstream name servers are in progress")]
    Busy,
    #[error("no upstream name server answered within {} s", DEADLINE.as_secs())]
    Timeout,
    /// Error code of the last upstream that answered.
    #[error("an upstream name server answered {0}")]
    Refused(ResponseCode),
}

/// Forwards questions to upstream servers.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Vec<SocketAddr>,
    health: Mutex<UpstreamHealth>,
    cache: Cache,
    shares: Shares,
    flights: Mutex<HashMap<Query, Weak<Flight>>>,
    pub(super) outcomes: Outcomes,
}

/// A question under way: clients with the same question share its answer.
type Flight = OnceCell<Result<Arc<Message>, ForwardError>>;

impl Forwarder {
    /// Creates a forwarder that tries `upstreams` in order, without duplicates.
    pub(super) fn new(upstreams: Vec<SocketAddr>) -> Self {
        let health = Mutex::new(UpstreamHealth::new(upstreams.len()));
        let (shares, flights) = (Shares::new(QUESTIONS_MAX), Mutex::default());
        let outcomes = METRICS.forwarded.clone();
        Self { upstreams, health, cache: Cache::new(), shares, flights, outcomes }
    }

    pub(super) fn upstreams(&self) -> &[SocketAddr] {
        &self.upstreams
    }

    /// Returns the answer for a client, from the cache or an upstream; its code may be NXDOMAIN. Ends within
    /// [`DEADLINE`], including the wait for a place.
    pub(super) async fn resolve(&self, query: &Query, client: IpAddr) -> Result<Arc<Message>, ForwardError> {
        if let Some(known) = self.cache.get(query) {
            return Ok(known);
        }
        let resolved = self.resolve_unknown(query, client).await;
        self.outcomes.count(resolved.is_ok());
        resolved
    }

    /// Returns the answer to a question that was not in the cache.
    async fn resolve_unknown(&self, query: &Query, client: IpAddr) -> Result<Arc<Message>, ForwardError> {
        if self.upstreams.is_empty() {
            return Err(ForwardError::NoUpstream);
        }
        let deadline = Instant::now() + DEADLINE;
        let place = timeout_at(deadline, self.shares.place(client)).await;
        let Ok(Some(_place)) = place else { return Err(ForwardError::Busy) };
        // The answer may have arrived during the wait.
        if let Some(known) = self.cache.get(query) {
            return Ok(known);
        }
        // Should the first caller run out of time, the next waiting caller takes over.
        let flight = self.flight(query);
        let asked = timeout_at(deadline, flight.get_or_init(|| self.resolve_upstream(query))).await;
        asked.map_err(|_| ForwardError::Timeout)?.clone()
    }

    fn flight(&self, query: &Query) -> Arc<Flight> {
        let mut flights = lock(&self.flights);
        if let Some(under_way) = flights.get(query).and_then(Weak::upgrade) {
            return under_way;
        }
        // At most as many flights as places are under way; those that ended are forgotten.
        flights.retain(|_, flight| flight.strong_count() > 0);
        let fresh = Arc::new(Flight::new());
        flights.insert(query.clone(), Arc::downgrade(&fresh));
        fresh
    }

    async fn resolve_upstream(&self, query: &Query) -> Result<Arc<Message>, ForwardError> {
        let mut last = ForwardError::Timeout;
        let asked = timeout(DEADLINE, self.race_upstreams(query, &mut last)).await;
        let answer = asked.ok().flatten().ok_or(last)?;
        Ok(self.cache.keep(query, answer))
    }

    /// Queries one upstream after the other, the next one early if there is no answer. An upstream that loses the
    /// race counts as unresponsive immediately: its own timeout may never fire, because another's answer ends the
    /// question.
    async fn race_upstreams(&self, query: &Query, last: &mut ForwardError) -> Option<Message> {
        let order = self.health(|health| health.order(Instant::now().into_std()));
        let count = order.len();
        let mut turns = order.into_iter().cycle().take(count * ROUNDS);
        let mut newest = turns.next()?;
        let mut under_way = FuturesUnordered::new();
        under_way.push(self.query_upstream(query, newest));
        loop {
            let proven = self.health(|health| health.is_proven(newest));
            let stagger = if proven { STAGGER } else { STAGGER_UNPROVEN };
            // With two under way there is no hurry: each has two sockets at most.
            let stagger = if under_way.len() > 1 { STAGGER } else { stagger };
            tokio::select! {
                // Cancel-safe: attempts under way stay in the set.
                answered = under_way.next(), if !under_way.is_empty() => {
                    match answered.flatten() {
                        Some(answer) if is_final(&answer) => return Some(answer),
                        Some(answer) => *last = ForwardError::Refused(answer.metadata.response_code),
                        None => {}
                    }
                    match turns.next() {
                        Some(next) => {
                            newest = next;
                            under_way.push(self.query_upstream(query, next));
                        }
                        None if under_way.is_empty() => return None,
                        None => {}
                    }
                }
                () = sleep(stagger) => {
                    self.health(|health| health.mark_unresponsive(newest, Instant::now().into_std()));
                    if let Some(next) = turns.next() {
                        newest = next;
                        under_way.push(self.query_upstream(query, next));
                    }
                }
            }
        }
    }

    async fn query_upstream(&self, query: &Query, index: usize) -> Option<Message> {
        let upstream = *self.upstreams.get(index)?;
        let answer = timeout(ATTEMPT_MAX, exchange::exchange(upstream, query)).await;
        let now = Instant::now().into_std();
        match answer {
            Ok(Ok(answer)) => {
                self.health(|health| health.mark_answered(index));
                Some(answer)
            }
            Ok(Err(error)) => {
                tracing::debug!(%upstream, %error, "upstream name server not reached");
                self.health(|health| health.mark_unresponsive(index, now));
                None
            }
            Err(_) => {
                self.health(|health| health.mark_unresponsive(index, now));
                None
            }
        }
    }

    fn health<T>(&self, work: impl FnOnce(&mut UpstreamHealth) -> T) -> T {
        work(&mut lock(&self.health))
    }
}

/// True if another upstream would give the same answer.
fn is_final(answer: &Message) -> bool {
    matches!(answer.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
}

// Places for upstream questions, limited by open files and shared between clients.

/// Questions that may wait for each place. One client may have a quarter of all places, and four times as many of
/// its questions may wait.
const WAITING: usize = 4;

/// Places in use per client. A client is an address: of a pod, or of the node for everything that runs on it.
#[derive(Debug)]
struct Shares {
    places: Arc<Semaphore>,
    /// Maximum number of places for one client.
    most: usize,
    /// Places of each client that has or wants some.
    own: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Number of questions per client that have or want a place.
    known: Clients,
}

/// A place, released when dropped.
#[derive(Debug)]
struct QuestionPermit {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _known: ConnectionGuard,
}

impl Shares {
    /// Creates shares of `places` places.
    fn new(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            most: (places / SHARE_DIVISOR).max(1),
            own: Mutex::default(),
            known: Clients::sharing(places * WAITING),
        }
    }

    /// Waits for a place, first come first served; `None` immediately if too many questions of this client are
    /// waiting. The client's own limit is waited for first, so that its questions do not block others.
    async fn place(&self, client: IpAddr) -> Option<QuestionPermit> {
        let known = self.known.admit(client)?;
        let own = self.own_of(client).acquire_owned().await.ok()?;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(QuestionPermit { _place: place, _own: own, _known: known })
    }

    fn own_of(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut own = lock(&self.own);
        if let Some(known) = own.get(&client).and_then(Weak::upgrade) {
            return known;
        }
        // Idle clients are forgotten.
        own.retain(|_, semaphore| semaphore.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(self.most));
        own.insert(client, Arc::downgrade(&fresh));
        fresh
    }
}
