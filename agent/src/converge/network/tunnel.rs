//! Decides what is on the tunnel to the other nodes: per node exactly one neighbour, one forwarding entry,
//! one route, and which address it leaves from. Pure: the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::Ipv4Net;
use schema::records::Vtep;
use tokio::time::Instant;

use crate::catalog::Peer;
use crate::worlds::netlink::{Tunnel, TunnelEntry, parse_hardware_address};

/// How long another address must be the node's own before the tunnel moves to it while the former is still
/// there: a new link costs a moment without any way to other nodes, and a route that flaps comes back.
const STEADY: Duration = Duration::from_secs(2);

/// Nodes that a trial of the checksums asks at once: one answer is enough.
const ASKED_MAX: usize = 8;

/// The address that the tunnel leaves from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    address: Option<Ipv4Addr>,
    /// What the routes say instead, since when.
    rival: Option<(Ipv4Addr, Instant)>,
    /// The tunnel moves to the rival when it has been the node's own for long enough.
    moves_in_time: bool,
}

/// What the node's routes and links say of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSeen {
    /// By the routes; some other address where there is no default route.
    pub address: Option<Ipv4Addr>,
    pub is_routed: bool,
    pub keeps_former: bool,
}

impl Origin {
    /// The former address, if there is one.
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.address
    }

    /// Takes the address of a tunnel that an agent before this one made, if none is known yet.
    pub fn adopt(&mut self, address: Ipv4Addr) {
        self.address.get_or_insert(address);
    }

    /// The address that the tunnel will move to unless something changes, and when at the latest it should
    /// be looked again.
    pub fn held_back(&self, now: Instant) -> Option<(Ipv4Addr, Duration)> {
        let (rival, since) = self.rival.filter(|_| self.moves_in_time)?;
        Some((rival, STEADY.saturating_sub(now.saturating_duration_since(since))))
    }

    /// The address from now on. A former one that is gone is replaced at once, if the routes say by which.
    pub fn settle(&mut self, seen: AddressSeen, now: Instant) -> Option<Ipv4Addr> {
        let Some(other) = seen.address.filter(|_| self.address != seen.address) else {
            *self = Self { address: self.address, ..Self::default() };
            return self.address;
        };
        let since = self.rival.filter(|(rival, _)| *rival == other).map_or(now, |(_, since)| since);
        self.rival = Some((other, since));
        let steady = now.duration_since(since) >= STEADY;
        let moves = match (self.address, seen.is_routed, seen.keeps_former) {
            (None, _, _) | (Some(_), true, false) => true,
            (Some(_), false, true) => false,
            (Some(_), true, true) | (Some(_), false, false) => steady,
        };
        self.moves_in_time = seen.is_routed == seen.keeps_former;
        if moves {
            *self = Self { address: Some(other), ..Self::default() };
        }
        self.address
    }
}

/// The tunnel, as it should be and as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelSeen {
    /// As it should be.
    pub tunnel: Tunnel,
    /// There is such a link, whole or not.
    pub is_there: bool,
    pub is_whole: bool,
    /// Names of systemd-resolved hang on it, so it stands without other nodes too.
    pub is_always_wanted: bool,
    pub is_untried: bool,
    pub entries: BTreeSet<TunnelEntry>,
    pub own: Ipv4Net,
    /// The other nodes; none: not known yet, and what is there stays.
    pub peers: Option<BTreeMap<String, Peer>>,
}

impl TunnelSeen {
    /// Without other nodes there is nothing to send through it, and another instance may have its number and
    /// port. While the other nodes are unknown, a link that is there stays.
    fn is_wanted(&self) -> bool {
        self.is_always_wanted || self.peers.as_ref().map_or(self.is_there, |peers| !peers.is_empty())
    }

    /// The end of the tunnel for the node's record. Other nodes need it before the link is there: the first
    /// of them to appear is the reason to make it.
    pub fn vtep(&self) -> Vtep {
        let mac = self.tunnel.hardware_address().map(|byte| format!("{byte:02x}")).join(":");
        Vtep { address: self.tunnel.local, mac }
    }
}

/// One step, in the order in which they are taken.
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
                write!(f, "checksums tried, by TCP to {}", nodes.join(", "))
            }
        }
    }
}

/// The steps. Entries of a link that is made anew are set in the same run.
pub fn plan(seen: &TunnelSeen) -> Vec<TunnelStep> {
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
        // Two nodes with one range, or one that has ours: the nodes controller is about to give one of them
        // another. Until then our own pods must not be looked for beyond the tunnel.
        let is_ours = peer.cidr.contains(&seen.own.network()) || seen.own.contains(&peer.cidr.network());
        let Some(entries) =
            entries_of(peer).filter(|entries| !is_ours && entries.iter().all(|e| !wanted.contains(e)))
        else {
            continue;
        };
        for entry in entries {
            wanted.insert(entry);
            // A link that is no tunnel of ours yet has nothing on it when it is made.
            if !seen.is_whole || !seen.entries.contains(&entry) {
                set.push(TunnelStep::Set(entry, node.clone()));
            }
        }
    }
    // The way first, then what finds it: no packet is sent to an address that can't be looked up. The
    // other way round when they go. Before new ones, as an entry may have the key of a stale one.
    let stale: Vec<TunnelEntry> =
        seen.entries.iter().filter(|entry| !wanted.contains(entry)).copied().collect();
    let replaced = |entry: &TunnelEntry| wanted.iter().any(|other| other.has_key_of(entry));
    for entry in stale.iter().rev().filter(|entry| seen.is_whole && !replaced(entry)) {
        steps.push(TunnelStep::Drop(*entry));
    }
    steps.extend(set);
    let asked = if seen.is_untried && seen.is_whole { whom_to_ask(seen) } else { BTreeMap::new() };
    if !asked.is_empty() {
        steps.push(TunnelStep::TryChecksums(asked));
    }
    steps
}

/// The nodes that a trial of the checksums can ask: those to which the tunnel has a route.
fn whom_to_ask(seen: &TunnelSeen) -> BTreeMap<SocketAddr, String> {
    let there = seen.peers.iter().flatten().filter(|(_, peer)| peer.absent_since.is_none());
    let route = |peer: &Peer| TunnelEntry::Route(peer.cidr.trunc(), peer.cidr.network());
    let reachable = there.filter(|(_, peer)| seen.entries.contains(&route(peer)));
    // No TCP listens at the tunnel's own UDP port: a refusal is an answer, too.
    let address = |peer: &Peer| (peer.cidr.network(), seen.tunnel.port).into();
    reachable.take(ASKED_MAX).map(|(node, peer)| (address(peer), node.clone())).collect()
}

/// Neighbour, forwarding entry, route: in this order. None for a hardware address that is none.
fn entries_of(peer: &Peer) -> Option<[TunnelEntry; 3]> {
    let hardware = parse_hardware_address(&peer.vtep.mac)?;
    let end: Ipv4Addr = peer.cidr.network();
    Some([
        TunnelEntry::Neighbour(end, hardware),
        TunnelEntry::Forwarding(hardware, peer.vtep.address),
        TunnelEntry::Route(peer.cidr.trunc(), end),
    ])
}

/// Where the other nodes' packets come from: only these may send into the tunnel.
pub fn senders(peers: &BTreeMap<String, Peer>) -> BTreeSet<Ipv4Addr> {
    peers.values().map(|peer| peer.vtep.address).collect()
}
