//! The driver on a paused clock: when it runs, what it keeps, how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use jiff::SignedDuration;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;
use crate::control::Nudge;

/// A loop that reports each run and follows a script; the last line repeats.
struct Scripted {
    runs: mpsc::UnboundedSender<Instant>,
    finished: Arc<AtomicU32>,
    act_takes: Duration,
    script: Vec<Do>,
    at: usize,
}

#[derive(Debug, Clone)]
enum Do {
    Go(Next),
    /// The plan requests another run this long after the run began.
    Again(SignedDuration),
    Fail,
    Wait,
    Panic,
}

#[derive(Debug)]
struct Nothing {
    again_at: Option<Timestamp>,
}

impl Plan for Nothing {
    fn is_empty(&self) -> bool {
        true
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

#[async_trait]
impl Loop for Scripted {
    type Observed = Do;
    type Plan = Nothing;
    type Outcome = ();

    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn observe(&mut self) -> Result<Observation<Do>, LoopError> {
        let _ = self.runs.send(Instant::now());
        let step = self.script[self.at.min(self.script.len() - 1)].clone();
        self.at += 1;
        match step {
            Do::Go(_) | Do::Again(_) => Ok(Observation::Ready(step)),
            Do::Wait => Ok(Observation::NotReady("nothing listed yet".into())),
            Do::Fail => Err(LoopError::new("reading the world", std::io::Error::other("no route"))),
            Do::Panic => panic!("a bug in the loop"),
        }
    }

    fn plan(step: &Do, now: Timestamp) -> Nothing {
        let again_at = match step {
            Do::Again(wait) => Some(now + *wait),
            _ => None,
        };
        Nothing { again_at }
    }

    async fn act(&mut self, _: &Do, _: Nothing) {
        sleep(self.act_takes).await;
    }

    async fn report(&mut self, observed: Do, (): ()) -> Result<Next, LoopError> {
        self.finished.fetch_add(1, Ordering::SeqCst);
        match observed {
            Do::Go(next) => Ok(next),
            Do::Again(_) => Ok(Next::After(Duration::from_secs(50))),
            _ => unreachable!("only Go is planned"),
        }
    }
}

struct Rig {
    nudge: Nudge,
    runs: mpsc::UnboundedReceiver<Instant>,
    finished: Arc<AtomicU32>,
    shutdown: CancellationToken,
    last: watch::Receiver<Option<LastRun>>,
    task: tokio::task::JoinHandle<()>,
    begun: Instant,
}

fn start(script: Vec<Do>, act_takes: Duration) -> Rig {
    let (sender, runs) = mpsc::unbounded_channel();
    let finished = Arc::new(AtomicU32::new(0));
    let the_loop = Scripted { runs: sender, finished: Arc::clone(&finished), act_takes, script, at: 0 };
    let (nudge, nudged) = Nudge::new();
    let shutdown = CancellationToken::new();
    let (last_sender, last) = watch::channel(None);
    let driver = Driver {
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(8),
        ..Driver::every(Duration::from_secs(100))
    };
    let begun = Instant::now();
    let task = tokio::spawn(driver.run(the_loop, nudged, shutdown.clone(), last_sender));
    Rig { nudge, runs, finished, shutdown, last, task, begun }
}

impl Rig {
    /// Waits for the next run and returns its time since the start.
    async fn run_at(&mut self) -> Duration {
        self.runs.recv().await.expect("the loop runs") - self.begun
    }
}

const GO: Do = Do::Go(Next::Interval);
const NO_TIME: Duration = Duration::ZERO;

#[tokio::test(start_paused = true)]
async fn it_runs_at_once_and_then_at_its_interval_less_at_most_a_tenth() {
    let mut rig = start(vec![GO], NO_TIME);
    assert_eq!(rig.run_at().await, Duration::ZERO);
    let mut before = Duration::ZERO;
    for _ in 0..20 {
        let at = rig.run_at().await;
        let waited = (at - before).as_secs_f64();
        assert!((89.9..=100.1).contains(&waited), "{waited}");
        before = at;
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_may_ask_for_its_next_run_but_not_spin() {
    let soon = Do::Go(Next::After(Duration::from_secs(7)));
    let at_once = Do::Go(Next::After(Duration::ZERO));
    let late = Do::Go(Next::After(Duration::from_secs(5_000)));
    let mut rig = start(vec![soon, at_once, late, GO], NO_TIME);
    rig.run_at().await;
    let second = rig.run_at().await;
    assert_eq!(second.as_secs(), 7);
    let third = rig.run_at().await;
    assert!(third - second >= PAUSE_MIN);
    assert!(rig.run_at().await - third <= Duration::from_millis(100_010), "later than its interval");
}

// Seen red with the time left counted from the end of the run.
#[tokio::test(start_paused = true)]
async fn a_plan_may_ask_to_be_made_again_and_the_sooner_of_two_waits_counts() {
    let again = |seconds| Do::Again(SignedDuration::from_secs(seconds));
    let mut rig = start(vec![again(12), again(-3), again(70), GO], Duration::from_secs(5));
    let mut before = rig.run_at().await;
    for (expected, why) in [(12, "of the plan"), (5, "it is over"), (55, "of the report, after five seconds")]
    {
        let at = rig.run_at().await;
        assert_eq!((at - before).as_secs(), expected, "{why}");
        before = at;
    }
}

#[tokio::test(start_paused = true)]
async fn a_nudge_wakes_it_at_once() {
    let mut rig = start(vec![GO], NO_TIME);
    rig.run_at().await;
    sleep(Duration::from_secs(5)).await;
    rig.nudge.nudge();
    assert_eq!(rig.run_at().await.as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_nudge_during_a_run_is_not_lost_and_many_are_one() {
    let mut rig = start(vec![GO], Duration::from_secs(10));
    rig.run_at().await;
    sleep(Duration::from_secs(3)).await;
    for _ in 0..5 {
        rig.nudge.nudge();
    }
    assert_eq!(rig.run_at().await.as_secs(), 10, "right after the run under way");
    let third = rig.run_at().await.as_secs();
    assert!(third >= 110 - 10, "one more run for five nudges, then the interval: {third}");
}

#[tokio::test(start_paused = true)]
async fn failures_wait_twice_as_long_each_time_up_to_the_longest_and_success_resets() {
    let mut script = vec![Do::Fail; 6];
    script.extend([GO, Do::Fail, GO]);
    let mut rig = start(script, NO_TIME);
    let mut before = rig.run_at().await;
    for longest in [1.0, 2.0, 4.0, 8.0, 8.0, 8.0] {
        let at = rig.run_at().await;
        let waited = (at - before).as_secs_f64();
        assert!((longest * 0.49..=longest + 0.01).contains(&waited), "{waited} of {longest}");
        before = at;
    }
    // The seventh run succeeded: an interval, then a first failure again.
    let failed_again = rig.run_at().await;
    let after = rig.run_at().await;
    assert!(after - failed_again <= Duration::from_millis(1_010));
}

#[tokio::test(start_paused = true)]
async fn a_nudge_cuts_a_long_backoff_short_but_does_not_make_a_failing_loop_spin() {
    let mut rig = start(vec![Do::Fail], NO_TIME);
    for _ in 0..6 {
        rig.run_at().await;
    }
    let mut before = rig.run_at().await;
    // The longest wait from here on: 4–8 s. With continuous nudges: about 1 s.
    for _ in 0..5 {
        rig.nudge.nudge();
        let at = rig.run_at().await;
        let waited = (at - before).as_secs_f64();
        assert!((0.99..=1.1).contains(&waited), "{waited}");
        before = at;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ready_is_looked_at_again_soon() {
    let mut rig = start(vec![Do::Wait], NO_TIME);
    rig.run_at().await;
    assert!(rig.run_at().await <= Duration::from_millis(1_010));
    let last = rig.last.borrow().clone().expect("a first run is over");
    assert_eq!(last.not_ready.as_deref(), Some("nothing listed yet"));
    assert_eq!(last.error, None);
}

#[tokio::test(start_paused = true)]
async fn the_last_run_has_the_whole_error() {
    let mut rig = start(vec![Do::Fail], NO_TIME);
    rig.last.changed().await.unwrap();
    let last = rig.last.borrow().clone().unwrap();
    assert_eq!(last.error.as_deref(), Some("reading the world: no route"));
    assert!(!last.did_something);
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_the_run_under_way_finish_and_begins_no_other() {
    let mut rig = start(vec![GO], Duration::from_secs(10));
    rig.run_at().await;
    rig.nudge.nudge();
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    assert_eq!(rig.begun.elapsed().as_secs(), 10);
    assert_eq!(rig.finished.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_waiting_loop_at_once() {
    let mut rig = start(vec![GO], NO_TIME);
    rig.run_at().await;
    sleep(Duration::from_secs(5)).await;
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    assert_eq!(rig.begun.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_loop_is_a_panic_of_the_driver() {
    let rig = start(vec![Do::Panic], NO_TIME);
    assert!(rig.task.await.unwrap_err().is_panic());
}

#[test]
fn the_same_trouble_is_remembered_until_it_changes() {
    let mut last_logged = LastLogged::default();
    let mut record = LastRun { error: Some("a".into()), runs: 1, ..LastRun::default() };
    last_logged.log("x", &record);
    assert_eq!(last_logged.error.as_deref(), Some("a"));
    record.error = None;
    last_logged.log("x", &record);
    assert_eq!(last_logged.error, None);
}
