//! ReplicaSet: a number of identical pods. Fields and defaults are those of Kubernetes (apps/v1), with those of its
//! Deployment for rollouts, because a push must deploy. A manifest of `kind: Deployment` is read as a ReplicaSet.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) mod defaults;
mod descriptor;
pub(crate) mod dialect;
mod rollout;
mod selector;
mod status;
pub(super) mod validate;

use super::pod::PodSpec;
use crate::codec::one;
pub use rollout::{IntOrPercent, RollingUpdate, Strategy, StrategyType};
pub use selector::{LabelRequirement, LabelSelector, SelectorOperator};
pub use status::{DEPLOYMENT_PAUSED, ReplicaSetStatus};

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
