//! DaemonSet: a pod on every eligible node. Fields and defaults are those of Kubernetes (apps/v1), plus the
//! deadline of ReplicaSet, so that a push of a broken template is undone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod descriptor;

use super::replica_set::{IntOrPercent, LabelSelector, PodTemplate};

/// Desired state of a daemon set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DaemonSetSpec {
    /// Selector for the daemon set's own pods; must match the labels of `template`.
    pub selector: LabelSelector,
    /// Template of each node's pod. Its nodeSelector, node affinity and tolerations determine the eligible nodes.
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
    pub update_strategy: UpdateStrategy,
}

/// Strategy for rolling out a changed template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct UpdateStrategy {
    /// Type of the strategy: node by node.
    #[serde(default, rename = "type")]
    pub kind: UpdateStrategyType,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdateDaemonSet>,
}

/// Type of a rollout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Node by node: the old pod stops, then the new one starts.
    #[default]
    RollingUpdate,
}

/// Number of nodes that are updated at a time.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct RollingUpdateDaemonSet {
    /// Maximum number of nodes whose pod may be unavailable, as a number or percentage of the nodes; defaults to 1.
    pub max_unavailable: Option<IntOrPercent>,
    /// Must be 0: a node never has two pods of a DaemonSet.
    pub max_surge: Option<IntOrPercent>,
}

impl DaemonSetSpec {
    /// Returns how many of `nodes` nodes may be without an available pod during a rollout. A percentage is rounded
    /// up, as in Kubernetes; never less than 1.
    pub fn max_unavailable(&self, nodes: u32) -> u32 {
        let update = self.update_strategy.rolling_update.as_ref();
        let written = update.and_then(|update| update.max_unavailable.as_ref());
        written.and_then(|amount| amount.resolve(nodes, true)).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_nodes_is_rounded_up() {
        let with = |amount: Option<IntOrPercent>| {
            let update = RollingUpdateDaemonSet { max_unavailable: amount, max_surge: None };
            let update_strategy =
                UpdateStrategy { rolling_update: Some(update), ..UpdateStrategy::default() };
            DaemonSetSpec { update_strategy, ..DaemonSetSpec::default() }
        };
        let percent = |text: &str| Some(IntOrPercent::Percent(text.to_owned()));
        for (amount, nodes, most) in [
            (None, 10, 1),
            (Some(IntOrPercent::Number(3)), 10, 3),
            (percent("10%"), 25, 3),
            (percent("10%"), 0, 1),
            (percent("0%"), 10, 1),
        ] {
            assert_eq!(with(amount.clone()).max_unavailable(nodes), most, "{amount:?} of {nodes}");
        }
        assert_eq!(DaemonSetSpec::default().max_unavailable(10), 1);
    }
}
