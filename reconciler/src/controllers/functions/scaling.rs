//! Decides how many replicas a function should have. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::function::FunctionSpec;
use schema::meta::NamespacedName;
use schema::records::{FunctionDemand, NodeDemand, Rollout};
use schema::snapshot::Snapshot;

use super::decider::{Config, Mode, Observation, ScalerMemory, TICK, decide};

/// Window of the longer mean that gateways report.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Calls of one function through all gateways.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Demand {
    pub(super) busy: u32,
    pub(super) stable: f64,
    pub(super) panic: f64,
    /// End of the last call; for a gateway that knows of none, the time it began to count.
    pub(super) idle_since: Option<Timestamp>,
    /// Set if a live node has not reported its gateway's calls, or not for long enough.
    pub(super) is_partly_unknown: bool,
}

/// Times at which this reconciler first read each node's present report of calls: a node's clock may differ from its
/// own.
#[derive(Debug, Clone, Default)]
pub(in crate::controllers) struct ReportTimes(BTreeMap<String, (i64, Timestamp)>);

impl ReportTimes {
    /// Notes new reports, and returns the time of each node's.
    pub(in crate::controllers) fn observe(
        &mut self,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        self.0.retain(|node, _| snapshot.demand.contains_key(node));
        for (node, report) in &snapshot.demand {
            let (revision, read_at) = self.0.entry(node.clone()).or_insert((report.mod_revision, now));
            if *revision != report.mod_revision {
                (*revision, *read_at) = (report.mod_revision, now);
            }
        }
        self.0.iter().map(|(node, (_, read_at))| (node.clone(), *read_at)).collect()
    }
}

/// Converts a time of a report to this reconciler's clock. Without the time at which the report was read or written,
/// both clocks count as equal.
fn by_own_clock(time: Timestamp, report: &NodeDemand, read_at: Option<Timestamp>) -> Timestamp {
    let (Some(read_at), Some(at)) = (read_at, report.at) else { return time };
    read_at.checked_sub(at.duration_since(time)).unwrap_or(time)
}

/// Returns the sum of the calls that the gateways of live nodes report. `read_at`: from [`ReportTimes`].
pub(super) fn demand(
    snapshot: &Snapshot,
    function: &NamespacedName,
    read_at: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> Demand {
    let mut sum = Demand::default();
    let name = function.to_string();
    for node in snapshot.nodes.keys() {
        let is_ready = snapshot.node_is_ready(node);
        if !is_ready && snapshot.is_evicted(node) {
            continue;
        }
        // A node that is silent for a moment may still take calls.
        sum.is_partly_unknown |= !is_ready;
        let Some(reported) = snapshot.demand.get(node).map(|found| &found.value) else {
            sum.is_partly_unknown = true;
            continue;
        };
        // A gateway that has just started covers only part of the window.
        let own = |time| by_own_clock(time, reported, read_at.get(node).copied());
        let seen = now.duration_since(own(reported.since));
        sum.is_partly_unknown |= !seen.is_negative() && seen < WINDOW;
        let of_function = reported.functions.get(&name).copied();
        let FunctionDemand { waiting, in_flight, stable_milli, panic_milli, idle_since, .. } =
            of_function.unwrap_or_default();
        sum.busy += waiting + in_flight;
        sum.stable += milli(stable_milli);
        sum.panic += milli(panic_milli);
        // A time in the future comes from a clock that was set back.
        let idle_since = own(idle_since.unwrap_or(reported.since));
        sum.idle_since = sum.idle_since.max(Some(idle_since.min(now)));
    }
    sum
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn milli(value: u64) -> f64 {
    value as f64 / 1000.0
}

/// A decision, and the latest time of the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScalingDecision {
    pub(super) replicas: u32,
    pub(super) memory: ScalerMemory,
    pub(super) again_at: Option<Timestamp>,
}

/// Inputs of the decision on a function's replicas.
pub(super) struct ScalingInput<'a> {
    /// Spec after `with_defaults`.
    pub(super) spec: &'a FunctionSpec,
    pub(super) demand: Demand,
    pub(super) memory: &'a ScalerMemory,
    pub(super) rollout: Option<&'a Rollout>,
    /// Last call known at the previous decision.
    pub(super) last_active: Option<Timestamp>,
    /// Number of replicas wanted so far.
    pub(super) current: u32,
    /// Replicas that take calls.
    pub(super) ready: u32,
    /// Time of the last change of `current`.
    pub(super) scaled_at: Option<Timestamp>,
}

impl ScalingInput<'_> {
    pub(super) fn decide(&self, now: Timestamp) -> ScalingDecision {
        let Demand { busy, stable, panic, is_partly_unknown, .. } = self.demand;
        let (decision, memory) = match self.current {
            // No data yet: a call wakes one replica.
            0 => (None, ScalerMemory::default()),
            _ => {
                let seen = Observation { ready: Some(self.ready), stable: Some(stable), panic: Some(panic) };
                decide(&Config::for_function(self.spec), self.memory, seen, now)
            }
        };
        let bounds = Bounds::for_function(self.spec);
        let since = self.last_call();
        let idle = (busy == 0).then(|| since.map_or(SignedDuration::ZERO, |since| now.duration_since(since)));
        let mut replicas = bounds.wanted(decision.map(|decision| decision.desired), self.current, idle);
        // A new version is tried with one replica before calls depend on it.
        if self.rollout.is_none_or(|rollout| !rollout.complete && rollout.failure.is_none()) {
            replicas = replicas.max(1);
        }
        // Knative takes one step down per tick; plans are made far more often.
        let is_early = self.scaled_at.is_some_and(|at| now < at + TICK) && replicas > 0;
        if is_partly_unknown || is_early {
            replicas = replicas.max(self.current.min(bounds.most));
        }
        let memory = if is_same_surge(self.memory, &memory) { self.memory.clone() } else { memory };
        let ticks = busy > 0 || stable > 0.0 || panic > 0.0 || is_partly_unknown || memory.is_panic();
        let zero_at = since.and_then(|since| since.checked_add(bounds.zero_after).ok());
        let zero_at = zero_at.filter(|_| replicas > bounds.least && busy == 0);
        let tick = now.checked_add(TICK).ok().filter(|_| ticks && replicas > 0);
        let next = tick.into_iter().chain(zero_at).filter(|at| *at > now).min();
        let memory = if replicas == 0 { ScalerMemory::default() } else { memory };
        ScalingDecision { replicas, memory, again_at: next }
    }

    /// Returns the time of the last call, or of the completed rollout, which counts as one.
    fn last_call(&self) -> Option<Timestamp> {
        let tried = self.rollout.filter(|rollout| rollout.complete).map(|rollout| rollout.progressed_at);
        self.demand.idle_since.max(self.last_active).max(tried)
    }
}

/// True if a surge merely goes on. A surge is recorded once per tick and not in each plan, because each write
/// triggers the next plan.
fn is_same_surge(before: &ScalerMemory, now: &ScalerMemory) -> bool {
    match (before.mode, now.mode) {
        (Mode::Panic { surged_at: then, most: had }, Mode::Panic { surged_at: at, most }) => {
            had == most && before.peaks == now.peaks && at.duration_since(then) < TICK
        }
        _ => false,
    }
}

// Bounds of a function's size, and scaling to zero: the manifest's limits on the decider's number.

/// Bounds set by a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// `minScale`.
    pub least: u32,
    /// `maxScale`.
    pub most: u32,
    /// `scaleToZeroAfterSeconds`.
    pub zero_after: SignedDuration,
}

impl Bounds {
    /// Returns the bounds of a function after [`FunctionSpec::with_defaults`].
    pub(crate) fn for_function(function: &FunctionSpec) -> Self {
        let zero_after = function.scale_to_zero_after_seconds.unwrap_or_default();
        Self {
            least: function.min_scale,
            most: function.max_scale.unwrap_or(u32::MAX),
            zero_after: SignedDuration::from_secs(zero_after.into()),
        }
    }

    /// Returns the number of replicas that should follow `before`. `idle` is the time since the last call, `None`
    /// while a call is in the function; `decided` is the decider's number, `None` while it has no data.
    ///
    /// Only the time without a call decides on zero, whatever the windows still hold; until then one replica stays.
    /// A call that finds no replica gets one immediately, without waiting for the decider.
    pub(crate) fn wanted(&self, decided: Option<u32>, before: u32, idle: Option<SignedDuration>) -> u32 {
        let sleeps = idle.is_some_and(|idle| before == 0 || idle >= self.zero_after);
        if sleeps && self.least == 0 {
            return 0;
        }
        let least = self.least.max(1);
        decided.unwrap_or(before).min(self.most).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(least: u32, decided: Option<u32>, before: u32, idle: Option<i64>) -> u32 {
        let bounds = Bounds { least, most: 10, zero_after: SignedDuration::from_secs(30) };
        bounds.wanted(decided, before, idle.map(SignedDuration::from_secs))
    }

    #[test]
    fn the_last_replica_goes_after_the_time_without_a_call() {
        for (idle, replicas) in [(None, 1), (Some(0), 1), (Some(29), 1), (Some(30), 0), (Some(31), 0)] {
            assert_eq!(wanted(0, Some(0), 1, idle), replicas, "{idle:?}");
        }
        assert_eq!(wanted(0, Some(7), 7, Some(30)), 0, "panic holds none of them");
        assert_eq!(wanted(0, None, 7, Some(30)), 0);
        assert_eq!(wanted(0, Some(3), 0, Some(1)), 0, "nothing wakes it but a call");
    }

    #[test]
    fn a_call_wakes_one_replica() {
        assert_eq!(wanted(0, None, 0, None), 1);
        assert_eq!(wanted(0, Some(4), 0, None), 4);
    }

    #[test]
    fn the_bounds_of_the_manifest_hold() {
        assert_eq!(wanted(2, Some(0), 5, Some(99)), 2, "with minScale it never sleeps");
        assert_eq!(wanted(2, None, 0, Some(99)), 2);
        assert_eq!(wanted(0, Some(99), 5, None), 10);
        assert_eq!(wanted(0, None, 5, Some(3)), 5, "without data it stays as it is");
    }
}
