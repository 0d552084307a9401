//! From a model of the node's network to rules. Only chains of this instance are ever named, and the
//! jumps to them. Rules are spelled as `iptables-save` prints them, so that what is there can be
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;
use schema::kinds::function::PORT;
use schema::kinds::pod::Protocol;

use crate::packet_rules::chain::{ChainRef, word_of};
use crate::packet_rules::names::Names;

/// Where a port of the node leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPortTarget {
    pub target: SocketAddrV4,
    pub pod: String,
}

/// A port of the node.
pub type HostPort = (Protocol, u16);

/// All that the rules of a node follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub names: Names,
    pub node_cidr: Ipv4Net,
    pub cluster_cidr: Ipv4Net,
    /// `MASQUERADE` takes `--random-fully`: no two connections then race for one source port.
    pub random_fully: bool,
    /// Frames within the bridge meet the rules too.
    pub bridged_frames: bool,
    pub host_ports: BTreeMap<HostPort, HostPortTarget>,
    pub tunnel_port: u16,
    /// Who may send into the tunnel; none: it is not known yet.
    pub tunnel_senders: Option<BTreeSet<Ipv4Addr>>,
    pub dns: Ipv4Addr,
    pub gateway: Ipv4Addr,
    /// Addresses of the pods here that are functions.
    pub functions: BTreeSet<Ipv4Addr>,
    /// What they may not reach: etcd, the APIs of reconcilers and agents.
    pub guarded: BTreeSet<SocketAddrV4>,
    /// What builds may reach; none until one needs the network.
    pub builds: Option<BuildRules>,
}

/// What the rules for builds follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRules {
    pub services: Ipv4Net,
    /// The other nodes: a build passes there for its node, and behind their ports are pods.
    pub nodes: BTreeSet<Ipv4Addr>,
    /// The package index, which may be a part of the cluster.
    pub index: BTreeSet<SocketAddrV4>,
}

/// Where clouds give out a machine's credentials.
const METADATA: &str = "169.254.169.254/32";

/// The rules of every chain of the model, each without `-A CHAIN`.
pub fn rules(model: &Model) -> BTreeMap<ChainRef, Vec<String>> {
    let names = &model.names;
    let mut rules = BTreeMap::from([
        (names.forward.clone(), forward_rules(model)),
        (names.input.clone(), input_rules(model)),
        (names.hostport.clone(), hostport_rules(&model.host_ports)),
        (names.postrouting.clone(), postrouting_rules(model)),
    ]);
    // Without functions nothing leads to it.
    if !model.functions.is_empty() {
        rules.insert(names.sandbox.clone(), sandbox_rules(model));
    }
    if let Some(builds) = &model.builds {
        rules.insert(names.builds.clone(), build_rules(model, builds));
    }
    rules
}

/// A packet of a function's pod, wherever it goes.
fn to_sandbox(model: &Model) -> impl Iterator<Item = String> {
    let (bridge, sandbox) = (&model.names.bridge, &model.names.sandbox.chain);
    model.functions.iter().map(move |pod| format!("-s {pod}/32 -i {bridge} -j {sandbox}"))
}

/// What goes to this address and port.
fn to(at: &SocketAddrV4) -> String {
    format!("-d {}/32 -p tcp -m tcp --dport {}", at.ip(), at.port())
}

/// Builds run the code of packages and of those who push: they reach the world beyond the cluster, and of the cluster and this
/// node its DNS and the package index alone. Before addresses are rewritten, so ports of nodes and services count as
/// what they are.
fn build_rules(model: &Model, builds: &BuildRules) -> Vec<String> {
    let mut rules = vec![format!("-d {METADATA} -j DROP")];
    rules.extend(model.guarded.iter().map(|at| format!("{} -j DROP", to(at))));
    for protocol in ["udp", "tcp"] {
        let dns = format!("-p {protocol} -m {protocol} --dport 53");
        rules.push(format!("{dns} -m addrtype --dst-type LOCAL -j RETURN"));
    }
    rules.extend(builds.index.iter().map(|at| format!("{} -j RETURN", to(at))));
    rules.extend(builds.nodes.iter().map(|node| format!("-d {node}/32 -j DROP")));
    rules.extend([model.cluster_cidr.trunc(), builds.services].map(|range| format!("-d {range} -j DROP")));
    rules.push("-m addrtype --dst-type LOCAL -j DROP".to_owned());
    rules
}

/// Functions run code that others call: what governs the cluster is out of their reach, at the node itself at every
/// of its addresses. Also for connections that stand, for these rules may come a moment after the pod.
fn sandbox_rules(model: &Model) -> Vec<String> {
    let mut rules = vec![format!("-d {METADATA} -j DROP")];
    rules.extend(model.guarded.iter().map(|at| format!("{} -j DROP", to(at))));
    let ports: BTreeSet<u16> = model.guarded.iter().map(SocketAddrV4::port).collect();
    let here = |port| format!("-p tcp -m tcp --dport {port} -m addrtype --dst-type LOCAL -j DROP");
    rules.extend(ports.into_iter().map(here));
    rules
}

/// Docker sets the policy of FORWARD to DROP: pods need leave of their own. Answers come back by the
/// same two rules. Who is outside the cluster and has a route to the pods calls functions through a gateway all the same,
/// which asks who may: only pods, and nodes through the tunnel, reach the port itself.
fn forward_rules(model: &Model) -> Vec<String> {
    let Names { bridge, tunnel, .. } = &model.names;
    let port = format!("-p tcp -m tcp --dport {PORT}");
    let guard = |pod: &Ipv4Addr| format!("-d {pod}/32 ! -i {tunnel} -o {bridge} {port} -j DROP");
    let mut rules: Vec<String> = to_sandbox(model).collect();
    rules.push(format!("-i {bridge} -j ACCEPT"));
    rules.extend(model.functions.iter().map(guard));
    rules.push(format!("-o {bridge} -j ACCEPT"));
    rules
}

/// The bridge has `route_localnet`, which no pod may use towards the node's loopback. What comes out of the tunnel
/// passes for a pod's, so only nodes may send into it; without other nodes the port may be another program's.
/// Pods reach DNS and gateway whatever the policy of INPUT is. DNS refuses others at once: containers of other
/// networks copy the machine's `resolv.conf`, in which this server may be the first.
fn input_rules(model: &Model) -> Vec<String> {
    let (bridge, port) = (&model.names.bridge, model.tunnel_port);
    let loopback = "-m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP";
    let mut rules = vec![format!("-d 127.0.0.0/8 -i {bridge} {loopback}")];
    rules.extend(to_sandbox(model));
    let (dns, gateway) = (model.dns, model.gateway);
    for protocol in ["udp", "tcp"] {
        for link in [bridge.as_str(), "lo"] {
            let port = format!("-p {protocol} -m {protocol} --dport 53");
            rules.push(format!("-d {dns}/32 -i {link} {port} -j ACCEPT"));
        }
    }
    rules.push(format!("-d {gateway}/32 -i {bridge} -p tcp -m tcp --dport 80 -j ACCEPT"));
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
    let rule = |((protocol, port), to): (&HostPort, &HostPortTarget)| {
        let protocol = word_of(*protocol);
        format!(
            "-p {protocol} -m {protocol} --dport {port} -m comment --comment \"{}\" -j DNAT --to-destination {}",
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
        // Out of the cluster a pod speaks with the node's address; within it with its own.
        format!("-s {node} ! -d {cluster} ! -o {bridge} -j {masquerade}"),
        // A connection to a node's port from the node's own loopback: the pod must be able to answer.
        format!("-s 127.0.0.0/8 -o {bridge} -j {masquerade}"),
    ];
    let led = format!("-o {bridge} -m conntrack --ctstate DNAT -j {masquerade}");
    if model.bridged_frames {
        // A pod that reaches itself through a node's port: it must not see its own address come from
        // outside. Of services each endpoint's chain marks that.
        let own: BTreeSet<&Ipv4Addr> = model.host_ports.values().map(|to| to.target.ip()).collect();
        rules.extend(own.into_iter().map(|pod| format!("-s {pod}/32 -d {pod}/32 {led}")));
    } else {
        // A pod that reaches a pod of its own node, or itself, through a service or a node's port: the
        // answer must come back this way, which it does not where frames within the bridge pass no
        // rules. Else the pod sees the client's own address.
        rules.push(format!("-s {node} {led}"));
    }
    rules
}

/// The bridge's address: the first of the node's range, with the range's length.
pub fn gateway_of(node_cidr: Ipv4Net) -> Ipv4Net {
    let first = Ipv4Addr::from(u32::from(node_cidr.network()) | 1);
    Ipv4Net::new(first, node_cidr.prefix_len()).expect("the length is another range's")
}
