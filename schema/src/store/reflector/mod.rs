//! Reflector: lists and watches prefixes of the store, publishes one immutable snapshot.
//!
//! Reads the store, decides nothing (the folding is in `fold.rs`, pure), writes nothing. Never assumes that an
//! event arrives: it lists again after every failure, and periodically in any case.

mod fold;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all, pending};
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use self::fold::{Fold, Input, without_nested};
use super::{SharedStore, StoreError};
use crate::backoff::Backoff;
use crate::snapshot::Snapshot;

/// Time after which it lists again, even without a problem. Shortened at random by up to a tenth.
const RELIST: Duration = Duration::from_secs(600);
/// Wait after the first failure. Short: usually etcd restarted and is back immediately.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Lifetime from which a watch counts as good: the next failure is a first one again.
const GOOD_WATCH: Duration = Duration::from_secs(10);
/// Most inputs waiting to be folded; beyond it the watches wait, and end if they fall far behind.
const QUEUE: usize = 256;

/// Reader of the newest snapshot. Clones read the same one.
#[derive(Debug, Clone)]
pub struct SnapshotReader {
    snapshots: watch::Receiver<Arc<Snapshot>>,
}

/// Publishing end of a [`SnapshotReader`].
#[derive(Debug)]
pub struct SnapshotPublisher {
    snapshots: watch::Sender<Arc<Snapshot>>,
}

impl SnapshotPublisher {
    /// Publishes `snapshot` to the readers.
    pub fn publish(&self, snapshot: Snapshot) {
        self.snapshots.send_replace(Arc::new(snapshot));
    }
}

impl SnapshotReader {
    /// Creates a reader of a snapshot that never changes.
    #[cfg(any(test, feature = "testing"))]
    pub fn fixed(snapshot: Snapshot) -> Self {
        Self::channel(snapshot).1
    }

    /// Creates a publisher and a reader of its snapshots, beginning with `snapshot`.
    pub fn channel(snapshot: Snapshot) -> (SnapshotPublisher, Self) {
        let (sender, snapshots) = watch::channel(Arc::new(snapshot));
        (SnapshotPublisher { snapshots: sender }, Self { snapshots })
    }

    /// Returns the newest snapshot. Cheap.
    pub fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Waits for a snapshot that this reader has not seen. Many changes count as one. Never returns once the
    /// reflector has ended. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.snapshots.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    /// Waits for the first snapshot in which every prefix has been listed. Cancel-safe.
    pub async fn synced(&mut self) -> Arc<Snapshot> {
        match self.snapshots.wait_for(|snapshot| snapshot.synced).await.map(|snapshot| Arc::clone(&snapshot))
        {
            Ok(snapshot) => snapshot,
            Err(_) => pending().await,
        }
    }
}

/// Reflects everything below `prefixes` until `shutdown`: the caller must run the future.
pub fn reflect(
    store: SharedStore,
    prefixes: Vec<String>,
    shutdown: CancellationToken,
) -> (SnapshotReader, BoxFuture<'static, ()>) {
    let prefixes = without_nested(prefixes);
    let fold = Fold::new(prefixes.len());
    let (publisher, reader) = SnapshotReader::channel(fold.snapshot().clone());
    let (sender, inputs) = mpsc::channel(QUEUE);
    let queue = sender.clone();
    let outage = Arc::new(AtomicBool::new(false));
    let (anew, made_anew) = watch::channel(0);
    let followers = prefixes.into_iter().enumerate().map(move |(number, prefix)| {
        let (store, inputs, outage) = (Arc::clone(&store), queue.clone(), Arc::clone(&outage));
        Follower { store, number, prefix, inputs, outage, recreations: made_anew.clone() }.run()
    });
    let followers: Vec<_> = followers.collect();
    let reflecting = async move {
        // Held so that the queue stays open when there is nothing to follow.
        let _sender = sender;
        let work = async { tokio::join!(publish(fold, inputs, publisher, anew), join_all(followers)) };
        // Cancel-safe: only memory is lost.
        shutdown.run_until_cancelled(work).await;
    };
    (reader, reflecting.boxed())
}

/// Folds inputs; publishes once per burst.
async fn publish(
    mut fold: Fold,
    mut inputs: mpsc::Receiver<Input>,
    publisher: SnapshotPublisher,
    anew: watch::Sender<u64>,
) {
    let mut burst = Vec::with_capacity(QUEUE);
    while inputs.recv_many(&mut burst, QUEUE).await > 0 {
        let mut news = false;
        for input in burst.drain(..) {
            news |= fold.take(input);
        }
        let made_anew = fold.recreations();
        anew.send_if_modified(|known| std::mem::replace(known, made_anew) != made_anew);
        if news {
            publisher.publish(fold.snapshot().clone());
        }
    }
}

/// Lists and watches one prefix.
struct Follower {
    store: SharedStore,
    number: usize,
    prefix: String,
    inputs: mpsc::Sender<Input>,
    /// True while the store can't be read: reported once for all prefixes.
    outage: Arc<AtomicBool>,
    /// Changes when etcd is found to have been recreated.
    recreations: watch::Receiver<u64>,
}

impl Follower {
    async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        loop {
            let started = Instant::now();
            let why = match self.follow(started).await {
                Ok(()) => {
                    backoff.reset();
                    continue;
                }
                Err(why) => why,
            };
            if started.elapsed() >= GOOD_WATCH {
                backoff.reset();
            }
            let wait = backoff.after_failure(rand::random());
            self.log_failure(&why);
            sleep(wait).await;
        }
    }

    /// Lists, then watches. `Ok` when it is time for the next list.
    async fn follow(&mut self, started: Instant) -> Result<(), StoreError> {
        let relist_at = started + RELIST.mul_f64(1.0 - 0.1 * rand::random::<f64>());
        self.recreations.mark_unchanged();
        let listing = self.store.list(&self.prefix).await?;
        if self.outage.swap(false, Ordering::Relaxed) {
            tracing::info!("etcd found again");
        }
        let next_revision = listing.revision + 1;
        self.hand_over(Input::Listed(self.number, listing)).await;
        let mut watch = self.store.watch(&self.prefix, next_revision).await?;
        loop {
            tokio::select! {
                // Cancel-safe: a list follows.
                _ = self.recreations.changed() => return Ok(()),
                // Cancel-safe: `next` of a stream loses nothing when dropped, and a list follows anyway.
                next = timeout_at(relist_at, watch.next()) => {
                    let Ok(next) = next else { return Ok(()) };
                    let batch = next.unwrap_or_else(|| Err(StoreError::WatchEnded(self.prefix.clone())))?;
                    self.hand_over(Input::Changed(self.number, batch)).await;
                }
            }
        }
    }

    fn log_failure(&self, why: &StoreError) {
        let prefix = &self.prefix;
        match why {
            // Normal; the list that follows makes up for it.
            StoreError::Compacted(_) | StoreError::WatchEnded(_) => {
                tracing::debug!(prefix, error = %why, "watch ended, listing again");
            }
            _ if !self.outage.swap(true, Ordering::Relaxed) => {
                tracing::warn!(error = %why, "etcd lost; it is tried again");
            }
            _ => tracing::debug!(prefix, error = %why, "etcd still lost"),
        }
    }

    async fn hand_over(&self, input: Input) {
        if self.inputs.send(input).await.is_err() {
            // The folding side is gone, and this task ends with it.
            pending::<()>().await;
        }
    }
}
