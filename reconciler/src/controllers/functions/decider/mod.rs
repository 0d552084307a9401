//! Knative's KPA: computes the replicas that the calls in a function need. A pure step
//! `(memory, averages, time) -> (decision, memory)`.
//!
//! Rules and numbers are those of knative/serving, `pkg/autoscaler/scaling/autoscaler.go`: averages over a target,
//! limits on growth and shrinking, panic, delay, burst capacity. The manifest's bounds and scaling to zero are
//! applied afterwards, in `scaling.rs`.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::function::FunctionSpec;

pub use schema::records::{ScalerMemory, ScalerMode as Mode, ScalerPeak as Peak};

#[cfg(test)]
mod tests;

/// Interval between decisions: Knative's tick. The delay counts in buckets of this length.
pub const TICK: SignedDuration = SignedDuration::from_secs(2);

/// Parameters of a function's decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Calls per replica to aim for, above 0.
    pub target: f64,
    /// Calls that one replica takes.
    pub total_per_replica: f64,
    /// Panic begins when the calls of the panic window need this many times the ready replicas.
    pub panic_threshold: f64,
    /// A decision is at most this many times the ready replicas, at least 1.
    pub max_scale_up_rate: f64,
    /// A decision is at least the ready replicas divided by this, at least 1.
    pub max_scale_down_rate: f64,
    /// Size of the burst of calls to be ready for; 0 means no burst, below 0 any size.
    pub target_burst_capacity: f64,
    /// Duration of panic after the last surge, and the window of [`Observation::stable`].
    pub stable_window: SignedDuration,
    /// Age up to which a larger decision still holds; 0 disables the delay.
    pub scale_down_delay: SignedDuration,
    /// Minimum number of replicas while there are calls; 0 and 1 have no effect.
    pub activation_scale: u32,
    /// Set if calls can reach the function. Otherwise nothing limits or delays scaling down.
    pub is_reachable: bool,
}

impl Config {
    /// Returns the parameters of a function, with Knative's defaults (`config/core/configmaps/autoscaler.yaml`) for
    /// those that a manifest has no field for.
    pub fn for_function(function: &FunctionSpec) -> Self {
        let total = f64::from(function.concurrency);
        Self {
            target: total * f64::from(function.target_utilization_percentage) / 100.0,
            total_per_replica: total,
            panic_threshold: 2.0,
            max_scale_up_rate: 1000.0,
            max_scale_down_rate: 2.0,
            target_burst_capacity: 211.0,
            stable_window: SignedDuration::from_secs(60),
            scale_down_delay: SignedDuration::ZERO,
            activation_scale: 1,
            is_reachable: true,
        }
    }
}

/// Observed state of a function; `None` where it is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Replicas that take calls.
    pub ready: Option<u32>,
    /// Mean number of calls in the function, running or waiting, over the stable window.
    pub stable: Option<f64>,
    /// The same over the panic window, the last tenth of the stable window.
    pub panic: Option<f64>,
}

/// Outcome of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Replicas that the calls need.
    pub desired: u32,
    /// Set if the decision was made in panic.
    pub panic: bool,
    /// Capacity for calls beyond the burst to be ready for; below 0, a burst of that size would not fit.
    pub excess_burst_capacity: i64,
}

/// Decides on the number of replicas. Without data there is no decision, and the memory stays unchanged: unknown is
/// not "no calls".
pub fn decide(
    config: &Config,
    memory: &ScalerMemory,
    seen: Observation,
    now: Timestamp,
) -> (Option<Decision>, ScalerMemory) {
    let average = |value: Option<f64>| value.filter(|value| value.is_finite());
    let (Some(ready), Some(stable), Some(panic)) = (seen.ready, average(seen.stable), average(seen.panic))
    else {
        return (None, memory.clone());
    };
    let mut memory = match memory.mode {
        Mode::Unseen => ScalerMemory::initial(ready, now),
        _ => memory.clone(),
    };
    let limits = Limits::of(config, ready);
    let surges = limits.asked(panic) / limits.ready >= config.panic_threshold;
    memory.mode = next_mode(memory.mode, surges, config.stable_window, now);
    let mut desired = limits.wanted(stable);
    if let Mode::Panic { most, .. } = &mut memory.mode {
        desired = desired.max(limits.wanted(panic)).max(*most);
        *most = desired;
    }
    let desired = delayed(config, &mut memory.peaks, desired, now);
    let excess_burst_capacity = excess_burst_capacity(config, ready, panic);
    (Some(Decision { desired, panic: memory.is_panic(), excess_burst_capacity }), memory)
}

/// Limits on a decision, relative to the ready replicas.
struct Limits<'a> {
    config: &'a Config,
    /// Ready replicas; 0 counts as 1, or the number could never grow.
    ready: f64,
}

impl<'a> Limits<'a> {
    fn of(config: &'a Config, ready: u32) -> Self {
        Self { config, ready: f64::from(ready.max(1)) }
    }

    /// Returns the number of replicas that an average asks for.
    fn asked(&self, average: f64) -> f64 {
        (average / self.config.target).ceil()
    }

    /// Returns the number of replicas that an average asks for, within the rates.
    fn wanted(&self, average: f64) -> u32 {
        let Config { max_scale_up_rate, max_scale_down_rate, activation_scale, is_reachable, .. } =
            *self.config;
        let asked = self.asked(average);
        // Round up, so that a small number grows even at a rate near 1; round down, so that it shrinks.
        let most = (max_scale_up_rate * self.ready).ceil();
        let least = if is_reachable { (self.ready / max_scale_down_rate).floor() } else { 0.0 };
        // Not `clamp`, which panics if rates below 1 make `least` exceed `most`.
        let wanted = asked.max(least).min(most) as u32;
        if asked > 0.0 { wanted.max(activation_scale) } else { wanted }
    }
}

/// Returns the next mode: panic begins with a surge and ends once the last surge is older than the stable window.
fn next_mode(mode: Mode, surges: bool, stable_window: SignedDuration, now: Timestamp) -> Mode {
    match mode {
        Mode::Panic { most, .. } if surges => Mode::Panic { surged_at: now, most },
        _ if surges => Mode::Panic { surged_at: now, most: 0 },
        Mode::Panic { surged_at, .. } if now.duration_since(surged_at) > stable_window => Mode::Stable,
        same => same,
    }
}

/// Returns the largest decision within the delay, this one included.
fn delayed(config: &Config, peaks: &mut Vec<Peak>, desired: u32, now: Timestamp) -> u32 {
    if config.scale_down_delay <= SignedDuration::ZERO {
        peaks.clear();
        return desired;
    }
    if !config.is_reachable {
        return desired;
    }
    let ticks = config.scale_down_delay.as_millis().unsigned_abs().div_ceil(TICK.as_millis().unsigned_abs());
    let tick = now.as_second().div_euclid(TICK.as_secs());
    // Smaller and older peaks can never again be the largest.
    peaks.retain(|peak| peak.replicas > desired && i128::from(tick - peak.tick) < ticks as i128);
    if peaks.last().is_none_or(|last| last.tick < tick) {
        peaks.push(Peak { tick, replicas: desired });
    }
    peaks.first().map_or(desired, |largest| largest.replicas)
}

fn excess_burst_capacity(config: &Config, ready: u32, panic: f64) -> i64 {
    let burst = config.target_burst_capacity;
    if burst > 0.0 {
        (f64::from(ready) * config.total_per_replica - burst - panic).floor() as i64
    } else if burst == 0.0 {
        0
    } else {
        -1
    }
}

// Averages for the decider: calls in a function over the stable and the panic window.
//
// The sum over a window that is not full yet is divided by the time observed, as in Knative.

/// Divisor of the stable window that gives the panic window: Knative's 10 percent.
const PANIC_PART: i32 = 10;

/// Longest stable window, and so the longest time kept; Knative's is an hour.
pub const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Parts of a call to which averages are rounded, as in Knative: an error of addition must not ask for a replica.
const PARTS: f64 = 1e6;

/// Number of calls in a function during each of the last seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Windows {
    /// Seconds since 1970 in which there were calls, with the sum of these calls times their duration in that second.
    seconds: VecDeque<(i64, f64)>,
    /// Start of the first recorded span.
    begun: Option<Timestamp>,
}

impl Windows {
    /// Records the number of calls in the function from one time to another. Spans follow each other; between two
    /// spans there were no calls.
    pub fn record(&mut self, from: Timestamp, to: Timestamp, calls: f64) {
        if to <= from {
            return;
        }
        self.begun.get_or_insert(from);
        if calls == 0.0 {
            return;
        }
        let oldest = to.checked_sub(WINDOW_MAX).unwrap_or(from);
        let mut from = from.max(oldest);
        while from < to {
            let second = from.as_second().saturating_add(1);
            let end = Timestamp::from_second(second).unwrap_or(to).min(to);
            let area = calls * end.duration_since(from).as_secs_f64();
            match self.seconds.back_mut() {
                Some((last, sum)) if *last == from.as_second() => *sum += area,
                _ => self.seconds.push_back((from.as_second(), area)),
            }
            from = end;
        }
        let oldest = oldest.as_second();
        while self.seconds.front().is_some_and(|(second, _)| *second < oldest) {
            self.seconds.pop_front();
        }
    }

    /// Returns the averages over the stable and the panic window that end at `now`; `None` while nothing is recorded.
    pub fn averages(&self, now: Timestamp, stable_window: SignedDuration) -> (Option<f64>, Option<f64>) {
        (self.average(now, stable_window), self.average(now, stable_window / PANIC_PART))
    }

    fn average(&self, now: Timestamp, window: SignedDuration) -> Option<f64> {
        // A window shorter than a second has no average.
        let first = now.as_second() - window.as_secs().max(1);
        let begun = self.begun?.max(Timestamp::from_second(first).ok()?);
        let seen = now.duration_since(begun).as_secs_f64();
        let recent = self.seconds.iter().rev().take_while(|(second, _)| *second >= first);
        let area: f64 = recent.map(|(_, area)| area).sum();
        (seen > 0.0).then(|| (area / seen * PARTS).round() / PARTS)
    }
}

#[cfg(test)]
mod windows_tests {
    use super::*;

    const WINDOW: SignedDuration = SignedDuration::from_secs(60);

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap()
    }

    fn windows(spans: &[(f64, f64, f64)]) -> Windows {
        let mut windows = Windows::default();
        for (from, to, calls) in spans {
            windows.record(at(*from), at(*to), *calls);
        }
        windows
    }

    #[test]
    fn a_window_that_is_not_full_is_divided_by_what_was_seen() {
        let windows = windows(&[(0.5, 1.5, 4.0), (1.5, 3.5, 1.0)]);
        assert_eq!(windows.averages(at(3.5), WINDOW), (Some(2.0), Some(2.0)));
        assert_eq!(windows.averages(at(6.5), WINDOW), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn windows_end_now_and_forget_what_was_before_them() {
        let windows = windows(&[(0.0, 54.0, 0.0), (54.0, 57.0, 10.0), (57.0, 60.0, 0.0)]);
        assert_eq!(windows.averages(at(60.0), WINDOW), (Some(0.5), Some(5.0)));
        assert_eq!(windows.averages(at(63.0), WINDOW), (Some(0.5), Some(0.0)));
        assert_eq!(windows.averages(at(114.0), WINDOW), (Some(0.5), Some(0.0)));
        assert_eq!(windows.averages(at(117.0), WINDOW), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn nothing_seen_is_not_no_calls() {
        assert_eq!(Windows::default().averages(at(9.0), WINDOW), (None, None));
        assert_eq!(windows(&[(9.0, 9.0, 3.0)]).averages(at(9.0), WINDOW), (None, None));
        assert_eq!(windows(&[(8.0, 9.0, 0.0)]).averages(at(9.0), WINDOW), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn errors_of_addition_ask_for_nothing() {
        let tenths: Vec<_> =
            (0..600_u32).map(|n| (f64::from(n) / 10.0, f64::from(n + 1) / 10.0, 0.7)).collect();
        assert_eq!(windows(&tenths).averages(at(60.0), WINDOW), (Some(0.7), Some(0.7)));
    }

    #[test]
    fn no_more_is_kept_than_the_longest_window() {
        let windows = windows(&[(0.0, 400_000.0, 1.0), (400_000.0, 400_001.0, 1.0)]);
        assert!(windows.seconds.len() <= 86_402, "{}", windows.seconds.len());
    }
}
