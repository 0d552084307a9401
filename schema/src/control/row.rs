//! A row of a daemon's table: the interval of a loop or follower, and the changes that wake it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::future::{BoxFuture, join_all, pending, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Driver, LastRun, Loop, Nudge, NudgeReceiver};
#[cfg(feature = "store")]
use crate::{
    snapshot::Snapshot,
    store::{election::FenceReader, reflector::SnapshotReader},
};

/// Longer than any daemon runs.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Source of changes.
pub trait ChangeSource: Send + 'static {
    /// Waits for the next unseen change; never returns if there will be none. Cancel-safe.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

impl<T: Send + Sync + 'static> ChangeSource for watch::Receiver<T> {
    async fn changed(&mut self) {
        if watch::Receiver::changed(self).await.is_err() {
            // The writer ended; the runtime, which supervises it, ends the process.
            pending::<()>().await;
        }
    }
}

#[cfg(feature = "store")]
impl ChangeSource for SnapshotReader {
    async fn changed(&mut self) {
        SnapshotReader::changed(self).await;
    }
}

#[cfg(feature = "store")]
impl ChangeSource for FenceReader {
    async fn changed(&mut self) {
        FenceReader::changed(self).await;
    }
}

/// Schedule of a loop or follower.
#[must_use]
pub struct Row {
    pub(super) driver: Driver,
    pub(super) rest: Duration,
    pub(super) first_at_change: bool,
    pub(super) last_at_end: bool,
    pub(super) nudge: Nudge,
    pub(super) nudged: NudgeReceiver,
    pub(super) wakers: Vec<BoxFuture<'static, Infallible>>,
}

impl Row {
    /// Creates a row that runs immediately, and then at this interval.
    pub fn every(interval: Duration) -> Self {
        let (nudge, nudged) = Nudge::new();
        Self {
            driver: Driver::every(interval),
            rest: Duration::ZERO,
            first_at_change: false,
            last_at_end: false,
            nudge,
            nudged,
            wakers: Vec::new(),
        }
    }

    /// Creates a row that runs immediately, and then only when woken.
    pub fn when_woken() -> Self {
        Self::every(NEVER)
    }

    /// Sets the longest wait of a loop after a failure.
    pub fn backoff_max(mut self, longest: Duration) -> Self {
        self.driver.backoff_max = longest;
        self
    }

    /// Sets the longest time that a run of a loop may take before the loop counts as hung, where it depends on others: a
    /// remote, a disk.
    pub fn may_take(mut self, longest: Duration) -> Self {
        self.driver.pulse.may_take = longest;
        self
    }

    /// Sets the least time between two steps of a follower.
    pub fn rest(self, rest: Duration) -> Self {
        Self { rest, ..self }
    }

    /// Delays a follower's first step until the first change.
    pub fn wait_for_first_change(self) -> Self {
        Self { first_at_change: true, ..self }
    }

    /// Adds a last step of a follower at shutdown.
    pub fn run_at_shutdown(self) -> Self {
        Self { last_at_end: true, ..self }
    }

    /// Wakes the loop on each change of `source`.
    pub fn wake_on(self, mut source: impl ChangeSource) -> Self {
        self.wake_by(|nudge| async move {
            loop {
                source.changed().await;
                nudge.nudge();
            }
        })
    }

    /// Wakes the loop on a change of the snapshot that `is_news`, but not again within `gap`, so that a burst of
    /// changes is planned once. The first change of a burst wakes it immediately.
    #[cfg(feature = "store")]
    pub fn wake_if(
        self,
        mut snapshot: SnapshotReader,
        gap: Duration,
        is_news: impl Fn(&Snapshot, &Snapshot) -> bool + Send + 'static,
    ) -> Self {
        let mut before = snapshot.current();
        self.wake_by(move |nudge| async move {
            loop {
                snapshot.changed().await;
                let now = snapshot.current();
                if is_news(&before, &now) {
                    nudge.nudge();
                    tokio::time::sleep(gap).await;
                }
                before = now;
            }
        })
    }

    /// Wakes the loop from a future that never ends.
    pub fn wake_by<F: Future<Output = Infallible> + Send + 'static>(
        mut self,
        waker: impl FnOnce(Nudge) -> F,
    ) -> Self {
        self.wakers.push(Box::pin(waker(self.nudge.clone())));
        self
    }

    /// Returns a nudge that wakes the loop.
    pub fn nudge(&self) -> Nudge {
        self.nudge.clone()
    }

    /// Runs a loop on this schedule until `shutdown`, like [`Driver::run`].
    pub async fn run<L: Loop>(
        self,
        the_loop: L,
        shutdown: CancellationToken,
        last_run: watch::Sender<Option<LastRun>>,
    ) {
        run_with_wakers(self.wakers, self.driver.run(the_loop, self.nudged, shutdown, last_run)).await;
    }
}

/// Runs `main` to its end, with its wakers in the same task.
pub(super) async fn run_with_wakers(
    wakes: Vec<BoxFuture<'static, Infallible>>,
    main: impl Future<Output = ()>,
) {
    let wakes = async {
        // Reached only if there are no wakers.
        join_all(wakes).await;
        pending::<()>().await;
    };
    select(pin!(main), pin!(wakes)).await;
}
