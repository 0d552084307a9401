//! Driver: runs a loop on tick, nudge and shutdown. Holds the only `select!` of a loop, and the only clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{Loop, LoopError, Next, NudgeReceiver, Observation, Plan, lock};
use crate::backoff::Backoff;
use crate::errors::error_chain;

/// Shortest tick after a successful run, even if the loop asks to run again immediately.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Timing of a loop.
#[derive(Debug, Clone)]
pub struct Driver {
    /// Longest time between two successful runs. Shortened at random by up to a tenth, so that the loops of many
    /// daemons do not run in lockstep.
    pub interval: Duration,
    /// Wait after the first failure; doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest wait after a failure.
    pub backoff_max: Duration,
    /// Shows whether the loop hangs.
    pub pulse: Pulse,
}

/// Sign of life of a loop, shared with the task that watches it.
#[derive(Debug, Clone)]
pub struct Pulse {
    /// The start of the run in progress, else the time of the next run.
    due_at: Arc<Mutex<Instant>>,
    /// Longest time that a run may take, where it depends on others: a remote, a disk.
    pub(super) may_take: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { due_at: Arc::new(Mutex::new(Instant::now())), may_take: Duration::ZERO }
    }
}

impl Pulse {
    fn set_due_at(&self, at: Instant) {
        *lock(&self.due_at) = at;
    }

    /// True if a run has lasted longer than `limit` (or than the loop may take, if that is longer), or is overdue by as
    /// much, because its task is stuck elsewhere.
    pub(super) fn hangs(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(*lock(&self.due_at)) > limit.max(self.may_take)
    }
}

/// Summary of a loop's last run, for status and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastRun {
    /// Start of the run.
    pub started_at: Timestamp,
    /// Duration of the run.
    pub took: Duration,
    /// True if the plan had steps.
    pub did_something: bool,
    /// Error of a failed run, with all its causes.
    pub error: Option<String>,
    /// Reason why there was nothing to decide on.
    pub not_ready: Option<String>,
    /// Runs since the start of the process, this one included.
    pub runs: u64,
    /// Failed runs since the start of the process.
    pub failures: u64,
    /// Time that all runs since the start of the process took.
    pub busy: Duration,
    /// End of the last run that did not fail.
    pub last_success_at: Option<Timestamp>,
}

/// Receiver of a loop's last run, updated when a run ends; `None` before the first.
pub type LastRunReader = watch::Receiver<Option<LastRun>>;

impl LastRun {
    /// Returns the duration of the run in whole milliseconds.
    pub fn took_ms(&self) -> u64 {
        u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Driver {
    /// Creates a driver with this interval that backs off from 200 ms to 30 s.
    pub fn every(interval: Duration) -> Self {
        Self {
            interval,
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            pulse: Pulse::default(),
        }
    }

    /// Runs `the_loop` until `shutdown`; finishes a run in progress first. The first run starts immediately. A
    /// panic of the loop propagates: the task that drives it is a critical one.
    pub async fn run<L: Loop>(
        self,
        mut the_loop: L,
        nudged: NudgeReceiver,
        shutdown: CancellationToken,
        last_run: watch::Sender<Option<LastRun>>,
    ) {
        let pulse = self.pulse.clone();
        let mut pace = Pace::new(self);
        let mut last_logged = LastLogged::default();
        let (mut number, mut failures, mut busy) = (0_u64, 0_u64, Duration::ZERO);
        let mut last_success_at = None;
        let mut tick_at = Instant::now();
        // Nudges take effect from here on; until then the loop rests.
        let mut rest_until = Instant::now();
        loop {
            tokio::select! {
                biased;
                // Cancel-safe: a cancelled token stays so.
                () = shutdown.cancelled() => return,
                // Cancel-safe: a nudge whose waiter is dropped stays with the `Notify`, and sleep
                // keeps its own deadline outside of the future.
                () = async { sleep_until(rest_until).await; nudged.wait().await } => {}
                // Cancel-safe: the deadline is kept in `tick_at`.
                () = sleep_until(tick_at) => {}
            }
            number += 1;
            pulse.set_due_at(Instant::now());
            let span = tracing::info_span!("loop", name = the_loop.name(), number);
            // Outside of the select: once begun, a run is never cancelled.
            let (mut record, next) = run_once(&mut the_loop).instrument(span).await;
            failures += u64::from(record.error.is_some());
            busy += record.took;
            if record.error.is_none() {
                last_success_at = Some(Timestamp::now());
            }
            (record.runs, record.failures) = (number, failures);
            (record.busy, record.last_success_at) = (busy, last_success_at);
            last_logged.log(the_loop.name(), &record);
            let wait = pace.wait(&record, next, rand::random());
            let ended_at = Instant::now();
            tick_at = ended_at + wait.tick;
            rest_until = ended_at + wait.rest;
            pulse.set_due_at(tick_at);
            last_run.send_replace(Some(record));
        }
    }
}

/// Runs the loop once: observe, plan, act, report.
async fn run_once<L: Loop>(the_loop: &mut L) -> (LastRun, Next) {
    let begun = Instant::now();
    let mut record = LastRun { started_at: Timestamp::now(), ..LastRun::default() };
    let next = match steps(the_loop, &mut record).await {
        Ok(next) => next,
        Err(error) => {
            record.error = Some(error_chain(&error));
            Next::Interval
        }
    };
    record.took = begun.elapsed();
    (record, next)
}

async fn steps<L: Loop>(the_loop: &mut L, record: &mut LastRun) -> Result<Next, LoopError> {
    let begun = Instant::now();
    let observed = match the_loop.observe().await? {
        Observation::Ready(observed) => observed,
        Observation::NotReady(why) => {
            record.not_ready = Some(why);
            return Ok(Next::Interval);
        }
    };
    let observed_at = Instant::now();
    let plan = L::plan(&observed, record.started_at);
    let planned_at = Instant::now();
    let again_at = plan.replan_at();
    record.did_something = !plan.is_empty();
    if record.did_something {
        tracing::debug!(?plan, "run planned");
    }
    let outcome = the_loop.act(&observed, plan).await;
    let acted_at = Instant::now();
    let next = the_loop.report(observed, outcome).await;
    tracing::debug!(
        observe = ?observed_at - begun,
        plan = ?planned_at - observed_at,
        act = ?acted_at - planned_at,
        report = ?acted_at.elapsed(),
        "run ended"
    );
    next.map(|next| match again_at {
        None => next,
        Some(at) => {
            let left = Duration::try_from(at.duration_since(record.started_at)).unwrap_or_default();
            next.within(left.saturating_sub(begun.elapsed()))
        }
    })
}

/// Computes the time of the next run. Pure.
#[derive(Debug)]
struct Pace {
    driver: Driver,
    failing: Backoff,
    unready: Backoff,
}

/// Wait after a run.
#[derive(Debug, PartialEq, Eq)]
struct Wait {
    /// Time until the next run without a nudge.
    tick: Duration,
    /// Time until nudges take effect.
    rest: Duration,
}

impl Pace {
    fn new(driver: Driver) -> Self {
        let backoff = || Backoff::new(driver.backoff_min, driver.backoff_max);
        Self { failing: backoff(), unready: backoff(), driver }
    }

    fn wait(&mut self, record: &LastRun, next: Next, random: f64) -> Wait {
        let interval = self.driver.interval.mul_f64(1.0 - 0.1 * random.clamp(0.0, 1.0));
        if record.error.is_some() {
            self.unready.reset();
            let tick = self.failing.after_failure(random);
            // A nudge may cut the wait short, because it may bring the remedy; but many nudges must not make a
            // failing loop spin.
            return Wait { tick, rest: self.driver.backoff_min.min(tick) };
        }
        self.failing.reset();
        if record.not_ready.is_some() {
            let tick = self.unready.after_failure(random).min(interval);
            return Wait { tick, rest: Duration::ZERO };
        }
        self.unready.reset();
        let tick = match next {
            Next::Interval => interval,
            Next::After(sooner) => sooner.max(PAUSE_MIN).min(interval),
        };
        Wait { tick, rest: Duration::ZERO }
    }
}

/// The problems logged last: each is logged once, not on every attempt.
#[derive(Debug, Default)]
struct LastLogged {
    error: Option<String>,
    not_ready: Option<String>,
}

impl LastLogged {
    fn log(&mut self, name: &'static str, record: &LastRun) {
        match (&record.error, &self.error) {
            (Some(error), logged) if logged.as_ref() != Some(error) => {
                tracing::warn!(name, %error, took = ?record.took, "loop failed; it is tried again");
            }
            (Some(error), _) => tracing::debug!(name, %error, took = ?record.took, "loop failed again"),
            (None, Some(_)) => tracing::info!(name, took = ?record.took, "loop recovered"),
            (None, None) => {}
        }
        if let Some(why) = &record.not_ready
            && self.not_ready.as_ref() != Some(why)
        {
            tracing::info!(name, why, "loop waiting");
        }
        self.error.clone_from(&record.error);
        self.not_ready.clone_from(&record.not_ready);
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
