//! Pod: one or more containers that share a network, volumes and a node.
//!
//! Field names, defaults and meaning are Kubernetes' (core/v1); `repo` volumes are our own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod container;
pub mod content_uses;
mod defaults;
mod descriptor;
pub mod keyed;
pub mod pool;
mod security;
mod status;
mod validate;
mod volume;

use crate::violation::{OwnedStep, field_path};
pub use container::{
    Container, ContainerPort, EnvVar, EnvVarSource, ExecAction, FieldRef, HttpGetAction, HttpHeader,
    HttpScheme, Lifecycle, LifecycleHandler, PortReference, Probe, Protocol, PullPolicy, ResourceList,
    ResourceRequirements, SecretKeyRef, TcpSocketAction,
};

pub use security::{Capabilities, PodSecurityContext, SecurityContext};
pub use status::{
    ContainerState, ContainerStatus, HostPortStatus, PodPhase, PodStatus, RunningState, TerminatedState,
    Unsteady, WaitingState,
};
pub(crate) use validate::{check_env, check_image, check_resources};
pub use volume::{
    EmptyDirVolume, HostPathType, HostPathVolume, KeyToPath, RepoVolume, SecretVolume, StorageMedium, Volume,
    VolumeMount,
};

/// Seconds between SIGTERM and SIGKILL when the manifest names none, as in Kubernetes.
pub const DEFAULT_GRACE_SECONDS: u32 = 30;

/// Most seconds for each time of a probe: a day.
pub const PROBE_SECONDS_MAX: u32 = 24 * 60 * 60;

/// What a pod should be.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PodSpec {
    /// Containers that run side by side; at least one.
    #[serde(deserialize_with = "crate::codec::exact")]
    pub containers: Vec<Container>,
    /// Containers that run one after the other, each to success, before `containers` start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Volumes that containers may mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub volumes: Vec<Volume>,
    /// When an ended container is started again.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// Seconds between SIGTERM and SIGKILL.
    #[serde(default = "default_grace")]
    pub termination_grace_period_seconds: u32,
    /// Runs the pod on this node and no other.
    pub node_name: Option<String>,
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pod puts up with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Host name inside the pod; the pod's name when none.
    pub hostname: Option<String>,
    /// Domain of the pod in its namespace: its full name is `HOSTNAME.SUBDOMAIN.NAMESPACE.svc.ZONE`, which is
    /// answered if a headless service of this name leads to the pod and `hostname` is given.
    pub subdomain: Option<String>,
    /// Uses the node's own network instead of an address of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Where the pod's resolver looks names up.
    #[serde(default)]
    pub dns_policy: DnsPolicy,
    /// Changes to the resolver configuration that `dnsPolicy` gives.
    pub dns_config: Option<Box<DnsConfig>>,
    /// All containers see each other's processes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub share_process_namespace: bool,
    /// Security settings for all containers; a container's own settings win.
    pub security_context: Option<Box<PodSecurityContext>>,
    /// Secrets with registry logins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalReference>,
}

/// A port of the node that a container of a pod takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenPort {
    /// The port; never 0, which takes a free one.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The field that says so, from the document's root.
    pub path: Vec<OwnedStep>,
}

impl PodSpec {
    /// Ports of the node that the pod takes wherever it runs, of the spec at `at`. As the spec is after its
    /// defaults: on the host's network each port of a container is a host port.
    pub fn host_ports(&self, at: &[&str]) -> Vec<TakenPort> {
        let mut found = Vec::new();
        for (container_index, container) in self.containers.iter().enumerate() {
            for (index, port) in container.ports.iter().enumerate() {
                let Some(host_port @ 1..) = port.host_port else { continue };
                let mut path = field_path(at);
                path.extend(field_path(&["containers"]));
                path.push(OwnedStep::Index(container_index));
                path.extend(field_path(&["ports"]));
                path.push(OwnedStep::Index(index));
                path.extend(field_path(&["hostPort"]));
                found.push(TakenPort { port: host_port, protocol: port.protocol, path });
            }
        }
        found
    }
}

fn default_grace() -> u32 {
    DEFAULT_GRACE_SECONDS
}

/// When an ended container is started again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// Whatever its exit code.
    #[default]
    Always,
    /// If its exit code is not 0.
    OnFailure,
    /// Not at all.
    Never,
}

/// Where the pod's resolver looks names up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DnsPolicy {
    /// The cluster's DNS first; the node's resolver for a pod on the host network.
    #[default]
    ClusterFirst,
    /// The cluster's DNS also on the host network.
    ClusterFirstWithHostNet,
    /// The node's resolver.
    Default,
    /// Only what `dnsConfig` says.
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

/// One resolver option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct DnsOption {
    /// Its name, for example `ndots`.
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A taint that the pod puts up with.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key; none with `operator: Exists` means every taint.
    pub key: Option<String>,
    /// How `value` is compared.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The taint's value.
    pub value: Option<String>,
    /// The taint's effect; none means every effect.
    pub effect: Option<TaintEffect>,
    /// With `NoExecute`: seconds that the pod stays after the taint appears on the Node object; 0 and less mean that it
    /// leaves at once. None means for ever. For how long pods of a silent node stay, the Cluster object says.
    pub toleration_seconds: Option<i64>,
}

/// How a toleration's value is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The values are equal.
    #[default]
    Equal,
    /// Any value.
    Exists,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No new pods.
    NoSchedule,
    /// No new pods if another node fits.
    PreferNoSchedule,
    /// No new pods, and running ones leave.
    NoExecute,
}

/// A name in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LocalReference {
    /// The name.
    pub name: String,
}
