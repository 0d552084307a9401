//! Scaling speed of an autoscaler.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

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
