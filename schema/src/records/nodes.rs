//! `nodes/<node>`, `subnets/<node>`, `nodestate/<node>` and `heartbeats/<node>`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::Ipv4Net;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::condition::ConditionStatus;
use crate::meta::{NamespacedName, StringMap};
use crate::quantity::{Cpu, Memory};

/// Properties and capacity of a node. Written by its agent, only on changes.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// Name of the node.
    pub name: String,
    /// Addresses under which other nodes reach it, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// CPU for pods.
    pub cpu: Cpu,
    /// Memory for pods.
    pub memory: Memory,
    /// Number of NVIDIA GPUs for pods.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gpus: u64,
    /// Most pods at the same time.
    pub max_pods: u32,
    /// Labels that the agent sets: `kubernetes.io/hostname`, `kubernetes.io/arch`, `kubernetes.io/os`.
    #[serde(default)]
    pub labels: StringMap,
    /// Versions of the software on the node.
    pub versions: NodeVersions,
    /// `https://address:port` of the agent's read-only API (logs).
    pub api: String,
    /// `https://address:port` at which the node accepts calls of functions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub calls: String,
    /// Recipient for encrypting secrets to this node: `age1…`.
    pub age_recipient: Option<String>,
    /// Recipient of the cluster's identity on this node, which can decrypt what is encrypted to it.
    pub cluster_recipient: Option<String>,
    /// Time at which the agent first registered.
    pub registered_at: Timestamp,
    /// Pod range that the node has already, from its own disk; restores the range if etcd was lost.
    pub pod_cidr: Option<Ipv4Net>,
    /// Tunnel endpoint for packets to the node's pods; `None` until its tunnel is up.
    pub vtep: Option<Vtep>,
    /// Digests of the authorities that the node trusts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
}

// Checks of addresses that a node publishes, before anything is sent there: a node may write whatever it likes to its
// own keys.

impl NodeRecord {
    /// True if the node has this address, and it leads to a single machine from everywhere.
    pub fn has_address(&self, address: IpAddr) -> bool {
        !is_special(address) && self.addresses.contains(&address)
    }

    /// Returns the URL of a server of this node, from that in its record, `https://address:port`: with the node's name, so
    /// that nobody else is taken for it (`https://node-web-2@address:port`). Loopback counts only if the caller knows that
    /// the node is on its own machine; the record cannot say so, because the node writes it.
    ///
    /// # Errors
    /// The reason for sending nothing there, as a part of a sentence.
    pub fn server(&self, url: &str, is_local: bool) -> Result<String, String> {
        let shown: String = url.chars().take(URL_SHOWN_CHARS).flat_map(char::escape_debug).collect();
        let Some(server) = socket_of(url) else {
            return Err(format!("its record names `{shown}`, which is not https://ADDRESS:PORT"));
        };
        if self.has_address(server.ip()) || (server.ip().is_loopback() && is_local) {
            return Ok(match url.starts_with("https:") {
                true => format!("https://node-{}@{server}", self.name),
                false => format!("http://{server}"),
            });
        }
        Err(format!("its record names `{shown}`, which is not at one of the node's own addresses"))
    }

    /// Checks the address that the node reports for a pod: in its range, or its own for a pod with `hostNetwork`.
    ///
    /// # Errors
    /// The reason for not using the address, as a sentence without a full stop.
    pub fn check_pod_address(
        &self,
        address: Ipv4Addr,
        range: Option<&Subnet>,
        host_network: bool,
    ) -> Result<(), String> {
        let node = &self.name;
        match range {
            _ if host_network => match self.has_address(address.into()) {
                true => Ok(()),
                false => Err(format!("node {node} reports {address}, which is not an address of that node")),
            },
            Some(range) if range.cidr.contains(&address) && address != range.bridge() => Ok(()),
            Some(range) => Err(format!(
                "node {node} reports {address}, which is not in that node's range {}",
                range.cidr
            )),
            None => Err(format!("node {node} has no range of pod addresses")),
        }
    }
}

/// Most characters of a URL in a record that a message repeats.
const URL_SHOWN_CHARS: usize = 80;

/// Returns the address in a URL of the form `https://address:port`, or `http` for servers of tests: clients with a
/// certificate connect to none of these.
pub fn socket_of(url: &str) -> Option<SocketAddr> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    rest.trim_end_matches('/').parse().ok()
}

/// True for addresses that mean something else on each machine, or no machine: loopback, link-local (the metadata
/// service of clouds), multicast, unspecified and broadcast.
fn is_special(address: IpAddr) -> bool {
    let is_everywhere = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    is_everywhere
        || match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
        }
}

/// Tunnel endpoint of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vtep {
    /// Address of the node at which it accepts packets.
    pub address: Ipv4Addr,
    /// Hardware address of the tunnel's link, `0a:58:0a:f4:01:00`.
    pub mac: String,
}

/// Versions of the software on a node.
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
    /// Architecture: `amd64`, `arm64`.
    pub arch: String,
}

/// Pod addresses of a node. Written by the nodes controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subnet {
    /// Range of the node; its first address is the bridge's.
    pub cidr: Ipv4Net,
    /// Range of all nodes; exempt from masquerade.
    pub cluster_cidr: Ipv4Net,
    /// Range of services: its 10th address is DNS on every node, its 11th the gateway.
    #[serde(default = "default_service_cidr")]
    pub service_cidr: Ipv4Net,
}

impl Subnet {
    /// Creates a range in the cluster's, with services in the default range.
    pub fn new(cidr: Ipv4Net, cluster_cidr: Ipv4Net) -> Self {
        Self { cidr, cluster_cidr, service_cidr: default_service_cidr() }
    }

    /// Returns the address of the node's bridge, the first of its range.
    pub fn bridge(&self) -> Ipv4Addr {
        address_at(self.cidr, 1)
    }
}

/// Returns the default range of services, as in Kubernetes.
pub const fn default_service_cidr() -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 16)
}

/// Offset, in the range of services, of the address at which every node answers DNS, as in Kubernetes.
pub const DNS_ADDRESS_OFFSET: u32 = 10;
/// Offset, in the range of services, of the address of every node's gateway.
pub const GATEWAY_ADDRESS_OFFSET: u32 = 11;

/// Returns the address at which every node answers DNS.
pub fn dns_address(service_cidr: Ipv4Net) -> Ipv4Addr {
    address_at(service_cidr, DNS_ADDRESS_OFFSET)
}

/// Returns the address at which every node's gateway answers.
pub fn gateway_address(service_cidr: Ipv4Net) -> Ipv4Addr {
    address_at(service_cidr, GATEWAY_ADDRESS_OFFSET)
}

fn address_at(range: Ipv4Net, offset: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(range.network().to_bits().saturating_add(offset))
}

/// Sign of life on a 15 s lease of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// Time at which this agent process began to send heartbeats.
    pub since: Timestamp,
}

/// Condition of a node, with times that survive a change of leader. Written by the nodes controller, only on changes.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConditions {
    /// True: the agent sends heartbeats and has a range of pod addresses. False: heartbeats, but no range yet.
    /// Unknown: no heartbeats.
    pub ready: ConditionStatus,
    /// Time of the last change of `ready`.
    pub since: Timestamp,
    /// Time at which a leader first saw the node: unlike that in its record, by a leader's clock.
    pub first_seen_at: Option<Timestamp>,
    /// Time at which its pods were given up, after it had been silent for long enough.
    pub evicted_at: Option<Timestamp>,
    /// Start of the last silence that has ended.
    pub last_silence: Option<Timestamp>,
    /// State of the drain, if its Node object asks for one.
    pub drain: Option<Drain>,
    /// Age of its `NoExecute` taints, keyed by the taint as written: `tolerationSeconds` counts from there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub taints: BTreeMap<String, TaintAge>,
}

impl NodeConditions {
    /// Creates the conditions of a node about which nothing else is known.
    pub fn new(ready: ConditionStatus, since: Timestamp) -> Self {
        let (first_seen_at, evicted_at, last_silence, drain) = (None, None, None, None);
        Self { ready, since, first_seen_at, evicted_at, last_silence, drain, taints: BTreeMap::new() }
    }
}

/// Age of a taint on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaintAge {
    /// Time at which it appeared.
    pub since: Timestamp,
    /// Longest `tolerationSeconds` of its pods that has elapsed.
    #[serde(default)]
    pub elapsed_seconds: i64,
}

/// State of a node's drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Drain {
    /// Pods still have to leave.
    Draining {
        /// Number of pods bound to the node, or not ended there yet.
        left: u32,
        /// Pods that disruption budgets cover and allow to leave now: they count as disrupted until they have left.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        evicting: BTreeSet<NamespacedName>,
    },
    /// Every pod has left except those that stay.
    Drained,
}

// `usage/<node>`: resource usage of a node and its pods.

/// Resource usage of a node and its pods. Written by its agent every 15 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// Time of the measurement.
    pub at: Timestamp,
    /// Seconds over which the CPU figures are the mean.
    pub window_seconds: u64,
    /// Thousandths of a core in use on the node, by everything that runs there.
    pub cpu: u64,
    /// Bytes of memory in use on the node, without the page cache that is not in active use.
    pub memory: u64,
    /// File system of the node's state directory; `None` if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskSpace>,
    /// Running pods, by `namespace/name`.
    pub pods: BTreeMap<String, PodUsage>,
    /// Parts left out so that the record fits under its key, in a sentence; empty if it is complete.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left_out: String,
}

impl NodeUsage {
    /// Returns the usage of this incarnation of a pod.
    pub fn pod(&self, pod: &NamespacedName, uid: &str) -> Option<&PodUsage> {
        self.pods.get(&pod.to_string()).filter(|usage| usage.uid == uid)
    }
}

/// Resource usage of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Incarnation of the pod.
    pub uid: String,
    /// Running containers by name; under the empty name the sum of all, if [`NodeUsage::left_out`] says so.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// Bytes that its emptyDir volumes occupy, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, u64>,
    /// Volumes with more files than are counted: they hold at least the bytes in `volumes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_least: Vec<String>,
}

impl PodUsage {
    /// Returns the sum of all containers.
    pub fn total(&self) -> ContainerUsage {
        self.containers.values().fold(ContainerUsage::default(), |sum, one| ContainerUsage {
            cpu: sum.cpu.saturating_add(one.cpu),
            memory: sum.memory.saturating_add(one.memory),
        })
    }
}

/// Resource usage of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUsage {
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes of its working set: memory of its cgroup without the page cache that is not in active use, as the
    /// kubelet counts it.
    pub memory: u64,
}

/// Share of a disk below which its free space is low, in percent.
const DISK_LOW_PERCENT: u64 = 10;

/// Space on the file system of a directory, as `df` counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskSpace {
    /// Usable bytes, without the kernel's reserve for root.
    pub total_bytes: u64,
    /// Bytes available to users other than root.
    pub free_bytes: u64,
}

impl DiskSpace {
    /// Free share in percent, rounded down.
    pub fn free_percent(self) -> u64 {
        let total = u128::from(self.total_bytes.max(1));
        u64::try_from(u128::from(self.free_bytes) * 100 / total).unwrap_or(100)
    }

    /// True if less than a tenth is free.
    pub fn is_low(self) -> bool {
        self.total_bytes > 0 && self.free_percent() < DISK_LOW_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: &[&str]) -> NodeRecord {
        let record = serde_json::json!({
            "name": "n1", "addresses": addresses, "cpu": "1", "memory": "1Gi", "maxPods": 1,
            "versions": NodeVersions::default(), "api": "", "registeredAt": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(record).unwrap()
    }

    // Would fail with each condition left out.
    #[test]
    fn only_servers_of_the_node_itself_are_believed() {
        let record = node(&["192.0.2.7", "2001:db8::7", "169.254.169.254", "127.0.0.1"]);
        for (url, server) in [
            ("https://192.0.2.7:7071", "https://node-n1@192.0.2.7:7071"),
            ("https://192.0.2.7:7071/", "https://node-n1@192.0.2.7:7071"),
            ("https://[2001:db8::7]:7071", "https://node-n1@[2001:db8::7]:7071"),
            ("http://192.0.2.7:7071", "http://192.0.2.7:7071"),
        ] {
            assert_eq!(record.server(url, false).as_deref(), Ok(server));
        }
        for url in [
            "",
            "http://x/?",
            "http://192.0.2.7:7071/?",
            "http://192.0.2.7:7071@evil.example",
            "ftp://192.0.2.7:7071",
            "https://n1:7071",
            "https://192.0.2.7",
            "https://node-n2@192.0.2.7:7071",
            "http://192.0.2.8:7071",
            "http://169.254.169.254:80",
            "http://127.0.0.1:2379",
            "http://[::ffff:127.0.0.1]:2379",
            "http://0.0.0.0:7071",
        ] {
            assert!(record.server(url, false).is_err(), "{url}");
        }
        let loopback = "https://127.0.0.1:7071";
        assert!(node(&["192.0.2.7"]).server(loopback, true).is_ok());
        for addresses in [&[][..], &["127.0.0.1"], &["0.0.0.0"], &["192.0.2.7"]] {
            assert!(node(addresses).server(loopback, false).is_err(), "{addresses:?}");
        }
    }

    // Would fail with any address taken.
    #[test]
    fn a_pod_has_an_address_of_its_nodes_range_or_the_nodes_own() {
        let record = node(&["192.0.2.7", "127.0.0.1"]);
        let range = Subnet::new("10.244.1.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
        let check = |address: &str, host_network| {
            record.check_pod_address(address.parse().unwrap(), Some(&range), host_network).is_ok()
        };
        for (address, in_range, on_host) in [
            ("10.244.1.5", true, false),
            ("10.244.1.1", false, false),
            ("10.244.2.5", false, false),
            ("192.0.2.7", false, true),
            ("192.0.2.8", false, false),
            ("127.0.0.1", false, false),
        ] {
            assert_eq!((check(address, false), check(address, true)), (in_range, on_host), "{address}");
        }
        assert!(record.check_pod_address([10, 244, 1, 5].into(), None, false).is_err());
    }

    #[test]
    fn less_than_a_tenth_of_a_disk_is_low() {
        for (total, free, low) in [(100, 10, false), (100, 9, true), (1000, 99, true), (0, 0, false)] {
            assert_eq!(DiskSpace { total_bytes: total, free_bytes: free }.is_low(), low, "{free} of {total}");
        }
    }
}
