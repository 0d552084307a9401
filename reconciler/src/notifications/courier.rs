//! Courier: delivers messages, several at a time, so that a target that does not answer holds nothing up, least of all
//! the loop.
//!
//! Gets deliveries through a queue; returns their results through another, and wakes the loop. What it has not begun is
//! dropped once this process leads no longer.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use schema::control::{Nudge, lock};
use schema::store::election::{Fence, FenceReader};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::plan::{DeliveryResult, EntryKey, Outcome};
use super::send::{Delivery, DeliveryError, DeliveryOutcome, send};
use super::target::Target;
use crate::metrics::METRICS;

/// Most deliveries at the same time. Each takes 5 s at most.
const PARALLEL_MAX: usize = 32;
/// Most deliveries that wait: one for each target.
const QUEUE_MAX: usize = 256;

/// A delivery on its way, with the fence under which its attempt was written.
pub(super) struct Parcel {
    pub(super) fence: Fence,
    pub(super) target: Arc<Target>,
    pub(super) key: EntryKey,
    pub(super) delivery: Delivery,
}

/// Task that delivers messages.
pub struct Courier {
    parcels: mpsc::Receiver<Parcel>,
    results: Arc<Mutex<Vec<DeliveryResult>>>,
    fence: FenceReader,
    nudge: Nudge,
}

/// The loop's end of the courier's queues.
pub struct CourierQueue {
    parcels: mpsc::Sender<Parcel>,
    results: Arc<Mutex<Vec<DeliveryResult>>>,
}

impl CourierQueue {
    /// Queues a delivery; false if the queue is full.
    pub(super) fn push(&self, parcel: Parcel) -> bool {
        self.parcels.try_send(parcel).is_ok()
    }

    /// Takes the results of deliveries that have ended.
    pub(super) fn take_results(&self) -> Vec<DeliveryResult> {
        std::mem::take(&mut *lock(&self.results))
    }
}

impl Courier {
    /// Creates a courier and its queue. `nudge` wakes the loop for results.
    pub fn new(fence: FenceReader, nudge: Nudge) -> (Self, CourierQueue) {
        let (sender, parcels) = mpsc::channel(QUEUE_MAX);
        let results: Arc<Mutex<Vec<DeliveryResult>>> = Arc::default();
        let queue = CourierQueue { parcels: sender, results: Arc::clone(&results) };
        (Self { parcels, results, fence, nudge }, queue)
    }

    /// Delivers until `shutdown`. The outcome of what is in flight then is unknown, and the next leader repeats it.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                // Cancel-safe: a cancelled token stays so.
                () = shutdown.cancelled() => return,
                // Cancel-safe: what has not ended stays in the set.
                Some(result) = running.next() => self.report(result),
                // Cancel-safe: a parcel is taken only if this arm is chosen.
                Some(parcel) = self.parcels.recv(), if running.len() < PARALLEL_MAX => {
                    running.push(deliver(parcel, self.fence.clone()));
                }
            }
        }
    }

    fn report(&self, result: DeliveryResult) {
        lock(&self.results).push(result);
        self.nudge.nudge();
    }
}

async fn deliver(parcel: Parcel, fence: FenceReader) -> DeliveryResult {
    let Parcel { fence: held, target, key, delivery } = parcel;
    let outcome = if fence.current() == Some(held) {
        let began = Instant::now();
        let sent = Box::pin(send(&target, &delivery)).await;
        outcome(&target, &key, began, sent)
    } else {
        Outcome::NotTried
    };
    DeliveryResult { key, id: delivery.id, at: Timestamp::now(), outcome }
}

/// Counts and logs a delivery.
fn outcome(
    target: &Target,
    (name, subject): &EntryKey,
    began: Instant,
    sent: Result<DeliveryOutcome, DeliveryError>,
) -> Outcome {
    let took = began.elapsed();
    let (word, outcome) = match sent {
        Ok(DeliveryOutcome::Sent) => ("sent", Outcome::Accepted),
        Ok(DeliveryOutcome::AlreadyThere) => ("already", Outcome::Accepted),
        Err(DeliveryError { message, retry_after }) => {
            ("failed", Outcome::Failed { error: message, retry_after })
        }
    };
    METRICS.deliveries.inc(&[target.kind_word(), word]);
    match &outcome {
        Outcome::Failed { error, .. } => {
            tracing::warn!(to = name, subject, error, ?took, "message not delivered; it is tried again");
        }
        Outcome::Accepted | Outcome::NotTried => {
            tracing::info!(to = name, subject, outcome = word, ?took, "message delivered");
        }
    }
    outcome
}
