//! The kernel's links, addresses, routes and listening sockets, as far as pods need them.
//!
//! [`RealNetlink`] speaks rtnetlink; `FakeNetlink` keeps the same in memory and fails on request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use async_trait::async_trait;
use ipnet::Ipv4Net;
use sha2::{Digest, Sha256};

mod bridge;
mod changes;
#[cfg(any(test, feature = "fakes"))]
mod fake;
mod listeners;
mod namespace;
mod pod_link;
pub(crate) mod raw;
mod real;
mod socket;
mod survey;
#[cfg(test)]
mod tests;
mod tunnel;

pub use changes::AddressChanges;
#[cfg(any(test, feature = "fakes"))]
pub use fake::FakeNetlink;
pub use listeners::{Listener, Port};
pub use real::RealNetlink;
pub use survey::probe_features;
pub use survey::{Device, ScratchNamespace};
pub use tunnel::{Tunnel, TunnelEntry, Tunnels};

/// Name of the link inside every pod.
pub const POD_INTERFACE: &str = "eth0";

/// The bridge that joins the pods of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Name, at most 15 bytes.
    pub name: String,
    /// Gateway address of the pods, with the prefix length of the node's range.
    pub address: Ipv4Net,
    /// Further addresses at which the node itself answers: DNS and the gateway.
    pub vips: Vec<Ipv4Addr>,
    /// Range of service addresses: packets for an unknown one end here, not at the uplink.
    pub services: Ipv4Net,
    pub mtu: u32,
}

/// The link of one pod: a veth pair from the bridge into the pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLink {
    pub pause_pid: i32,
    /// Docker id of the pause container that the process must belong to, since the pid may have been reused. `None`
    /// if the process belongs to no container.
    pub pause_id: Option<String>,
    pub host_name: String,
    pub bridge: String,
    /// Address of the pod, with the prefix length of the node's range.
    pub address: Ipv4Net,
    pub gateway: Ipv4Addr,
    pub mtu: u32,
}

/// The host's end of a pod's link, as visible from outside the pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostEnd {
    /// The bridge that the link is a port of.
    pub bridge: Option<String>,
    pub up: bool,
    /// True if frames may leave through the port they came in by.
    pub hairpin: bool,
    pub mtu: u32,
    /// Address that all frames from the link must carry as their source, kept as the link's [`link_group`].
    pub sender: Option<Ipv4Addr>,
    /// True if the node speaks IPv6 on the link or would learn routes there.
    pub has_ipv6: bool,
}

impl HostEnd {
    /// True if the link of the pod with this address is exactly as [`Netlink::ensure_pod_link`] makes it.
    pub fn is_whole(&self, bridge: &str, mtu: u32, address: Option<Ipv4Addr>) -> bool {
        self.up
            && self.hairpin
            && !self.has_ipv6
            && self.mtu == mtu
            && self.sender == address
            && self.bridge.as_deref() == Some(bridge)
    }
}

/// A route of the node's main table, as far as conflicts need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub destination: Ipv4Net,
    pub interface: String,
}

/// Name of the host's end of a pod's link: `<instance[..4]>v` and 9 hex digits of the uid's SHA-256. At most 14
/// bytes; the kernel allows 15.
pub fn host_link_name(instance: &str, uid: &str) -> String {
    let digest = schema::codec::hex(&Sha256::digest(uid.as_bytes()));
    let short: String = instance.chars().take(4).collect();
    format!("{short}v{}", &digest[..9])
}

#[cfg(test)]
pub(crate) fn in_namespace_of<T: Send>(
    pid: i32,
    work: impl FnOnce() -> std::io::Result<T> + Send,
) -> std::io::Result<T> {
    namespace::NetworkNamespace::of_process(pid)?.run(work)
}

/// Runs `work` here, or on a thread in the network namespace at `path`; sockets opened there stay in that namespace.
pub(crate) fn in_namespace<T: Send>(
    path: Option<&std::path::Path>,
    work: impl FnOnce() -> std::io::Result<T> + Send,
) -> std::io::Result<T> {
    match path {
        None => work(),
        Some(path) => namespace::NetworkNamespace::at(path)?.run(work),
    }
}

/// Hardware address derived from an IPv4 address: `0a:58` and the four bytes. Locally administered; a pod that gets
/// an address again has the same hardware address, so no neighbour table is ever stale.
pub fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    let ([a, b, c, d], [first, second]) = (address.octets(), HARDWARE_PREFIX);
    [first, second, a, b, c, d]
}

/// Group of the host's end of a pod's link: the pod's address as a number. The node's rules for frames match on it, so
/// that they hold for a link from the moment it exists, and need no change when a pod comes or goes.
pub fn link_group(address: Ipv4Addr) -> u32 {
    address.into()
}

/// First bytes of every hardware address that the agent assigns.
const HARDWARE_PREFIX: [u8; 2] = [0x0a, 0x58];

/// Parses a hardware address such as `0a:58:0a:f4:01:00`.
pub fn parse_hardware_address(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2)).collect();
    bytes?.try_into().ok()
}

/// Failure of a request to the kernel. The variant names the act.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// `context` names the namespace, if it is not the node's own.
    #[error("cannot open a netlink socket{context}: {source}")]
    Open { context: String, source: std::io::Error },
    #[error("cannot open the network namespace of process {pid}: {source}")]
    OpenNamespace { pid: i32, source: std::io::Error },
    #[error("process {pid} is in the node's own network namespace; no link is made there")]
    OwnNamespace { pid: i32 },
    #[error("process {pid} does not belong to container {container}; no link is made there")]
    OtherProcess { pid: i32, container: String },
    #[error("bridge {0} does not exist yet")]
    NoBridge(String),
    #[error("link {0} exists and is not a bridge; rename it or use another --instance")]
    NotABridge(String),
    #[error("the service range {0} is routed elsewhere; give `minik8s serve` another --service-cidr")]
    RangeTaken(Ipv4Net),
    #[error("{0} is routed elsewhere; give `minik8s serve` another --cluster-cidr, or remove that route")]
    RouteTaken(Ipv4Net),
    /// Another link of the machine has the tunnel's VNI and port.
    #[error(
        "cannot create {name}: another link of this machine has VNI {vni} at UDP port {port}; give all agents of \
         one of the two clusters another --vxlan-port"
    )]
    TunnelTaken { name: String, vni: u32, port: u16 },
    #[error("tunnel {0} does not exist")]
    NoTunnel(String),
    #[error("link {0} exists and is not a tunnel of this instance; rename it or use another --instance")]
    NotOurs(String),
    /// `act` is a verb: `create`, `set up`.
    #[error("cannot {act} {link}: {message}")]
    Request { act: &'static str, link: String, message: String },
    #[error("cannot read which ports are in use: {source}")]
    Sockets { source: std::io::Error },
    #[error("cannot read or write {path}: {source}")]
    Sysctl { path: String, source: std::io::Error },
    #[error("the kernel did not {act} {link} within {seconds} s")]
    Timeout { act: &'static str, link: String, seconds: u64 },
}

/// The kernel's links, addresses and routes. Every act is idempotent and has a time limit.
#[async_trait]
pub trait Netlink: Send + Sync + 'static {
    /// Ensures that the bridge exists and is up, with exactly this address, and that the node forwards. True if
    /// anything changed.
    async fn ensure_bridge(&self, bridge: &Bridge) -> Result<bool, NetlinkError>;
    /// True if the bridge is exactly as [`Netlink::ensure_bridge`] makes it.
    async fn bridge_is_whole(&self, bridge: &Bridge) -> Result<bool, NetlinkError>;
    /// Removes the bridge; true if it existed.
    async fn remove_bridge(&self, name: &str) -> Result<bool, NetlinkError>;
    /// Ensures that the pod's link is whole: a correct one is left untouched, a half-made one is replaced. True if
    /// anything changed.
    async fn ensure_pod_link(&self, link: &PodLink) -> Result<bool, NetlinkError>;
    /// Removes a link and its other end; true if it existed.
    async fn remove_link(&self, name: &str) -> Result<bool, NetlinkError>;
    /// Lists the host's ends of this instance's pod links by name, except those that were never whole.
    async fn list_pod_links(&self) -> Result<BTreeMap<String, HostEnd>, NetlinkError>;
    /// Lists the IPv4 routes of the main table.
    async fn list_routes(&self) -> Result<Vec<Route>, NetlinkError>;
    /// Lists the ports of the node that a program listens on. The process is looked up only for the ports of `named`.
    async fn listeners(&self, named: &BTreeSet<Port>) -> Result<BTreeMap<Port, Listener>, NetlinkError>;
    /// Counts the connections from others at a TCP port in the network namespace of a process.
    async fn connections(&self, pid: i32, port: u16) -> Result<usize, NetlinkError>;
    /// Source address of the default route, else the first address that is not loopback.
    async fn node_address(&self) -> Result<Option<IpAddr>, NetlinkError>;
    /// MTU of the default route's link in bytes; `None` without a default route.
    async fn uplink_mtu(&self) -> Result<Option<u32>, NetlinkError>;
}
