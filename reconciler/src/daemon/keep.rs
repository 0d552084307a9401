//! Keeps on disk the state that exists only in etcd, so that a lost etcd can be filled again. Reads the snapshot,
//! writes `<state>/reconciler/last-known.json`; controllers read the newest state in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{DiskRecord, Loop, LoopError, Next, Observation, Row, Runtime};
use schema::snapshot::Snapshot;
use schema::store::election::{CandidateInfo, FenceReader};
use schema::store::reflector::SnapshotReader;
use schema::store::{SharedStore, election};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::controllers::{LastKnown, LastKnownFile};
use crate::state_dir::StateDirLock;

/// Longest time between two writes, in case the file disappears from the disk.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Shortest time between two writes: a change within it before a loss is not kept.
const GAP: Duration = Duration::from_millis(500);

/// Loop that keeps the last known state. Every reconciler runs one: each may have to fill etcd again.
pub(super) struct KeepLoop {
    disk: DiskRecord,
    snapshot: SnapshotReader,
    newest: watch::Sender<Arc<LastKnown>>,
}

impl KeepLoop {
    /// Loads the state that the last process kept in the reconciler's own directory.
    pub(super) fn open(dir: &Path, snapshot: SnapshotReader) -> Self {
        let disk = DiskRecord::new(dir.join("last-known.json"));
        let kept =
            disk.read_or_warn::<LastKnownFile>("what etcd held last").as_ref().map(LastKnown::from_disk);
        Self { disk, snapshot, newest: watch::Sender::new(Arc::new(kept.unwrap_or_default())) }
    }

    pub(super) fn newest(&self) -> watch::Receiver<Arc<LastKnown>> {
        self.newest.subscribe()
    }

    pub(super) fn row(&self) -> Row {
        // While etcd is filled again, forget objects that are no longer in Git.
        let is_filled = |before: &Snapshot, now: &Snapshot| {
            now.settled.is_empty()
                && !(before.objects.ptr_eq(&now.objects) && before.sources.ptr_eq(&now.sources))
        };
        let is_news = move |before: &Snapshot, now: &Snapshot| {
            !LastKnown::is_same(before, now) || is_filled(before, now)
        };
        Row::every(INTERVAL).wake_if(self.snapshot.clone(), GAP, is_news)
    }
}

/// Snapshot of etcd, and the state kept so far.
pub(super) struct KeepInput {
    snapshot: Arc<Snapshot>,
    last_known: Arc<LastKnown>,
}

/// State to keep; `None` if it does not change, as mostly while etcd is not whole.
pub(super) struct KeepPlan(Option<LastKnown>);

/// Omits the content, which includes every template.
impl std::fmt::Debug for KeepPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keep").field(&self.0.is_some()).finish()
    }
}

impl schema::control::Plan for KeepPlan {
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[async_trait]
impl Loop for KeepLoop {
    type Observed = KeepInput;
    type Plan = KeepPlan;
    type Outcome = std::io::Result<()>;

    fn name(&self) -> &'static str {
        "last-known"
    }

    async fn observe(&mut self) -> Result<Observation<Self::Observed>, LoopError> {
        let snapshot = self.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        let last_known = Arc::clone(&self.newest.borrow());
        Ok(Observation::Ready(KeepInput { snapshot, last_known }))
    }

    fn plan(KeepInput { snapshot, last_known }: &KeepInput, now: Timestamp) -> KeepPlan {
        KeepPlan(LastKnown::from_snapshot(snapshot, now).or_else(|| last_known.without_deleted(snapshot)))
    }

    async fn act(&mut self, _: &Self::Observed, plan: KeepPlan) -> std::io::Result<()> {
        let Some(newest) = plan.0.map(Arc::new) else { return Ok(()) };
        self.newest.send_replace(Arc::clone(&newest));
        let disk = self.disk.clone();
        let written = tokio::task::spawn_blocking(move || disk.write(&newest.to_disk())).await;
        written.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    async fn report(&mut self, _: Self::Observed, written: std::io::Result<()>) -> Result<Next, LoopError> {
        let what = || format!("writing {}", self.disk.path().display());
        written.map_err(|error| LoopError::new(what(), error)).map(|()| Next::Interval)
    }
}

// Leadership: standing for election, recording the lease, and giving up the lead last.

/// Interval between tries to end the former process's term while etcd does not answer.
const RELEASE_RETRY: Duration = Duration::from_millis(500);
/// Lifetime of the leader's lease without renewal.
pub(super) const LEADER_TTL: Duration = Duration::from_secs(15);

/// Stands for election once the former process's term is over.
pub(super) async fn stand(
    runtime: &mut Runtime,
    store: &SharedStore,
    standing: CandidateInfo,
    state_dir: StateDirLock,
) -> FenceReader {
    let mut is_over = state_dir.end_former_lease(store.as_ref()).await;
    let fence = stand_for_election(runtime, store, standing);
    let (of_leases, store) = (fence.clone(), Arc::clone(store));
    // Shutdown may interrupt this: without the record the next start has to wait.
    runtime.task_until_shutdown("leader lease", async move {
        // As leader, this process no longer waits for another's lease.
        while !is_over && of_leases.current().is_none() {
            sleep(RELEASE_RETRY).await;
            is_over = state_dir.end_former_lease(store.as_ref()).await;
        }
        state_dir.record_leases(of_leases).await;
    });
    fence
}

/// Stands for election and gives up the lead only once every loop has ended, and the courier: until then they may still
/// write and deliver.
fn stand_for_election(runtime: &mut Runtime, store: &SharedStore, standing: CandidateInfo) -> FenceReader {
    let resign = CancellationToken::new();
    let (fence, election) =
        election::stand_for_election(Arc::clone(store), standing, LEADER_TTL, resign.clone());
    runtime.task("election", election);
    let (token, all_ended) = (runtime.token(), runtime.all_loops_ended());
    runtime.task("resignation", async move {
        token.cancelled().await;
        all_ended.await;
        resign.cancel();
    });
    fence
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::{FutureExt as _, stream};
    use jiff::Timestamp;
    use schema::control::{Loop, LoopError, Next, Observation, Plan, Row};
    use tokio::sync::oneshot;

    use super::*;

    /// A loop whose first run lasts until it is allowed to end.
    struct Slow(Option<oneshot::Receiver<()>>);

    #[derive(Debug)]
    struct Wait;

    impl Plan for Wait {
        fn is_empty(&self) -> bool {
            false
        }
    }

    #[async_trait]
    impl Loop for Slow {
        type Observed = ();
        type Plan = Wait;
        type Outcome = ();

        fn name(&self) -> &'static str {
            "slow"
        }

        async fn observe(&mut self) -> Result<Observation<()>, LoopError> {
            Ok(Observation::Ready(()))
        }

        fn plan((): &(), _: Timestamp) -> Wait {
            Wait
        }

        async fn act(&mut self, (): &(), _: Wait) {
            if let Some(finished) = self.0.take() {
                let _ = finished.await;
            }
        }

        async fn report(&mut self, (): (), (): ()) -> Result<Next, LoopError> {
            Ok(Next::Interval)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lead_is_given_up_only_after_the_last_loop_has_ended() {
        let store: SharedStore = Arc::new(schema::store::memory::MemoryStore::new());
        let mut runtime = Runtime::new();
        let mut fence = stand_for_election(&mut runtime, &store, "r1".to_owned().into());
        fence.changed().await;
        assert!(fence.current().is_some());
        let (finish, finished) = oneshot::channel::<()>();
        runtime.drive(Row::every(Duration::from_secs(60)), Slow(Some(finished)));
        let stop = stream::once(async { "stop" }.boxed());
        let running = tokio::spawn(runtime.run_until(stop));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(fence.current().is_some(), "a loop is still at work");
        finish.send(()).unwrap();
        running.await.unwrap().unwrap();
        assert!(fence.current().is_none());
        assert!(election::leader(store.as_ref()).await.unwrap().is_none());
    }
}
