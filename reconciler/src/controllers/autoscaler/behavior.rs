//! Limits on how fast the number of pods may change: windows, policies and bounds, as in Kubernetes' `horizontal.go`.
//!
//! An entry exactly as old as a window or a period falls outside it.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::autoscaler::{
    Behavior, HorizontalPodAutoscalerSpec, PolicyType, ScalingRules, SelectPolicy,
};
use schema::records::{Recommendation, ScaleChange};

use super::model::{AutoscalerMemory, Limit, Tuning};

/// Without `behavior`, one evaluation raises the number of pods to at most twice the current number or this many,
/// whichever is more.
const STEP_WITHOUT_BEHAVIOR: u32 = 4;

/// Largest number of pods that a manifest may ask for.
const REPLICAS_MAX: u32 = 10_000;

/// Inputs to stabilizing and limiting a recommendation.
pub(super) struct RateLimits<'a> {
    pub(super) spec: &'a HorizontalPodAutoscalerSpec,
    pub(super) current: u32,
    pub(super) memory: &'a AutoscalerMemory,
    pub(super) now: Timestamp,
    pub(super) tuning: &'a Tuning,
}

/// Stabilization windows for adding and for removing pods: recommendations as old as these no longer count.
struct Windows {
    up: SignedDuration,
    down: SignedDuration,
}

impl RateLimits<'_> {
    /// Returns the most cautious recommendation within the windows, and the limit that applied if it differs from
    /// `recommendation`.
    pub(super) fn stabilized(&self, recommendation: u32) -> (u32, Option<Limit>) {
        let windows = self.windows();
        let within = |window: SignedDuration| {
            let all = self.memory.recommendations.as_deref().unwrap_or_default();
            let recent = move |past: &&Recommendation| is_within(past.at, window, self.now);
            all.iter().filter(recent).map(|past| past.replicas)
        };
        let most = within(windows.down).fold(recommendation, u32::max);
        let stable = match self.spec.behavior {
            None => most,
            Some(_) => {
                let least = within(windows.up).fold(recommendation, u32::min);
                // Not `clamp`: `least` may exceed `most`, and then the window for removing pods wins.
                self.current.max(least).min(most)
            }
        };
        let limit = match (&self.spec.behavior, recommendation >= self.current) {
            (Some(_), true) => Limit::ScaleUpStabilized,
            (None, _) | (Some(_), false) => Limit::ScaleDownStabilized,
        };
        (stable, (stable != recommendation).then_some(limit))
    }

    /// Returns the number that policies and bounds allow, and which of them keeps it from `wanted`.
    pub(super) fn limited(&self, wanted: u32) -> (u32, Limit) {
        let (min, max) = (self.spec.min_replicas, self.spec.max_replicas);
        let Some(behavior) = &self.spec.behavior else {
            let step = self.current.saturating_mul(2).max(STEP_WITHOUT_BEHAVIOR);
            let most = if max > step { (step, Limit::ScaleUpLimit) } else { (max, Limit::TooManyReplicas) };
            return match wanted {
                _ if wanted < min => (min, Limit::TooFewReplicas),
                _ if wanted > most.0 => most,
                _ => (wanted, Limit::DesiredWithinRange),
            };
        };
        if wanted > self.current {
            // Recent steps may have used up more than today's policies allow.
            let step = self.step_limit(behavior.scale_up.as_ref(), Direction::Up).max(self.current);
            let most = if max > step { (step, Limit::ScaleUpLimit) } else { (max, Limit::TooManyReplicas) };
            if wanted > most.0 {
                return most;
            }
        } else if wanted < self.current {
            let step = self.step_limit(behavior.scale_down.as_ref(), Direction::Down).min(self.current);
            let least = if min < step { (step, Limit::ScaleDownLimit) } else { (min, Limit::TooFewReplicas) };
            if wanted < least.0 {
                return least;
            }
        }
        (wanted, Limit::DesiredWithinRange)
    }

    /// Returns the number that the policies of one direction allow.
    fn step_limit(&self, rules: Option<&ScalingRules>, direction: Direction) -> u32 {
        // Absent only if the defaults were not filled in.
        let Some(rules) = rules else { return self.current };
        let limits = rules.policies.iter().map(|policy| {
            let period = SignedDuration::from_secs(policy.period_seconds.into());
            let changed = |changes: &[ScaleChange]| -> i64 {
                let recent = changes.iter().filter(|change| is_within(change.at, period, self.now));
                recent.map(|change| i64::from(change.change)).sum()
            };
            let (added, removed) = (changed(&self.memory.scale_ups), changed(&self.memory.scale_downs));
            let start = i64::from(self.current) - added + removed;
            let value = i64::from(policy.value);
            match (policy.kind, direction) {
                (PolicyType::Pods, Direction::Up) => start + value,
                (PolicyType::Pods, Direction::Down) => start - value,
                // Rounds up, or a small number could never grow.
                (PolicyType::Percent, Direction::Up) => (start * (100 + value) + 99).div_euclid(100),
                // Rounds towards zero.
                (PolicyType::Percent, Direction::Down) => start * (100 - value) / 100,
            }
        });
        let limit = match (rules.select_policy.unwrap_or_default(), direction) {
            (SelectPolicy::Disabled, _) => None,
            (SelectPolicy::Max, Direction::Up) | (SelectPolicy::Min, Direction::Down) => limits.max(),
            (SelectPolicy::Min, Direction::Up) | (SelectPolicy::Max, Direction::Down) => limits.min(),
        };
        let limit = limit.unwrap_or(self.current.into()).clamp(0, REPLICAS_MAX.max(self.current).into());
        u32::try_from(limit).unwrap_or(self.current)
    }

    /// Returns the memory after this decision: adds the recommendation and the step that it led to, and drops
    /// outdated entries.
    pub(super) fn next_memory(&self, recommendation: Option<u32>, desired: u32) -> AutoscalerMemory {
        let AutoscalerMemory { mut recommendations, mut scale_ups, mut scale_downs, conditions } =
            self.memory.clone();
        let now = self.now;
        let past = recommendations.get_or_insert_default();
        if let Some(replicas) = recommendation {
            // The latest of several equal recommendations replaces the earlier ones.
            past.pop_if(|last| last.replicas == replicas);
            past.push(Recommendation { at: now, replicas });
        }
        let windows = self.windows();
        let longest = windows.up.max(windows.down);
        past.retain(|past| past.at >= now || is_within(past.at, longest, now));
        if let Some(Behavior { scale_up, scale_down }) = &self.spec.behavior {
            match desired {
                _ if desired > self.current => {
                    scale_ups.push(ScaleChange { at: now, change: desired - self.current });
                }
                _ if desired < self.current => {
                    scale_downs.push(ScaleChange { at: now, change: self.current - desired });
                }
                _ => {}
            }
            let rules = [scale_up, scale_down].into_iter().flatten();
            let periods = rules.flat_map(|rules| &rules.policies).map(|policy| policy.period_seconds);
            let longest = SignedDuration::from_secs(periods.max().unwrap_or_default().into());
            for changes in [&mut scale_ups, &mut scale_downs] {
                changes.retain(|change| is_within(change.at, longest, now));
            }
        } else {
            // Without `behavior`, nothing reads them.
            scale_ups.clear();
            scale_downs.clear();
        }
        AutoscalerMemory { recommendations, scale_ups, scale_downs, conditions }
    }

    fn windows(&self) -> Windows {
        let Some(behavior) = &self.spec.behavior else {
            return Windows { up: SignedDuration::ZERO, down: self.tuning.downscale_stabilization };
        };
        let of = |rules: &Option<ScalingRules>| {
            let seconds = rules.as_ref().and_then(|rules| rules.stabilization_window_seconds);
            seconds.map(|seconds| SignedDuration::from_secs(seconds.into()))
        };
        Windows {
            up: of(&behavior.scale_up).unwrap_or_default(),
            down: of(&behavior.scale_down).unwrap_or(self.tuning.downscale_stabilization),
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

fn is_within(at: Timestamp, window: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(at) < window
}
