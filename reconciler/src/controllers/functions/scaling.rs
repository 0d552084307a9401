//! How many replicas a function is to have. Pure.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::function::FunctionSpec;
use schema::meta::NamespacedName;
use schema::records::{FunctionDemand, Rollout};
use schema::snapshot::Snapshot;

/// How often the number is decided on while there are calls, as Knative's autoscaler ticks.
const TICK: SignedDuration = SignedDuration::from_secs(2);

/// The window of the longer mean that gateways report.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// The calls of one function through all gateways.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Demand {
    pub(super) busy: u32,
    pub(super) stable: f64,
    pub(super) panic: f64,
    /// When the last call ended, or since when nobody can know of one.
    pub(super) idle_since: Option<Timestamp>,
    /// A living node has not said what goes through its gateway, or not for long enough.
    pub(super) is_partly_unknown: bool,
}

/// What the gateways of living nodes report.
pub(super) fn demand(snapshot: &Snapshot, function: &NamespacedName, now: Timestamp) -> Demand {
    let mut sum = Demand::default();
    let name = function.to_string();
    for node in snapshot.nodes.keys().filter(|node| snapshot.node_is_ready(node)) {
        let Some(reported) = snapshot.demand.get(node).map(|found| &found.value) else {
            sum.is_partly_unknown = true;
            continue;
        };
        // A gateway that has just begun knows only a part of the window.
        sum.is_partly_unknown |= now.duration_since(reported.since) < WINDOW;
        let of_function = reported.functions.get(&name).copied();
        let FunctionDemand { waiting, in_flight, stable_milli, panic_milli, idle_since } =
            of_function.unwrap_or_default();
        sum.busy += waiting + in_flight;
        sum.stable += milli(stable_milli);
        sum.panic += milli(panic_milli);
        sum.idle_since = sum.idle_since.max(Some(idle_since.unwrap_or(reported.since)));
    }
    sum
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn milli(value: u64) -> f64 {
    value as f64 / 1000.0
}

/// A decision, and when to decide again at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decided {
    pub(super) replicas: u32,
    pub(super) again_at: Option<Timestamp>,
}

/// What the number is decided on.
pub(super) struct Scaled<'a> {
    /// After `with_defaults`.
    pub(super) spec: &'a FunctionSpec,
    pub(super) demand: Demand,
    pub(super) rollout: Option<&'a Rollout>,
    /// The last call that was known of when this was decided last.
    pub(super) last_active: Option<Timestamp>,
    /// Replicas that there are to be now.
    pub(super) current: u32,
}

impl Scaled<'_> {
    pub(super) fn decide(&self, now: Timestamp) -> Decided {
        let Demand { busy, stable, panic, is_partly_unknown, .. } = self.demand;
        let (least, most) = (self.spec.min_scale, self.spec.max_scale.unwrap_or(u32::MAX));
        let calls = stable.max(panic);
        let wanted = share_of(calls, self.target());
        let wanted = if busy > 0 { wanted.max(1) } else { wanted };
        let zero_at = self.zero_at();
        let rests = busy == 0 && zero_at.is_none_or(|at| at <= now);
        let wanted = match (wanted, rests) {
            (0 | 1, true) => 0,
            (wanted, _) => wanted.max(1),
        };
        // A new version is tried with one replica before calls depend on it.
        let is_untried = self.rollout.is_none_or(|rollout| !rollout.complete && rollout.failure.is_none());
        let least = if is_untried { least.max(1) } else { least };
        let kept = if is_partly_unknown { self.current } else { 0 };
        let replicas = wanted.max(least).max(kept.min(most)).min(most.max(least));
        let ticks = busy > 0 || calls > 0.0 || is_partly_unknown;
        let next = if ticks { now.checked_add(TICK).ok() } else { zero_at.filter(|_| replicas > 0) };
        Decided { replicas, again_at: next.filter(|at| *at > now) }
    }

    /// When the last replica goes if no call comes.
    fn zero_at(&self) -> Option<Timestamp> {
        let after = self.spec.scale_to_zero_after_seconds.unwrap_or_default();
        let tried = self.rollout.filter(|rollout| rollout.complete).map(|rollout| rollout.progressed_at);
        let since = self.demand.idle_since.max(self.last_active).max(tried)?;
        since.checked_add(SignedDuration::from_secs(after.into())).ok()
    }

    /// Calls that one replica is to have.
    fn target(&self) -> f64 {
        f64::from(self.spec.concurrency) * f64::from(self.spec.target_utilization_percentage) / 100.0
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded, and never negative")]
fn share_of(calls: f64, target: f64) -> u32 {
    (calls / target.max(0.01)).ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}
