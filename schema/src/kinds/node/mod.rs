//! Node: labels, taints and cordon for a node that an agent registered.
//!
//! Labels and annotations are those of the metadata; they come on top of what the agent reports. The
//! object's name is the node's. Field names and meaning are Kubernetes' (core/v1).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;
mod dialect;

use super::Health;
use super::pod::TaintEffect;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// What is wanted of a node.
pub struct NodeSpec {
    /// What keeps pods away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Takes no new pods; those that run stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Keeps pods away that do not tolerate it.
pub struct Taint {
    /// Its key, spelled like that of a label.
    pub key: String,
    /// Its value, spelled like that of a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What it does.
    pub effect: TaintEffect,
}

/// How a node is: what its record and its heartbeat say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Its agent is alive and takes pods.
    pub ready: bool,
    /// Why not; empty when ready, and when no agent of the name has registered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl NodeSpec {
    /// How well the node is. A node that never registered is unknown, not broken: its manifest may
    /// come before the machine.
    pub fn health(&self, status: &NodeStatus) -> Health {
        match status {
            NodeStatus { ready: true, .. } => Health::Healthy,
            NodeStatus { why, .. } if why.is_empty() => {
                Health::Unknown { why: "no agent of this name has registered".to_owned() }
            }
            NodeStatus { why, .. } => Health::Degraded { why: why.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_as_well_as_its_agent_says() {
        let node = NodeSpec::default();
        assert_eq!(node.health(&NodeStatus { ready: true, why: String::new() }), Health::Healthy);
        let gone = NodeStatus { ready: false, why: "no heartbeat for 20 s".to_owned() };
        assert_eq!(node.health(&gone), Health::Degraded { why: gone.why.clone() });
        assert!(matches!(node.health(&NodeStatus::default()), Health::Unknown { .. }));
    }
}
