//! Leadership: standing for election, recording the lease, and giving up the lead last.

use std::sync::Arc;
use std::time::Duration;

use schema::control::Runtime;
use schema::store::SharedStore;
use schema::store::election::{self, FenceReader, Standing};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::state_dir::StateDirLock;

/// Interval between tries to end the former process's term while etcd does not answer.
const RELEASE_RETRY: Duration = Duration::from_millis(500);
/// Lifetime of the leader's lease without renewal.
pub(super) const LEADER_TTL: Duration = Duration::from_secs(15);

/// Stands for election once the former process's term is over.
pub(super) async fn stand(
    runtime: &mut Runtime,
    store: &SharedStore,
    standing: Standing,
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

/// Stands for election and gives up the lead only once every loop has ended: until then they may still write.
fn stand_for_election(runtime: &mut Runtime, store: &SharedStore, standing: Standing) -> FenceReader {
    let resign = CancellationToken::new();
    let (fence, election) = election::stand(Arc::clone(store), standing, LEADER_TTL, resign.clone());
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
