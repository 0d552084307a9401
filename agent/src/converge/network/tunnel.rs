//! Plans the entries of the tunnel to the other nodes: per node exactly one neighbor, one forwarding entry, one
//! route. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use ipnet::Ipv4Net;
use schema::records::Vtep;

use crate::catalog::Peer;
use crate::worlds::netlink::{Tunnel, TunnelEntry, parse_hardware_address};

/// Maximum number of nodes that a checksum trial contacts: one answer is enough.
const ASKED_MAX: usize = 8;

/// Desired and observed state of the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelState {
    /// Desired state.
    pub tunnel: Tunnel,
    /// Set if the link exists, complete or not.
    pub is_there: bool,
    pub is_whole: bool,
    /// Set if systemd-resolved's names depend on the tunnel, so that it exists even without other nodes.
    pub is_always_wanted: bool,
    pub needs_trial: bool,
    pub entries: BTreeSet<TunnelEntry>,
    pub own: Ipv4Net,
    /// Other nodes; `None` if not known yet, in which case existing entries stay.
    pub peers: Option<BTreeMap<String, Peer>>,
}

impl TunnelState {
    /// True if the tunnel should exist. Without other nodes it has no use, and another instance may use its number
    /// and port. While the other nodes are unknown, an existing link stays.
    fn is_wanted(&self) -> bool {
        self.is_always_wanted || self.peers.as_ref().map_or(self.is_there, |peers| !peers.is_empty())
    }

    /// Returns the tunnel endpoint for the node's record. Other nodes need it before the link exists: the first of
    /// them to appear is the reason to create it.
    pub fn vtep(&self) -> Vtep {
        let mac = self.tunnel.hardware_address().map(|byte| format!("{byte:02x}")).join(":");
        Vtep { address: self.tunnel.local, mac }
    }
}

/// A step of the plan, in order of execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelStep {
    Link(Tunnel),
    Set(TunnelEntry, String),
    Drop(TunnelEntry),
    Unlink(String),
    TryChecksums(BTreeMap<SocketAddr, String>),
}

impl fmt::Display for TunnelStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(tunnel) => {
                let Tunnel { name, vni, port, local, .. } = tunnel;
                write!(f, "tunnel {name} (VNI {vni}, UDP port {port}) from {local}")
            }
            Self::Set(entry, node) => write!(f, "{entry}, for node {node}"),
            Self::Drop(entry) => write!(f, "removed {entry}: it belongs to no node"),
            Self::Unlink(name) => write!(f, "removed tunnel {name}: there is no other node"),
            Self::TryChecksums(asked) => {
                let nodes: Vec<&str> = asked.values().map(String::as_str).collect();
                write!(f, "checksums tested, by TCP to {}", nodes.join(", "))
            }
        }
    }
}

/// Plans the steps. Entries of a recreated link are set in the same run.
pub fn plan(seen: &TunnelState) -> Vec<TunnelStep> {
    let mut steps = Vec::new();
    if !seen.is_wanted() {
        steps.extend(seen.is_there.then(|| TunnelStep::Unlink(seen.tunnel.name.clone())));
        return steps;
    }
    if !seen.is_whole {
        steps.push(TunnelStep::Link(seen.tunnel.clone()));
    }
    let Some(peers) = &seen.peers else { return steps };
    let mut wanted = BTreeSet::new();
    let mut set = Vec::new();
    for (node, peer) in peers {
        // Two nodes with one range, or one with our range: the nodes controller is about to give one of them
        // another. Until then our own pods must not be looked for beyond the tunnel.
        let is_ours = peer.cidr.contains(&seen.own.network()) || seen.own.contains(&peer.cidr.network());
        let Some(entries) =
            entries_of(peer).filter(|entries| !is_ours && entries.iter().all(|e| !wanted.contains(e)))
        else {
            continue;
        };
        for entry in entries {
            wanted.insert(entry);
            // A link that has yet to be created has no entries.
            if !seen.is_whole || !seen.entries.contains(&entry) {
                set.push(TunnelStep::Set(entry, node.clone()));
            }
        }
    }
    // First the path, then the entry that refers to it: no packet is sent to an address that can't be resolved.
    // Removal goes in reverse order, and before additions, as a new entry may have the key of a stale one.
    let stale: Vec<TunnelEntry> =
        seen.entries.iter().filter(|entry| !wanted.contains(entry)).copied().collect();
    let replaced = |entry: &TunnelEntry| wanted.iter().any(|other| other.has_key_of(entry));
    for entry in stale.iter().rev().filter(|entry| seen.is_whole && !replaced(entry)) {
        steps.push(TunnelStep::Drop(*entry));
    }
    steps.extend(set);
    let asked = if seen.needs_trial && seen.is_whole { trial_targets(seen) } else { BTreeMap::new() };
    if !asked.is_empty() {
        steps.push(TunnelStep::TryChecksums(asked));
    }
    steps
}

/// Returns the nodes for a checksum trial: those to which the tunnel has a route.
fn trial_targets(seen: &TunnelState) -> BTreeMap<SocketAddr, String> {
    let there = seen.peers.iter().flatten().filter(|(_, peer)| peer.absent_since.is_none());
    let route = |peer: &Peer| TunnelEntry::Route(peer.cidr.trunc(), peer.cidr.network());
    let reachable = there.filter(|(_, peer)| seen.entries.contains(&route(peer)));
    // No TCP listens on the tunnel's own UDP port: a refusal is an answer too.
    let address = |peer: &Peer| (peer.cidr.network(), seen.tunnel.port).into();
    reachable.take(ASKED_MAX).map(|(node, peer)| (address(peer), node.clone())).collect()
}

/// Returns neighbor, forwarding entry and route, in this order; `None` if the hardware address is invalid.
fn entries_of(peer: &Peer) -> Option<[TunnelEntry; 3]> {
    let hardware = parse_hardware_address(&peer.vtep.mac)?;
    let end: Ipv4Addr = peer.cidr.network();
    Some([
        TunnelEntry::Neighbour(end, hardware),
        TunnelEntry::Forwarding(hardware, peer.vtep.address),
        TunnelEntry::Route(peer.cidr.trunc(), end),
    ])
}

/// Returns the source addresses of the other nodes: only these may send into the tunnel.
pub fn senders(peers: &BTreeMap<String, Peer>) -> BTreeSet<Ipv4Addr> {
    peers.values().map(|peer| peer.vtep.address).collect()
}

// Packet size of pods. Pure.

/// Room that VXLAN needs in each packet, in bytes: pods' packets are that much smaller than the uplink's, even with
/// a single node, so that adding a second changes no running pod.
pub const VXLAN_OVERHEAD: u32 = 50;

/// Packet size of a node without a default route, in bytes: Ethernet's.
pub const DEFAULT_MTU: u32 = 1500;

/// Smallest packet size of pods, in bytes (RFC 791 requires 68 of an IPv4 link; hosts need 576).
pub const MTU_MIN: u32 = 576;

/// Returns the largest packet size of pods in bytes, derived from the default route's link if there is one.
pub fn pod_mtu(uplink: Option<u32>) -> u32 {
    uplink.unwrap_or(DEFAULT_MTU).saturating_sub(VXLAN_OVERHEAD).max(MTU_MIN)
}
