//! Closed loop: calls arrive at the replicas that the decider chose for earlier calls. Times are in microseconds.
//!
//! Evaluates at every tick, as the controller does, and immediately when a call finds no replica or the last one may
//! go. The windows continue while the function sleeps, as those of the gateways do: calls before the sleep still
//! count when it wakes. The decider's memory, such as a panic, ends with the last replica.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::FunctionSpec;

use super::calls::{Arrivals, Queue, SECOND, count, micros, rounded};
use super::fleet::Fleet;
use super::trace::{Load, Step, Trace, TraceForm};
use super::{CallCounts, LoadReport, ReplicaChange, Report, StepDecision};
use crate::controllers::functions::decider::{
    Config, Decision, Observation, ScalerMemory, TICK, Windows, decide,
};
use crate::controllers::functions::scaling::Bounds;
use crate::simulate::trace::{TraceError, number, time};

/// Maximum number of calls in a trace: a few seconds of work, and 40 MB of waiting times.
const CALLS_MAX: u64 = 10_000_000;

/// Longest time during which calls arrive: a day.
const SPAN_SECONDS_MAX: f64 = 86_400.0;

/// Longest time until a function is small again: the longest `scaleToZeroAfterSeconds`, window and wait together.
const REST_SECONDS_MAX: f64 = 2.0 * 86_400.0 + 7_200.0;

/// Simulates calls until all are answered and the function is as small as it may be.
pub(super) fn simulate_load(
    spec: &FunctionSpec,
    config: Config,
    load: &Load<'_>,
) -> Result<LoadReport, TraceError> {
    let (begin, end) = span(spec, load)?;
    let mut simulation = Simulation::new(spec, config, load, begin);
    simulation.run(end);
    Ok(simulation.report())
}

/// Start and end: the whole second of the first call, and the time by which everything must be over.
fn span(spec: &FunctionSpec, load: &Load<'_>) -> Result<(i64, i64), TraceError> {
    let timeout = spec.timeout_seconds.unwrap_or_default();
    if load.handling_seconds > f64::from(timeout) {
        let why =
            format!("{} s is longer than the function's timeoutSeconds of {timeout}", load.handling_seconds);
        let help = "raise timeoutSeconds in the manifest, or use a lower value: such calls are answered \
                    with 504";
        return Err(TraceError::at("handlingSeconds", why, help));
    }
    let begin = load.arrivals.iter().map(|arrival| arrival.at).fold(f64::INFINITY, f64::min).floor();
    let mut calls = 0_u64;
    for (index, arrival) in load.arrivals.iter().enumerate() {
        let last = arrival.at + arrival.for_seconds - begin;
        if last > SPAN_SECONDS_MAX + 1.0 {
            let why = format!("it ends {last} s after the first call");
            let help = format!("end within {SPAN_SECONDS_MAX} s of it");
            return Err(TraceError::at(format!("arrivals[{index}].forSeconds"), why, help));
        }
        calls = calls.saturating_add(count(arrival));
        if calls > CALLS_MAX {
            let why = format!("that would be {calls} calls so far");
            let help = format!(
                "use a lower perSecond or a shorter forSeconds, for {CALLS_MAX} calls in all \
                                at most"
            );
            return Err(TraceError::at(format!("arrivals[{index}]"), why, help));
        }
    }
    Ok((micros(begin), micros(begin + SPAN_SECONDS_MAX + REST_SECONDS_MAX)))
}

/// A function in virtual time.
struct Simulation {
    config: Config,
    bounds: Bounds,
    arrivals: Arrivals,
    queue: Queue,
    fleet: Fleet,
    windows: Windows,
    memory: ScalerMemory,
    /// Desired number of replicas.
    wanted: u32,
    now: i64,
    next_tick: i64,
    /// Time since which the function has no call; `None` while it has one.
    idle_since: Option<i64>,
    /// Sum of the lifetimes of all replicas.
    replica_micros: u64,
    most_replicas: usize,
    changes: Vec<ReplicaChange>,
}

impl Simulation {
    fn new(spec: &FunctionSpec, config: Config, load: &Load<'_>, begin: i64) -> Self {
        let cold_start = micros(load.cold_start_seconds);
        let mut fleet = Fleet::new(spec.concurrency, cold_start, micros(load.handling_seconds));
        // The replicas of `minScale` are ready at the start.
        fleet.scale(spec.min_scale, begin - cold_start);
        // The gateways' windows are full at the start, without a call.
        let mut windows = Windows::default();
        windows.record(timestamp(begin) - config.stable_window, timestamp(begin), 0.0);
        Self {
            config,
            bounds: Bounds::for_function(spec),
            arrivals: Arrivals::new(load.arrivals),
            queue: Queue {
                length: spec.queue_length as usize,
                timeout: micros(f64::from(spec.cold_start_timeout_seconds)),
                waiting: Default::default(),
                counts: CallCounts::default(),
                waits: Vec::new(),
            },
            fleet,
            windows,
            memory: ScalerMemory::default(),
            wanted: spec.min_scale,
            now: begin,
            next_tick: begin,
            idle_since: Some(begin),
            replica_micros: 0,
            most_replicas: 0,
            changes: Vec::new(),
        }
    }

    fn run(&mut self, end: i64) {
        while self.now < end {
            self.pass_time(self.next_event());
            self.serve();
            let is_wake_up = self.wanted == 0 && self.idle_since.is_none();
            if is_wake_up || self.now >= self.next_tick || self.sleeps_at().is_some_and(|at| at <= self.now) {
                self.evaluate();
            }
            if is_wake_up {
                // The controller plans again as soon as its first replica is written.
                self.evaluate();
            }
            self.record_change();
            if self.is_over() {
                return;
            }
        }
    }

    fn next_event(&self) -> i64 {
        // A past time to sleep is left to the next tick, so that time advances whatever was decided.
        let sleeps_at = self.sleeps_at().filter(|at| *at > self.now);
        let others =
            [self.arrivals.next_event(), self.fleet.next_event(), self.queue.next_event(), sleeps_at];
        others.into_iter().flatten().fold(self.next_tick, i64::min)
    }

    /// Time at which the last replica may go, if no call arrives.
    fn sleeps_at(&self) -> Option<i64> {
        let after = i64::try_from(self.bounds.zero_after.as_micros()).ok()?;
        let idle_since = self.idle_since.filter(|_| self.wanted > 0 && self.bounds.least == 0)?;
        Some(idle_since + after)
    }

    /// Number of running and waiting calls.
    fn calls(&self) -> usize {
        self.fleet.in_flight() + self.queue.waiting.len()
    }

    fn pass_time(&mut self, next: i64) {
        self.windows.record(timestamp(self.now), timestamp(next), self.calls() as f64);
        let passed = u64::try_from(next - self.now).unwrap_or_default();
        self.replica_micros += passed * self.fleet.all() as u64;
        self.now = next;
    }

    /// Processes every due event of calls and replicas.
    fn serve(&mut self) {
        self.fleet.pass(self.now);
        while !self.queue.waiting.is_empty() && self.fleet.take(self.now) {
            self.queue.leave(self.now);
        }
        self.queue.expire(self.now);
        while self.arrivals.take(self.now) {
            let is_taken = self.fleet.take(self.now);
            self.queue.arrive(self.now, is_taken);
        }
        match self.calls() {
            0 => _ = self.idle_since.get_or_insert(self.now),
            _ => self.idle_since = None,
        }
    }

    /// Decides, and starts or removes replicas.
    fn evaluate(&mut self) {
        let decision = self.decide();
        let idle = self.idle_since.map(|since| SignedDuration::from_micros(self.now - since));
        self.wanted = self.bounds.wanted(decision.map(|decision| decision.desired), self.wanted, idle);
        if self.wanted == 0 {
            self.memory = ScalerMemory::default();
        }
        self.fleet.scale(self.wanted, self.now);
        self.most_replicas = self.most_replicas.max(self.fleet.all());
        if self.now >= self.next_tick {
            self.next_tick += i64::try_from(TICK.as_micros()).unwrap_or(i64::MAX);
        }
    }

    /// Runs the decider. Like the controller, does not run it with zero desired replicas, because a call wakes one
    /// then.
    fn decide(&mut self) -> Option<Decision> {
        if self.wanted == 0 {
            return None;
        }
        let now = timestamp(self.now);
        let (stable, panic) = self.windows.averages(now, self.config.stable_window);
        let ready = u32::try_from(self.fleet.ready()).ok();
        let seen = Observation { ready, stable, panic };
        let (decision, memory) = decide(&self.config, &self.memory, seen, now);
        self.memory = memory;
        decision
    }

    /// Records the state, if the number of desired or ready replicas has changed.
    fn record_change(&mut self) {
        let of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (wanted, ready) = (self.wanted, of(self.fleet.ready()));
        if self.changes.last().is_some_and(|last| (last.wanted, last.ready) == (wanted, ready)) {
            return;
        }
        self.changes.push(ReplicaChange {
            at: rounded(self.now as f64 / SECOND),
            wanted,
            ready,
            in_flight: of(self.fleet.in_flight()),
            waiting: of(self.queue.waiting.len()),
            panic: self.memory.is_panic(),
        });
    }

    fn is_over(&self) -> bool {
        let least = self.bounds.least;
        let is_small = self.wanted == least && self.fleet.all() == least as usize;
        is_small && self.arrivals.next_event().is_none() && self.calls() == 0
    }

    fn report(mut self) -> LoadReport {
        LoadReport {
            wait_seconds: self.queue.waits(),
            calls: self.queue.counts,
            replicas: self.changes,
            most_replicas: u32::try_from(self.most_replicas).unwrap_or(u32::MAX),
            replica_seconds: rounded(self.replica_micros as f64 / SECOND),
            ends_at: rounded(self.now as f64 / SECOND),
        }
    }
}

fn timestamp(micros: i64) -> Timestamp {
    // Within the bounds that `span` checks.
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}

// Runs only the decider, on the observations of each step.

/// Returns a decision for each step. `ready` is the number of ready replicas when the decider is created, and at
/// steps without one; if `None`, the first step with data creates the decider.
pub(super) fn simulate_steps(
    mut config: Config,
    ready: Option<u32>,
    steps: &[Step],
) -> Result<Vec<StepDecision>, TraceError> {
    let begin = steps.first().map(|step| time(step.at)).unwrap_or_default();
    let mut memory = ready.map(|ready| ScalerMemory::initial(ready, begin)).unwrap_or_default();
    let mut last_known = ready;
    let mut entries = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        step.check(index)?;
        if let Some(changes) = &step.config {
            changes.apply(&format!("steps[{index}].config"), &mut config)?;
        }
        let ready = step.ready.unwrap_or(last_known);
        last_known = ready.or(last_known);
        let (stable, panic) = (step.stable_concurrency, step.panic_concurrency);
        let (decision, after) = decide(&config, &memory, Observation { ready, stable, panic }, time(step.at));
        entries.push(StepDecision {
            at: number(step.at),
            desired: decision.map(|decision| decision.desired).unwrap_or_default(),
            valid: decision.is_some(),
            panic: after.is_panic(),
            excess_burst_capacity: decision.map(|it| it.excess_burst_capacity).unwrap_or_default(),
            ready,
            averages: (stable, panic),
        });
        memory = after;
    }
    Ok(entries)
}

// Runs a trace in either of its forms.

/// Runs `trace` for the function `spec`, with the defaults of the Cluster object for missing fields.
///
/// # Errors
/// Fails if the trace is invalid.
pub fn run(spec: &FunctionSpec, trace: &Trace) -> Result<Report, TraceError> {
    let spec = spec.with_defaults(&FunctionDefaults::default());
    let mut config = Config::for_function(&spec);
    trace.config.unwrap_or_default().apply("config", &mut config)?;
    match trace.form()? {
        TraceForm::Steps { ready, steps } => {
            Ok(Report::Steps { steps: simulate_steps(config, ready, steps)? })
        }
        TraceForm::Load(load) => Ok(Report::Load(simulate_load(&spec, config, &load)?)),
    }
}
