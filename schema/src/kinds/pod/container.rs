//! A container of a pod: image, command, environment, ports, resources, probes.

use std::net::Ipv4Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;

use super::volume::{FieldRef, ResourceFieldRef, VolumeMount};
use crate::codec::{one, three};
use crate::quantity::{Count, Cpu, Memory};

/// A container of a pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Container {
    /// Name, unique in the pod.
    pub name: String,
    /// Image reference, as `docker pull` accepts it.
    pub image: String,
    /// Replaces the image's ENTRYPOINT.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub command: Vec<String>,
    /// Replaces the image's CMD.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub args: Vec<String>,
    /// ConfigMaps and secrets whose text values become environment variables, named after their keys. Keys that are
    /// not valid names are skipped, with a warning. Later entries override earlier ones, and `env` overrides all of
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub env_from: Vec<EnvFromSource>,
    /// Environment variables; later ones of the same name override earlier ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub env: Vec<EnvVar>,
    /// Working directory; defaults to that of the image.
    pub working_dir: Option<String>,
    /// Ports that the container serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub ports: Vec<ContainerPort>,
    /// Requested resources and limits.
    #[serde(default, skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Volumes to mount into the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Image pull policy; defaults to `Always` for the tag `latest` or no tag, otherwise to `IfNotPresent`.
    pub image_pull_policy: Option<PullPolicy>,
    /// Makes an init container a sidecar: the next container starts as soon as this one has started, and it runs, and
    /// is restarted, until the other containers have ended. Only for init containers.
    pub restart_policy: Option<ContainerRestartPolicy>,
    /// Liveness probe: restarts the container on failure.
    pub liveness_probe: Option<Box<Probe>>,
    /// Readiness probe: removes the pod from its services on failure.
    pub readiness_probe: Option<Box<Probe>>,
    /// Startup probe: holds back the other probes until it succeeds.
    pub startup_probe: Option<Box<Probe>>,
    /// Actions to run after the container is started and before it is stopped.
    pub lifecycle: Option<Box<Lifecycle>>,
    /// Security settings of the container; they override those of the pod.
    pub security_context: Option<Box<SecurityContext>>,
    /// Keeps standard input open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// Allocates a terminal for the container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tty: bool,
}

impl Container {
    /// True for a sidecar, if it is an init container.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.is_some()
    }

    /// Returns the pull policy, with Kubernetes' default filled in.
    pub fn effective_pull_policy(&self) -> PullPolicy {
        self.image_pull_policy.unwrap_or_else(|| {
            let last = self.image.rsplit('/').next().unwrap_or(&self.image);
            if last.contains('@') {
                return PullPolicy::IfNotPresent;
            }
            match last.rsplit_once(':') {
                None | Some((_, "latest")) => PullPolicy::Always,
                Some(_) => PullPolicy::IfNotPresent,
            }
        })
    }
}

/// Restart policy of an init container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerRestartPolicy {
    /// Restart regardless of the exit code and of the pod's policy.
    Always,
}

/// Policy for pulling an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Pull before every start.
    Always,
    /// Pull if the node does not have the image.
    IfNotPresent,
    /// Never pull.
    Never,
}

/// An environment variable: a value, or the source of one.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EnvVar {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable; `$(NAME)` of an earlier variable is expanded, and `$$` becomes `$`.
    pub value: Option<String>,
    /// Source of the value; not together with `value`.
    pub value_from: Option<EnvVarSource>,
}

/// Source of a value; exactly one field must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EnvVarSource {
    /// A field of the pod itself.
    pub field_ref: Option<FieldRef>,
    /// An amount of a container's resources.
    pub resource_field_ref: Option<ResourceFieldRef>,
    /// A key of a secret.
    pub secret_key_ref: Option<SecretEnvKeyRef>,
    /// A key of a ConfigMap's `data`.
    pub config_map_key_ref: Option<ConfigMapKeyRef>,
}

/// A key of a secret, as the value of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretEnvKeyRef {
    /// Name of the secret.
    pub name: String,
    /// Key in the secret.
    pub key: String,
    /// Leaves the variable out if the file of the secret is missing from the repository, or the secret lacks the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A key of a ConfigMap's `data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    pub name: String,
    /// Key in the ConfigMap.
    pub key: String,
    /// Leaves the variable out if the ConfigMap or the key is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A ConfigMap or secret whose text values become environment variables; exactly one must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EnvFromSource {
    /// Prefix for each key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// ConfigMap to read.
    pub config_map_ref: Option<ConfigMapRef>,
    /// Secret to read.
    pub secret_ref: Option<SecretEnvRef>,
}

/// A secret of the same namespace, or one for all namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretEnvRef {
    /// Name of the secret.
    pub name: String,
    /// Allows the file of the secret to be missing from the repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A ConfigMap of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapRef {
    /// Name of the ConfigMap.
    pub name: String,
    /// Allows the ConfigMap to be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A key of a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretKeyRef {
    /// Name of the secret.
    pub name: String,
    /// Key in the secret.
    pub key: String,
}

/// A port that the container serves.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ContainerPort {
    /// Name that services can use.
    pub name: Option<String>,
    /// Port in the pod, 1 to 65535.
    #[schemars(range(min = 1))]
    pub container_port: u16,
    /// Port of the node that leads to the container; 0 picks any free port, which the status shows.
    pub host_port: Option<u16>,
    /// IPv4 address of the node at which `hostPort` answers; all addresses if absent, `0.0.0.0` or `::`.
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
}

impl ContainerPort {
    /// Returns the only address of the node at which the host port answers; `None` for all of them.
    pub fn host_address(&self) -> Option<Ipv4Addr> {
        let address: Ipv4Addr = self.host_ip.as_ref()?.parse().ok()?;
        (!address.is_unspecified()).then_some(address)
    }
}

/// Transport protocol of a port.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// Resources that a container requests (`requests`) and the most that it may use (`limits`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ResourceRequirements {
    /// Amounts that the scheduler reserves; missing ones default to `limits`.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
    /// Amounts that the kernel enforces.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
}

impl ResourceRequirements {
    /// True if there are neither requests nor limits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }

    /// Returns these amounts, with missing ones taken from `defaults`. Explicit amounts win: a default limit rises
    /// to an explicit request, and a default request falls to an explicit limit.
    pub fn or(&self, defaults: &Self) -> Self {
        fn amounts<T: Ord + Copy>(
            own: (Option<T>, Option<T>),
            default: (Option<T>, Option<T>),
        ) -> (Option<T>, Option<T>) {
            let (request, limit) = own;
            let raised = |limit| request.map_or(limit, |request: T| request.max(limit));
            let limit = limit.or(default.1.map(raised));
            let request = request.or(default.0).or(limit);
            (request.map(|request| limit.map_or(request, |limit| request.min(limit))), limit)
        }
        let cpu = |of: &Self| (of.requests.cpu, of.limits.cpu);
        let memory = |of: &Self| (of.requests.memory, of.limits.memory);
        let gpus = |of: &Self| (of.requests.gpus, of.limits.gpus);
        let (cpu, memory) = (amounts(cpu(self), cpu(defaults)), amounts(memory(self), memory(defaults)));
        let gpus = amounts(gpus(self), gpus(defaults));
        Self {
            requests: ResourceList { cpu: cpu.0, memory: memory.0, gpus: gpus.0 },
            limits: ResourceList { cpu: cpu.1, memory: memory.1, gpus: gpus.1 },
        }
    }

    /// Returns the CPU that the scheduler reserves.
    pub fn requested_cpu(&self) -> Cpu {
        self.requests.cpu.or(self.limits.cpu).unwrap_or_default()
    }

    /// Returns the memory that the scheduler reserves.
    pub fn requested_memory(&self) -> Memory {
        self.requests.memory.or(self.limits.memory).unwrap_or_default()
    }

    /// Returns the number of GPUs that the scheduler reserves and the container gets.
    pub fn gpus(&self) -> u64 {
        self.limits.gpus.unwrap_or_default().number
    }
}

/// Amounts of the resources that Minik8s manages.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ResourceList {
    /// CPU cores, for example `500m` or `2`.
    pub cpu: Option<Cpu>,
    /// Bytes of memory, for example `128Mi`.
    pub memory: Option<Memory>,
    /// Number of NVIDIA GPUs. Requests and limits must be equal.
    #[serde(rename = "nvidia.com/gpu")]
    pub gpus: Option<Count>,
}

impl ResourceList {
    /// True if no amount is set.
    pub fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.gpus.is_none()
    }
}

/// A periodic check of a container; exactly one of `exec`, `httpGet`, `tcpSocket`, `grpc`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Probe {
    /// Runs a command in the container; exit code 0 is success.
    pub exec: Option<ExecAction>,
    /// Sends a request; a status from 200 to 399 is success.
    pub http_get: Option<HttpGetAction>,
    /// Opens a connection; succeeds if the connection opens.
    pub tcp_socket: Option<TcpSocketAction>,
    /// Calls `grpc.health.v1.Health/Check` without TLS; `SERVING` is success.
    pub grpc: Option<GrpcAction>,
    /// Seconds between the start of the container and the first check.
    #[serde(default)]
    pub initial_delay_seconds: u32,
    /// Seconds between checks. 0 means the default, here and in the fields below.
    #[serde(default = "ten")]
    pub period_seconds: u32,
    /// Seconds after which a check counts as failed.
    #[serde(default = "one")]
    pub timeout_seconds: u32,
    /// Consecutive successes after which the probe succeeds.
    #[serde(default = "one")]
    pub success_threshold: u32,
    /// Consecutive failures after which the probe fails.
    #[serde(default = "three")]
    pub failure_threshold: u32,
    /// Seconds between SIGTERM and SIGKILL when this probe ends the container; overrides that of the pod. Not
    /// allowed for readiness probes, which end nothing.
    pub termination_grace_period_seconds: Option<u32>,
}

pub(super) fn ten() -> u32 {
    10
}

/// A command to run in the container, without a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ExecAction {
    /// Program and arguments.
    pub command: Vec<String>,
}

/// An HTTP GET request.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct HttpGetAction {
    /// Path; defaults to `/`.
    #[serde(default = "root_path")]
    pub path: String,
    /// Number or name of a container port.
    pub port: PortReference,
    /// Host to connect to; defaults to the pod's address.
    pub host: Option<String>,
    /// `HTTP` or `HTTPS`; defaults to `HTTP`.
    pub scheme: Option<HttpScheme>,
    /// Extra request headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_headers: Vec<HttpHeader>,
}

fn root_path() -> String {
    "/".to_owned()
}

/// `HTTP` or `HTTPS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpScheme {
    /// Plain HTTP.
    Http,
    /// TLS without a check of the certificate, as in Kubernetes.
    Https,
}

/// A request header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct HttpHeader {
    /// Name of the header.
    pub name: String,
    /// Value of the header.
    pub value: String,
}

/// Opens a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TcpSocketAction {
    /// Number or name of a container port.
    pub port: PortReference,
    /// Host to connect to; defaults to the pod's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// Asks a gRPC server for its health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct GrpcAction {
    /// Number of the port, 1 to 65535.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Service to ask for; the server as a whole if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// A port by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PortReference {
    /// 1 to 65535.
    Number(u16),
    /// The `name` of a container port.
    Name(String),
}

/// Actions at the beginning and the end of a container's life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Lifecycle {
    /// Runs as soon as the container is started, next to its command. Until it succeeds the container is not ready
    /// and no probe runs; its failure ends the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<LifecycleHandler>,
    /// Runs before SIGTERM, within the grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<LifecycleHandler>,
}

/// A command, a request or a pause; exactly one must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct LifecycleHandler {
    /// Runs a command in the container.
    pub exec: Option<ExecAction>,
    /// Sends a request; any response is success.
    pub http_get: Option<HttpGetAction>,
    /// Waits.
    pub sleep: Option<SleepAction>,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SleepAction {
    /// Seconds to wait, at most `terminationGracePeriodSeconds`.
    pub seconds: u32,
}

// Security settings of pods and containers.

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
    /// System calls that the containers may make.
    pub seccomp_profile: Option<SeccompProfile>,
}

/// System calls that a container may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SeccompProfile {
    /// Kind of profile.
    #[serde(rename = "type")]
    pub kind: SeccompProfileType,
}

/// Kind of a seccomp profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SeccompProfileType {
    /// Docker's default profile, which also applies without this field. A privileged container has none.
    RuntimeDefault,
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
    /// System calls that the container may make.
    pub seccomp_profile: Option<SeccompProfile>,
    /// Maximum number of processes and threads of the container; not in Kubernetes, where the node decides.
    #[schemars(range(min = 1, max = 4194304))]
    pub pids_limit: Option<u32>,
    /// Maximum number of open files of each process of the container; not in Kubernetes.
    #[schemars(range(min = 16, max = 1048576))]
    pub open_files_limit: Option<u32>,
}

/// Capabilities by name, in any case and with or without `CAP_`; `ALL` stands for all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Capabilities {
    /// Capabilities to add to the default set: that of Docker without `NET_RAW`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "capability_names")]
    pub add: Vec<String>,
    /// Capabilities to remove from the default set.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "capability_names")]
    pub drop: Vec<String>,
}

/// Reads capabilities as the kernel's names without `CAP_`.
fn capability_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let canonical = |name: String| {
        let name = name.to_ascii_uppercase();
        name.strip_prefix("CAP_").map_or_else(|| name.clone(), str::to_owned)
    };
    Ok(Vec::<String>::deserialize(deserializer)?.into_iter().map(canonical).collect())
}
