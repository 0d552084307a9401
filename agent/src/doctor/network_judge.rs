//! Turns findings about the node's network into checks. Pure.

use ipnet::Ipv4Net;
use schema::kinds::pod::Protocol;
use schema::kinds::service::NODE_PORTS;

use super::check::{Check, Ranges};
use super::network_probe::{FRAMES, Links, MANGLE, NetworkFacts, RECENT};
use crate::config::Config;
use crate::converge::network::tunnel::{DEFAULT_MTU, MTU_MIN, VXLAN_OVERHEAD, pod_mtu};
use crate::packet_rules::chain::Names;

/// Smallest connection table that one busy service does not fill: a connection through the gateway takes two
/// entries, and an ended one stays for two minutes.
const CONNECTIONS_MIN: u64 = 32_768;

/// Percentage from which the table counts as nearly full.
const CONNECTIONS_FULL: u64 = 90;

/// Strict `rp_filter`: a packet must come in by the very link by which its sender would be answered.
const STRICT: u8 = 1;

/// Evaluates the findings about the network.
pub(super) fn judge(config: &Config, ranges: Ranges, seen: &NetworkFacts) -> Vec<Check> {
    let names = Names::for_instance(&config.machine.instance);
    let mut checks = rules(seen);
    checks.extend([connections(seen), rp_filter(seen)]);
    match &seen.links {
        Err(why) => checks.push(Check::fail("links", why, "check that the kernel answers netlink")),
        Ok(links) => {
            checks.extend(mtu(&names, links));
            checks.push(vxlan(config, &names, links));
            checks.push(range("pod addresses", "--cluster-cidr", ranges.cluster, &names, links));
            checks.push(services(ranges, &names, links));
        }
    }
    checks.extend(fronts(seen));
    checks.push(node_ports(seen));
    checks
}

fn rules(seen: &NetworkFacts) -> Vec<Check> {
    let tried = match &seen.rules {
        Ok(tried) => tried,
        Err(why) => return vec![Check::fail("packet rules", why, "start as root, with iptables installed")],
    };
    let refused = |(name, result): &(&'static str, Result<(), String>)| {
        let why = result.as_ref().err()?;
        Some(match *name {
            RECENT => Check::warn(name, why, "sessionAffinity needs it: load the module xt_recent"),
            MANGLE => {
                Check::warn(name, why, "builds that need the network need it: load the module iptable_mangle")
            }
            FRAMES => Check::warn(
                name,
                why,
                "without them pods can send under the addresses of others: install the package nftables",
            ),
            _ => Check::fail(name, why, "load its module: modprobe xt_NAME, ipt_NAME or nft_compat"),
        })
    };
    let checks: Vec<Check> = tried.iter().filter_map(refused).collect();
    match checks.is_empty() {
        true => {
            vec![Check::ok(
                "packet rules",
                format!("the kernel supports all {} matches and targets", tried.len()),
            )]
        }
        false => checks,
    }
}

fn connections(seen: &NetworkFacts) -> Check {
    let more = "raise net.netfilter.nf_conntrack_max with sysctl, for example to 262144";
    match seen.connections {
        None => {
            Check::ok("conntrack table", "the kernel tracks no connections yet; the first rule starts it")
        }
        Some((used, most)) => {
            let found = format!("{used} of {most} connections");
            match used.saturating_mul(100) >= most.saturating_mul(CONNECTIONS_FULL) {
                true => {
                    Check::warn("conntrack table", format!("{found}: new ones will soon be dropped"), more)
                }
                false if most < CONNECTIONS_MIN => Check::warn("conntrack table", found, more),
                false => Check::ok("conntrack table", found),
            }
        }
    }
}

/// Checks for strict filters; with a single uplink they are harmless, as all answers come by it.
fn rp_filter(seen: &NetworkFacts) -> Check {
    let strict: Vec<&str> =
        seen.rp_filter.iter().filter(|(_, value)| **value == STRICT).map(|(name, _)| name.as_str()).collect();
    match strict.first() {
        None => Check::ok("rp_filter", "not strict"),
        Some(name) if seen.rp_filter.len() < 2 => {
            Check::ok("rp_filter", format!("strict at {name}, the only way out"))
        }
        Some(name) => Check::warn(
            "rp_filter",
            format!(
                "strict at {}, one of several ways out: other nodes' packets may be dropped",
                strict.join(", ")
            ),
            format!("set net.ipv4.conf.{name}.rp_filter and net.ipv4.conf.all.rp_filter to 2 with sysctl"),
        ),
    }
}

/// Checks the MTU of the uplink and of our own links, which the agent sets when it starts.
fn mtu(names: &Names, links: &Links) -> Vec<Check> {
    let uplink = links.uplinks.first().and_then(|name| links.devices.iter().find(|d| d.name == *name));
    let pods = pod_mtu(uplink.map(|uplink| uplink.mtu));
    let mut checks = vec![match uplink {
        None => Check::warn(
            "mtu",
            format!("no default route: pods get {pods}, based on Ethernet's {DEFAULT_MTU}"),
            "check that the links between nodes carry that much, or give the node a default route",
        ),
        Some(uplink) if uplink.mtu < MTU_MIN + VXLAN_OVERHEAD => Check::fail(
            "mtu",
            format!("{} has {}: packets of {pods} to other nodes do not fit", uplink.name, uplink.mtu),
            format!("give it at least {} with ip link set {} mtu N", MTU_MIN + VXLAN_OVERHEAD, uplink.name),
        ),
        Some(uplink) => {
            let found = format!("{} has {}: pods get {pods}, after VXLAN overhead", uplink.name, uplink.mtu);
            Check::ok("mtu", found)
        }
    }];
    let ours = [&names.bridge, &names.tunnel];
    let stale = links.devices.iter().filter(|device| ours.contains(&&device.name) && device.mtu != pods);
    checks.extend(stale.map(|device| {
        let found = format!("{} has {} where {pods} fits the uplink", device.name, device.mtu);
        Check::warn("mtu of links", found, "restart the agent: it reads the uplink's MTU when it starts")
    }));
    checks
}

fn vxlan(config: &Config, names: &Names, links: &Links) -> Check {
    let (vni, port) = (config.vxlan.vni, config.vxlan.port);
    let there = links.devices.iter().filter(|device| device.name != names.tunnel);
    let others: Vec<_> = there.filter_map(|device| Some((device.name.as_str(), device.vxlan?))).collect();
    let ours = links.devices.iter().find(|device| device.name == names.tunnel);
    let listener = links.listeners.get(&(Protocol::Udp, port));
    if ours.is_some_and(|ours| ours.vxlan.is_none()) {
        let found = format!("link {} exists and is not a VXLAN", names.tunnel);
        return Check::warn("vxlan port", found, "rename it, or use another --instance");
    }
    if let Some((name, _)) = others.iter().find(|(_, theirs)| *theirs == (vni, port)) {
        return Check::warn(
            "vxlan port",
            format!("{name} has VNI {vni} at UDP port {port} already"),
            "give all nodes another --vxlan-vni and --vxlan-port; not needed on a single node",
        );
    }
    if let Some((name, _)) = others.iter().find(|(_, (_, theirs))| *theirs == port) {
        return Check::warn(
            "vxlan port",
            format!("{name} uses UDP port {port} too, and only nodes of this cluster may send to it"),
            "give all nodes another --vxlan-port",
        );
    }
    match (ours.and_then(|ours| ours.vxlan), listener) {
        (Some((_, used)), _) if used == port => {
            Check::ok("vxlan port", format!("UDP port {port}, in use by {}", names.tunnel))
        }
        (_, Some(listener)) => {
            let who = listener.process.as_deref().unwrap_or("another program");
            let found = format!("UDP port {port} is in use by {who}");
            Check::warn("vxlan port", found, "give all nodes another --vxlan-port, or stop what uses it")
        }
        (_, None) => Check::ok("vxlan port", format!("VNI {vni} at UDP port {port} is free")),
    }
}

/// Checks that no other link has a route into the range or an address in it.
fn range(name: &'static str, flag: &'static str, range: Ipv4Net, names: &Names, links: &Links) -> Check {
    let ours = |link: &str| [&names.bridge, &names.tunnel].iter().any(|own| *own == link);
    let remedy = || format!("give the reconciler another {flag}");
    let route = links.routes.iter().find(|route| {
        !ours(&route.interface) && route.destination.prefix_len() > 0 && overlap(route.destination, range)
    });
    if let Some(route) = route {
        let found =
            format!("{range} overlaps the route to {} through {}", route.destination, route.interface);
        return Check::fail(name, found, remedy());
    }
    let address = |device: &&crate::worlds::netlink::Device| {
        !ours(&device.name) && device.addresses.iter().any(|address| overlap(*address, range))
    };
    match links.devices.iter().find(address) {
        Some(device) => {
            Check::fail(name, format!("{range} overlaps the addresses of {}", device.name), remedy())
        }
        None => Check::ok(name, format!("{range} overlaps no route and no address of this machine")),
    }
}

fn services(ranges: Ranges, names: &Names, links: &Links) -> Check {
    if overlap(ranges.cluster, ranges.service) {
        let found = format!("{} overlaps the pods' range {}", ranges.service, ranges.cluster);
        return Check::fail("service addresses", found, "give the reconciler another --service-cidr");
    }
    range("service addresses", "--service-cidr", ranges.service, names, links)
}

fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

fn fronts(seen: &NetworkFacts) -> Vec<Check> {
    let check = |(name, at, result): &(&'static str, String, Result<(), String>)| match result {
        Ok(()) => Check::ok(name, format!("{at} is free")),
        Err(_) if seen.is_answered => Check::ok(name, format!("{at}, left to the agent that answers there")),
        Err(why) => Check::fail(
            name,
            format!("{at}: {why}"),
            "bind the program that listens there to the node's own address, not all; ss -lntup shows it",
        ),
    };
    seen.fronts.iter().map(check).collect()
}

/// Checks that the node's own sockets stay out of the node ports: a socket on a service's port is no longer reached.
fn node_ports(seen: &NetworkFacts) -> Check {
    let name = "node ports";
    let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
    let Some((low, high)) = seen.local_ports else {
        return Check::warn(name, "net.ipv4.ip_local_port_range can't be read", "mount /proc");
    };
    let within = |(low, high): (u16, u16), port: u16| low <= port && port <= high;
    let given = |port: &u16| {
        within((low, high), *port) && !seen.reserved_ports.iter().any(|range| within(*range, *port))
    };
    match NODE_PORTS.into_iter().find(given) {
        None => Check::ok(name, format!("the node's own sockets, {low}-{high}, stay out of {first}-{last}")),
        Some(_) => Check::warn(
            name,
            format!("the node's own sockets, {low}-{high}, may take some of {first}-{last}"),
            format!("set net.ipv4.ip_local_reserved_ports to {first}-{last} with sysctl"),
        ),
    }
}
