//! `usage/<node>`: what a node and its pods use.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::meta::NamespacedName;

/// What a node and its pods use: written by its agent every 15 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// Seconds over which the CPU figures are the mean.
    pub window_seconds: u64,
    /// Thousandths of a core in use on the node, by whatever runs there.
    pub cpu: u64,
    /// Bytes of memory in use on the node, without the page cache that is not in active use.
    pub memory: u64,
    /// Running pods, by `namespace/name`.
    pub pods: BTreeMap<String, PodUsage>,
    /// What is missing so that the record fits under its key, in a sentence; empty when nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left_out: String,
}

impl NodeUsage {
    /// What this incarnation of a pod uses.
    pub fn pod(&self, pod: &NamespacedName, uid: &str) -> Option<&PodUsage> {
        self.pods.get(&pod.to_string()).filter(|usage| usage.uid == uid)
    }
}

/// What one pod uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Which incarnation.
    pub uid: String,
    /// Running containers by name; under the empty name all of them together, where
    /// [`NodeUsage::left_out`] says so.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// Bytes that its emptyDir volumes take up, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, u64>,
    /// Volumes with more files than are counted: they hold at least what `volumes` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_least: Vec<String>,
}

impl PodUsage {
    /// All containers together.
    pub fn total(&self) -> ContainerUsage {
        self.containers.values().fold(ContainerUsage::default(), |sum, one| ContainerUsage {
            cpu: sum.cpu.saturating_add(one.cpu),
            memory: sum.memory.saturating_add(one.memory),
        })
    }
}

/// What one container uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUsage {
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes of its working set: what its cgroup holds without the page cache that is not in active
    /// use, as the kubelet counts it.
    pub memory: u64,
}
