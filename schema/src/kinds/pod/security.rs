//! Security settings of pods and containers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Settings for all containers of a pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PodSecurityContext {
    /// User id of the processes.
    pub run_as_user: Option<i64>,
    /// Group id of the processes.
    pub run_as_group: Option<i64>,
    /// Refuses to start containers as user 0.
    pub run_as_non_root: Option<bool>,
    /// Group that owns the pod's volumes.
    pub fs_group: Option<i64>,
    /// Supplemental groups of the processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supplemental_groups: Vec<i64>,
}

/// Settings for one container; they override those of the pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecurityContext {
    /// User id of the processes.
    pub run_as_user: Option<i64>,
    /// Group id of the processes.
    pub run_as_group: Option<i64>,
    /// Refuses to start the container as user 0.
    pub run_as_non_root: Option<bool>,
    /// Makes the root file system read-only.
    pub read_only_root_filesystem: Option<bool>,
    /// Lets a process gain more privileges than its parent (setuid programs).
    pub allow_privilege_escalation: Option<bool>,
    /// Gives the container full access to the node.
    pub privileged: Option<bool>,
    /// Capabilities to add and drop.
    pub capabilities: Option<Capabilities>,
    /// Maximum number of processes and threads of the container; not in Kubernetes, where the node decides.
    #[schemars(range(min = 1, max = 4194304))]
    pub pids_limit: Option<u32>,
    /// Maximum number of open files of each process of the container; not in Kubernetes.
    #[schemars(range(min = 16, max = 1048576))]
    pub open_files_limit: Option<u32>,
}

/// Capabilities by name, without `CAP_`; `ALL` stands for all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Capabilities {
    /// Capabilities to add to the default set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Capabilities to remove from the default set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
}
