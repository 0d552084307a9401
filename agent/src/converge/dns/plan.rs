//! Plans where this node's DNS listens, its upstreams, the DNS configuration of pods, and the machine's own resolver.
//!
//! Reads flags, the node's range, `resolv.conf` and the state of systemd-resolved; writes nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::resolv::{self, Machine};
use crate::converge::shared::node_network::{NodeDns, ResolvConf};

/// The machine's `resolv.conf` before the agent changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    pub path: String,
    /// Target, if the file was a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    pub text: String,
}

/// Configuration of our link in systemd-resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkConfig {
    pub servers: Vec<String>,
    /// Domains; those with `~` are routing-only.
    pub domains: BTreeSet<String>,
    /// Settings that are on and should be off.
    pub switches: BTreeSet<&'static str>,
}

/// State of our link in systemd-resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ResolvedState {
    /// The machine's file does not lead to systemd-resolved, or there was no query, or resolvectl is missing.
    #[default]
    NotQueried,
    Configured(LinkConfig),
    /// systemd-resolved does not answer, or doesn't know the link yet; the reason.
    Unresponsive(String),
}

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub instance: String,
    /// Zone, without the trailing dot.
    pub domain: String,
    /// Address to listen on; `None` before the node has a range.
    pub address: Option<Ipv4Addr>,
    /// Address of the running server.
    pub bound: Option<Ipv4Addr>,
    /// Upstream servers by flag or Cluster object.
    pub configured_upstreams: Vec<SocketAddr>,
    /// Upstream servers in use.
    pub current_upstreams: Vec<SocketAddr>,
    /// The machine's name server configuration.
    pub machine: Machine,
    /// Target of the machine's file, if it is a symbolic link.
    pub link: Option<String>,
    /// Path of the machine's file.
    pub path: String,
    /// Saved copy of the file before the agent's change.
    pub former: Option<SavedFile>,
    pub node_dns: bool,
    /// Configuration of the tunnel's link in systemd-resolved.
    pub resolved: ResolvedState,
    pub hosts: BTreeSet<String>,
}

/// Maximum number of domains that systemd-resolved accepts for a link; of more it keeps none.
pub(super) const DOMAINS_MAX: usize = 256;
/// Maximum number of hosts: one of the domains is the zone.
pub(super) const HOSTS_MAX: usize = DOMAINS_MAX - 1;

/// Step to be taken on the machine's own resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeStep {
    /// The resolver is as desired.
    Nothing,
    /// Writes this text to the file after saving `keep`; `None` if the existing copy is still valid.
    Write { keep: Option<SavedFile>, text: String },
    /// Restores the former file.
    Restore(SavedFile),
    /// Drops the saved copy: another program has written the file since.
    Forget,
    /// Makes systemd-resolved query our server for these domains.
    Split(LinkConfig),
    /// Stops systemd-resolved from querying our server.
    Unsplit,
    /// systemd-resolved should be set, but does not answer: nothing is changed until it does.
    Wait(String),
}

/// Changes to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsPlan {
    /// New address to listen on.
    pub bind: Option<Ipv4Addr>,
    /// New upstream servers.
    pub upstreams: Option<Vec<SocketAddr>>,
    pub pods: NodeDns,
    pub node: NodeStep,
}

impl schema::control::Plan for DnsPlan {
    fn is_empty(&self) -> bool {
        self.bind.is_none() && self.upstreams.is_none() && self.node == NodeStep::Nothing
    }
}

/// Plans from the observed state.
pub fn plan(seen: &Observed) -> DnsPlan {
    // Forwarding to our own server would loop.
    let is_other = |server: &&SocketAddr| Some(server.ip()) != seen.address.map(IpAddr::V4);
    let mut upstreams: Vec<SocketAddr> = seen.configured_upstreams.iter().filter(is_other).copied().collect();
    if upstreams.is_empty() {
        upstreams = resolv::upstreams(&seen.machine, seen.address);
    }
    DnsPlan {
        bind: seen.address.filter(|address| seen.bound != Some(*address)),
        upstreams: (upstreams != seen.current_upstreams).then_some(upstreams),
        pods: for_pods(&seen.domain, seen.address, &seen.machine),
        node: node_step(seen),
    }
}

/// Returns the DNS configuration for pods, which can't reach a server on the machine's loopback.
pub fn for_pods(domain: &str, server: Option<Ipv4Addr>, machine: &Machine) -> NodeDns {
    let own = machine.without_agent();
    let reachable = own.nameservers.into_iter().filter(|address| !address.is_loopback());
    NodeDns {
        server,
        domain: domain.to_owned(),
        machine: ResolvConf { nameservers: reachable.collect(), ..own },
    }
}

fn node_step(seen: &Observed) -> NodeStep {
    let written = resolv::is_written_by(&seen.machine.text, &seen.instance);
    // Only once our server answers: a machine without any names is worse off than one without ours.
    let ready = seen.address.filter(|address| seen.node_dns && seen.bound == Some(*address));
    let Some(server) = ready else {
        return if seen.node_dns { NodeStep::Nothing } else { undo(seen, written) };
    };
    match (&seen.resolved, &seen.former) {
        (ResolvedState::Unresponsive(why), _) => return NodeStep::Wait(why.clone()),
        // The file was once written instead; with systemd-resolved running it can lead there again.
        (ResolvedState::Configured(_), Some(former)) if written => return NodeStep::Restore(former.clone()),
        (ResolvedState::Configured(split), _) => {
            let wanted = split_of(server, seen);
            return if *split == wanted { NodeStep::Nothing } else { NodeStep::Split(wanted) };
        }
        (ResolvedState::NotQueried, _) => {}
    }
    let text = resolv::render(&seen.instance, server, &seen.machine.without_agent());
    if seen.machine.text == text {
        return NodeStep::Nothing;
    }
    // Written by us earlier or with another server: the saved copy is still valid.
    let keep = (!written).then(|| SavedFile {
        path: seen.path.clone(),
        link: seen.link.clone(),
        text: seen.machine.text.clone(),
    });
    NodeStep::Write { keep, text }
}

/// Restores the state before `--node-dns`.
fn undo(seen: &Observed, written: bool) -> NodeStep {
    let ours = seen.address.map(|address| address.to_string());
    let is_split = matches!(&seen.resolved, ResolvedState::Configured(split)
        if ours.is_some_and(|ours| split.servers.contains(&ours)));
    match (&seen.former, written) {
        (Some(former), true) => NodeStep::Restore(former.clone()),
        (Some(_), false) => NodeStep::Forget,
        // The saved copy is lost; all that remains of it is the servers listed after ours.
        (None, true) => {
            let own = seen.machine.without_agent();
            let servers =
                own.nameservers.iter().filter(|other| seen.address.map(IpAddr::V4) != Some(**other));
            let text: String = servers.map(|server| format!("nameserver {server}\n")).collect();
            NodeStep::Restore(SavedFile { path: seen.path.clone(), link: None, text })
        }
        (None, false) if is_split => NodeStep::Unsplit,
        (None, false) => NodeStep::Nothing,
    }
}

/// Returns our link's configuration: the zone, and every host outside it.
fn split_of(server: Ipv4Addr, seen: &Observed) -> LinkConfig {
    let hosts = split_hosts(seen).take(HOSTS_MAX);
    let domains = [&seen.domain].into_iter().chain(hosts).map(|domain| format!("~{domain}")).collect();
    LinkConfig { servers: vec![server.to_string()], domains, switches: BTreeSet::new() }
}

/// Returns the hosts outside the zone, in order.
pub(super) fn split_hosts(seen: &Observed) -> impl Iterator<Item = &String> {
    let within = format!(".{}", seen.domain);
    seen.hosts.iter().filter(move |host| !host.ends_with(&within))
}
