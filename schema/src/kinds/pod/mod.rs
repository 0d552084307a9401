//! Pod: one or more containers that share a network, volumes and a node.
//!
//! Field names, defaults and semantics are those of Kubernetes (core/v1); `repo` volumes are our own.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod affinity;
mod container;
pub mod content_uses;
mod descriptor;
pub mod keyed;
pub mod pool;
mod status;
mod validate;
mod volume;

use crate::violation::{OwnedStep, field_path};
pub(crate) use affinity::SPREAD;
pub use affinity::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorOperator, NodeSelectorRequirement, NodeSelectorTerm,
    PodAffinity, PodAffinityTerm, PodAntiAffinity, TopologySpreadConstraint, UnsatisfiableAction,
};
pub use container::{
    Container, ContainerPort, ContainerRestartPolicy, EnvVar, EnvVarSource, ExecAction, GrpcAction,
    HttpGetAction, HttpHeader, HttpScheme, Lifecycle, LifecycleHandler, PortReference, Probe, Protocol,
    PullPolicy, ResourceList, ResourceRequirements, SecretKeyRef, SleepAction, TcpSocketAction,
};

pub use container::{Capabilities, PodSecurityContext, SeccompProfile, SeccompProfileType, SecurityContext};
pub use status::{
    ContainerState, ContainerStatus, HostPortStatus, OOM_KILLED, PodMilestones, PodPhase, PodStatus,
    RunningState, TerminatedState, UnsteadyContainer, WaitingState, completes_init,
};
#[cfg(test)]
pub(crate) use validate::CAPABILITIES;
pub(crate) use validate::{check_env, check_resources};
pub use volume::{
    ContainerResource, DownwardApiFile, EmptyDirVolume, FieldRef, HostPathType, HostPathVolume, KeyToPath,
    MountPropagation, RepoVolume, ResourceFieldRef, SecretVolume, StorageMedium, Volume, VolumeMount,
};

/// Default number of seconds between SIGTERM and SIGKILL, as in Kubernetes.
pub const DEFAULT_GRACE_SECONDS: u32 = 30;

/// Maximum of each duration of a probe in seconds: a day.
pub const PROBE_SECONDS_MAX: u32 = 24 * 60 * 60;

/// Desired state of a pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PodSpec {
    /// Containers that run side by side; at least one.
    #[serde(deserialize_with = "crate::codec::exact")]
    pub containers: Vec<Container>,
    /// Containers that run one after another, each until it succeeds, before `containers` start. One with
    /// `restartPolicy: Always` is a sidecar, which stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Volumes that containers may mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub volumes: Vec<Volume>,
    /// Restart policy for containers that have ended.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// Seconds between SIGTERM and SIGKILL.
    #[serde(default = "default_grace")]
    pub termination_grace_period_seconds: u32,
    /// Runs the pod on this node only.
    pub node_name: Option<String>,
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Requirements on the node and on the pods that it runs.
    pub affinity: Option<Box<Affinity>>,
    /// Wishes to spread pods evenly. They are not stored: pods of a workload are spread over the nodes anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Tolerations of taints on nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Host name inside the pod; defaults to the pod's name.
    pub hostname: Option<String>,
    /// Subdomain of the pod in its namespace. Its full name `HOSTNAME.SUBDOMAIN.NAMESPACE.svc.ZONE` resolves if
    /// `hostname` is set and a headless service of this name selects the pod.
    pub subdomain: Option<String>,
    /// Uses the node's network instead of a separate pod address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Shows the containers all processes of the node.
    #[serde(default, rename = "hostPID", skip_serializing_if = "std::ops::Not::not")]
    pub host_pid: bool,
    /// Lets the containers use the node's shared memory, semaphores and message queues.
    #[serde(default, rename = "hostIPC", skip_serializing_if = "std::ops::Not::not")]
    pub host_ipc: bool,
    /// Further lines of `/etc/hosts`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_aliases: Vec<HostAlias>,
    /// Source of the pod's resolver configuration.
    #[serde(default)]
    pub dns_policy: DnsPolicy,
    /// Changes to the resolver configuration of `dnsPolicy`.
    pub dns_config: Option<Box<DnsConfig>>,
    /// Lets the containers see each other's processes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub share_process_namespace: bool,
    /// Security settings for all containers; a container's own settings override them.
    pub security_context: Option<Box<PodSecurityContext>>,
    /// Secrets with registry logins for pulling images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalReference>,
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct HostAlias {
    /// Address, IPv4 or IPv6.
    pub ip: String,
    /// Names of the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
}

/// A port of a node, at all of its addresses or at one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port number.
    pub port: u16,
    /// The only address; `None` for all of them.
    pub address: Option<Ipv4Addr>,
}

impl HostPort {
    /// True if not both can be taken: they have a protocol, a number and an address in common (`HostPortInfo` of
    /// Kubernetes' scheduler).
    pub fn clashes(&self, other: &Self) -> bool {
        let meet = match (self.address, other.address) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        (self.protocol, self.port) == (other.protocol, other.port) && meet
    }

    /// Returns the range of the ports with this protocol and number, in the order of this type.
    pub fn at_any_address(&self) -> RangeInclusive<Self> {
        Self { address: None, ..*self }..=Self { address: Some(Ipv4Addr::BROADCAST), ..*self }
    }
}

/// Formats as `80/TCP` or `192.0.2.1:80/TCP`.
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}:")?;
        }
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        write!(f, "{}/{protocol}", self.port)
    }
}

/// A port of the node that a container takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPortUse {
    /// The port; its number is never 0, which stands for any free port.
    pub port: HostPort,
    /// Path of the field that requests the port, from the document's root.
    pub path: Vec<OwnedStep>,
}

impl PodSpec {
    /// Returns the containers that run side by side once the pod is initialized: the main ones, then the sidecars.
    pub fn side_by_side(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().chain(self.init_containers.iter().filter(|init| init.is_sidecar()))
    }

    /// Returns what the pod needs of something of which each container needs `amount`, as in Kubernetes
    /// (`AggregateContainerRequests` in staging/src/k8s.io/component-helpers/resource/helpers.go): all that run side by
    /// side, or an init container with the sidecars before it if that is more.
    pub fn total(&self, amount: impl Fn(&Container) -> u64) -> u64 {
        let (mut sidecars, mut initializing) = (0_u64, 0);
        for init in &self.init_containers {
            let needed = sidecars.saturating_add(amount(init));
            initializing = initializing.max(needed);
            if init.is_sidecar() {
                sidecars = needed;
            }
        }
        self.containers.iter().map(amount).fold(sidecars, u64::saturating_add).max(initializing)
    }

    /// Returns the ports of the node that the pod takes wherever it runs; `at` is the path of the spec. Expects a
    /// spec after its defaults: on the host network each port of a container is a host port.
    pub fn host_ports(&self, at: &[&str]) -> Vec<HostPortUse> {
        let mut found = Vec::new();
        let main =
            self.containers.iter().enumerate().map(|(index, container)| ("containers", index, container));
        let init = self.init_containers.iter().enumerate();
        let sidecars = init.filter(|(_, container)| container.is_sidecar());
        let sidecars = sidecars.map(|(index, container)| ("initContainers", index, container));
        for (field, container_index, container) in main.chain(sidecars) {
            for (index, port) in container.ports.iter().enumerate() {
                let Some(host_port @ 1..) = port.host_port else { continue };
                let mut path = field_path(at);
                path.extend(field_path(&[field]));
                path.push(OwnedStep::Index(container_index));
                path.extend(field_path(&["ports"]));
                path.push(OwnedStep::Index(index));
                path.extend(field_path(&["hostPort"]));
                let (protocol, address) = (port.protocol, port.host_address());
                found.push(HostPortUse { port: HostPort { protocol, port: host_port, address }, path });
            }
        }
        found
    }
}

fn default_grace() -> u32 {
    DEFAULT_GRACE_SECONDS
}

/// Restart policy for containers that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// Restart regardless of the exit code.
    #[default]
    Always,
    /// Restart if the exit code is not 0.
    OnFailure,
    /// Never restart.
    Never,
}

/// Source of a pod's resolver configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DnsPolicy {
    /// The cluster's DNS first; the node's resolver for a pod on the host network.
    #[default]
    ClusterFirst,
    /// The cluster's DNS also on the host network.
    ClusterFirstWithHostNet,
    /// The node's resolver.
    Default,
    /// Only `dnsConfig`.
    None,
}

/// Changes to the resolver configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsConfig {
    /// Addresses of name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Search domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
    /// Resolver options, `name` or `name:value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<DnsOption>,
}

/// A resolver option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct DnsOption {
    /// Name of the option, for example `ndots`.
    pub name: String,
    /// Value of the option.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Tolerates the taints that it matches.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Toleration {
    /// Key of the taint; if absent with `operator: Exists`, every taint matches.
    pub key: Option<String>,
    /// Comparison with the taint's value.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// Value of the taint.
    pub value: Option<String>,
    /// Effect of the taint; every effect matches if absent.
    pub effect: Option<TaintEffect>,
    /// With `NoExecute`: seconds that the pod stays after the taint appears on the Node object; 0 and less evict it
    /// immediately. Forever if absent. The Cluster object sets how long pods of a silent node stay.
    pub toleration_seconds: Option<i64>,
}

/// Comparison of a toleration with a taint's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The values must be equal.
    #[default]
    Equal,
    /// Any value matches.
    Exists,
}

/// Effect of a taint on pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No new pods are placed on the node.
    NoSchedule,
    /// New pods are placed on the node only if no other one fits.
    PreferNoSchedule,
    /// No new pods are placed on the node, and running ones are evicted.
    NoExecute,
}

/// A reference by name in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LocalReference {
    /// Name of the referenced object.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod of init containers and main containers, each by its need, the first of a sidecar with `+`.
    fn pod(init: &str, main: &str) -> PodSpec {
        let containers = |text: &str| -> Vec<Container> {
            let one = |text: &str| Container {
                name: text.to_owned(),
                restart_policy: text.starts_with('+').then_some(ContainerRestartPolicy::Always),
                ports: vec![ContainerPort { host_port: text.parse().ok(), ..ContainerPort::default() }],
                ..Container::default()
            };
            text.split_whitespace().map(one).collect()
        };
        PodSpec { init_containers: containers(init), containers: containers(main), ..PodSpec::default() }
    }

    /// The cases without status of `TestPodResourceRequests` in
    /// staging/src/k8s.io/component-helpers/resource/helpers_test.go of Kubernetes.
    #[test]
    fn a_pod_needs_what_runs_at_the_same_time() {
        for (init, main, needed) in [
            ("4", "1", 4),
            ("2", "2 3", 5),
            ("+1", "1", 2),
            ("5 +1 +2 +3", "1", 7),
            ("5 +1 +2 5 +3", "1", 8),
            ("+10 200", "100", 210),
        ] {
            assert_eq!(pod(init, main).total(|c| c.name.parse().unwrap()), needed, "{init} | {main}");
        }
        assert_eq!(pod("+1", "1").total(|_| u64::MAX), u64::MAX);
    }

    #[test]
    fn a_sidecar_takes_its_host_ports_beside_the_main_containers() {
        let taken = pod("1 +2", "3").host_ports(&["spec"]);
        assert_eq!(taken.iter().map(|taken| taken.port.port).collect::<Vec<_>>(), [3, 2]);
        let mut path = field_path(&["spec", "initContainers"]);
        path.push(OwnedStep::Index(1));
        path.extend(field_path(&["ports"]));
        path.push(OwnedStep::Index(0));
        path.extend(field_path(&["hostPort"]));
        assert_eq!(taken[1].path, path);
    }

    /// The table of `TestHostPortInfo_Check` (pkg/scheduler/framework/types_test.go of kubernetes/kubernetes).
    #[test]
    fn host_ports_clash_at_a_common_address() {
        let of = |address: &str, protocol, port| {
            let port = ContainerPort {
                host_port: Some(port),
                host_ip: Some(address.to_owned()),
                protocol,
                ..ContainerPort::default()
            };
            HostPort { protocol, port: port.host_port.unwrap_or_default(), address: port.host_address() }
        };
        use Protocol::{Tcp, Udp};
        let there = [
            of("127.0.0.1", Tcp, 79),
            of("0.0.0.0", Tcp, 80),
            of("127.0.0.1", Tcp, 81),
            of("127.0.0.1", Tcp, 82),
        ];
        for (port, expected) in [
            (of("127.0.0.1", Tcp, 81), true),
            (of("127.0.0.1", Udp, 81), false),
            (of("0.0.0.0", Tcp, 81), true),
            (of("", Tcp, 81), true),
            (of("::", Tcp, 81), true),
            (of("0.0.0.0", Udp, 81), false),
            (of("127.0.0.1", Tcp, 80), true),
            (of("127.0.0.2", Tcp, 80), true),
            (of("127.0.0.2", Tcp, 81), false),
            (of("0.0.0.0", Tcp, 83), false),
        ] {
            assert_eq!(there.iter().any(|other| other.clashes(&port)), expected, "{port}");
            let mut in_range = there.iter().filter(|other| port.at_any_address().contains(other));
            assert_eq!(in_range.any(|other| other.clashes(&port)), expected, "{port} in its range");
        }
    }
}
