//! Requests for the entries of a tunnel: neighbours, forwarding entries, routes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use nix::errno::Errno;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::RouteMessage;

use super::TunnelEntry;
use crate::worlds::netlink::socket::{RequestFailure, Socket, bounded, send_request};
use crate::worlds::netlink::{NetlinkError, hardware_address};

impl Socket {
    /// Lists the permanent neighbours and forwarding entries of a link.
    pub(super) async fn neighbours(&self, index: u32) -> Result<BTreeSet<TunnelEntry>, NetlinkError> {
        let mut entries = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Bridge] {
            let request =
                || self.handle.neighbours().get().set_address_family(family).execute().try_collect();
            let messages: Vec<NeighbourMessage> = self.list("neighbours", request).await?;
            let ours = messages.iter().filter(|message| message.header.ifindex == index);
            entries.extend(ours.filter_map(entry_of));
        }
        Ok(entries)
    }

    /// Sets an entry, replacing that of the same key.
    pub(super) async fn set_entry(
        &self,
        name: &str,
        index: u32,
        entry: TunnelEntry,
    ) -> Result<(), NetlinkError> {
        match entry {
            TunnelEntry::Neighbour(address, hardware) => {
                self.set_neighbour(name, index, address, hardware).await
            }
            TunnelEntry::Forwarding(hardware, node) => {
                let request = self.handle.neighbours().add_bridge(index, &hardware);
                let request = request.destination(node.into()).flags(NeighbourFlags::Own).replace();
                send_request("set a forwarding entry of", name, request.execute()).await
            }
            TunnelEntry::Route(range, gateway) => {
                let request = self.handle.route().add(tunnel_route(index, range, gateway)).replace();
                send_request("route through", name, request.execute()).await
            }
        }
    }

    /// Removes an entry; no error if it is missing.
    pub(super) async fn drop_entry(
        &self,
        name: &str,
        index: u32,
        entry: TunnelEntry,
    ) -> Result<(), NetlinkError> {
        let answer = match entry {
            TunnelEntry::Route(range, gateway) => {
                let message = tunnel_route(index, range, gateway);
                bounded(self.handle.route().del(message).execute()).await
            }
            other => bounded(self.handle.neighbours().del(neighbour(index, other)).execute()).await,
        };
        match answer {
            Err(RequestFailure::Kernel(error))
                if [Errno::ENOENT as i32, Errno::ESRCH as i32].contains(&error) =>
            {
                Ok(())
            }
            other => other.map_err(|refused| refused.into_error("remove an entry from", name)),
        }
    }
}

fn tunnel_route(index: u32, range: Ipv4Net, gateway: Ipv4Addr) -> RouteMessage {
    RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(range.network(), range.prefix_len())
        .gateway(gateway)
        .output_interface(index)
        .onlink()
        .build()
}

fn neighbour(index: u32, entry: TunnelEntry) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    let (address, hardware) = match entry {
        TunnelEntry::Neighbour(address, hardware) => (address, hardware),
        TunnelEntry::Forwarding(hardware, node) => (node, hardware),
        TunnelEntry::Route(range, gateway) => (gateway, hardware_address(range.network())),
    };
    if let TunnelEntry::Forwarding(..) = entry {
        message.header.family = AddressFamily::Bridge;
        message.header.flags = NeighbourFlags::Own;
    } else {
        message.header.family = AddressFamily::Inet;
    }
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
    message
}

fn entry_of(message: &NeighbourMessage) -> Option<TunnelEntry> {
    // The kernel's own entries for broadcasts are not permanent.
    let permanent = u16::from(NeighbourState::Permanent);
    if u16::from(message.header.state) & permanent == 0 {
        return None;
    }
    let hardware = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(hardware) => <[u8; 6]>::try_from(hardware.as_slice()).ok(),
        _ => None,
    })?;
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(*address),
        // For the bridge family the crate leaves the bytes undecoded.
        NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
            <[u8; 4]>::try_from(bytes.as_slice()).ok().map(Ipv4Addr::from)
        }
        _ => None,
    })?;
    match message.header.family {
        AddressFamily::Inet => Some(TunnelEntry::Neighbour(address, hardware)),
        _ => Some(TunnelEntry::Forwarding(hardware, address)),
    }
}
