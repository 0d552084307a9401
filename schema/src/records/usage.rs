//! `usage/<node>`: resource usage of a node and its pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::meta::NamespacedName;

/// Resource usage of a node and its pods. Written by its agent every 15 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// Time of the measurement.
    pub at: Timestamp,
    /// Seconds over which the CPU figures are the mean.
    pub window_seconds: u64,
    /// Thousandths of a core in use on the node, by everything that runs there.
    pub cpu: u64,
    /// Bytes of memory in use on the node, without the page cache that is not in active use.
    pub memory: u64,
    /// Running pods, by `namespace/name`.
    pub pods: BTreeMap<String, PodUsage>,
    /// Parts left out so that the record fits under its key, in a sentence; empty if it is complete.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left_out: String,
}

impl NodeUsage {
    /// Returns the usage of this incarnation of a pod.
    pub fn pod(&self, pod: &NamespacedName, uid: &str) -> Option<&PodUsage> {
        self.pods.get(&pod.to_string()).filter(|usage| usage.uid == uid)
    }
}

/// Resource usage of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Incarnation of the pod.
    pub uid: String,
    /// Running containers by name; under the empty name the sum of all, if [`NodeUsage::left_out`] says so.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// Bytes that its emptyDir volumes occupy, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, u64>,
    /// Volumes with more files than are counted: they hold at least the bytes in `volumes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_least: Vec<String>,
}

impl PodUsage {
    /// Returns the sum of all containers.
    pub fn total(&self) -> ContainerUsage {
        self.containers.values().fold(ContainerUsage::default(), |sum, one| ContainerUsage {
            cpu: sum.cpu.saturating_add(one.cpu),
            memory: sum.memory.saturating_add(one.memory),
        })
    }
}

/// Resource usage of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUsage {
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes of its working set: memory of its cgroup without the page cache that is not in active use, as the
    /// kubelet counts it.
    pub memory: u64,
}
