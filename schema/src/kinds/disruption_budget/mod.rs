//! PodDisruptionBudget: how many pods of an application a drain may take away at the same time. Fields, defaults and
//! semantics are those of Kubernetes (policy/v1). [`crate::snapshot::Evictions`] applies it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod descriptor;

use super::replica_set::{IntOrPercent, LabelSelector};
use crate::codec::is_default;
use crate::meta::StringMap;

/// Desired state of a disruption budget.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PodDisruptionBudgetSpec {
    /// Selector for the pods that the budget covers, in its own namespace. An empty one (`{}`) covers all pods of the
    /// namespace.
    pub selector: Option<LabelSelector>,
    /// Covered pods that must stay healthy, as a number or as a percentage of the pods that their workloads should
    /// have, rounded up. Either this or `maxUnavailable`.
    pub min_available: Option<IntOrPercent>,
    /// Covered pods that may be missing, as a number or as a percentage of the pods that their workloads should have,
    /// rounded up. Only for pods of workloads.
    pub max_unavailable: Option<IntOrPercent>,
    /// Condition for a drain to take away running pods that are not ready: while the budget is met, or always.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unhealthy_pod_eviction_policy: UnhealthyPodEvictionPolicy,
}

/// Condition for a drain to take away running pods that are not ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnhealthyPodEvictionPolicy {
    /// While enough others are healthy.
    #[default]
    IfHealthyBudget,
    /// Always.
    AlwaysAllow,
}

impl PodDisruptionBudgetSpec {
    /// True if the budget covers pods with these labels. Without a selector it covers none.
    pub fn covers(&self, labels: &StringMap) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.is_empty() || selector.matches(labels))
    }
}
