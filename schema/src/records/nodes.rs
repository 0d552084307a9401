//! `nodes/<node>`, `subnets/<node>`, `nodestate/<node>` and `heartbeats/<node>`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::condition::ConditionStatus;
use crate::meta::StringMap;
use crate::quantity::{Cpu, Memory};

/// What a node is and has: written by its agent, and only when something of it changes.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// Name.
    pub name: String,
    /// Addresses under which other nodes reach it, the one to use first.
    pub addresses: Vec<IpAddr>,
    /// CPU for pods.
    pub cpu: Cpu,
    /// Memory for pods.
    pub memory: Memory,
    /// Most pods at once.
    pub max_pods: u32,
    /// Labels the agent sets: `kubernetes.io/hostname`, `kubernetes.io/arch`, `kubernetes.io/os`.
    #[serde(default)]
    pub labels: StringMap,
    /// Versions of what runs there.
    pub versions: NodeVersions,
    /// `http://address:port` of the agent's read-only API (logs).
    pub api: String,
    /// `http://address:port` at which the node takes calls of functions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub calls: String,
    /// Whom to encrypt secrets for so that this node can decrypt them: `age1…`.
    pub age_recipient: Option<String>,
    /// The recipient of the cluster's identity that this node has: it decrypts what is encrypted to that.
    pub cluster_recipient: Option<String>,
    /// When the agent first registered.
    pub registered_at: Timestamp,
    /// The range that the node's pods have already, from its own disk: an etcd that was lost gives it back.
    pub pod_cidr: Option<Ipv4Net>,
    /// Where the other nodes send packets for its pods; none until its tunnel stands.
    pub vtep: Option<Vtep>,
}

/// The end of the tunnel of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vtep {
    /// Address of the node at which it takes packets.
    pub address: Ipv4Addr,
    /// Hardware address of the tunnel's link, `0a:58:0a:f4:01:00`.
    pub mac: String,
}

/// Versions of what runs on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVersions {
    /// minik8s-agent.
    pub agent: String,
    /// Docker Engine.
    pub docker: String,
    /// Kernel release.
    pub kernel: String,
    /// Distribution, as `PRETTY_NAME` of os-release.
    pub os: String,
    /// `amd64`, `arm64`.
    pub arch: String,
}

/// Pod addresses of a node: written by the nodes controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subnet {
    /// The node's own range; its first address is the bridge's.
    pub cidr: Ipv4Net,
    /// The range of all nodes; masquerade leaves it alone.
    pub cluster_cidr: Ipv4Net,
    /// The range of services: its 10th address is DNS on every node, its 11th the gateway.
    #[serde(default = "default_service_cidr")]
    pub service_cidr: Ipv4Net,
}

impl Subnet {
    /// A range of the cluster's, with services in the default range.
    pub fn new(cidr: Ipv4Net, cluster_cidr: Ipv4Net) -> Self {
        Self { cidr, cluster_cidr, service_cidr: default_service_cidr() }
    }
}

/// The range of services when none is given, as in Kubernetes.
pub const fn default_service_cidr() -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 16)
}

/// Place in the range of services of the address at which every node answers DNS, as in Kubernetes.
pub const DNS_ADDRESS_OFFSET: u32 = 10;
/// Place in the range of services of the address of every node's gateway.
pub const GATEWAY_ADDRESS_OFFSET: u32 = 11;

/// Where every node answers DNS.
pub fn dns_address(service_cidr: Ipv4Net) -> Ipv4Addr {
    address_at(service_cidr, DNS_ADDRESS_OFFSET)
}

/// Where every node's gateway answers.
pub fn gateway_address(service_cidr: Ipv4Net) -> Ipv4Addr {
    address_at(service_cidr, GATEWAY_ADDRESS_OFFSET)
}

fn address_at(range: Ipv4Net, offset: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(range.network().to_bits().saturating_add(offset))
}

/// Alive: lies on a 15 s lease of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// When this agent process started to beat.
    pub since: Timestamp,
}

/// How a node fares, with times that survive a change of leader: written by the nodes controller, and only when
/// something of it changes.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConditions {
    /// True: its agent beats and has a range of pod addresses. False: it beats and has no range yet. Unknown: it does
    /// not beat.
    pub ready: ConditionStatus,
    /// When `ready` last changed.
    pub since: Timestamp,
    /// When its pods were given up, after it had been silent for long enough.
    pub evicted_at: Option<Timestamp>,
    /// When the silence began that its last return ended.
    pub last_silence: Option<Timestamp>,
    /// How far its drain is, if its Node object asks for one.
    pub drain: Option<Drain>,
    /// Age of its `NoExecute` taints, each as it is written: `tolerationSeconds` counts from there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub taints: BTreeMap<String, TaintAge>,
}

impl NodeConditions {
    /// A node of which nothing else is known.
    pub fn new(ready: ConditionStatus, since: Timestamp) -> Self {
        Self { ready, since, evicted_at: None, last_silence: None, drain: None, taints: BTreeMap::new() }
    }
}

/// How long a taint has been on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaintAge {
    /// When it appeared.
    pub since: Timestamp,
    /// The longest `tolerationSeconds` of its pods that is over.
    #[serde(default)]
    pub elapsed_seconds: i64,
}

/// How far the drain of a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Drain {
    /// Pods are still to leave.
    Draining {
        /// How many: bound to the node, or not ended there yet.
        left: u32,
    },
    /// All have left but those that stay.
    Drained,
}
