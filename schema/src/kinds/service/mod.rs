//! Service: a stable address in front of pods. Fields, defaults and meaning are Kubernetes' (core/v1);
//! `addresses` is our own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod defaults;
mod descriptor;
mod dialect;
mod validate;

use super::pod::{PortReference, Protocol};

/// The `clusterIP` of a service without address: its name leads to the pods themselves.
pub const HEADLESS: &str = "None";

/// The ports that nodes keep for services, as in Kubernetes.
pub const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

/// Seconds for which a client stays with one pod when the manifest names none, as in Kubernetes.
pub const DEFAULT_AFFINITY_SECONDS: u32 = 3 * 60 * 60;

/// What a service should be.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ServiceSpec {
    /// How it can be reached.
    #[serde(default, rename = "type")]
    pub kind: ServiceType,
    /// Labels of the pods behind it; none: `addresses` are behind it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    /// Its address: `None` for a headless service; chosen by the cluster when absent.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// The name that its own is an alias of, for type ExternalName.
    pub external_name: Option<String>,
    /// Further addresses of nodes at which it answers.
    #[serde(default, rename = "externalIPs", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<String>,
    /// Whether a client's connections stay with one pod.
    #[serde(default)]
    pub session_affinity: SessionAffinity,
    /// How long they do.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// Which endpoints serve clients within the cluster.
    #[serde(default)]
    pub internal_traffic_policy: TrafficPolicy,
    /// Which endpoints serve clients from outside.
    #[serde(default)]
    pub external_traffic_policy: TrafficPolicy,
    /// Pods count as endpoints before they are ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub publish_not_ready_addresses: bool,
    /// Addresses behind a service without selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// How a service can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// At its cluster IP.
    #[default]
    ClusterIP,
    /// Also at a port of every node.
    NodePort,
    /// Nowhere: its name is an alias of `externalName`.
    ExternalName,
}

/// One port of a service.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ServicePort {
    /// Name; needed when there are several.
    pub name: Option<String>,
    /// Protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// Port of the service.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Port of the pods, by number or name; `port` when absent.
    pub target_port: Option<PortReference>,
    /// Port of every node, for type NodePort; chosen by the cluster when absent.
    pub node_port: Option<u16>,
}

/// Whether a client's connections stay with one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionAffinity {
    /// They do not.
    #[default]
    None,
    /// Those from one address do.
    ClientIP,
}

/// How long a client's connections stay with one pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SessionAffinityConfig {
    /// For `ClientIP`.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpConfig>,
}

/// How long the connections of one address stay with one pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ClientIpConfig {
    /// Seconds, 1 to 86400; 10800 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// Which endpoints serve a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficPolicy {
    /// All.
    #[default]
    Cluster,
    /// Those on the same node.
    Local,
}

impl ServiceSpec {
    /// Without an address of its own.
    pub fn is_headless(&self) -> bool {
        self.cluster_ip.as_deref() == Some(HEADLESS)
    }

    /// With an address of its own, once it is given out.
    pub fn has_cluster_ip(&self) -> bool {
        !self.is_headless() && self.kind != ServiceType::ExternalName
    }

    /// The name that its own is an alias of.
    pub fn alias_of(&self) -> Option<&str> {
        self.external_name.as_deref().filter(|_| self.kind == ServiceType::ExternalName)
    }
}
