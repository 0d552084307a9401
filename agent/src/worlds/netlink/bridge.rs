//! The bridge: link, address, kernel settings.

use std::fs;

use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::{LinkBridge, LinkUnspec};

use super::namespace::NetworkNamespace;
use super::real::RealNetlink;
use super::socket::Link;
use super::{Bridge, NetlinkError, hardware_address};

/// Nothing differs from what [`ensure`] makes.
pub(super) async fn is_whole(netlink: &RealNetlink, bridge: &Bridge) -> Result<bool, NetlinkError> {
    let Some(link) = netlink.socket.link(&bridge.name).await?.filter(|link| link.is_bridge) else {
        return Ok(false);
    };
    let addresses = netlink.socket.addresses(Some(link.index)).await?;
    let addresses_are_right = matches!(addresses.as_slice(), [(_, only)] if *only == bridge.address);
    Ok(link_is_right(&link, bridge) && addresses_are_right && settings_off(&netlink.home, bridge)?.is_empty())
}

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
            create(netlink, bridge).await?
        }
    };
    if !link_is_right(&link, bridge) {
        did = true;
        let message = LinkUnspec::new_with_index(link.index)
            .address(hardware_address(bridge.address.addr()).to_vec())
            .mtu(bridge.mtu)
            .up()
            .build();
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
    for path in settings_off(&netlink.home, bridge)? {
        did = true;
        let written = netlink.home.run(|| fs::write(&path, "1"));
        written.map_err(|source| NetlinkError::Sysctl { path, source })?;
    }
    Ok(did)
}

fn link_is_right(link: &Link, bridge: &Bridge) -> bool {
    link.up && link.mtu == bridge.mtu && link.hardware_address == hardware_address(bridge.address.addr())
}

async fn create(netlink: &RealNetlink, bridge: &Bridge) -> Result<Link, NetlinkError> {
    // An address of its own: otherwise the bridge takes the lowest of its ports', and every pod that
    // comes or goes could change the gateway under the others.
    let message = LinkBridge::new(&bridge.name)
        .address(hardware_address(bridge.address.addr()).to_vec())
        .mtu(bridge.mtu)
        .append_extra_attribute(LinkAttribute::IfAlias(netlink.alias.clone()))
        .up()
        .build();
    netlink.socket.add_link(&bridge.name, message).await?;
    let made = netlink.socket.link(&bridge.name).await?;
    made.ok_or_else(|| NetlinkError::NoBridge(bridge.name.clone()))
}

/// The settings that are off and must be on: the node forwards, and a connection to a port of
/// `127.0.0.1` may leave through the bridge (the rules in `MK8S-INPUT` keep pods from the node's
/// loopback).
fn settings_off(home: &NetworkNamespace, bridge: &Bridge) -> Result<Vec<String>, NetlinkError> {
    let files = [
        "/proc/sys/net/ipv4/ip_forward".to_owned(),
        format!("/proc/sys/net/ipv4/conf/{}/route_localnet", bridge.name),
    ];
    let mut off = Vec::new();
    for path in files {
        let value = home.run(|| fs::read_to_string(&path));
        let value = value.map_err(|source| NetlinkError::Sysctl { path: path.clone(), source })?;
        // What is not "0" is on; some settings know more than two values.
        if value.trim() == "0" {
            off.push(path);
        }
    }
    Ok(off)
}
