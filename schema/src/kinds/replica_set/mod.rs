//! ReplicaSet: a number of identical pods. Fields and defaults are those of Kubernetes (apps/v1), with those of its
//! Deployment for rollouts, because a push must deploy. A manifest of `kind: Deployment` is read as a ReplicaSet.

pub(crate) mod descriptor;
pub(crate) mod dialect;
mod selector;
pub(super) mod validate;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Health;
use super::pod::PodSpec;
use crate::codec::one;
use crate::condition::{Condition, ConditionStatus};

pub use selector::{LabelRequirement, LabelSelector, SelectorOperator};

/// Desired state of a replica set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ReplicaSetSpec {
    /// Number of pods; only the initial number if an autoscaler scales it.
    #[serde(default = "one")]
    #[schemars(range(max = 10000))]
    pub replicas: u32,
    /// Selector for the replica set's own pods; must match the labels of `template`.
    pub selector: LabelSelector,
    /// Template of the pods.
    pub template: PodTemplate,
    /// Seconds for which a new pod must be ready to count as available.
    #[serde(default)]
    pub min_ready_seconds: u32,
    /// Seconds without progress after which a rollout has failed. Defaults to the Cluster object's value; a
    /// `minReadySeconds` that is not less is added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<u32>,
    /// Strategy for rolling out a changed template.
    #[serde(default)]
    pub strategy: Strategy,
    /// Holds back a changed template while set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// Default deadline of a `kind: Deployment` in seconds, as in Kubernetes.
pub(crate) const DEPLOYMENT_DEADLINE_SECONDS: u32 = 600;

/// Template of a workload's pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// Spec of the pods.
    pub spec: PodSpec,
}

/// Labels and annotations of a workload's pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct TemplateMeta {
    /// Identifying key-value pairs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Non-identifying key-value pairs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

// Status of a replica set, as the workloads controller reports it.

/// Reason of `Progressing` while a changed template waits for the end of a pause, as in Kubernetes.
pub const DEPLOYMENT_PAUSED: &str = "DeploymentPaused";

/// Status of a replica set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSetStatus {
    /// Generation of the object that the status describes.
    #[serde(default)]
    pub observed_generation: u64,
    /// Desired number of pods, from the spec or the autoscaler.
    #[serde(default)]
    pub desired_replicas: u32,
    /// Number of existing pods.
    #[serde(default)]
    pub replicas: u32,
    /// Number of pods with the current template.
    #[serde(default)]
    pub updated_replicas: u32,
    /// Number of ready pods.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Number of pods that have been ready for `minReadySeconds`.
    #[serde(default)]
    pub available_replicas: u32,
    /// `Progressing`, `Available`, `ReplicaFailure`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl ReplicaSetStatus {
    /// Returns the health of the workload at `generation`, by the rules of `kubectl rollout status`. `paused`: no
    /// template is rolled out for the time being.
    pub fn health(&self, generation: u64, paused: bool) -> Health {
        let status = self;
        let ReplicaSetStatus { desired_replicas: wanted, replicas, updated_replicas: updated, .. } = *status;
        let progressing = |why: String| Health::Progressing { why };
        if status.observed_generation < generation {
            return progressing("the latest change has not been observed yet".to_owned());
        }
        let rollout = status.conditions.iter().find(|condition| condition.kind == "Progressing");
        let trouble = rollout.map_or("", |condition| &condition.message);
        let trouble = if trouble.is_empty() { String::new() } else { format!("; {trouble}") };
        if let Some(condition) = rollout.filter(|condition| condition.status == ConditionStatus::False) {
            let why = if condition.message.is_empty() { &condition.reason } else { &condition.message };
            return Health::Degraded { why: why.clone() };
        }
        if paused && status.available_replicas >= wanted {
            return Health::Healthy;
        }
        if updated < wanted {
            progressing(format!("{updated} of {wanted} pods are updated{trouble}"))
        } else if replicas > updated {
            progressing(format!("{} old pods are pending termination{trouble}", replicas - updated))
        } else if status.available_replicas < wanted {
            progressing(format!("{} of {wanted} pods are available{trouble}", status.available_replicas))
        } else {
            Health::Healthy
        }
    }
}

// Rollout of a changed template: Kubernetes' Deployment strategy.

/// Strategy for rolling out a changed template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Strategy {
    /// Type of the strategy: step by step, or all pods together.
    #[serde(default, rename = "type")]
    pub kind: StrategyType,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Type of a rollout: step by step, or all pods together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    /// New pods start before old ones stop.
    #[default]
    RollingUpdate,
    /// Every old pod stops before new ones start.
    Recreate,
}

/// Allowed deviation of a rollout from the desired number of pods.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct RollingUpdate {
    /// Pods above the desired number, as a number or percentage; defaults to 25%.
    pub max_surge: Option<IntOrPercent>,
    /// Pods below the desired number, as a number or percentage; defaults to 25%.
    pub max_unavailable: Option<IntOrPercent>,
}

/// A number, or a percentage of the desired pods such as `25%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// A number of pods.
    Number(u32),
    /// A percentage of the desired pods, with the sign: `25%`.
    Percent(String),
}

impl IntOrPercent {
    /// Returns `25%`, Kubernetes' default for both fields.
    pub fn quarter() -> Self {
        Self::Percent("25%".to_owned())
    }

    /// Returns the percentage, if it is a well-formed one.
    pub fn percent(&self) -> Option<u32> {
        let Self::Percent(text) = self else { return None };
        let digits = text.strip_suffix('%')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| is_number)
    }

    /// Returns the number of pods out of `wanted`, if well-formed. Kubernetes rounds up for `maxSurge` and down for
    /// `maxUnavailable`.
    pub fn resolve(&self, wanted: u32, round_up: bool) -> Option<u32> {
        if let Self::Number(number) = self {
            return Some(*number);
        }
        let hundredths = u64::from(wanted) * u64::from(self.percent()?);
        let pods = if round_up { hundredths.div_ceil(100) } else { hundredths / 100 };
        Some(u32::try_from(pods).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Percent(percent) => f.write_str(percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn health_follows_the_rollout() {
        let mut status =
            ReplicaSetStatus { observed_generation: 1, desired_replicas: 3, ..Default::default() };
        let why = |health: Health| match health {
            Health::Progressing { why } => why,
            other => other.to_string(),
        };
        assert_eq!(why(status.health(2, false)), "the latest change has not been observed yet");
        status.observed_generation = 2;
        (status.updated_replicas, status.replicas) = (2, 4);
        assert_eq!(why(status.health(2, false)), "2 of 3 pods are updated");
        status.updated_replicas = 3;
        assert_eq!(why(status.health(2, false)), "1 old pods are pending termination");
        (status.replicas, status.available_replicas) = (3, 2);
        assert_eq!(why(status.health(2, false)), "2 of 3 pods are available");
        status.available_replicas = 3;
        assert_eq!(status.health(2, false), Health::Healthy);
        status.conditions.push(Condition {
            kind: "Progressing".to_owned(),
            status: ConditionStatus::False,
            reason: "ProgressDeadlineExceeded".to_owned(),
            message: String::new(),
            last_transition_time: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(status.health(2, false), Health::Degraded { why: "ProgressDeadlineExceeded".to_owned() });
    }
}

#[cfg(test)]
mod rollout_tests {
    use super::*;

    #[test]
    fn shares_round_as_in_kubernetes() {
        let quarter = IntOrPercent::quarter();
        assert_eq!((quarter.resolve(10, true), quarter.resolve(10, false)), (Some(3), Some(2)));
        assert_eq!(IntOrPercent::Number(7).resolve(3, true), Some(7));
        for text in ["25", "%", "+5%", "-5%", "5 %", "99999999999%"] {
            assert_eq!(IntOrPercent::Percent(text.to_owned()).resolve(10, true), None, "{text}");
        }
    }
}
