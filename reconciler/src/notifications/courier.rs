//! Courier: delivers messages, one to each target at a time, so that a target that does not answer holds nothing up,
//! least of all the loop.
//!
//! Gets deliveries through a queue; returns their results through another, and wakes the loop. Those that have not begun
//! are dropped once this process leads no longer.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::future::{BoxFuture, ready};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use schema::control::{Nudge, lock};
use schema::store::election::{Fence, FenceReader};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::plan::{DeliveryResult, EntryKey, Outcome};
use super::send::{Delivery, DeliveryError, DeliveryOutcome, send};
use super::target::Target;
use crate::metrics::METRICS;

/// Most targets: 256 sources, and 16 of the Cluster object. Most deliveries that wait, and most at the same time.
const TARGETS_MAX: usize = 256 + 16;

/// A delivery on its way, with the fence under which its attempt was written.
pub(super) struct Parcel {
    pub(super) fence: Fence,
    pub(super) target: Arc<Target>,
    pub(super) key: EntryKey,
    pub(super) delivery: Delivery,
}

/// Function that delivers a message to a target, within 5 s.
pub(super) type Sender = Arc<
    dyn Fn(Arc<Target>, Delivery) -> BoxFuture<'static, Result<DeliveryOutcome, DeliveryError>> + Send + Sync,
>;

/// Task that delivers messages.
pub struct Courier {
    parcels: mpsc::Receiver<Parcel>,
    results: Arc<Mutex<Vec<DeliveryResult>>>,
    fence: FenceReader,
    nudge: Nudge,
    sender: Sender,
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
        let sender = |target: Arc<Target>, delivery: Delivery| {
            async move { Box::pin(send(&target, &delivery)).await }.boxed()
        };
        Self::with(Arc::new(sender), fence, nudge)
    }

    /// Creates a courier that sends by this function.
    pub(super) fn with(sender: Sender, fence: FenceReader, nudge: Nudge) -> (Self, CourierQueue) {
        let (queue, parcels) = mpsc::channel(TARGETS_MAX);
        let results: Arc<Mutex<Vec<DeliveryResult>>> = Arc::default();
        let queue = CourierQueue { parcels: queue, results: Arc::clone(&results) };
        (Self { parcels, results, fence, nudge, sender }, queue)
    }

    /// Delivers until `shutdown`, and then until what is in flight has ended: it must not arrive after a delivery of the
    /// next leader. That one repeats it, because its result is not written any more.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                // Cancel-safe: a cancelled token stays so.
                () = shutdown.cancelled() => break,
                // Cancel-safe: what has not ended stays in the set.
                Some(result) = running.next() => self.report(result),
                // Cancel-safe: a parcel is taken only if this arm is chosen.
                Some(parcel) = self.parcels.recv(), if running.len() < TARGETS_MAX => {
                    running.push(deliver(parcel, self.fence.clone(), Arc::clone(&self.sender)));
                }
            }
        }
        running.for_each(|_| ready(())).await;
    }

    fn report(&self, result: DeliveryResult) {
        lock(&self.results).push(result);
        self.nudge.nudge();
    }
}

async fn deliver(parcel: Parcel, fence: FenceReader, sender: Sender) -> DeliveryResult {
    let Parcel { fence: held, target, key, delivery } = parcel;
    let id = delivery.id.clone();
    let outcome = if fence.current() == Some(held) {
        let began = Instant::now();
        let sent = sender(Arc::clone(&target), delivery).await;
        outcome(&target, &key, began, sent)
    } else {
        Outcome::NotTried
    };
    DeliveryResult { key, id, at: Timestamp::now(), outcome }
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
