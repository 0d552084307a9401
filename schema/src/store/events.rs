//! Event recording: writes events to `events/` for people to read.
//!
//! Recording must never delay the work: `record` only queues, the queue is bounded, and events that can't be
//! written in time are dropped and counted.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LeaseId, Op, SharedStore, StoreError, TXN_OPS_MAX};
use crate::backoff::Backoff;
use crate::codec::encode;
use crate::keys::Key;
use crate::meta::NamespacedName;
use crate::records::{Event, EventType};

/// Name of the reconciler in the keys of events; no node can have this name.
pub const RECONCILER: &str = "_reconciler";
/// Namespace in the keys of events whose object has none.
pub const CLUSTER_NAMESPACE: &str = "_cluster";

/// Most events waiting to be written: several bursts of a whole node's pods.
const QUEUE: usize = 1_024;
/// Time within which the same event is written only once.
const REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Most events remembered for that; beyond it, a repetition may get through.
const REMEMBERED_MAX: usize = 4_096;
/// Lifetime of a lease. An event lives at least an hour: a lease takes new events for [`LEASE_SHARED`], and ends
/// this long after its grant.
const LEASE_TTL: Duration = Duration::from_secs(70 * 60);
/// Time for which a lease takes new events.
const LEASE_SHARED: Duration = Duration::from_secs(10 * 60);
/// Attempts to write a batch. With the waits between them about 6 s; an etcd that restarts is back within these.
const ATTEMPTS: u32 = 6;
/// Longest time to write out the queue after shutdown.
const DRAIN: Duration = Duration::from_secs(2);
/// Longest message kept, in bytes.
const MESSAGE_MAX_BYTES: usize = 1_024;

/// An event without time and reporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDraft {
    /// Normal or Warning.
    pub kind: EventType,
    /// `Pod`, `Node`, `Source`, ….
    pub object_kind: String,
    /// Namespace of the object; empty when it has none.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// CamelCase word for the reason.
    pub reason: String,
    /// Human-readable sentence.
    pub message: String,
}

impl EventDraft {
    /// Creates a draft about an object of this kind: `Pod`, `Node`, `Source`, …; an object without a namespace has
    /// an empty one.
    pub fn about(
        kind: EventType,
        object_kind: impl Display,
        object: &NamespacedName,
        reason: &str,
        message: String,
    ) -> Self {
        let NamespacedName { namespace, name } = object.clone();
        Self {
            kind,
            object_kind: object_kind.to_string(),
            namespace,
            name,
            reason: reason.to_owned(),
            message,
        }
    }
}

/// Records events. Clones share one queue.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    /// `None` if disabled.
    queue: Option<mpsc::Sender<Event>>,
    reporter: Arc<str>,
    dropped: Arc<AtomicU64>,
}

impl EventRecorder {
    /// Creates a recorder that forgets everything.
    #[cfg(any(test, feature = "testing"))]
    pub fn disabled() -> Self {
        Self { queue: None, reporter: "".into(), dropped: Arc::default() }
    }

    /// Creates a recorder that writes to `store` below `events/<key>/` until `shutdown`; `key` is a node's name, or
    /// [`RECONCILER`]. `reporter` is for people: `agent/<node>`, `gitops`, `scheduler`. The caller must run the
    /// future to its end: it writes the events, including those still queued at `shutdown`.
    pub fn writing(
        store: SharedStore,
        key: impl Into<String>,
        reporter: impl Into<String>,
        shutdown: CancellationToken,
    ) -> (Self, BoxFuture<'static, ()>) {
        let key = key.into();
        let (queue, events) = mpsc::channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = EventWriter {
            store,
            key,
            lease: None,
            recent: RecentEvents::default(),
            dropped: Arc::clone(&dropped),
        };
        let writing = writer.run(events, shutdown).boxed();
        (Self { queue: Some(queue), reporter: reporter.into().into(), dropped }, writing)
    }

    /// Returns a recorder on the same queue with another reporter.
    #[must_use]
    pub fn reporting_as(&self, reporter: impl Into<String>) -> Self {
        Self { reporter: reporter.into().into(), ..self.clone() }
    }

    /// Queues an event. Never waits; if the queue is full, the event is dropped and counted.
    pub fn record(&self, draft: EventDraft) {
        let Some(queue) = &self.queue else { return };
        let mut message = draft.message;
        shorten(&mut message);
        let event = Event {
            time: Timestamp::now(),
            kind: draft.kind,
            object_kind: draft.object_kind,
            namespace: draft.namespace,
            name: draft.name,
            reason: draft.reason,
            message,
            reporter: self.reporter.to_string(),
        };
        if queue.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of events dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Cuts the message at a character boundary.
fn shorten(message: &mut String) {
    if message.len() > MESSAGE_MAX_BYTES {
        let end = (0..=MESSAGE_MAX_BYTES).rev().find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or_default());
        message.push('…');
    }
}

/// Writing end of the queue.
struct EventWriter {
    store: SharedStore,
    /// Reporter in the keys.
    key: String,
    /// Lease of new events, and the time of its grant.
    lease: Option<(LeaseId, Instant)>,
    recent: RecentEvents,
    dropped: Arc<AtomicU64>,
}

impl EventWriter {
    async fn run(mut self, mut events: mpsc::Receiver<Event>, shutdown: CancellationToken) {
        // Cancel-safe: `recv_many` takes nothing when dropped. A batch in `write` cut short may be lost, which is
        // acceptable for events.
        shutdown.run_until_cancelled(self.write_all(&mut events)).await;
        // No new events; the queued ones are written out.
        events.close();
        if timeout(DRAIN, self.write_all(&mut events)).await.is_err() {
            tracing::debug!("queued events dropped at shutdown");
        }
    }

    async fn write_all(&mut self, events: &mut mpsc::Receiver<Event>) {
        let mut batch = Vec::with_capacity(TXN_OPS_MAX);
        while events.recv_many(&mut batch, TXN_OPS_MAX).await > 0 {
            let now = Instant::now();
            batch.retain(|event| self.recent.is_news(event, now));
            if !batch.is_empty() {
                self.write(&batch).await;
            }
            batch.clear();
        }
    }

    /// Writes a batch, or drops it after some attempts.
    async fn write(&mut self, batch: &[Event]) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        let keyed: Vec<(Key, &Event)> =
            batch.iter().map(|event| (key_of(&self.key, event, rand::random()), event)).collect();
        loop {
            // A retry after a lost answer writes the same keys again: no harm.
            let Err(why) = self.try_write(&keyed).await else { return };
            let wait = backoff.after_failure(rand::random());
            if backoff.failures() >= ATTEMPTS {
                let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                let dropped = self.dropped.fetch_add(count, Ordering::Relaxed) + count;
                tracing::warn!(error = %why, dropped, "events dropped");
                return;
            }
            sleep(wait).await;
        }
    }

    async fn try_write(&mut self, keyed: &[(Key, &Event)]) -> Result<(), StoreError> {
        let lease = self.lease().await?;
        let ops = keyed.iter().filter_map(|(key, event)| {
            // Every event has a JSON form; an event too large for a key is dropped.
            let value = encode(*event).ok()?.into();
            Some(Op::Put { key: key.to_string(), value, lease: Some(lease) })
        });
        match self.store.txn(Vec::new(), ops.collect()).await {
            Ok(_) => Ok(()),
            Err(why) => {
                if matches!(why, StoreError::LeaseLost(_)) {
                    self.lease = None;
                }
                Err(why)
            }
        }
    }

    /// Returns the lease for new events; a new one every [`LEASE_SHARED`].
    async fn lease(&mut self) -> Result<LeaseId, StoreError> {
        if let Some((lease, since)) = self.lease
            && since.elapsed() < LEASE_SHARED
        {
            return Ok(lease);
        }
        let since = Instant::now();
        let lease = self.store.lease_grant(LEASE_TTL).await?;
        self.lease = Some((lease, since));
        Ok(lease)
    }
}

/// Builds the key of an event. The id is `<time>-<random>`: it sorts by time, and two of one microsecond do not
/// collide.
fn key_of(reporter: &str, event: &Event, random: u32) -> Key {
    let namespace = if event.namespace.is_empty() { CLUSTER_NAMESPACE } else { &event.namespace };
    let id = format!("{:016}-{random:08x}", event.time.as_microsecond());
    Key::Event(reporter.to_owned(), namespace.to_owned(), id)
}

/// Identity of an event for finding repetitions: object, reason and message.
type EventIdentity = [String; 5];

/// Recently written events.
#[derive(Debug, Default)]
struct RecentEvents {
    written: BTreeMap<EventIdentity, Instant>,
}

impl RecentEvents {
    /// True if the event was not written in the last [`REPEAT_AFTER`]; it then counts as written now.
    fn is_news(&mut self, event: &Event, now: Instant) -> bool {
        let same = [&event.object_kind, &event.namespace, &event.name, &event.reason, &event.message];
        let same = same.map(Clone::clone);
        let fresh = |at: &Instant| now.duration_since(*at) < REPEAT_AFTER;
        if self.written.get(&same).is_some_and(fresh) {
            return false;
        }
        if self.written.len() >= REMEMBERED_MAX {
            self.written.retain(|_, at| fresh(at));
            if self.written.len() >= REMEMBERED_MAX {
                // So many different events within a minute: start over.
                self.written.clear();
            }
        }
        self.written.insert(same, now);
        true
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
