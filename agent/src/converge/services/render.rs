//! Renders one service's record as rules, in kube-proxy's layout, spelled as `iptables-save` prints them. Pure.
//!
//! Nothing depends on `br_netfilter`. Without it the network loop's chain masquerades a pod that reaches a pod of
//! its own node through a service, because the reply must come back through the node's IP layer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;
use schema::kinds::pod::Protocol;
use schema::meta::NamespacedName;
use schema::records::{ServicePortRecord, ServiceRecord, Subnet};

use super::names::{ChainRole, ServiceNames};
use super::present::{Fingerprint, fingerprint};
use crate::catalog::{Catalog, Peer};
use crate::converge::shared::control_plane::ControlPlane;
use crate::packet_rules::chain::{ChainRef, Table, protocol_name};

/// Bit of a packet's mark that requests masquerading. It is kube-proxy's and means the same to everyone who uses
/// it: whichever instance masquerades first does what the other would.
const MARK: &str = "0x4000";

/// Node-specific inputs of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderContext {
    pub names: ServiceNames,
    pub node: String,
    pub cluster_cidr: Ipv4Net,
    pub random_fully: bool,
    /// External IPs that services name and that lead to none of them.
    pub withheld: BTreeSet<Ipv4Addr>,
}

/// Addresses that no service may take as an external IP, whatever its record says.
pub struct WithheldAddresses<'a> {
    /// True if the node has no external IPs at all.
    pub all: bool,
    pub subnet: &'a Subnet,
    /// Addresses of all links of this machine, at which its programs listen.
    pub own: &'a BTreeSet<IpAddr>,
    pub control: &'a ControlPlane,
    pub catalog: &'a Catalog,
}

impl WithheldAddresses<'_> {
    /// Returns the external IPs of services that are withheld from them.
    pub fn named(&self) -> BTreeSet<Ipv4Addr> {
        let services = self.catalog.services.values().flat_map(|service| &service.value.external_ips);
        services.copied().filter(|address| self.all || self.is_of_cluster(*address)).collect()
    }

    /// True for an address of a node, of etcd or a reconciler, or in the ranges of pods and services, which has name
    /// server and gateway.
    fn is_of_cluster(&self, address: Ipv4Addr) -> bool {
        let Catalog { peers, own_address, .. } = self.catalog;
        let is_peers = |peer: &Peer| peer.address == Some(address) || peer.vtep.address == address;
        let ControlPlane { etcd, reconcilers } = self.control;
        self.subnet.cluster_cidr.contains(&address)
            || self.subnet.service_cidr.contains(&address)
            || *own_address == Some(address)
            || self.own.contains(&address.into())
            || etcd.iter().chain(reconcilers).any(|at| *at.ip() == address)
            || peers.values().any(is_peers)
    }
}

/// Rules of a chain, each without `-A CHAIN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainRules {
    pub rules: Vec<String>,
    pub fingerprint: Fingerprint,
}

impl ChainRules {
    /// Creates the rules and their fingerprint.
    pub fn new(rules: Vec<String>) -> Self {
        let fingerprint = fingerprint(rules.iter().map(String::as_str));
        Self { rules, fingerprint }
    }
}

/// Destination that UDP clients send to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UdpFront {
    Address(SocketAddrV4),
    NodePort(u16),
}

/// Endpoints behind each UDP front.
pub type UdpServing = BTreeMap<UdpFront, BTreeSet<SocketAddrV4>>;

/// Rules of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRules {
    /// Rules in `SERVICES` of nat.
    pub services: Vec<String>,
    /// Rules in `NODEPORTS`.
    pub node_ports: Vec<String>,
    /// Rules in `SERVICES` of filter.
    pub refusals: Vec<String>,
    /// Own chains, all of nat.
    pub chains: BTreeMap<ChainRef, ChainRules>,
    pub udp: UdpServing,
}

/// Renders the chains that exist even without any service, and that collect the rules of services.
pub fn fixed_rules<'a>(
    place: &RenderContext,
    services: &(impl Iterator<Item = &'a ServiceRules> + Clone),
) -> BTreeMap<ChainRef, ChainRules> {
    let names = &place.names;
    let gather = |part: fn(&ServiceRules) -> &Vec<String>| -> Vec<String> {
        services.clone().flat_map(part).cloned().collect()
    };
    let mut of_services = gather(|rules| &rules.services);
    // Last: an address of a service may be the node's own. Never the loopback's, which would need a hole in the
    // kernel's protection of 127.0.0.0/8.
    of_services.push(format!("! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j {}", names.node_ports.chain));
    let masquerade = if place.random_fully { "MASQUERADE --random-fully" } else { "MASQUERADE" };
    let all = [
        (&names.services, of_services),
        (&names.node_ports, gather(|rules| &rules.node_ports)),
        (&names.mark, vec![format!("-j MARK --set-xmark {MARK}/{MARK}")]),
        (
            &names.masquerade,
            vec![
                format!("-m mark ! --mark {MARK}/{MARK} -j RETURN"),
                // The outer packet of a tunnel keeps the mark and must not be masqueraded too.
                format!("-j MARK --set-xmark {MARK}/0x0"),
                format!("-j {masquerade}"),
            ],
        ),
        (&names.refusals, gather(|rules| &rules.refusals)),
        (&names.forward, forward_rules(place)),
    ];
    all.into_iter().map(|(chain, rules)| (chain.clone(), ChainRules::new(rules))).collect()
}

fn forward_rules(place: &RenderContext) -> Vec<String> {
    vec![
        format!("-m conntrack --ctstate NEW -j {}", place.names.refusals.chain),
        // The kernel does not translate back packets that it considers part of no connection: the client would get
        // a packet from an unknown address, and reset the connection.
        format!("-s {} -m conntrack --ctstate INVALID -j DROP", place.cluster_cidr.trunc()),
        // Clients and endpoints that are both outside: Docker drops what no rule accepts. Only the first packet
        // carries the mark.
        format!("-m mark --mark {MARK}/{MARK} -j ACCEPT"),
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
    ]
}

/// Renders the rules of one service. A headless service has none.
pub fn service_rules(place: &RenderContext, id: &NamespacedName, record: &ServiceRecord) -> ServiceRules {
    let mut rules = ServiceRules::default();
    for at in 0..record.ports.len() {
        if let Some(port) = PortRenderer::new(place, id, record, at) {
            port.render(&mut rules);
        }
    }
    rules
}

fn nat(chain: String) -> ChainRef {
    ChainRef::new(Table::Nat, chain)
}

/// Renderer of one port of one service.
struct PortRenderer<'a> {
    place: &'a RenderContext,
    id: &'a NamespacedName,
    record: &'a ServiceRecord,
    cluster_ip: Ipv4Addr,
    external_ips: Vec<Ipv4Addr>,
    port: &'a ServicePortRecord,
    protocol: &'static str,
    all: BTreeSet<SocketAddrV4>,
    local: BTreeSet<SocketAddrV4>,
}

impl<'a> PortRenderer<'a> {
    /// Creates the renderer of port number `at` of the record; `None` for a headless service.
    fn new(
        place: &'a RenderContext,
        id: &'a NamespacedName,
        record: &'a ServiceRecord,
        at: usize,
    ) -> Option<Self> {
        let (cluster_ip, port) = (record.cluster_ip?, record.ports.get(at)?);
        let address = |endpoint: &schema::records::Endpoint| {
            // Port 0: this endpoint has no port of that name.
            let number = endpoint.ports.get(at).copied().filter(|number| *number != 0)?;
            Some(SocketAddrV4::new(endpoint.address, number))
        };
        let of_node = |endpoint: &&schema::records::Endpoint| endpoint.node.as_ref() == Some(&place.node);
        let all = record.endpoints.iter().filter_map(address).collect();
        let local = record.endpoints.iter().filter(of_node).filter_map(address).collect();
        let protocol = protocol_name(port.protocol);
        let external_ips = record.external_ips.iter().copied();
        let external_ips = external_ips.filter(|address| !place.withheld.contains(address)).collect();
        Some(Self { place, id, record, cluster_ip, external_ips, port, protocol, all, local })
    }

    fn render(&self, rules: &mut ServiceRules) {
        self.serving(rules);
        if self.all.is_empty() {
            return self.refuse_all(rules);
        }
        self.internal(rules);
        if self.is_external() {
            self.external(rules);
        }
        self.endpoint_chains(rules);
    }

    fn is_external(&self) -> bool {
        self.port.node_port.is_some() || !self.external_ips.is_empty()
    }

    /// Renders the entry for clients inside the cluster.
    fn internal(&self, rules: &mut ServiceRules) {
        let to = self.to(self.cluster_ip);
        if self.record.internal_local && self.local.is_empty() {
            rules.refusals.push(self.refusal(&to, "no local endpoints", "DROP"));
        } else {
            let chain =
                self.chain(if self.record.internal_local { ChainRole::Local } else { ChainRole::All });
            rules.services.push(self.entry(&to, " cluster IP", &chain));
        }
    }

    /// Renders the entries for clients from outside.
    fn external(&self, rules: &mut ServiceRules) {
        let chain = self.chain(ChainRole::External);
        let no_local = self.record.external_local && self.local.is_empty();
        for address in &self.external_ips {
            rules.services.push(self.entry(&self.to(*address), " external IP", &chain));
            if no_local {
                rules.refusals.push(self.refusal(&self.to(*address), "no local endpoints", "DROP"));
            }
        }
        if let Some(number) = self.port.node_port {
            rules.node_ports.push(self.entry_at("", "", number, &chain));
            if no_local {
                rules.refusals.push(self.node_port_refusal(number, "no local endpoints", "DROP"));
            }
        }
        rules.chains.insert(nat(chain), ChainRules::new(self.external_rules()));
    }

    fn external_rules(&self) -> Vec<String> {
        let (mark, all) = (&self.place.names.mark.chain, self.chain(ChainRole::All));
        let comment = self.comment("");
        if !self.record.external_local {
            return vec![format!("{comment} -j {mark}"), format!("{comment} -j {all}")];
        }
        // Clients within the cluster are exempt from the policy, as if their packets went out and came back through
        // a load balancer.
        let mut rules = vec![
            format!("-s {} {comment} -j {all}", self.place.cluster_cidr.trunc()),
            format!("{comment} -m addrtype --src-type LOCAL -j {mark}"),
            format!("{comment} -m addrtype --src-type LOCAL -j {all}"),
        ];
        if !self.local.is_empty() {
            // Without a mark: the endpoint is on this node and gets the client's own address.
            rules.push(format!("{comment} -j {}", self.chain(ChainRole::Local)));
        }
        rules
    }

    /// Renders the chains that choose an endpoint, and those of the endpoints.
    fn endpoint_chains(&self, rules: &mut ServiceRules) {
        let record = self.record;
        let all_used = !record.internal_local || self.is_external();
        let local_used = record.internal_local || (record.external_local && self.is_external());
        if all_used {
            let chosen = self.choice(&self.all, !record.internal_local);
            rules.chains.insert(nat(self.chain(ChainRole::All)), ChainRules::new(chosen));
        }
        if local_used && !self.local.is_empty() {
            let chosen = self.choice(&self.local, record.internal_local);
            rules.chains.insert(nat(self.chain(ChainRole::Local)), ChainRules::new(chosen));
        }
        for endpoint in if all_used { &self.all } else { &self.local } {
            let chain = self.endpoint_chain(*endpoint);
            let endpoint_rules = ChainRules::new(self.endpoint_rules(&chain, *endpoint));
            rules.chains.insert(nat(chain), endpoint_rules);
        }
    }

    /// Renders the choice among `endpoints`: the client's last one with affinity, else each with equal probability.
    fn choice(&self, endpoints: &BTreeSet<SocketAddrV4>, for_cluster_ip: bool) -> Vec<String> {
        let mut rules = Vec::new();
        if for_cluster_ip {
            // Not from a pod: the reply must come back through this node.
            let (cluster, mark) = (self.place.cluster_cidr.trunc(), &self.place.names.mark.chain);
            rules.push(format!("! -s {cluster} {} -j {mark}", self.match_at(&self.to(self.cluster_ip))));
        }
        let chains: Vec<String> = endpoints.iter().map(|endpoint| self.endpoint_chain(*endpoint)).collect();
        if let Some(seconds) = self.record.affinity_seconds {
            rules.extend(chains.iter().map(|chain| {
                format!(
                    "-m recent --rcheck --seconds {seconds} --reap --name {chain} \
                     --mask 255.255.255.255 --rsource -j {chain}"
                )
            }));
        }
        for (at, chain) in chains.iter().enumerate() {
            rules.push(match chains.len() - at {
                1 => format!("-j {chain}"),
                left => format!("-m statistic --mode random --probability {} -j {chain}", one_of(left)),
            });
        }
        rules
    }

    fn endpoint_rules(&self, chain: &str, endpoint: SocketAddrV4) -> Vec<String> {
        let recent = match self.record.affinity_seconds {
            Some(_) => format!(" -m recent --set --name {chain} --mask 255.255.255.255 --rsource"),
            None => String::new(),
        };
        let (protocol, comment) = (self.protocol, self.comment(""));
        vec![
            // A pod that reaches itself: its own address must not appear as the source of an incoming packet.
            format!("-s {}/32 -j {}", endpoint.ip(), self.place.names.mark.chain),
            format!("-p {protocol} {comment}{recent} -m {protocol} -j DNAT --to-destination {endpoint}"),
        ]
    }

    /// Renders the immediate rejection of clients when there is no endpoint. TCP gets a reset: the kernel limits
    /// ICMP to few messages per second and client, which is all that UDP gets. Redirects count toward that limit,
    /// so the network loop switches them off: a pod's packet would leave by the link on which it came.
    fn refuse_all(&self, rules: &mut ServiceRules) {
        let reject = match self.port.protocol {
            Protocol::Tcp => "REJECT --reject-with tcp-reset",
            Protocol::Udp => "REJECT --reject-with icmp-port-unreachable",
        };
        for address in [&self.cluster_ip].into_iter().chain(&self.external_ips) {
            rules.refusals.push(self.refusal(&self.to(*address), "no endpoints", reject));
        }
        if let Some(number) = self.port.node_port {
            rules.refusals.push(self.node_port_refusal(number, "no endpoints", reject));
        }
    }

    fn serving(&self, rules: &mut ServiceRules) {
        if self.port.protocol != Protocol::Udp {
            return;
        }
        let addresses = [&self.cluster_ip].into_iter().chain(&self.external_ips);
        let fronts = addresses
            .map(|address| UdpFront::Address(SocketAddrV4::new(*address, self.port.port)))
            .chain(self.port.node_port.map(UdpFront::NodePort));
        for front in fronts {
            rules.udp.entry(front).or_default().extend(&self.all);
        }
    }

    /// Renders `-d 10.96.0.5/32 `.
    fn to(&self, address: Ipv4Addr) -> String {
        format!("-d {address}/32 ")
    }

    fn match_at(&self, to: &str) -> String {
        let (protocol, port) = (self.protocol, self.port.port);
        format!("{to}-p {protocol} -m {protocol} --dport {port}")
    }

    fn entry(&self, to: &str, what: &str, chain: &str) -> String {
        self.entry_at(to, what, self.port.port, chain)
    }

    fn entry_at(&self, to: &str, what: &str, number: u16, chain: &str) -> String {
        let (protocol, comment) = (self.protocol, self.comment(what));
        format!("{to}-p {protocol} {comment} -m {protocol} --dport {number} -j {chain}")
    }

    fn refusal(&self, to: &str, why: &str, target: &str) -> String {
        let (protocol, comment, port) = (self.protocol, self.comment(&format!(" has {why}")), self.port.port);
        format!("{to}-p {protocol} {comment} -m {protocol} --dport {port} -j {target}")
    }

    fn node_port_refusal(&self, number: u16, why: &str, target: &str) -> String {
        let (protocol, comment) = (self.protocol, self.comment(&format!(" has {why}")));
        format!(
            "! -d 127.0.0.0/8 -p {protocol} {comment} -m addrtype --dst-type LOCAL \
             -m {protocol} --dport {number} -j {target}"
        )
    }

    /// Names the service for readers of the rules.
    fn comment(&self, more: &str) -> String {
        format!("-m comment --comment \"{}:{}{more}\"", self.id, self.port.port)
    }

    fn chain(&self, role: ChainRole) -> String {
        self.place.names.port_chain(role, self.id, self.port.port, self.port.protocol)
    }

    fn endpoint_chain(&self, endpoint: SocketAddrV4) -> String {
        self.place.names.endpoint_chain(self.id, self.port.port, self.port.protocol, endpoint)
    }
}

/// Returns 1/n in the kernel's steps of 2^-31, as `iptables-save` prints it. Five digits, as kube-proxy once wrote,
/// would favor some of 100 endpoints.
fn one_of(n: usize) -> String {
    const ONE: f64 = 2_147_483_648.0;
    #[expect(clippy::cast_precision_loss, reason = "there are fewer endpoints than 2^52")]
    let steps = (ONE / n as f64).round();
    format!("{:.11}", steps / ONE)
}
