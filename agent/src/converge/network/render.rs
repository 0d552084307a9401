//! Renders the model of the node's network as packet rules. Names only chains of this instance, and the jumps to
//! them, and its table for frames. Rules are spelled as `iptables-save` prints them, so that existing ones can be
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;
use schema::kinds::function::PORT;
use schema::kinds::pod::HostPort;

use crate::packet_rules::chain::{ChainRef, Names, protocol_name};
use crate::worlds::netlink::{hardware_address, link_group};

/// Target of a port of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPortTarget {
    pub target: SocketAddrV4,
    pub pod: String,
}

/// Inputs of a node's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub names: Names,
    pub node_cidr: Ipv4Net,
    pub cluster_cidr: Ipv4Net,
    /// Set if `MASQUERADE` supports `--random-fully`, with which no two connections race for one source port.
    pub random_fully: bool,
    /// Set if frames within the bridge pass through the rules too.
    pub bridged_frames: bool,
    pub host_ports: BTreeMap<HostPort, HostPortTarget>,
    pub tunnel_port: u16,
    /// Nodes that may send into the tunnel; `None` if not known yet.
    pub tunnel_senders: Option<BTreeSet<Ipv4Addr>>,
    pub dns: Ipv4Addr,
    pub gateway: Ipv4Addr,
    /// Port at which functions are called.
    pub functions_port: u16,
    /// Addresses of local pods that run functions.
    pub functions: BTreeSet<Ipv4Addr>,
    /// Addresses that functions must not reach: etcd, the APIs of reconcilers and agents.
    pub guarded: BTreeSet<SocketAddrV4>,
    /// Destinations allowed for builds; `None` until a build needs the network.
    pub builds: Option<BuildRules>,
}

/// Inputs of the rules for builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRules {
    pub services: Ipv4Net,
    /// Other nodes: to them a build looks like its node, and behind their ports are pods.
    pub nodes: BTreeSet<Ipv4Addr>,
    /// Package index, which may be part of the cluster.
    pub index: BTreeSet<SocketAddrV4>,
}

/// Address at which clouds serve a machine's credentials.
const METADATA: &str = "169.254.169.254/32";

/// Renders the rules of every chain of the model, each without `-A CHAIN`.
pub fn rules(model: &Model) -> BTreeMap<ChainRef, Vec<String>> {
    let names = &model.names;
    let mut rules = BTreeMap::from([
        (names.forward.clone(), forward_rules(model)),
        (names.input.clone(), input_rules(model)),
        (names.hostport.clone(), hostport_rules(&model.host_ports)),
        (names.postrouting.clone(), postrouting_rules(model)),
    ]);
    // Without functions no rule leads to the chain.
    if !model.functions.is_empty() {
        rules.insert(names.sandbox.clone(), sandbox_rules(model));
    }
    if let Some(builds) = &model.builds {
        rules.insert(names.builds.clone(), build_rules(model, builds));
    }
    rules
}

/// Renders a jump to the sandbox chain for the packets of each function's pod.
fn sandbox_jumps(model: &Model) -> impl Iterator<Item = String> {
    let (bridge, sandbox) = (&model.names.bridge, &model.names.sandbox.chain);
    model.functions.iter().map(move |pod| format!("-s {pod}/32 -i {bridge} -j {sandbox}"))
}

/// Matches packets to this address and port.
fn matches_to(at: &SocketAddrV4) -> String {
    format!("-d {}/32 -p tcp -m tcp --dport {}", at.ip(), at.port())
}

/// Renders the rules for builds. Builds run the code of packages and of anyone who pushes: they may reach the world
/// outside the cluster, and of the cluster and this node only DNS and the package index. The rules apply before
/// addresses are rewritten, so that they match the original ports of nodes and services.
fn build_rules(model: &Model, builds: &BuildRules) -> Vec<String> {
    let mut rules = vec![format!("-d {METADATA} -j DROP")];
    rules.extend(model.guarded.iter().map(|at| format!("{} -j DROP", matches_to(at))));
    for protocol in ["udp", "tcp"] {
        let dns = format!("-p {protocol} -m {protocol} --dport 53");
        rules.push(format!("{dns} -m addrtype --dst-type LOCAL -j RETURN"));
    }
    rules.extend(builds.index.iter().map(|at| format!("{} -j RETURN", matches_to(at))));
    rules.extend(builds.nodes.iter().map(|node| format!("-d {node}/32 -j DROP")));
    rules.extend([model.cluster_cidr.trunc(), builds.services].map(|range| format!("-d {range} -j DROP")));
    rules.push("-m addrtype --dst-type LOCAL -j DROP".to_owned());
    rules
}

/// Renders the rules for functions. Functions run code on behalf of callers: the control plane is out of their
/// reach, on the node itself at all of its addresses. Established connections are covered too, as these rules may
/// appear a moment after the pod.
fn sandbox_rules(model: &Model) -> Vec<String> {
    let mut rules = vec![format!("-d {METADATA} -j DROP")];
    rules.extend(model.guarded.iter().map(|at| format!("{} -j DROP", matches_to(at))));
    let ports: BTreeSet<u16> = model.guarded.iter().map(SocketAddrV4::port).collect();
    let here = |port| format!("-p tcp -m tcp --dport {port} -m addrtype --dst-type LOCAL -j DROP");
    rules.extend(ports.into_iter().map(here));
    rules
}

/// Renders the forwarding rules. Docker sets the policy of FORWARD to DROP, so pods need explicit rules; the same
/// two let the replies through. Clients outside the cluster that have a route to the pods must still call functions
/// through a gateway, which checks permission: only pods, and nodes through the tunnel, reach the port itself.
fn forward_rules(model: &Model) -> Vec<String> {
    let Names { bridge, tunnel, .. } = &model.names;
    let port = format!("-p tcp -m tcp --dport {PORT}");
    let guard = |pod: &Ipv4Addr| format!("-d {pod}/32 ! -i {tunnel} -o {bridge} {port} -j DROP");
    let mut rules: Vec<String> = sandbox_jumps(model).collect();
    rules.push(format!("-i {bridge} -j ACCEPT"));
    rules.extend(model.functions.iter().map(guard));
    rules.push(format!("-o {bridge} -j ACCEPT"));
    rules
}

/// Renders the input rules. The bridge has `route_localnet`, which no pod may use to reach the node's loopback.
/// Packets out of the tunnel count as a pod's, so only nodes may send into it; without other nodes the port may
/// belong to another program. Pods reach DNS and gateway whatever the policy of INPUT. Other DNS clients are
/// rejected immediately: containers of other networks copy the machine's `resolv.conf`, in which this server may be
/// first. Whoever calls functions or hosts from an address of a pod counts as that pod, so such packets must come from
/// the bridge or through the tunnel; reverse-path filters are not strict on every machine.
fn input_rules(model: &Model) -> Vec<String> {
    let (bridge, tunnel, port) = (&model.names.bridge, &model.names.tunnel, model.tunnel_port);
    let loopback = "-m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP";
    let mut rules = vec![format!("-d 127.0.0.0/8 -i {bridge} {loopback}")];
    rules.extend(sandbox_jumps(model));
    let (dns, gateway) = (model.dns, model.gateway);
    for protocol in ["udp", "tcp"] {
        for link in [bridge.as_str(), "lo"] {
            let port = format!("-p {protocol} -m {protocol} --dport 53");
            rules.push(format!("-d {dns}/32 -i {link} {port} -j ACCEPT"));
        }
    }
    let (pods, hosts) = (model.cluster_cidr.trunc(), "-p tcp -m tcp --dport 80");
    rules.push(format!("-d {gateway}/32 -i {bridge} {hosts} -j ACCEPT"));
    rules.push(format!("-s {pods} -d {gateway}/32 ! -i lo {hosts} -j DROP"));
    let functions = format!("-p tcp -m tcp --dport {}", model.functions_port);
    rules.extend([bridge, tunnel].map(|link| format!("-s {pods} -i {link} {functions} -j ACCEPT")));
    rules.push(format!("-s {pods} ! -i lo {functions} -j DROP"));
    for (protocol, how) in [("udp", "icmp-port-unreachable"), ("tcp", "tcp-reset")] {
        let port = format!("-p {protocol} -m {protocol} --dport 53");
        rules.push(format!("-d {dns}/32 {port} -j REJECT --reject-with {how}"));
    }
    if let Some(senders) = model.tunnel_senders.as_ref().filter(|senders| !senders.is_empty()) {
        let from = |node: &Ipv4Addr| format!("-s {node}/32 -p udp -m udp --dport {port} -j ACCEPT");
        rules.extend(senders.iter().map(from));
        rules.push(format!("-p udp -m udp --dport {port} -j DROP"));
    }
    rules
}

fn hostport_rules(ports: &BTreeMap<HostPort, HostPortTarget>) -> Vec<String> {
    let rule = |(HostPort { protocol, port, address }, to): (&HostPort, &HostPortTarget)| {
        let protocol = protocol_name(*protocol);
        let (at, from) = match address {
            None => (String::new(), ""),
            // A neighbor may send packets to the loopback address: the new destination lets them in.
            Some(address) if address.is_loopback() => {
                (format!("-d {address}/32 "), "-m addrtype --src-type LOCAL ")
            }
            Some(address) => (format!("-d {address}/32 "), ""),
        };
        format!(
            "{at}-p {protocol} -m {protocol} --dport {port} {from}-m comment --comment \"{}\" -j DNAT --to-destination {}",
            to.pod, to.target
        )
    };
    ports.iter().map(rule).collect()
}

fn postrouting_rules(model: &Model) -> Vec<String> {
    let Model { names, node_cidr, cluster_cidr, .. } = model;
    let (node, cluster, bridge) = (node_cidr.trunc(), cluster_cidr.trunc(), &names.bridge);
    let masquerade = if model.random_fully { "MASQUERADE --random-fully" } else { "MASQUERADE" };
    let mut rules = vec![
        // Outside the cluster a pod uses the node's address; within it its own.
        format!("-s {node} ! -d {cluster} ! -o {bridge} -j {masquerade}"),
        // A connection from the node's own loopback to a node's port: the pod must be able to reply.
        format!("-s 127.0.0.0/8 -o {bridge} -j {masquerade}"),
    ];
    let led = format!("-o {bridge} -m conntrack --ctstate DNAT -j {masquerade}");
    if model.bridged_frames {
        // A pod that reaches itself through a node's port: its own address must not appear as the source of an
        // incoming packet. For services, each endpoint's chain marks such packets.
        let own: BTreeSet<&Ipv4Addr> = model.host_ports.values().map(|to| to.target.ip()).collect();
        rules.extend(own.into_iter().map(|pod| format!("-s {pod}/32 -d {pod}/32 {led}")));
    } else {
        // A pod that reaches a pod of its own node, or itself, through a service or a node's port: the reply must
        // come back this way, which it does not when frames within the bridge bypass the rules. Otherwise the pod
        // gets the client's own address.
        rules.push(format!("-s {node} {led}"));
    }
    rules
}

/// Renders the input of `nft` that replaces the table for frames. A pod sends only from its own hardware address and
/// IPv4 address, in ARP too, and nothing but these two protocols. The group of a link names its pod (see
/// [`link_group`]), so the table follows from the node's range alone and is in place before any pod.
///
/// The kernel hands frames to the link-local groups of switches to the link itself, past `prerouting` and past every
/// packet rule for the bridge.
pub fn frame_rules(names: &Names, node_cidr: Ipv4Net) -> String {
    let (table, gateway) = (&names.senders, gateway_of(node_cidr).addr());
    let pods: Vec<String> = node_cidr
        .hosts()
        .filter(|pod| *pod != gateway)
        .map(|pod| {
            let hardware = hardware_address(pod).map(|byte| format!("{byte:02x}")).join(":");
            format!("{} . {hardware} . {pod}", link_group(pod))
        })
        .collect();
    let links = format!("{}-{}", link_group(node_cidr.network()), link_group(node_cidr.broadcast()));
    let (pods, groups) = (pods.join(",\n"), "ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00");
    format!(
        "\
add table bridge {table}
delete table bridge {table}
table bridge {table} {{
	set pods {{
		type devgroup . ether_addr . ipv4_addr
		elements = {{ {pods} }}
	}}
	chain prerouting {{
		type filter hook prerouting priority -300; policy accept;
		iifgroup != {links} accept
		{groups} drop
		iifgroup . ether saddr . ip saddr @pods accept
		iifgroup . ether saddr . arp saddr ip @pods iifgroup . arp saddr ether . arp saddr ip @pods accept
		drop
	}}
	chain input {{
		type filter hook input priority -300; policy accept;
		iifgroup {links} {groups} drop
	}}
}}
"
    )
}

/// Returns the bridge's address: the first of the node's range, with the range's prefix length.
pub fn gateway_of(node_cidr: Ipv4Net) -> Ipv4Net {
    let first = Ipv4Addr::from(u32::from(node_cidr.network()) | 1);
    Ipv4Net::new(first, node_cidr.prefix_len()).expect("the length is another range's")
}
