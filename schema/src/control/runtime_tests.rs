//! The runtime on a paused clock.

use std::sync::Mutex;

use async_trait::async_trait;
use futures::stream;
use jiff::Timestamp;
use tokio::time::Instant;

use super::*;
use crate::control::{LoopError, Next, Observation, Plan, lock};

type Times = Arc<Mutex<Vec<u64>>>;

/// A loop that records the second of each run, and fails if configured to.
struct Noting {
    times: Times,
    begun: Instant,
    fails: bool,
}

#[derive(Debug)]
struct Nothing;

impl Plan for Nothing {
    fn is_empty(&self) -> bool {
        true
    }
}

#[async_trait]
impl Loop for Noting {
    type Observed = ();
    type Plan = Nothing;
    type Outcome = ();

    fn name(&self) -> &'static str {
        "noting"
    }

    async fn observe(&mut self) -> Result<Observation<()>, LoopError> {
        lock(&self.times).push(self.begun.elapsed().as_secs());
        if self.fails { Err(LoopError::message("no route")) } else { Ok(Observation::Ready(())) }
    }

    fn plan((): &(), _: Timestamp) -> Nothing {
        Nothing
    }

    async fn act(&mut self, (): &(), _: Nothing) {}

    async fn report(&mut self, (): (), (): ()) -> Result<Next, LoopError> {
        Ok(Next::Interval)
    }
}

fn noting(fails: bool) -> (Noting, Times) {
    let times = Times::default();
    (Noting { times: Arc::clone(&times), begun: Instant::now(), fails }, times)
}

/// Runs the runtime for this many seconds.
async fn run_for(runtime: Runtime, seconds: u64) {
    let stop = stream::once(Box::pin(async move {
        sleep(Duration::from_secs(seconds)).await;
        "stop"
    }));
    runtime.run_until(stop).await.unwrap();
}

/// Changes the value at each of these seconds.
fn change_at(runtime: &mut Runtime, changed: watch::Sender<u64>, seconds: &'static [u64]) {
    let begun = Instant::now();
    runtime.task_until_shutdown("changes", async move {
        for second in seconds {
            tokio::time::sleep_until(begun + Duration::from_secs(*second)).await;
            changed.send_replace(*second);
        }
        std::future::pending::<()>().await;
    });
}

// Seen red without the task that waits for a row's inputs.
#[tokio::test(start_paused = true)]
async fn a_loop_runs_when_what_it_reads_changes_and_its_last_run_is_kept() {
    let mut runtime = Runtime::new();
    let (changed, read) = watch::channel(0);
    let (well, times) = noting(false);
    let (failing, _) = noting(true);
    runtime.drive(Row::every(Duration::from_secs(1_000)).wake_on(read), well);
    runtime.drive_as("noting/2", Row::every(Duration::from_secs(1_000)), failing);
    change_at(&mut runtime, changed, &[3, 5]);
    let runs = runtime.runs();
    assert_eq!(runs.statuses()[0].started_at, None);
    run_for(runtime, 60).await;
    assert_eq!(*lock(&times), [0, 3, 5]);
    let statuses = runs.statuses();
    let shown = |at: usize| (statuses[at].name.as_str(), statuses[at].error.as_deref());
    assert_eq!([shown(0), shown(1)], [("noting", None), ("noting/2", Some("no route"))]);
    assert_eq!((statuses[0].runs, statuses[0].failures), (3, 0));
    assert!(statuses[1].runs > 1 && statuses[1].failures == statuses[1].runs);
    assert_eq!(runs.newest("noting/").unwrap().failures, statuses[1].failures);
}

#[tokio::test(start_paused = true)]
async fn a_follower_steps_at_once_then_at_changes_not_more_often_than_it_rests_and_at_the_end() {
    let mut runtime = Runtime::new();
    let begun = Instant::now();
    let (changed, read) = watch::channel(0);
    let times = Times::default();
    let note = |times: &Times| {
        let times = Arc::clone(times);
        move || lock(&times).push(begun.elapsed().as_secs())
    };
    let (late, blocking) = (Times::default(), Times::default());
    let rested = Row::when_woken().wake_on(read.clone()).rest(Duration::from_secs(2));
    runtime.follow("rested", rested.run_at_shutdown(), note(&times));
    runtime.follow("late", Row::when_woken().wake_on(read.clone()).wait_for_first_change(), note(&late));
    runtime.follow_blocking("blocking", Row::every(Duration::from_secs(3)).wake_on(read), note(&blocking));
    change_at(&mut runtime, changed, &[1, 5, 6]);
    run_for(runtime, 8).await;
    assert_eq!(*lock(&times), [0, 2, 5, 7, 8], "the changes at 1 and 6 wait until it has rested");
    assert_eq!(*lock(&late), [1, 5, 6]);
    assert_eq!(*lock(&blocking), [0, 1, 4, 5, 6], "its interval begins anew with each step");
}

/// A loop whose second run never ends.
struct Hanging(u32);

#[async_trait]
impl Loop for Hanging {
    type Observed = ();
    type Plan = Nothing;
    type Outcome = ();

    fn name(&self) -> &'static str {
        "hanging"
    }

    async fn observe(&mut self) -> Result<Observation<()>, LoopError> {
        self.0 += 1;
        if self.0 == 2 {
            std::future::pending::<()>().await;
        }
        Ok(Observation::NotReady("nothing listed yet".to_owned()))
    }

    fn plan((): &(), _: Timestamp) -> Nothing {
        Nothing
    }

    async fn act(&mut self, (): &(), _: Nothing) {}

    async fn report(&mut self, (): (), (): ()) -> Result<Next, LoopError> {
        Ok(Next::Interval)
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_hangs_once_a_run_outlasts_the_limit_and_its_own_and_a_long_wait_is_none() {
    let mut runtime = Runtime::new();
    let hour = Duration::from_secs(3_600);
    runtime.drive(Row::every(hour), noting(false).0);
    // Their second run begins within half a second.
    runtime.drive(Row::every(hour), Hanging(0));
    runtime.drive_as("slow", Row::every(hour).may_take(Duration::from_secs(50)), Hanging(0));
    let (runs, begun) = (runtime.runs(), Instant::now());
    let hung_at = async |second| {
        tokio::time::sleep_until(begun + Duration::from_secs(second)).await;
        runs.hung(Instant::now(), Duration::from_secs(20))
    };
    let looks = async {
        assert_eq!(hung_at(19).await, [""; 0]);
        assert_eq!(hung_at(22).await, ["hanging"]);
        assert_eq!(hung_at(49).await, ["hanging"]);
        assert_eq!(hung_at(52).await, ["hanging", "slow"]);
        assert_eq!(hung_at(3_000).await, ["hanging", "slow"]);
    };
    tokio::join!(looks, run_for(runtime, 3_001));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_all_loops_is_waited_for_without_holding_the_end_up() {
    let mut runtime = Runtime::new();
    let (the_loop, _) = noting(false);
    runtime.drive(Row::every(Duration::from_secs(1)), the_loop);
    let all_ended = runtime.all_loops_ended();
    let (said, heard) = tokio::sync::oneshot::channel();
    let token = runtime.token();
    runtime.task("after the loops", async move {
        token.cancelled().await;
        all_ended.await;
        said.send(()).unwrap();
    });
    run_for(runtime, 5).await;
    heard.await.unwrap();
}
