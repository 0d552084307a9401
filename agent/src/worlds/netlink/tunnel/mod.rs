//! The tunnel to the other nodes: a VXLAN link, with a neighbour, a forwarding entry and a route per node.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use async_trait::async_trait;
use ipnet::Ipv4Net;
use nix::errno::Errno;
use rtnetlink::{LinkUnspec, LinkVxlan};

mod checksums;
mod entries;

use crate::worlds::netlink::bridge::turn_off_ipv6;
use crate::worlds::netlink::real::RealNetlink;
use crate::worlds::netlink::socket::{Link, RequestFailure};
use crate::worlds::netlink::{HARDWARE_PREFIX, NetlinkError, hardware_address};

/// The node's end of the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Name, at most 15 bytes.
    pub name: String,
    /// Address of this node at which the tunnel's packets leave and arrive.
    pub local: Ipv4Addr,
    pub vni: u32,
    pub port: u16,
    /// Own address of the tunnel: the first of the node's range, with prefix length 32.
    pub address: Ipv4Addr,
    pub mtu: u32,
}

impl Tunnel {
    /// Hardware address of the tunnel, derived from its own address.
    pub fn hardware_address(&self) -> [u8; 6] {
        hardware_address(self.address)
    }
}

/// An entry by which packets find another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelEntry {
    /// Maps the address of the other end to its hardware address.
    Neighbour(Ipv4Addr, [u8; 6]),
    /// Sends frames for the hardware address to this node.
    Forwarding([u8; 6], Ipv4Addr),
    /// Sends packets for the other node's range to the other end.
    Route(Ipv4Net, Ipv4Addr),
}

impl TunnelEntry {
    /// True if the kernel keeps only one of both: setting one replaces the other.
    pub fn has_key_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Neighbour(one, _), Self::Neighbour(other, _)) => one == other,
            (Self::Forwarding(one, _), Self::Forwarding(other, _)) => one == other,
            (Self::Route(one, _), Self::Route(other, _)) => one == other,
            _ => false,
        }
    }
}

impl std::fmt::Display for TunnelEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mac = |mac: &[u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        match self {
            Self::Neighbour(address, hardware) => write!(f, "neighbour {address} at {}", mac(hardware)),
            Self::Forwarding(hardware, node) => write!(f, "frames for {} to {node}", mac(hardware)),
            Self::Route(range, gateway) => write!(f, "route {range} via {gateway}"),
        }
    }
}

/// The tunnel to the other nodes. Every act is idempotent and has a time limit.
#[async_trait]
pub trait Tunnels: Send + Sync + 'static {
    /// True if one of the node's links has this address.
    async fn has_address(&self, address: Ipv4Addr) -> Result<bool, NetlinkError>;
    /// Ensures that the tunnel exists and is up, with exactly its address. True if anything changed.
    async fn ensure_tunnel(&self, tunnel: &Tunnel) -> Result<bool, NetlinkError>;
    /// True if the tunnel is exactly as [`Tunnels::ensure_tunnel`] makes it.
    async fn tunnel_is_whole(&self, tunnel: &Tunnel) -> Result<bool, NetlinkError>;
    /// Local address of the tunnel, if it exists and belongs to this instance.
    async fn tunnel_origin(&self, name: &str) -> Result<Option<Ipv4Addr>, NetlinkError>;
    /// Removes the tunnel if it belongs to this instance; true if it existed.
    async fn remove_tunnel(&self, name: &str) -> Result<bool, NetlinkError>;
    /// Lists the entries of the tunnel that somebody set, not those of the kernel; empty without a tunnel.
    async fn tunnel_entries(&self, name: &str) -> Result<BTreeSet<TunnelEntry>, NetlinkError>;
    /// Sets an entry, replacing that of the same key.
    async fn set_tunnel_entry(&self, name: &str, entry: TunnelEntry) -> Result<(), NetlinkError>;
    /// Removes an entry; no error if it is missing.
    async fn drop_tunnel_entry(&self, name: &str, entry: TunnelEntry) -> Result<(), NetlinkError>;
    /// True if checksums of packets leaving by the tunnel are left to the network card. False on kernels before
    /// 5.7, which can't be asked.
    async fn offload_is_on(&self, name: &str) -> Result<bool, NetlinkError>;
    /// Leaves the checksums to the card, or lets the kernel compute them.
    async fn set_offload(&self, name: &str, on: bool) -> Result<(), NetlinkError>;
    /// True if TCP gets an answer within about a second; a refusal is an answer.
    async fn answers(&self, at: SocketAddr) -> bool;
}

#[async_trait]
impl Tunnels for RealNetlink {
    async fn has_address(&self, address: Ipv4Addr) -> Result<bool, NetlinkError> {
        let addresses = self.socket.addresses(None).await?;
        Ok(addresses.iter().any(|(_, there)| there.addr() == address))
    }

    async fn ensure_tunnel(&self, wanted: &Tunnel) -> Result<bool, NetlinkError> {
        ensure(self, wanted).await
    }

    async fn tunnel_is_whole(&self, wanted: &Tunnel) -> Result<bool, NetlinkError> {
        let Some(link) = self.socket.link(&wanted.name).await? else { return Ok(false) };
        let addresses = self.socket.addresses(Some(link.index)).await?;
        let addresses_are_right = matches!(addresses.as_slice(), [(_, only)] if *only == own_address(wanted));
        Ok(is_right_kind(&link, wanted) && is_set_up(&link, wanted) && !link.has_ipv6 && addresses_are_right)
    }

    async fn tunnel_origin(&self, name: &str) -> Result<Option<Ipv4Addr>, NetlinkError> {
        let link = self.socket.link(name).await?.filter(is_ours);
        Ok(link.and_then(|link| link.vxlan).and_then(|vxlan| vxlan.local))
    }

    async fn remove_tunnel(&self, name: &str) -> Result<bool, NetlinkError> {
        match self.socket.link(name).await? {
            Some(link) if is_ours(&link) => self.socket.delete_link(&link).await.map(|()| true),
            _ => Ok(false),
        }
    }

    async fn tunnel_entries(&self, name: &str) -> Result<BTreeSet<TunnelEntry>, NetlinkError> {
        let Some(link) = self.socket.link(name).await? else { return Ok(BTreeSet::new()) };
        let mut entries = self.socket.neighbours(link.index).await?;
        for route in self.socket.routes().await? {
            if let (true, Some(gateway)) = (route.index == Some(link.index), route.gateway) {
                entries.insert(TunnelEntry::Route(route.destination, gateway));
            }
        }
        Ok(entries)
    }

    async fn set_tunnel_entry(&self, name: &str, entry: TunnelEntry) -> Result<(), NetlinkError> {
        let missing = || NetlinkError::NoTunnel(name.to_owned());
        let link = self.socket.link(name).await?.ok_or_else(missing)?;
        if let TunnelEntry::Route(range, _) = entry {
            let routes = self.socket.routes().await?;
            if routes.iter().any(|route| route.destination == range && route.index != Some(link.index)) {
                return Err(NetlinkError::RouteTaken(range));
            }
        }
        self.socket.set_entry(name, link.index, entry).await
    }

    async fn drop_tunnel_entry(&self, name: &str, entry: TunnelEntry) -> Result<(), NetlinkError> {
        let Some(link) = self.socket.link(name).await? else { return Ok(()) };
        self.socket.drop_entry(name, link.index, entry).await
    }

    async fn offload_is_on(&self, name: &str) -> Result<bool, NetlinkError> {
        checksums::offload_is_on(self, name).await
    }

    async fn set_offload(&self, name: &str, on: bool) -> Result<(), NetlinkError> {
        checksums::set_offload(self, name, on).await
    }

    async fn answers(&self, at: SocketAddr) -> bool {
        checksums::answers(self, at).await
    }
}

/// Makes the link as wanted; true if anything changed. A different VNI, port or node address can't be changed in
/// place: it takes a new link, and new entries.
async fn ensure(netlink: &RealNetlink, tunnel: &Tunnel) -> Result<bool, NetlinkError> {
    let (socket, name) = (&netlink.socket, tunnel.name.as_str());
    let mut did = false;
    let there = socket.link(name).await?;
    let link = match there {
        Some(link) if is_right_kind(&link, tunnel) => link,
        Some(link) if !is_ours(&link) => return Err(NetlinkError::NotOurs(name.to_owned())),
        other => {
            if let Some(link) = other {
                socket.delete_link(&link).await?;
            }
            did = true;
            create(netlink, tunnel).await?
        }
    };
    // Before the link is up: until then no frame arrives.
    if link.has_ipv6 {
        did = true;
        turn_off_ipv6(&netlink.home, name)?;
    }
    if !is_set_up(&link, tunnel) {
        did = true;
        let message = LinkUnspec::new_with_index(link.index)
            .address(tunnel.hardware_address().to_vec())
            .mtu(tunnel.mtu)
            .up()
            .build();
        socket.change_link("set up", name, message).await?;
    }
    let addresses = socket.addresses(Some(link.index)).await?;
    if !addresses.iter().any(|(_, address)| *address == own_address(tunnel)) {
        did = true;
        socket.add_address(&link, own_address(tunnel)).await?;
    }
    for (_, stale) in addresses.into_iter().filter(|(_, address)| *address != own_address(tunnel)) {
        did = true;
        socket.delete_address(&link, stale).await?;
    }
    Ok(did)
}

/// Recognizes our tunnel by its hardware address, which it has from the start: the kernel accepts no other mark
/// when a link is created, and one lost before it was marked would have no owner.
pub(super) fn is_ours(link: &Link) -> bool {
    link.vxlan.is_some() && link.hardware_address.starts_with(&HARDWARE_PREFIX)
}

fn own_address(tunnel: &Tunnel) -> Ipv4Net {
    Ipv4Net::from(tunnel.address)
}

fn is_right_kind(link: &Link, tunnel: &Tunnel) -> bool {
    link.vxlan.is_some_and(|vxlan| {
        vxlan.vni == tunnel.vni
            && vxlan.port == tunnel.port
            && vxlan.local == Some(tunnel.local)
            && !vxlan.learning
    })
}

fn is_set_up(link: &Link, tunnel: &Tunnel) -> bool {
    link.up && link.mtu == tunnel.mtu && link.hardware_address == tunnel.hardware_address()
}

async fn create(netlink: &RealNetlink, tunnel: &Tunnel) -> Result<Link, NetlinkError> {
    let message = LinkVxlan::new(&tunnel.name, tunnel.vni)
        .port(tunnel.port)
        .local(tunnel.local)
        .learning(false)
        .address(tunnel.hardware_address().to_vec())
        .mtu(tunnel.mtu)
        .build();
    if let Err(refused) = netlink.socket.try_add_link(message).await {
        let Tunnel { name, vni, port, .. } = tunnel;
        // The name was free when it was looked up: the conflict is the VNI at the port.
        return Err(match refused {
            RequestFailure::Kernel(number) if number == Errno::EEXIST as i32 => {
                NetlinkError::TunnelTaken { name: name.clone(), vni: *vni, port: *port }
            }
            refused => refused.into_error("create", name),
        });
    }
    let made = netlink.socket.link(&tunnel.name).await?;
    made.ok_or_else(|| NetlinkError::NoTunnel(tunnel.name.clone()))
}
