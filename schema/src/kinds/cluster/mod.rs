//! Cluster: settings of the whole cluster. There is one object, called `cluster`, or none: then
//! everything is as its default says. Settings that a daemon needs before it can reach etcd (addresses,
//! ranges, sources) are arguments of the daemon, not part of it.

use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;
mod functions;
mod pod_security;
mod validate;

pub use functions::FunctionDefaults;
pub use pod_security::PodSecurity;

use super::Kind;
use super::job::SlurmLogin;
use super::pod::{LocalReference, PodSpec, ResourceRequirements};
use crate::codec::is_default;
use crate::meta::{DEFAULT_NAMESPACE, ObjectRef};

/// The name of the one object: two sources that both bring one then claim the same object.
pub const CLUSTER_NAME: &str = "cluster";
/// The DNS zone of services and pods, as in Kubernetes.
pub const DEFAULT_ZONE: &str = "cluster.local";

/// The one object.
pub fn cluster_reference() -> ObjectRef {
    let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), CLUSTER_NAME.to_owned());
    ObjectRef { kind: Kind::Cluster, namespace, name }
}

/// Settings of the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct ClusterSpec {
    /// How the scheduler chooses among the nodes that fit. Another strategy holds for pods that are placed from then on.
    pub scheduler_strategy: SchedulerStrategy,
    /// When a commit that deletes much is held.
    pub prune: PrunePolicy,
    /// Where images of functions are pushed to and pulled from, as `address/function`; without one, and while it is away,
    /// nodes take them from each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// Names of services, and where all other names are looked up.
    pub dns: ClusterDns,
    /// What workloads get that name nothing of their own.
    pub defaults: Defaults,
    /// What happens to a node that is gone.
    pub nodes: NodePolicy,
    /// What no pod of the cluster may ask for.
    pub pod_security: PodSecurity,
    /// What functions get that name nothing of their own.
    pub functions: FunctionDefaults,
    /// Where jobs run.
    #[serde(skip_serializing_if = "is_default")]
    pub slurm: Slurm,
}

/// How the scheduler chooses among the nodes that fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerStrategy {
    /// Fewest pods of the same owner, then the least share of CPU and memory requested, then fewest pods.
    #[default]
    Spread,
    /// Any of them.
    Random,
    /// The one that was given a pod the longest ago.
    RoundRobin,
    /// Fewest pods.
    MinPods,
    /// Most pods: fills a node before the next.
    MaxPods,
    /// Least CPU requested.
    MinCpu,
    /// Least memory requested.
    MinMemory,
}

/// When a commit that deletes much is held: if it would delete more than `maxObjects` objects and also
/// more than `maxPercent` of its source's objects, or all of them. A commit message with the trailer
/// `Minik8s-Allow-Prune: true` releases it. The policy that is applied counts, not the one that the
/// same commit brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct PrunePolicy {
    /// Objects that a commit may delete whatever their share.
    pub max_objects: u32,
    /// Share of the objects, in percent, that a commit may delete whatever their number.
    #[schemars(range(max = 100))]
    pub max_percent: u32,
}

impl Default for PrunePolicy {
    /// The numbers of the design, section 6.
    fn default() -> Self {
        Self { max_objects: 10, max_percent: 30 }
    }
}

/// A container registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Registry {
    /// `host`, `host:port`, maybe with a path in front of all images: `registry.lan:5000/minik8s`.
    pub address: String,
    /// Speaks HTTP instead of HTTPS. Unless it is at 127.0.0.1, Docker's `insecure-registries` on each node must name it,
    /// too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Secret with the registry's login: a Docker `config.json`, or the keys `registry`, `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_secret: Option<LocalReference>,
}

/// Names of services, and where all other names are looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct ClusterDns {
    /// The zone of services and pods. Pods that run keep the search domains that they were made with.
    pub zone: String,
    /// Servers for all other names, at most 3; those of each node when none. IP addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<String>,
}

impl Default for ClusterDns {
    fn default() -> Self {
        Self { zone: DEFAULT_ZONE.to_owned(), upstreams: Vec::new() }
    }
}

/// What workloads get that name nothing of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Defaults {
    /// Requests and limits of each container, amount by amount, that it does not name itself. Pods get them
    /// when they are made; another default changes none that are there.
    #[serde(skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Seconds within which a rollout or a commit must make progress before it is called bad.
    #[schemars(range(min = 1, max = 86400))]
    pub progress_deadline_seconds: u32,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { resources: ResourceRequirements::default(), progress_deadline_seconds: 120 }
    }
}

/// What happens to a node that is gone.
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

/// Where jobs run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Slurm {
    /// Login host and account of jobs that name none; each field that a job leaves out is this one's.
    #[serde(skip_serializing_if = "is_default")]
    pub login: SlurmLogin,
}

impl Defaults {
    /// What a new pod gets: its spec, with the default amounts that its containers leave open.
    pub fn of_pod(&self, spec: &Arc<PodSpec>) -> Arc<PodSpec> {
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
    /// The addresses of `upstreams`.
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
        let mut defaults = Defaults::default();
        let memory = |mebibytes: u64| Some(Memory { bytes: mebibytes << 20 });
        let mut own = Container::default();
        own.resources.limits.memory = memory(1);
        let spec = Arc::new(PodSpec {
            containers: vec![own, Container::default()],
            init_containers: vec![Container::default()],
            ..PodSpec::default()
        });
        assert!(Arc::ptr_eq(&defaults.of_pod(&spec), &spec));
        defaults.resources.limits.memory = memory(64);
        let pod = defaults.of_pod(&spec);
        let limits = pod.containers.iter().chain(&pod.init_containers).map(|c| c.resources.limits.memory);
        assert_eq!(limits.collect::<Vec<_>>(), [memory(1), memory(64), memory(64)]);
    }
}
