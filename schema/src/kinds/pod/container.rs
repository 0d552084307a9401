//! A container of a pod: image, command, environment, ports, resources, probes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::security::SecurityContext;
use super::volume::VolumeMount;
use crate::codec::{one, three};
use crate::quantity::{Cpu, Memory};

/// One container.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Container {
    /// Name, unique in the pod.
    pub name: String,
    /// Image, as `docker pull` takes it.
    pub image: String,
    /// Replaces the image's ENTRYPOINT.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub command: Vec<String>,
    /// Replaces the image's CMD.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub args: Vec<String>,
    /// ConfigMaps whose texts become environment variables, each called by its key. Keys that can't be names are left
    /// out, with a warning. A later one wins, and `env` wins over all.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub env_from: Vec<EnvFromSource>,
    /// Environment variables; a later one of the same name wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub env: Vec<EnvVar>,
    /// Working directory; the image's when none.
    pub working_dir: Option<String>,
    /// Ports that the container serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub ports: Vec<ContainerPort>,
    /// What it needs and what it may use.
    #[serde(default, skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Where volumes appear.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::codec::exact")]
    pub volume_mounts: Vec<VolumeMount>,
    /// When the image is pulled; by default `Always` for the tag `latest` or none, else `IfNotPresent`.
    pub image_pull_policy: Option<PullPolicy>,
    /// Restarts the container when it fails.
    pub liveness_probe: Option<Box<Probe>>,
    /// Takes the pod out of its services when it fails.
    pub readiness_probe: Option<Box<Probe>>,
    /// Holds the other probes back until it succeeds.
    pub startup_probe: Option<Box<Probe>>,
    /// What to do before the container is stopped.
    pub lifecycle: Option<Box<Lifecycle>>,
    /// User, capabilities and the like.
    pub security_context: Option<Box<SecurityContext>>,
    /// Keeps standard input open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// Gives the container a terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tty: bool,
}

impl Container {
    /// The pull policy with Kubernetes' default filled in.
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

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Before every start.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// One environment variable: a value, or where it comes from.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value; `$(NAME)` of an earlier variable is replaced, `$$` is a `$`.
    pub value: Option<String>,
    /// Where the value comes from; not together with `value`.
    pub value_from: Option<EnvVarSource>,
}

/// Where a value comes from; exactly one.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EnvVarSource {
    /// A field of the pod itself.
    pub field_ref: Option<FieldRef>,
    /// A key of a secret.
    pub secret_key_ref: Option<SecretKeyRef>,
    /// A key of a ConfigMap's `data`.
    pub config_map_key_ref: Option<ConfigMapKeyRef>,
}

/// A key of a ConfigMap's `data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapKeyRef {
    /// The ConfigMap's name.
    pub name: String,
    /// The key in it.
    pub key: String,
    /// The variable is left out where the ConfigMap or the key is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A ConfigMap or a secret whose texts become environment variables; exactly one of the two.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EnvFromSource {
    /// What stands before each key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The ConfigMap.
    pub config_map_ref: Option<ConfigMapRef>,
    /// The secret.
    pub secret_ref: Option<SecretEnvRef>,
}

/// A secret of the same namespace, or one for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretEnvRef {
    /// Its name.
    pub name: String,
    /// Its file need not be in the repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A ConfigMap of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapRef {
    /// Its name.
    pub name: String,
    /// It need not be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A field of the pod itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct FieldRef {
    /// `metadata.name`, `metadata.namespace`, `metadata.uid`, `metadata.labels['k']`,
    /// `metadata.annotations['k']`, `spec.nodeName`, `status.podIP` or `status.hostIP`.
    pub field_path: String,
}

/// A key of a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretKeyRef {
    /// The secret's name.
    pub name: String,
    /// The key in it.
    pub key: String,
}

/// A port that the container serves.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ContainerPort {
    /// A name that services can use.
    pub name: Option<String>,
    /// The port in the pod, 1 to 65535.
    #[schemars(range(min = 1))]
    pub container_port: u16,
    /// The port on the node that leads here; 0 is any free one, shown in status.
    pub host_port: Option<u16>,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
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

/// What a container needs (`requests`) and what it may use (`limits`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ResourceRequirements {
    /// What the scheduler sets aside; a missing value is taken from `limits`.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
    /// What the kernel enforces.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
}

impl ResourceRequirements {
    /// Neither requests nor limits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }

    /// These amounts, and those of `defaults` for what is absent. What is written wins: a default limit
    /// rises to a written request, a default request sinks to a written limit.
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
        let (cpu, memory) = (amounts(cpu(self), cpu(defaults)), amounts(memory(self), memory(defaults)));
        Self {
            requests: ResourceList { cpu: cpu.0, memory: memory.0 },
            limits: ResourceList { cpu: cpu.1, memory: memory.1 },
        }
    }

    /// CPU set aside by the scheduler.
    pub fn requested_cpu(&self) -> Cpu {
        self.requests.cpu.or(self.limits.cpu).unwrap_or_default()
    }

    /// Memory set aside by the scheduler.
    pub fn requested_memory(&self) -> Memory {
        self.requests.memory.or(self.limits.memory).unwrap_or_default()
    }
}

/// Amounts of the resources that Minik8s knows.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ResourceList {
    /// Cores, for example `500m` or `2`.
    pub cpu: Option<Cpu>,
    /// Bytes, for example `128Mi`.
    pub memory: Option<Memory>,
}

impl ResourceList {
    /// No amount at all.
    pub fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none()
    }
}

/// A periodic check of a container; exactly one of `exec`, `httpGet`, `tcpSocket`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Probe {
    /// Runs a command in the container; success is exit code 0.
    pub exec: Option<ExecAction>,
    /// Sends a request; success is a status from 200 to 399.
    pub http_get: Option<HttpGetAction>,
    /// Opens a connection; success is that it opens.
    pub tcp_socket: Option<TcpSocketAction>,
    /// Seconds after the start before the first check.
    #[serde(default)]
    pub initial_delay_seconds: u32,
    /// Seconds between checks; 0 is the default, here and below.
    #[serde(default = "ten")]
    pub period_seconds: u32,
    /// Seconds after which a check has failed.
    #[serde(default = "one")]
    pub timeout_seconds: u32,
    /// Successes in a row that count as success.
    #[serde(default = "one")]
    pub success_threshold: u32,
    /// Failures in a row that count as failure.
    #[serde(default = "three")]
    pub failure_threshold: u32,
    /// Seconds between SIGTERM and SIGKILL when this probe ends the container, instead of the pod's; not for
    /// a readiness probe, which ends nothing.
    pub termination_grace_period_seconds: Option<u32>,
}

pub(super) fn ten() -> u32 {
    10
}

/// A command in the container, not in a shell.
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
    /// Path; `/` when none.
    #[serde(default = "root_path")]
    pub path: String,
    /// Number or name of a container port.
    pub port: PortReference,
    /// Host to ask; the pod's address when none.
    pub host: Option<String>,
    /// `HTTP` or `HTTPS`.
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
    /// Plain.
    Http,
    /// TLS, certificate not checked, as in Kubernetes.
    Https,
}

/// One request header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Opens a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TcpSocketAction {
    /// Number or name of a container port.
    pub port: PortReference,
    /// Host to connect to; the pod's address when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
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

/// What to do at the end of a container's life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Lifecycle {
    /// Runs before SIGTERM, within the grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<LifecycleHandler>,
}

/// A command or a request; exactly one.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct LifecycleHandler {
    /// Runs a command in the container.
    pub exec: Option<ExecAction>,
    /// Sends a request.
    pub http_get: Option<HttpGetAction>,
}
