//! Asks for a run, at any reconciler. The leader begins it.

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

use super::journal::in_parts;
use super::machine::is_deeper_than;
use super::machine::limits::DEPTH_MAX;
use super::records::{Origin, PAYLOAD_MAX_BYTES, Parts, RunId, RunRequest, Stored};

/// Most runs that are asked for and wait: with the largest inputs they take 256 MiB of etcd's 2 GiB.
pub(super) const WAITING_MAX: usize = 1_000;
/// Larger inputs lie in parts of their own until the run begins: the leader reads every request whenever it looks, and
/// an input once, when its turn comes.
const ASKED_INLINE_MAX_BYTES: usize = 1024;
/// After a watch that broke.
const REWATCH_WAIT: Duration = Duration::from_secs(1);

/// How many runs are asked for and have not begun, as far as this reconciler knows.
#[derive(Debug, Clone, Default)]
pub struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    /// Follows what is asked for, and wakes the loop that begins it.
    pub async fn follow(self, store: SharedStore, nudge: Nudge) -> Infallible {
        loop {
            // Who asks for a run sees the error.
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

    /// Refuses a run that is new while too many wait.
    ///
    /// # Errors
    /// Too many wait, or etcd does not answer.
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

/// What is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The run will begin.
    New,
    /// There is such a run already, or it is asked for.
    Existing,
}

/// Why it was not asked for.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The input is too large.
    #[error("the input is {0} bytes; the limit is {PAYLOAD_MAX_BYTES}")]
    TooLarge(usize),
    /// The input is nested too deeply.
    #[error("the input is nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    /// Too many wait already.
    #[error("the queue is full: {WAITING_MAX} runs are waiting")]
    TooManyWaiting,
    /// Etcd did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Asks for a run. The same id is the same run, however often and wherever it is asked for.
///
/// # Errors
/// The input is too large or nested too deeply, or etcd does not answer.
pub async fn ask(
    store: &SharedStore,
    id: &RunId,
    input: Json,
    origin: Origin,
    at: Timestamp,
) -> Result<Asked, RequestError> {
    if is_deeper_than(&input, DEPTH_MAX) {
        return Err(RequestError::TooDeep);
    }
    let text = input.to_string();
    if text.len() > PAYLOAD_MAX_BYTES {
        return Err(RequestError::TooLarge(text.len()));
    }
    let mut ops = Vec::new();
    let input = if text.len() <= ASKED_INLINE_MAX_BYTES {
        Stored::Inline(input)
    } else {
        let (parts, count) = in_parts(&text);
        ops.extend(parts.zip(0..).map(|(part, number)| Op::put(id.input(number), part)));
        Stored::Parts(Parts { digest: sha256_hex(text.as_bytes()), count })
    };
    let request = RunRequest { asked_at: at, origin, input };
    let value = encode(&request).map_err(|_| RequestError::TooLarge(text.len()))?;
    ops.push(Op::put(id.request(), value));
    let guards = vec![Guard::Absent(id.head().to_string()), Guard::Absent(id.request().to_string())];
    Ok(match store.txn(guards, ops).await? {
        TxnOutcome::Committed(_) => Asked::New,
        TxnOutcome::Conflict => Asked::Existing,
    })
}
