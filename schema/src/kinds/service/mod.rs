//! Service: a stable address in front of pods. Fields, defaults and semantics are those of Kubernetes (core/v1);
//! `addresses` is our own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod descriptor;
mod validate;

use super::pod::{PortReference, Protocol};

/// The `clusterIP` of a headless service, whose name resolves to the pods themselves.
pub const HEADLESS: &str = "None";

/// Ports that nodes reserve for services, as in Kubernetes.
pub const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

/// Default duration of session affinity in seconds, as in Kubernetes.
pub const DEFAULT_AFFINITY_SECONDS: u32 = 3 * 60 * 60;

/// Desired state of a service.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ServiceSpec {
    /// Determines how the service is exposed.
    #[serde(default, rename = "type")]
    pub kind: ServiceType,
    /// Labels of the pods behind the service. If empty, `addresses` are behind it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
    /// Ports of the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    /// IP address of the service; `None` for a headless service. Assigned by the cluster if absent.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// Name that the service is an alias of, for type ExternalName.
    pub external_name: Option<String>,
    /// Further addresses of nodes that accept traffic for the service.
    #[serde(default, rename = "externalIPs", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<String>,
    /// Session affinity. `ClientIP` keeps the connections of a client on one pod.
    #[serde(default)]
    pub session_affinity: SessionAffinity,
    /// Duration of session affinity.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// Endpoints that serve clients within the cluster.
    #[serde(default)]
    pub internal_traffic_policy: TrafficPolicy,
    /// Endpoints that serve clients from outside.
    #[serde(default)]
    pub external_traffic_policy: TrafficPolicy,
    /// Treats pods as endpoints before they are ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub publish_not_ready_addresses: bool,
    /// Addresses behind a service without selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// Exposure of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// At its cluster IP.
    #[default]
    ClusterIP,
    /// Also at a port of every node.
    NodePort,
    /// Only as a DNS alias of `externalName`.
    ExternalName,
}

/// A port of a service.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ServicePort {
    /// Name of the port; required if there are several.
    pub name: Option<String>,
    /// Transport protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// Port of the service.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Port of the pods, by number or name; defaults to `port`.
    pub target_port: Option<PortReference>,
    /// Port of every node, for type NodePort; assigned by the cluster if absent.
    pub node_port: Option<u16>,
}

/// Session affinity of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionAffinity {
    /// No affinity.
    #[default]
    None,
    /// Connections from one address go to the same pod.
    ClientIP,
}

/// Duration of session affinity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SessionAffinityConfig {
    /// Settings for `ClientIP`.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Duration of the affinity of one client address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ClientIpConfig {
    /// Seconds, 1 to 86400; defaults to 10800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// Endpoints that serve a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficPolicy {
    /// Every endpoint.
    #[default]
    Cluster,
    /// Endpoints on the same node.
    Local,
}

impl ServiceSpec {
    /// True for a headless service, which has no cluster IP.
    pub fn is_headless(&self) -> bool {
        self.cluster_ip.as_deref() == Some(HEADLESS)
    }

    /// True if the service has a cluster IP, once it is assigned.
    pub fn has_cluster_ip(&self) -> bool {
        !self.is_headless() && self.kind != ServiceType::ExternalName
    }

    /// Returns the name that the service is an alias of.
    pub fn alias_target(&self) -> Option<&str> {
        self.external_name.as_deref().filter(|_| self.kind == ServiceType::ExternalName)
    }
}
