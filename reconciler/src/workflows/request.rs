//! Requests a run, at any reconciler. The leader begins it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use schema::codec::{decode, encode, sha256_hex};
use schema::control::{Nudge, lock};
use schema::keys::prefix;
use schema::meta::NamespacedName;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome, WatchEvent};
use serde_json::Value as Json;
use tokio::time::{Instant, sleep};

use super::journal::split_into_parts;
use super::machine::context::DEPTH_MAX;
use super::machine::is_deeper_than;
use super::records::{Origin, PAYLOAD_MAX_BYTES, RunHead, RunId, RunRequest, StoredValue, ValueParts};

/// Maximum number of requested runs that wait: with the largest inputs they take 256 MiB of etcd's 2 GiB.
pub(super) const WAITING_MAX: usize = 1_000;
/// Size above which inputs are stored in separate parts until the run begins: the leader lists every request in
/// each observation, and reads an input once, when its turn comes.
const ASKED_INLINE_MAX_BYTES: usize = 1024;
/// Pause after a broken watch.
const REWATCH_WAIT: Duration = Duration::from_secs(1);

/// Bytes of runs that callers may request of a workflow in a minute, unless set otherwise: ten minutes of them, which
/// etcd may keep until it is compacted, are a twelfth of its 2 GiB.
pub const BYTES_PER_MINUTE: u64 = 16 << 20;
/// Least of these bytes that may be set: enough for a run with the largest input.
pub const BYTES_PER_MINUTE_MIN: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);
/// Bytes that a run takes in etcd besides its input: its request, head and journal.
const RUN_BYTES: u64 = 1024;

/// Requests of callers for runs: the number that have not begun, as far as this reconciler knows, and the bytes of the
/// last minute. Clones share both.
#[derive(Debug, Clone)]
pub struct RequestQueue {
    waiting: Arc<AtomicUsize>,
    bytes_per_minute: u64,
    /// Start of the minute of each workflow, and the bytes since then.
    taken: Arc<Mutex<BTreeMap<NamespacedName, (Instant, u64)>>>,
}

/// A run to request.
pub struct NewRun {
    pub input: Json,
    pub origin: Origin,
    /// Time of the request.
    pub at: Timestamp,
}

impl Default for RequestQueue {
    fn default() -> Self {
        Self::limited_to(BYTES_PER_MINUTE)
    }
}

impl RequestQueue {
    /// Creates a queue that takes so many bytes a minute for each workflow.
    pub fn limited_to(bytes_per_minute: u64) -> Self {
        Self { waiting: Arc::default(), bytes_per_minute, taken: Arc::default() }
    }

    /// Requests a run for a caller, unless too many wait or the workflow has had its bytes of this minute.
    ///
    /// # Errors
    /// Those of [`request_run`], and of the limits.
    pub async fn request(
        &self,
        store: &SharedStore,
        id: &RunId,
        run: NewRun,
    ) -> Result<RunRequestOutcome, RequestError> {
        let NewRun { input, origin, at } = run;
        self.admit(store, id).await?;
        let bytes = input.to_string().len() as u64 + RUN_BYTES;
        if let Err(refused) = self.charge(&id.workflow, bytes, Instant::now()) {
            return if is_known(store, id).await? { Ok(RunRequestOutcome::Existing) } else { Err(refused) };
        }
        let outcome = request_run(store, id, input, origin, at).await;
        if !matches!(outcome, Ok(RunRequestOutcome::New)) {
            self.refund(&id.workflow, bytes);
        }
        outcome
    }

    /// Counts the bytes of a run.
    fn charge(&self, workflow: &NamespacedName, bytes: u64, now: Instant) -> Result<(), RequestError> {
        let mut taken = lock(&self.taken);
        taken.retain(|_, (since, _)| now.duration_since(*since) < MINUTE);
        let (since, sum) = taken.entry(workflow.clone()).or_insert((now, 0));
        let (most, left) = (self.bytes_per_minute, MINUTE.saturating_sub(now.duration_since(*since)));
        if *sum + bytes > most {
            return Err(RequestError::TooManyBytes { most, seconds: left.as_secs() + 1 });
        }
        *sum += bytes;
        Ok(())
    }

    fn refund(&self, workflow: &NamespacedName, bytes: u64) {
        if let Some((_, sum)) = lock(&self.taken).get_mut(workflow) {
            *sum = sum.saturating_sub(bytes);
        }
    }

    /// Watches the requests, and wakes the loop that begins them.
    pub async fn follow(self, store: SharedStore, nudge: Nudge) -> Infallible {
        loop {
            // The client that requests a run gets the error.
            let _ = self.follow_once(&store, &nudge).await;
            sleep(REWATCH_WAIT).await;
        }
    }

    async fn follow_once(&self, store: &SharedStore, nudge: &Nudge) -> Result<(), StoreError> {
        let listing = store.list(prefix::RUN_REQUESTS).await?;
        let mut keys: BTreeSet<String> = listing.items.into_iter().map(|item| item.key).collect();
        self.waiting.store(keys.len(), Ordering::Relaxed);
        nudge.nudge();
        let mut changes = store.watch(prefix::RUN_REQUESTS, listing.revision + 1).await?;
        while let Some(batch) = changes.next().await {
            for event in batch?.events {
                match event {
                    WatchEvent::Put(there) => keys.insert(there.key),
                    WatchEvent::Delete { key, .. } => keys.remove(&key),
                };
            }
            self.waiting.store(keys.len(), Ordering::Relaxed);
            nudge.nudge();
        }
        Ok(())
    }

    /// Rejects a new run while too many wait.
    ///
    /// # Errors
    /// Too many runs wait, or etcd does not respond.
    pub(super) async fn admit(&self, store: &SharedStore, id: &RunId) -> Result<(), RequestError> {
        if self.waiting.load(Ordering::Relaxed) < WAITING_MAX || is_known(store, id).await? {
            return Ok(());
        }
        Err(RequestError::TooManyWaiting)
    }
}

/// True if there is such a run, or a request for it.
async fn is_known(store: &SharedStore, id: &RunId) -> Result<bool, StoreError> {
    Ok(known_origin(store, id).await?.is_some())
}

/// Returns the origin of the run with this id, requested or begun; the inner value is `None` if it is unreadable.
async fn known_origin(store: &SharedStore, id: &RunId) -> Result<Option<Option<Origin>>, StoreError> {
    if let Some(found) = store.get(&id.request().to_string()).await? {
        return Ok(Some(decode::<RunRequest>(&found.value).ok().map(|request| request.origin)));
    }
    let found = store.get(&id.head().to_string()).await?;
    Ok(found.map(|found| decode::<RunHead>(&found.value).ok().map(|head| head.origin)))
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunRequestOutcome {
    /// The run will begin.
    New,
    /// The run exists already, or is requested.
    Existing,
}

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The input is too large.
    #[error("the input is {0} bytes; the limit is {PAYLOAD_MAX_BYTES}")]
    TooLarge(usize),
    /// The input is nested too deeply.
    #[error("the input is nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    /// Too many runs wait already.
    #[error("the queue is full: {WAITING_MAX} runs are waiting")]
    TooManyWaiting,
    /// The workflow has had its bytes of this minute.
    #[error("the workflow has had its {most} bytes of requested runs in this minute")]
    TooManyBytes {
        /// Bytes for each minute.
        most: u64,
        /// Seconds until the next minute begins.
        seconds: u64,
    },
    /// The id belongs to a run of another origin, with another input.
    #[error("there is another run with this id, which was not started by the same trigger")]
    Taken,
    /// Etcd did not accept the request.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Requests a run. The same id is the same run, however often and wherever it is requested by the same trigger, or
/// without one.
///
/// # Errors
/// The input is too large or nested too deeply, the id belongs to another's run, or etcd does not respond.
pub async fn request_run(
    store: &SharedStore,
    id: &RunId,
    input: Json,
    origin: Origin,
    at: Timestamp,
) -> Result<RunRequestOutcome, RequestError> {
    if is_deeper_than(&input, DEPTH_MAX) {
        return Err(RequestError::TooDeep);
    }
    let text = input.to_string();
    if text.len() > PAYLOAD_MAX_BYTES {
        return Err(RequestError::TooLarge(text.len()));
    }
    let mut ops = Vec::new();
    let input = if text.len() <= ASKED_INLINE_MAX_BYTES {
        StoredValue::Inline(input)
    } else {
        let (parts, count) = split_into_parts(&text);
        ops.extend(parts.zip(0..).map(|(part, number)| Op::put(id.input(number), part)));
        StoredValue::Parts(ValueParts { digest: sha256_hex(text.as_bytes()), count })
    };
    let request = RunRequest { asked_at: at, origin, input };
    let value = encode(&request).map_err(|_| RequestError::TooLarge(text.len()))?;
    ops.push(Op::put(id.request(), value));
    let guards = vec![Guard::Absent(id.head().to_string()), Guard::Absent(id.request().to_string())];
    Ok(match store.txn(guards, ops).await? {
        TxnOutcome::Committed(_) => {
            tracing::info!(run = %id, "run requested");
            RunRequestOutcome::New
        }
        TxnOutcome::Conflict => {
            let trigger = request.origin.trigger();
            match known_origin(store, id).await?.flatten() {
                Some(known) if known.trigger() != trigger => return Err(RequestError::Taken),
                _ => RunRequestOutcome::Existing,
            }
        }
    })
}
