//! Status of an autoscaler: observations and decisions.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{HorizontalPodAutoscalerSpec, ResourceName};
use crate::condition::{Condition, ConditionStatus};
use crate::kinds::Health;

/// Reason of `ScalingActive` while the target has no pods on purpose.
pub const SCALING_DISABLED: &str = "ScalingDisabled";

/// Observations and decisions of an autoscaler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HorizontalPodAutoscalerStatus {
    /// Pods of the target at the last evaluation.
    #[serde(default)]
    pub current_replicas: u32,
    /// Number of pods that the autoscaler decided on.
    #[serde(default)]
    pub desired_replicas: u32,
    /// Time of the last change of the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Timestamp>,
    /// Reason for that change, with the old and the new number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_scale_reason: String,
    /// Usage at the last evaluation, for each metric that could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current_metrics: Vec<MetricStatus>,
    /// `AbleToScale`, `ScalingActive`, `ScalingLimited`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Usage of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricStatus {
    /// Name of the resource.
    pub name: ResourceName,
    /// Percentage of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_utilization: Option<u32>,
    /// Quantity per pod.
    pub average_value: String,
}

impl HorizontalPodAutoscalerSpec {
    /// Returns the health of an autoscaler: healthy if it can read its metrics and scale, even at its limit.
    pub fn health(&self, status: &HorizontalPodAutoscalerStatus) -> Health {
        let condition = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
        let (able, active) = (condition("AbleToScale"), condition("ScalingActive"));
        // `replicas: 0` in Git turns the autoscaler off, which is no failure.
        let is_failed = |condition: &&Condition| {
            condition.status == ConditionStatus::False && condition.reason != SCALING_DISABLED
        };
        let failed = [able, active].into_iter().flatten().find(is_failed);
        match (failed, able) {
            (Some(condition), _) => {
                Health::Degraded { why: format!("{}: {}", condition.reason, condition.message) }
            }
            (None, Some(_)) => Health::Healthy,
            (None, None) => Health::Progressing { why: "it has not looked at its target yet".to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_is_healthy_when_it_can_read_and_scale() {
        let spec = HorizontalPodAutoscalerSpec::default();
        let mut status = HorizontalPodAutoscalerStatus::default();
        assert_eq!(spec.health(&status).to_string(), "Progressing");
        let condition = |kind: &str, holds: bool| Condition {
            kind: kind.to_owned(),
            status: holds.into(),
            reason: "FailedGetResourceMetric".to_owned(),
            message: "no requests".to_owned(),
            last_transition_time: Timestamp::UNIX_EPOCH,
        };
        status.conditions = vec![condition("AbleToScale", true), condition("ScalingLimited", true)];
        assert_eq!(spec.health(&status), Health::Healthy);
        status.conditions.push(condition("ScalingActive", false));
        let why = "FailedGetResourceMetric: no requests".to_owned();
        assert_eq!(spec.health(&status), Health::Degraded { why });
        let last = status.conditions.last_mut().unwrap();
        last.reason = SCALING_DISABLED.to_owned();
        assert_eq!(spec.health(&status), Health::Healthy, "Git says `replicas: 0`");
    }
}
