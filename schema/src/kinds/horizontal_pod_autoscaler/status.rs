//! What an autoscaler found and decided.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{HorizontalPodAutoscalerSpec, ResourceName};
use crate::condition::{Condition, ConditionStatus};
use crate::kinds::Health;

/// The reason of `ScalingActive` while the target has no pods on purpose.
pub const SCALING_DISABLED: &str = "ScalingDisabled";

/// What an autoscaler found and decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HorizontalPodAutoscalerStatus {
    /// Pods of the target at the last look.
    #[serde(default)]
    pub current_replicas: u32,
    /// Pods that it decided on.
    #[serde(default)]
    pub desired_replicas: u32,
    /// When it last changed the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Timestamp>,
    /// Why, and from which number to which.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_scale_reason: String,
    /// Use at the last look, one for each metric that could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current_metrics: Vec<MetricStatus>,
    /// `AbleToScale`, `ScalingActive`, `ScalingLimited`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The use of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricStatus {
    /// Which.
    pub name: ResourceName,
    /// Per cent of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_utilization: Option<u32>,
    /// A quantity per pod.
    pub average_value: String,
}

impl HorizontalPodAutoscalerSpec {
    /// How well an autoscaler is: whether it can read and scale. Being at its limit is well.
    pub fn health(&self, status: &HorizontalPodAutoscalerStatus) -> Health {
        let condition = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
        let (able, active) = (condition("AbleToScale"), condition("ScalingActive"));
        // Git's `replicas: 0` turns it off, which is no failure.
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
