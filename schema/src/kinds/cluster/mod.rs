//! Cluster: settings of the whole cluster, in a single object called `cluster`. Without the object every setting
//! has its default. Settings that a daemon needs before it can reach etcd (addresses, ranges, sources) are
//! arguments of the daemon instead.

use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;
mod functions;
mod notifications;
mod pod_security;

pub use functions::FunctionDefaults;
pub(crate) use notifications::secret_advice;
pub use notifications::{
    NOTIFICATION_SECRET_KEYS, Notification, NotificationChannel, NotificationEvent, NotificationMatrix,
    NotificationSlack, NotificationSmtp, NotificationWebhook, PLACEHOLDERS, fill_template,
};
pub use pod_security::{PodSecurity, PodSecurityLevel, host_paths_overlap};

use super::Kind;
use super::job::SlurmLogin;
use super::pod::{LocalReference, PodSpec, ResourceRequirements};
use crate::codec::is_default;
use crate::meta::{DEFAULT_NAMESPACE, ObjectRef};

/// Name of the only object: two sources that both bring one claim the same object.
pub const CLUSTER_NAME: &str = "cluster";
/// The DNS zone of services and pods, as in Kubernetes.
pub const DEFAULT_ZONE: &str = "cluster.local";

/// Returns the reference to the only object.
pub fn cluster_reference() -> ObjectRef {
    let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), CLUSTER_NAME.to_owned());
    ObjectRef { kind: Kind::Cluster, namespace, name }
}

/// Settings of the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Strategy by which the scheduler chooses among eligible nodes. A change applies to pods that are placed
    /// afterwards.
    pub scheduler_strategy: SchedulerStrategy,
    /// Limits on deletions by a commit, beyond which the commit is held.
    pub prune: PrunePolicy,
    /// Registry to which function images are pushed and from which they are pulled, as `address/function`. Without
    /// one, and while it is unavailable, nodes copy images from each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// DNS zone of the cluster, and servers for all other names.
    pub dns: ClusterDns,
    /// Defaults for workloads that do not set these fields.
    pub defaults: WorkloadDefaults,
    /// Handling of nodes that are not ready.
    pub nodes: NodePolicy,
    /// Settings that pods of the cluster may not use.
    pub pod_security: PodSecurity,
    /// Defaults for functions that do not set these fields.
    pub functions: FunctionDefaults,
    /// Slurm cluster that runs jobs.
    #[serde(skip_serializing_if = "is_default")]
    pub slurm: Slurm,
    /// Chats, mailboxes and webhooks that receive verdicts and problems; at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notifications: Vec<Notification>,
}

/// Strategy by which the scheduler chooses among eligible nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerStrategy {
    /// Fewest pods of the same owner, then lowest requested share of CPU and memory, then fewest pods.
    #[default]
    Spread,
    /// Any node.
    Random,
    /// Node that has gone longest without a new pod.
    RoundRobin,
    /// Fewest pods.
    MinPods,
    /// Most pods: fills a node before the next.
    MaxPods,
    /// Least requested CPU.
    MinCpu,
    /// Least requested memory.
    MinMemory,
}

/// Limits on deletions by a commit. The commit is held if it would delete more than `maxObjects` objects and also
/// more than `maxPercent` of its source's objects, or if it would delete all of them. A commit message with the
/// trailer `Minik8s-Allow-Prune: true` releases it. The policy in effect applies, not the one in the same commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct PrunePolicy {
    /// Number of objects that a commit may delete regardless of their share.
    pub max_objects: u32,
    /// Percentage of the objects that a commit may delete regardless of their number.
    #[schemars(range(max = 100))]
    pub max_percent: u32,
}

impl Default for PrunePolicy {
    /// Values of the design, section 6.
    fn default() -> Self {
        Self { max_objects: 10, max_percent: 30 }
    }
}

/// A container registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Registry {
    /// Address as `host` or `host:port`, optionally with a path in front of all images: `registry.lan:5000/minik8s`.
    pub address: String,
    /// Uses HTTP instead of HTTPS. Unless the registry is at 127.0.0.1, Docker's `insecure-registries` on each node
    /// must name it as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Secret with the registry's login: a Docker `config.json`, or the keys `registry`, `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_secret: Option<LocalReference>,
}

/// DNS zone of the cluster, and servers for all other names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct ClusterDns {
    /// Zone of services and pods. Running pods keep the search domains that they were created with.
    pub zone: String,
    /// IP addresses of servers for all other names, at most 3; defaults to the servers of each node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<String>,
}

impl Default for ClusterDns {
    fn default() -> Self {
        Self { zone: DEFAULT_ZONE.to_owned(), upstreams: Vec::new() }
    }
}

/// Defaults for workloads that do not set these fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct WorkloadDefaults {
    /// Requests and limits of containers, for each amount that a container does not set. Applied when a pod is
    /// created; a change does not affect existing pods.
    #[serde(skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Seconds within which a rollout or a commit must make progress before it counts as failed.
    #[schemars(range(min = 1, max = 86400))]
    pub progress_deadline_seconds: u32,
}

impl Default for WorkloadDefaults {
    fn default() -> Self {
        Self { resources: ResourceRequirements::default(), progress_deadline_seconds: 120 }
    }
}

/// Handling of nodes that are not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct NodePolicy {
    /// Seconds after which the pods of a node that is not ready are replaced elsewhere; at most 86400.
    #[schemars(range(max = 86400))]
    pub evict_after_seconds: u32,
}

impl Default for NodePolicy {
    fn default() -> Self {
        Self { evict_after_seconds: 30 }
    }
}

/// Slurm cluster that runs jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Slurm {
    /// Default login host and account of jobs, for each field that a job leaves out.
    #[serde(skip_serializing_if = "is_default")]
    pub login: SlurmLogin,
}

impl WorkloadDefaults {
    /// Returns the spec of a new pod, with default amounts where its containers set none.
    pub fn apply_to(&self, spec: &Arc<PodSpec>) -> Arc<PodSpec> {
        let mut spec = Arc::clone(spec);
        if !self.resources.is_empty() {
            let pod = Arc::make_mut(&mut spec);
            for container in pod.init_containers.iter_mut().chain(&mut pod.containers) {
                container.resources = container.resources.or(&self.resources);
            }
        }
        spec
    }
}

impl ClusterDns {
    /// Returns the addresses of `upstreams`.
    pub fn upstream_addresses(&self) -> Vec<IpAddr> {
        self.upstreams.iter().filter_map(|address| address.parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::Container;
    use crate::quantity::Memory;

    // Seen red without `init_containers`.
    #[test]
    fn a_pod_gets_default_amounts_where_it_names_none() {
        let mut defaults = WorkloadDefaults::default();
        let memory = |mebibytes: u64| Some(Memory { bytes: mebibytes << 20 });
        let mut own = Container::default();
        own.resources.limits.memory = memory(1);
        let spec = Arc::new(PodSpec {
            containers: vec![own, Container::default()],
            init_containers: vec![Container::default()],
            ..PodSpec::default()
        });
        assert!(Arc::ptr_eq(&defaults.apply_to(&spec), &spec));
        defaults.resources.limits.memory = memory(64);
        let pod = defaults.apply_to(&spec);
        let limits = pod.containers.iter().chain(&pod.init_containers).map(|c| c.resources.limits.memory);
        assert_eq!(limits.collect::<Vec<_>>(), [memory(1), memory(64), memory(64)]);
    }
}
