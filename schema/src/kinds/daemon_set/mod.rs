//! DaemonSet: one pod on every node that fits. Fields and defaults are Kubernetes' (apps/v1), and ReplicaSet's
//! deadline, so that a push of a template that does not work is undone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod defaults;
mod descriptor;
mod dialect;
mod validate;

use super::replica_set::{IntOrPercent, LabelSelector, PodTemplate};

/// What a daemon set should be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DaemonSetSpec {
    /// Which pods are its own; must match the labels of `template`.
    pub selector: LabelSelector,
    /// What the pod of each node is. Its nodeSelector and tolerations say which nodes have one.
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
    pub update_strategy: UpdateStrategy,
}

/// How a changed template is rolled out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct UpdateStrategy {
    /// Node by node.
    #[serde(default, rename = "type")]
    pub kind: UpdateStrategyType,
    /// How many nodes at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<NodeByNode>,
}

/// How a changed template is rolled out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Node by node: the old pod goes, then the new one comes.
    #[default]
    RollingUpdate,
}

/// How many nodes are updated at once.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct NodeByNode {
    /// Most nodes whose pod may be unavailable, a number or per cent of the nodes; 1 when absent.
    pub max_unavailable: Option<IntOrPercent>,
    /// Must be 0: a node never has two pods of a DaemonSet.
    pub max_surge: Option<IntOrPercent>,
}

impl DaemonSetSpec {
    /// Of `nodes` nodes, how many may be without an available pod during a rollout. As Kubernetes, a share is
    /// rounded up; never less than 1.
    pub fn max_unavailable(&self, nodes: u32) -> u32 {
        let update = self.update_strategy.rolling_update.as_ref();
        let written = update.and_then(|update| update.max_unavailable.as_ref());
        written.and_then(|amount| amount.of(nodes, true)).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_nodes_is_rounded_up() {
        let with = |amount: Option<IntOrPercent>| {
            let update = NodeByNode { max_unavailable: amount, max_surge: None };
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
