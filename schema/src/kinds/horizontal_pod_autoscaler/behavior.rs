//! How fast an autoscaler goes up and down.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// How fast an autoscaler goes up and down.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Behavior {
    /// Up.
    pub scale_up: Option<ScalingRules>,
    /// Down.
    pub scale_down: Option<ScalingRules>,
}

/// How fast an autoscaler goes in one direction.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScalingRules {
    /// Seconds over which the most cautious recommendation counts; 0 up and 300 down when absent.
    pub stabilization_window_seconds: Option<u32>,
    /// Which of the policies counts; `Max` when absent.
    pub select_policy: Option<SelectPolicy>,
    /// Limits on each step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<ScalingPolicy>,
}

/// Which of several policies counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicy {
    /// The one that changes most.
    #[default]
    Max,
    /// The one that changes least.
    Min,
    /// No change in this direction.
    Disabled,
}

/// A limit on each step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScalingPolicy {
    /// In what `value` is counted.
    #[serde(rename = "type")]
    pub kind: PolicyType,
    /// How much.
    pub value: u32,
    /// In how many seconds, 1 to 1800.
    pub period_seconds: u32,
}

/// In what a step is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyType {
    /// In pods.
    #[default]
    Pods,
    /// In per cent of the present number.
    Percent,
}
