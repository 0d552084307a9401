//! The bridge: link, address, kernel settings.

use std::collections::BTreeSet;
use std::{fs, io};

use ipnet::Ipv4Net;
use rtnetlink::LinkBridge;
use rtnetlink::packet_route::link::{InfoBridge, InfoData};

use super::namespace::NetworkNamespace;
use super::socket::{Link, Socket};
use super::{Bridge, NetlinkError, hardware_address};

/// LLDP's group, 01:80:c2:00:00:0e, as a bit of the bridge's setting. The rules for frames drop what a pod sends to it.
/// Without the setting the kernel would hand such a frame to the link that it came by, past all rules.
const FORWARDED_GROUPS: u16 = 1 << 0x0e;

/// True if the bridge is exactly as [`ensure`] makes it.
pub(super) async fn is_whole(
    socket: &Socket,
    home: &NetworkNamespace,
    bridge: &Bridge,
) -> Result<bool, NetlinkError> {
    let Some(link) = socket.link(&bridge.name).await?.filter(|link| link.is_bridge) else {
        return Ok(false);
    };
    let addresses = socket.addresses(Some(link.index)).await?;
    let there: BTreeSet<Ipv4Net> = addresses.into_iter().map(|(_, address)| address).collect();
    Ok(link_is_right(&link, bridge)
        && !link.has_ipv6
        && there == wanted_addresses(bridge).into_iter().collect()
        && settings_to_change(home, bridge)?.is_empty()
        // `ensure` reports a range that belongs to another.
        && services_are_routed(socket, &link, bridge).await.unwrap_or(false))
}

/// Makes the bridge as wanted; true if anything changed.
pub(super) async fn ensure(
    socket: &Socket,
    home: &NetworkNamespace,
    bridge: &Bridge,
) -> Result<bool, NetlinkError> {
    let name = bridge.name.as_str();
    let mut did = false;
    let link = match socket.link(name).await? {
        Some(link) if !link.is_bridge => return Err(NetlinkError::NotABridge(name.to_owned())),
        Some(link) => link,
        None => {
            did = true;
            create(socket, bridge).await?
        }
    };
    // Before it is up: an advertisement that a pod sends would become a route of the node.
    if link.has_ipv6 {
        did = true;
        turn_off_ipv6(home, name)?;
    }
    if !link_is_right(&link, bridge) {
        did = true;
        let message = LinkBridge::new(name)
            .set_info_data(InfoData::Bridge(vec![InfoBridge::GroupFwdMask(FORWARDED_GROUPS)]))
            .address(hardware_address(bridge.address.addr()).to_vec())
            .mtu(bridge.mtu)
            .up()
            .build();
        socket.change_link("set up", name, message).await?;
    }
    let addresses = socket.addresses(Some(link.index)).await?;
    let wanted = wanted_addresses(bridge);
    for address in &wanted {
        if !addresses.iter().any(|(_, there)| there == address) {
            did = true;
            socket.add_address(&link, *address).await?;
        }
    }
    for (_, stale) in addresses.into_iter().filter(|(_, address)| !wanted.contains(address)) {
        did = true;
        socket.delete_address(&link, stale).await?;
    }
    for (path, wanted) in settings_to_change(home, bridge)? {
        did = true;
        let written = home.run(|| fs::write(&path, wanted));
        written.map_err(|source| NetlinkError::Sysctl { path, source })?;
    }
    // Last: another instance may have the range, and the pods' host ports need everything above.
    if !services_are_routed(socket, &link, bridge).await? {
        did = true;
        socket.add_link_route(&link, bridge.services, bridge.address.addr()).await?;
    }
    Ok(did)
}

/// Addresses of the bridge, the gateway's first: the kernel uses the first one as source.
fn wanted_addresses(bridge: &Bridge) -> Vec<Ipv4Net> {
    let vips = bridge.vips.iter().map(|vip| Ipv4Net::from(*vip));
    std::iter::once(bridge.address).chain(vips).collect()
}

async fn services_are_routed(socket: &Socket, link: &Link, bridge: &Bridge) -> Result<bool, NetlinkError> {
    let routes = socket.routes().await?;
    let mut there = routes.iter().filter(|route| route.destination == bridge.services);
    match there.next() {
        None => Ok(false),
        Some(route) if route.index == Some(link.index) => Ok(true),
        Some(_) => Err(NetlinkError::RangeTaken(bridge.services)),
    }
}

fn link_is_right(link: &Link, bridge: &Bridge) -> bool {
    link.up
        && link.mtu == bridge.mtu
        && link.forwarded_groups == FORWARDED_GROUPS
        && link.hardware_address == hardware_address(bridge.address.addr())
}

async fn create(socket: &Socket, bridge: &Bridge) -> Result<Link, NetlinkError> {
    // A fixed hardware address: otherwise the bridge takes the lowest of its ports', and every pod that comes or
    // goes could change the gateway under the others.
    let message = LinkBridge::new(&bridge.name)
        .address(hardware_address(bridge.address.addr()).to_vec())
        .mtu(bridge.mtu)
        .build();
    socket.add_link(&bridge.name, message).await?;
    let made = socket.link(&bridge.name).await?;
    made.ok_or_else(|| NetlinkError::NoBridge(bridge.name.clone()))
}

/// Returns the wrong settings with their right values. On: the node forwards, and a connection to a port of
/// `127.0.0.1` may leave through the bridge (`MK8S-INPUT` keeps pods from the node's loopback). Off: redirects. A
/// pod's packet for a service without endpoints would cause one and use up the ICMP rate limit of its peer, so that
/// the rejection a UDP client waits for would not be sent. A link sends redirects if its own setting or that of
/// `all` is on; other links keep their own.
fn settings_to_change(
    home: &NetworkNamespace,
    bridge: &Bridge,
) -> Result<Vec<(String, &'static str)>, NetlinkError> {
    let name = &bridge.name;
    let settings = [
        ("/proc/sys/net/ipv4/ip_forward".to_owned(), "1"),
        (format!("/proc/sys/net/ipv4/conf/{name}/route_localnet"), "1"),
        (format!("/proc/sys/net/ipv4/conf/{name}/send_redirects"), "0"),
        ("/proc/sys/net/ipv4/conf/all/send_redirects".to_owned(), "0"),
    ];
    let mut to_change = Vec::new();
    for (path, wanted) in settings {
        let value = home.run(|| fs::read_to_string(&path));
        let value = value.map_err(|source| NetlinkError::Sysctl { path: path.clone(), source })?;
        // Anything but "0" is on; some settings have more than two values.
        if (value.trim() == "0") != (wanted == "0") {
            to_change.push((path, wanted));
        }
    }
    Ok(to_change)
}

/// Turns IPv6 off on a link of the node, and router advertisements with it: pods have IPv4 only, and no packet rule
/// covers IPv6. A link without IPv6, as with an MTU below 1,280, has none of these settings.
pub(super) fn turn_off_ipv6(home: &NetworkNamespace, link: &str) -> Result<(), NetlinkError> {
    for (setting, value) in [("accept_ra", "0"), ("disable_ipv6", "1")] {
        let path = format!("/proc/sys/net/ipv6/conf/{link}/{setting}");
        match home.run(|| fs::write(&path, value)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written.map_err(|source| NetlinkError::Sysctl { path, source })?,
        }
    }
    Ok(())
}
