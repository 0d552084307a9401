//! Live nodes, as plans know them.

use schema::kinds::node::NodeSpec;
use schema::kinds::pod::{PodSpec, TaintEffect};
use schema::meta::{StringMap, matches_node_selector};
use schema::quantity::{Cpu, Memory};

/// Room for pods on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRoom {
    pub name: String,
    pub labels: StringMap,
    /// CPU for pods.
    pub cpu: Cpu,
    /// Memory for pods.
    pub memory: Memory,
    /// Limit on pods.
    pub max_pods: u64,
}

impl NodeRoom {
    /// True if a daemon set with pods of `pod` has one here. `spec` is the node's object in Git.
    pub(super) fn has_daemon(&self, pod: &PodSpec, spec: Option<&NodeSpec>) -> bool {
        let keeps_away = |effect: TaintEffect| effect != TaintEffect::PreferNoSchedule;
        let taints = spec.into_iter().flat_map(|spec| &spec.taints).filter(|taint| keeps_away(taint.effect));
        pod.node_name.as_ref().is_none_or(|name| *name == self.name)
            && matches_node_selector(&pod.node_selector, &self.labels)
            && taints.into_iter().all(|taint| taint.is_tolerated_by(&pod.tolerations, 0))
    }
}
