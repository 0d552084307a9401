//! A pod's link: a veth pair, made with one end inside the pod, as `eth0`, in one request.
//!
//! The pair is recognized by the two ends naming each other. A correct pair is completed where it lacks something
//! (a recreated bridge has lost its ports); anything else is replaced.

use std::os::fd::AsRawFd;

use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::bridge::turn_off_ipv6;
use super::namespace::{NetworkNamespace, PinnedProcess};
use super::socket::{Link, Socket};
use super::{NetlinkError, POD_INTERFACE, PodLink, hardware_address, link_group};

/// Makes the link as wanted; true if anything changed.
pub(super) async fn ensure(
    host: &Socket,
    home: &NetworkNamespace,
    alias: &str,
    wanted: &PodLink,
) -> Result<bool, NetlinkError> {
    let pod = enter(home, wanted)?;
    let bridge = host.link(&wanted.bridge).await?.filter(|link| link.is_bridge);
    let bridge = bridge.ok_or_else(|| NetlinkError::NoBridge(wanted.bridge.clone()))?;
    let outer = host.link(&wanted.host_name).await?;
    let inner = pod.socket.link(POD_INTERFACE).await?;
    let (outer, inner, made) = match (outer, inner) {
        (Some(outer), Some(inner)) if is_pair(&outer, &inner) => (outer, inner, false),
        (outer, inner) => {
            for (socket, link) in [(host, outer), (&pod.socket, inner)] {
                if let Some(link) = link {
                    socket.delete_link(&link).await?;
                }
            }
            let (outer, inner) = create(host, &pod, wanted, &bridge).await?;
            (outer, inner, true)
        }
    };
    // Before the inner end is up: until then no frame arrives.
    if outer.has_ipv6 {
        turn_off_ipv6(home, &wanted.host_name)?;
    }
    // The outer end last: it alone tells whether the link is whole.
    let completed_inner = complete_inner(&pod.socket, wanted, &inner, made).await?;
    let completed_outer = complete_outer((host, alias), wanted, &outer, &bridge).await?;
    Ok(made | outer.has_ipv6 | completed_outer | completed_inner)
}

struct Pod {
    namespace: NetworkNamespace,
    socket: Socket,
}

fn enter(home: &NetworkNamespace, wanted: &PodLink) -> Result<Pod, NetlinkError> {
    let pid = wanted.pause_pid;
    let failed = |source| NetlinkError::OpenNamespace { pid, source };
    let process = PinnedProcess::open(pid).map_err(failed)?;
    if let Some(container) = &wanted.pause_id
        && !process.is_of_container(container).map_err(failed)?
    {
        return Err(NetlinkError::OtherProcess { pid, container: container.clone() });
    }
    let namespace = process.network().map_err(failed)?;
    if namespace.is(home).map_err(failed)? {
        return Err(NetlinkError::OwnNamespace { pid });
    }
    let socket = Socket::open_in(&namespace).map_err(failed)?;
    Ok(Pod { namespace, socket })
}

fn is_pair(outer: &Link, inner: &Link) -> bool {
    outer.peer == Some(inner.index) && inner.peer == Some(outer.index)
}

/// Creates both ends, the outer one up and a port of the bridge.
async fn create(
    host: &Socket,
    pod: &Pod,
    wanted: &PodLink,
    bridge: &Link,
) -> Result<(Link, Link), NetlinkError> {
    let inner = LinkMessageBuilder::<LinkUnspec>::new()
        .name(POD_INTERFACE)
        .mtu(wanted.mtu)
        .address(hardware_address(wanted.address.addr()).to_vec())
        .setns_by_fd(pod.namespace.file().as_raw_fd())
        // Not up yet: the kernel makes this end first, and rejects that before the other end exists.
        .build();
    let outer = LinkVeth::new(&wanted.host_name, POD_INTERFACE)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(inner)))
        .mtu(wanted.mtu)
        .controller(bridge.index)
        .link_group(link_group(wanted.address.addr()))
        .up()
        .build();
    host.add_link(&wanted.host_name, outer).await?;
    let lost = |link: &str| NetlinkError::Request {
        act: "find",
        link: link.to_owned(),
        message: "it was created but is gone".to_owned(),
    };
    let outer = host.link(&wanted.host_name).await?.ok_or_else(|| lost(&wanted.host_name))?;
    let inner = pod.socket.link(POD_INTERFACE).await?.ok_or_else(|| lost(POD_INTERFACE))?;
    Ok((outer, inner))
}

async fn complete_outer(
    (host, alias): (&Socket, &str),
    wanted: &PodLink,
    outer: &Link,
    bridge: &Link,
) -> Result<bool, NetlinkError> {
    let is_port = outer.master == Some(bridge.index);
    let marked = outer.alias.as_deref() == Some(alias);
    let group = link_group(wanted.address.addr());
    if is_port && outer.up && outer.hairpin && outer.mtu == wanted.mtu && outer.group == group && marked {
        return Ok(false);
    }
    let message = LinkUnspec::new_with_index(outer.index)
        .mtu(wanted.mtu)
        .controller(bridge.index)
        .link_group(group)
        .up()
        .build();
    host.change_link("set up", &wanted.host_name, message).await?;
    // With bridge-nf-call-iptables a pod that reaches itself through a node port is sent back within the bridge,
    // through the port it came from.
    host.set_hairpin(outer).await?;
    // Last of all: a link without the alias is not listed.
    let message = LinkUnspec::new_with_index(outer.index).alias(alias).build();
    host.change_link("mark", &wanted.host_name, message).await?;
    Ok(true)
}

async fn complete_inner(
    pod: &Socket,
    wanted: &PodLink,
    inner: &Link,
    fresh: bool,
) -> Result<bool, NetlinkError> {
    let mut did = false;
    let hardware = hardware_address(wanted.address.addr());
    if !inner.up || inner.mtu != wanted.mtu || inner.hardware_address != hardware {
        did = true;
        let message =
            LinkUnspec::new_with_index(inner.index).mtu(wanted.mtu).address(hardware.to_vec()).up().build();
        pod.change_link("set up", POD_INTERFACE, message).await?;
    }
    let (addresses, routes) =
        if fresh { (vec![], vec![]) } else { (pod.addresses(Some(inner.index)).await?, pod.routes().await?) };
    for (_, stale) in addresses.iter().filter(|(_, address)| *address != wanted.address) {
        did = true;
        pod.delete_address(inner, *stale).await?;
    }
    if !addresses.iter().any(|(_, address)| *address == wanted.address) {
        did = true;
        pod.add_address(inner, wanted.address).await?;
    }
    let has_route = |gateway| routes.iter().any(|r| r.destination.prefix_len() == 0 && r.gateway == gateway);
    if did || !has_route(Some(wanted.gateway)) {
        did = true;
        pod.add_default_route(inner, wanted.gateway).await?;
    }
    // Permanent, so that no answer of a neighbour can take the gateway's place.
    let hardware = hardware_address(wanted.gateway);
    if fresh || !pod.has_neighbour(inner.index, wanted.gateway, hardware).await? {
        did = true;
        pod.set_neighbour(POD_INTERFACE, inner.index, wanted.gateway, hardware).await?;
    }
    if !pod.link("lo").await?.is_some_and(|lo| lo.up) {
        did = true;
        pod.set_loopback_up().await?;
    }
    Ok(did)
}
