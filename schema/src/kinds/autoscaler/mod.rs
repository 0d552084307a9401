//! HorizontalPodAutoscaler: scales a workload by its resource usage. Fields and defaults are those of Kubernetes
//! (autoscaling/v2).

mod descriptor;
mod dialect;
mod metric;
mod validate;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Health, Kind};
use crate::codec::one;
use crate::condition::{Condition, ConditionStatus};
use crate::meta::{ObjectMeta, ObjectRef};
use crate::quantity::Share;

pub use metric::{AverageValue, Metric, MetricTarget, MetricType, ResourceMetric, ResourceName, TargetType};

/// CPU target of an autoscaler without metrics, in percent of the requests, as in Kubernetes.
pub const DEFAULT_CPU_UTILIZATION: u32 = 80;

/// Desired behavior of an autoscaler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct HorizontalPodAutoscalerSpec {
    /// Workload to scale.
    pub scale_target_ref: ScaleTarget,
    /// Minimum number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10000))]
    pub min_replicas: u32,
    /// Maximum number of pods.
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: u32,
    /// Metrics to scale by; defaults to 80% of the requested CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Scaling speed in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
}

/// Workload that an autoscaler scales.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScaleTarget {
    /// `apiVersion` of the target; optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind of the target: `ReplicaSet`, or `Pod`, which counts as one pod and gets copies.
    pub kind: ScaleTargetKind,
    /// Name of the target in the same namespace.
    pub name: String,
}

/// A kind that can be scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaleTargetKind {
    /// A replica set.
    #[default]
    ReplicaSet,
    /// A pod, which counts as one pod and gets copies.
    Pod,
}

impl HorizontalPodAutoscalerSpec {
    /// Returns the workload to scale.
    pub fn target(&self, metadata: &ObjectMeta) -> ObjectRef {
        metadata.reference(self.scale_target_ref.kind.kind(), &self.scale_target_ref.name)
    }
}

impl ScaleTargetKind {
    /// Returns the kind of such objects.
    pub fn kind(self) -> Kind {
        match self {
            Self::ReplicaSet => Kind::ReplicaSet,
            Self::Pod => Kind::Pod,
        }
    }
}

// Scaling speed of an autoscaler.

/// Scaling speed of an autoscaler.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Behavior {
    /// Rules for scaling up.
    pub scale_up: Option<ScalingRules>,
    /// Rules for scaling down.
    pub scale_down: Option<ScalingRules>,
}

/// Rules for scaling in one direction.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScalingRules {
    /// Seconds over which the most conservative recommendation applies; defaults to 0 for scaling up and 300 for
    /// scaling down.
    pub stabilization_window_seconds: Option<u32>,
    /// Choice among several policies; defaults to `Max`.
    pub select_policy: Option<SelectPolicy>,
    /// Distance of the usage from its target, as a share of the target, up to which nothing changes; defaults to 0.1.
    pub tolerance: Option<Share>,
    /// Limits on each step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<ScalingPolicy>,
}

/// Choice among several policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicy {
    /// The policy that changes most.
    #[default]
    Max,
    /// The policy that changes least.
    Min,
    /// No scaling in this direction.
    Disabled,
}

/// A limit on each step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScalingPolicy {
    /// Unit of `value`.
    #[serde(rename = "type")]
    pub kind: PolicyType,
    /// Maximum change within the period.
    pub value: u32,
    /// Length of the period in seconds, 1 to 1800.
    pub period_seconds: u32,
}

/// Unit of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyType {
    /// Number of pods.
    #[default]
    Pods,
    /// Percentage of the current number of pods.
    Percent,
}

// Status of an autoscaler: observations and decisions.

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
            (None, None) => Health::Progressing { why: "it has not evaluated its target yet".to_owned() },
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
