//! The bridge: link, address, kernel settings.

use std::fs;

use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::{LinkBridge, LinkUnspec};

use super::namespace::NetworkNamespace;
use super::real::RealNetlink;
use super::{Bridge, NetlinkError, hardware_address};

/// Makes the bridge as wanted; true if something had to be done.
pub(super) async fn ensure(netlink: &RealNetlink, bridge: &Bridge) -> Result<bool, NetlinkError> {
    let socket = &netlink.socket;
    let name = bridge.name.as_str();
    let mut did = false;
    let link = match socket.link(name).await? {
        Some(link) if !link.is_bridge => return Err(NetlinkError::NotABridge(name.to_owned())),
        Some(link) => link,
        None => {
            did = true;
            // An address of its own: otherwise the bridge takes the lowest of its ports', and every
            // pod that comes or goes could change the gateway under the others.
            let message = LinkBridge::new(name)
                .address(hardware_address(bridge.address.addr()).to_vec())
                .mtu(bridge.mtu)
                .append_extra_attribute(LinkAttribute::IfAlias(netlink.alias.clone()))
                .up()
                .build();
            socket.add_link(name, message).await?;
            let made = socket.link(name).await?;
            made.ok_or_else(|| NetlinkError::NoBridge(name.to_owned()))?
        }
    };
    let wanted_hardware = hardware_address(bridge.address.addr()).to_vec();
    if !link.up || link.mtu != bridge.mtu || link.hardware_address != wanted_hardware {
        did = true;
        let message =
            LinkUnspec::new_with_index(link.index).address(wanted_hardware).mtu(bridge.mtu).up().build();
        socket.change_link("set up", name, message).await?;
    }
    let addresses = socket.addresses(Some(link.index)).await?;
    if !addresses.iter().any(|(_, address)| *address == bridge.address) {
        did = true;
        socket.add_address(name, link.index, bridge.address).await?;
    }
    for (_, stale) in addresses.into_iter().filter(|(_, address)| *address != bridge.address) {
        did = true;
        socket.delete_address(name, link.index, stale).await?;
    }
    Ok(did | ensure_settings(&netlink.home, name)?)
}

/// The node forwards, and a connection to a port of `127.0.0.1` may leave through the bridge (the
/// rules in `MK8S-INPUT` keep strangers from the node's loopback).
fn ensure_settings(home: &NetworkNamespace, bridge: &str) -> Result<bool, NetlinkError> {
    let files = [
        "/proc/sys/net/ipv4/ip_forward".to_owned(),
        format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"),
    ];
    let mut did = false;
    for path in files {
        let changed = home.run(|| {
            // What is not "0" is on; some settings know more than two values.
            if fs::read_to_string(&path)?.trim() != "0" {
                return Ok(false);
            }
            fs::write(&path, "1").map(|()| true)
        });
        did |= changed.map_err(|source| NetlinkError::Sysctl { path, source })?;
    }
    Ok(did)
}
