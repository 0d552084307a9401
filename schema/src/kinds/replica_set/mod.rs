//! ReplicaSet: a number of equal pods. Fields and defaults are Kubernetes' (apps/v1), those of its
//! Deployment for rolling out, because a push must deploy. A manifest of `kind: Deployment` is read as one.

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

/// What a replica set should be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ReplicaSetSpec {
    /// How many pods; only the seed when an autoscaler scales it.
    #[serde(default = "one")]
    #[schemars(range(max = 10000))]
    pub replicas: u32,
    /// Which pods are its own; must match the labels of `template`.
    pub selector: LabelSelector,
    /// What each pod is.
    pub template: PodTemplate,
    /// Seconds for which a new pod must be ready to count as available.
    #[serde(default)]
    pub min_ready_seconds: u32,
    /// Seconds after which a rollout that gets nowhere has failed; the Cluster object's default, on top of a
    /// `minReadySeconds` that is not less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<u32>,
    /// How a changed template is rolled out.
    #[serde(default)]
    pub strategy: Strategy,
    /// A changed template waits until this is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// The default deadline of a `kind: Deployment`, in seconds, as in Kubernetes.
pub(crate) const DEPLOYMENT_DEADLINE_SECONDS: u32 = 600;

/// What each pod of a workload is.
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
    /// Identifying pairs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Non-identifying pairs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
