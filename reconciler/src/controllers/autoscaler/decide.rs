//! Evaluates an autoscaler: derives the wanted number of pods from what the pods use. The order is that of
//! Kubernetes' `horizontal.go`: bounds, metrics, windows, policies.

use jiff::Timestamp;
use schema::condition::{Condition, ConditionStatus, set_condition};
use schema::kinds::autoscaler::SCALING_DISABLED;
use schema::records::Recommendation;

use super::behavior::RateLimits;
use super::model::{AutoscalerMemory, Basis, Decision, Input, Limit, MetricResult, Tuning};
use super::replicas::{proposal, resource_name};

const ABLE_TO_SCALE: &str = "AbleToScale";
const SCALING_ACTIVE: &str = "ScalingActive";
const SCALING_LIMITED: &str = "ScalingLimited";

/// Condition reason for an unknown metric.
pub const FAILED_GET_METRIC: &str = "FailedGetResourceMetric";

/// Decides on the number of pods. Total and deterministic.
pub fn decide(input: &Input<'_>) -> Decision {
    let memory = with_initial_recommendation(input);
    let input = &Input { memory: &memory, ..*input };
    let Input { spec, current, .. } = *input;
    let mut look = Evaluation { input, conditions: input.memory.conditions.clone(), metrics: Vec::new() };
    look.able("SucceededGetScale", "the target's number of pods is known");
    if current == 0 {
        let why = "the autoscaler is off because Git sets `replicas: 0` on the target";
        look.set(SCALING_ACTIVE, false, SCALING_DISABLED, why);
        return look.into_decision(0, None, Limit::DesiredWithinRange, why.to_owned());
    }
    if current > spec.max_replicas {
        let why = "the current number is above maxReplicas";
        return look.into_decision(spec.max_replicas, None, Limit::TooManyReplicas, why.to_owned());
    }
    if current < spec.min_replicas {
        let why = "the current number is below minReplicas";
        return look.into_decision(spec.min_replicas, None, Limit::TooFewReplicas, why.to_owned());
    }
    let (recommendation, asked_by) = match look.recommended() {
        Ok(found) => found,
        Err(why) => return look.into_decision(current, None, Limit::DesiredWithinRange, why),
    };
    let rate = look.rate();
    let (stable, held) = rate.stabilized(recommendation);
    let (desired, limit) = rate.limited(stable);
    match held {
        Some(held) => look.able(&held.to_string(), held.sentence()),
        None => look.able("ReadyForNewScale", "no stabilization window delays the recommendation"),
    }
    look.set(SCALING_LIMITED, limit != Limit::DesiredWithinRange, &limit.to_string(), limit.sentence());
    // Report the limit that was applied last: a person looks for it first.
    let limit = if limit == Limit::DesiredWithinRange { held.unwrap_or(limit) } else { limit };
    let reason = match desired {
        _ if desired > current => format!("{asked_by} above target"),
        _ if desired < current => "All metrics below target".to_owned(),
        _ if recommendation == current => "the metrics ask for the current number".to_owned(),
        _ => format!("the metrics ask for {recommendation}, but {}", limit.sentence()),
    };
    look.into_decision(desired, Some(recommendation), limit, reason)
}

/// Returns the memory; before the first evaluation of a target, its present size counts as a recommendation.
fn with_initial_recommendation(input: &Input<'_>) -> AutoscalerMemory {
    let mut memory = input.memory.clone();
    let first = || vec![Recommendation { at: input.now, replicas: input.current }];
    memory.recommendations.get_or_insert_with(first);
    memory
}

/// Returns the memory of an autoscaler that can't evaluate its target, with the failed condition and its reason.
pub(super) fn undecided_memory(
    memory: &AutoscalerMemory,
    now: Timestamp,
    false_condition: UndecidedReason,
    why: &str,
) -> AutoscalerMemory {
    let mut memory = memory.clone();
    let mut set =
        |kind, holds, reason, message| condition(&mut memory.conditions, now, (kind, holds, reason, message));
    match false_condition {
        UndecidedReason::FailedGetScale => set(ABLE_TO_SCALE, false, "FailedGetScale", why),
        UndecidedReason::AmbiguousSelector => {
            set(ABLE_TO_SCALE, true, "SucceededGetScale", "the target's number of pods is known");
            set(SCALING_ACTIVE, false, "AmbiguousSelector", why);
        }
    }
    memory
}

/// Reasons for not evaluating a target, in Kubernetes' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UndecidedReason {
    /// The target is missing, unreadable or can't be scaled.
    FailedGetScale,
    /// Another autoscaler scales the target too.
    AmbiguousSelector,
}

/// Returns the conditions that keep an autoscaler from scaling.
pub(super) fn failures(conditions: &[Condition]) -> impl Iterator<Item = &Condition> {
    conditions.iter().filter(|condition| {
        condition.status == ConditionStatus::False
            && [ABLE_TO_SCALE, SCALING_ACTIVE].contains(&condition.kind.as_str())
            && condition.reason != SCALING_DISABLED
    })
}

/// True if the metrics yield a number of pods.
pub(super) fn is_active(conditions: &[Condition]) -> bool {
    let mut active = conditions.iter().filter(|condition| condition.kind == SCALING_ACTIVE);
    active.any(|condition| condition.status == ConditionStatus::True)
}

fn condition(
    conditions: &mut Vec<Condition>,
    now: Timestamp,
    (kind, holds, reason, message): (&str, bool, &str, &str),
) {
    set_condition(
        conditions,
        Condition {
            kind: kind.to_owned(),
            status: holds.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: now,
        },
    );
}

/// State of a decision in progress.
struct Evaluation<'a> {
    input: &'a Input<'a>,
    conditions: Vec<Condition>,
    metrics: Vec<MetricResult>,
}

impl<'a> Evaluation<'a> {
    fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        condition(&mut self.conditions, self.input.now, (kind, holds, reason, message));
    }

    fn able(&mut self, reason: &str, message: &str) {
        self.set(ABLE_TO_SCALE, true, reason, message);
    }

    fn rate(&self) -> RateLimits<'a> {
        let Input { spec, current, memory, now, tuning, .. } = *self.input;
        RateLimits { spec, current, memory, now, tuning }
    }

    /// Returns the largest number that a metric asks for, and a name for that metric.
    fn recommended(&mut self) -> Result<(u32, String), String> {
        let Input { spec, current, basis, tuning, .. } = *self.input;
        let pods = match basis {
            Basis::Fixed(recommendation) => {
                self.set(SCALING_ACTIVE, true, "ValidMetricFound", "the recommendation is given");
                return Ok((recommendation, "the recommendation is".to_owned()));
            }
            Basis::Pods(pods) => pods,
        };
        let tolerance = tuning.tolerance.with_rules(spec.behavior.as_ref());
        let tuning = &Tuning { tolerance, ..*tuning };
        let resources = spec.metrics.iter().filter_map(|metric| metric.resource.as_ref());
        let results = resources.map(|metric| {
            let outcome = proposal(metric, pods, current, tuning);
            MetricResult { name: metric.name, outcome }
        });
        self.metrics = results.collect();
        let found = self.metrics.iter().filter_map(|result| Some((result, result.outcome.as_ref().ok()?)));
        // `rev`: `max_by_key` returns the last of equal elements, and the first metric of the spec is wanted.
        let most = found.rev().max_by_key(|(_, proposal)| proposal.desired);
        let failed =
            || self.metrics.iter().find_map(|result| Some((result.name, result.outcome.as_ref().err()?)));
        match (most, failed()) {
            (None, None) => Err("the autoscaler has no metric".to_owned()),
            (Some((result, proposal)), None) => {
                let found = (proposal.desired, metric_label(result));
                self.set_active(&found.1);
                Ok(found)
            }
            // With some metrics unknown, the others suffice to scale up but not to scale down.
            (Some((result, proposal)), Some(_)) if proposal.desired >= current => {
                let found = (proposal.desired, metric_label(result));
                self.set_active(&found.1);
                Ok(found)
            }
            (_, Some((name, error))) => {
                let why = format!("{}: {error}", resource_name(name));
                self.set(SCALING_ACTIVE, false, FAILED_GET_METRIC, &why);
                Err(why)
            }
        }
    }

    fn set_active(&mut self, metric: &str) {
        let message = format!("the number of pods is calculated from {metric}");
        self.set(SCALING_ACTIVE, true, "ValidMetricFound", &message);
    }

    fn into_decision(
        mut self,
        desired: u32,
        recommendation: Option<u32>,
        limit: Limit,
        reason: String,
    ) -> Decision {
        let current = self.input.current;
        if desired != current {
            let message = format!("the target has {desired} pods instead of {current}: {reason}");
            self.able("SucceededRescale", &message);
        }
        let remembered = self.rate().next_memory(recommendation, desired);
        let memory = AutoscalerMemory { conditions: self.conditions, ..remembered };
        Decision { desired, recommendation, limit, metrics: self.metrics, memory, reason }
    }
}

fn metric_label(result: &MetricResult) -> String {
    let name = resource_name(result.name);
    match result.outcome.as_ref().is_ok_and(|proposal| proposal.utilization.is_some()) {
        true => format!("{name} resource utilization (percentage of request)"),
        false => format!("{name} resource"),
    }
}
