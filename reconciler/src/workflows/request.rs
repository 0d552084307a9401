//! Requests a run, at any reconciler. The leader begins it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use schema::codec::{encode, sha256_hex};
use schema::control::Nudge;
use schema::keys::prefix;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome, WatchEvent};
use serde_json::Value as Json;
use tokio::time::sleep;

use super::journal::split_into_parts;
use super::machine::context::DEPTH_MAX;
use super::machine::is_deeper_than;
use super::records::{Origin, PAYLOAD_MAX_BYTES, RunId, RunRequest, StoredValue, ValueParts};

/// Maximum number of requested runs that wait: with the largest inputs they take 256 MiB of etcd's 2 GiB.
pub(super) const WAITING_MAX: usize = 1_000;
/// Size above which inputs are stored in separate parts until the run begins: the leader lists every request in
/// each observation, and reads an input once, when its turn comes.
const ASKED_INLINE_MAX_BYTES: usize = 1024;
/// Pause after a broken watch.
const REWATCH_WAIT: Duration = Duration::from_secs(1);

/// Number of requested runs that have not begun, as far as this reconciler knows.
#[derive(Debug, Clone, Default)]
pub struct RequestQueue(Arc<AtomicUsize>);

impl RequestQueue {
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
        self.0.store(keys.len(), Ordering::Relaxed);
        nudge.nudge();
        let mut changes = store.watch(prefix::RUN_REQUESTS, listing.revision + 1).await?;
        while let Some(batch) = changes.next().await {
            for event in batch?.events {
                match event {
                    WatchEvent::Put(there) => keys.insert(there.key),
                    WatchEvent::Delete { key, .. } => keys.remove(&key),
                };
            }
            self.0.store(keys.len(), Ordering::Relaxed);
            nudge.nudge();
        }
        Ok(())
    }

    /// Rejects a new run while too many wait.
    ///
    /// # Errors
    /// Too many runs wait, or etcd does not respond.
    pub async fn admit(&self, store: &SharedStore, id: &RunId) -> Result<(), RequestError> {
        if self.0.load(Ordering::Relaxed) < WAITING_MAX {
            return Ok(());
        }
        for key in [id.request(), id.head()] {
            if store.get(&key.to_string()).await?.is_some() {
                return Ok(());
            }
        }
        Err(RequestError::TooManyWaiting)
    }
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
    /// Etcd did not accept the request.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Requests a run. The same id is the same run, however often and wherever it is requested.
///
/// # Errors
/// The input is too large or nested too deeply, or etcd does not respond.
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
        TxnOutcome::Conflict => RunRequestOutcome::Existing,
    })
}
