//! Decides where this node's DNS listens, whom it asks, what pods are given, and what the machine's own
//! resolver is to be.
//!
//! Reads flags, the node's range, `resolv.conf` and what systemd-resolved says; writes nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::resolv::{self, Machine};
use crate::converge::node_dns::{NodeDns, ResolvConf};

/// The machine's `resolv.conf` before the agent changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    pub path: String,
    /// Where it led to, if it was a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    pub text: String,
}

/// What systemd-resolved knows of our link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    pub servers: Vec<String>,
    /// Domains; with `~` those that are only asked there.
    pub domains: BTreeSet<String>,
    /// What is on and should be off.
    pub switches: BTreeSet<&'static str>,
}

/// What systemd-resolved said when it was asked about our link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resolved {
    /// The machine's file does not lead to it, or it was not asked, or there is nothing to ask it with.
    #[default]
    NotAsked,
    Says(Split),
    /// It does not answer, or knows no such link yet; the reason.
    Silent(String),
}

/// What the loop saw.
#[derive(Debug, Clone)]
pub struct Observed {
    pub instance: String,
    /// The zone, without the dot at its end.
    pub domain: String,
    /// The address to listen on; none before the node has a range.
    pub address: Option<Ipv4Addr>,
    /// Where a server runs.
    pub bound: Option<Ipv4Addr>,
    /// Upstream servers by flag or Cluster object.
    pub given: Vec<SocketAddr>,
    /// Upstream servers that are asked now.
    pub asked: Vec<SocketAddr>,
    /// What the machine says of name servers.
    pub machine: Machine,
    /// The machine's file is a symbolic link to this.
    pub link: Option<String>,
    /// Path of the machine's file.
    pub path: String,
    /// What is kept of the file before us.
    pub former: Option<Former>,
    pub node_dns: bool,
    /// What systemd-resolved knows of the tunnel's link.
    pub resolved: Resolved,
    pub hosts: BTreeSet<String>,
}

/// Most domains that systemd-resolved takes for a link; of more it takes none.
pub(super) const DOMAINS_MAX: usize = 256;
/// One of them is the zone.
pub(super) const HOSTS_MAX: usize = DOMAINS_MAX - 1;

/// What becomes of the machine's own resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeStep {
    /// It is as it should be.
    Nothing,
    /// The file gets this text, after `keep` is kept: none where what was kept before still holds.
    Write { keep: Option<Former>, text: String },
    /// The former file comes back.
    Restore(Former),
    /// Another wrote the file since: what is kept is of no use any more.
    Forget,
    /// systemd-resolved asks us for these.
    Split(Split),
    /// systemd-resolved does not ask us any more.
    Unsplit,
    /// systemd-resolved should be set, and can't be asked: nothing is changed until it can.
    Wait(String),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsPlan {
    /// Listen here instead.
    pub bind: Option<Ipv4Addr>,
    /// Ask these instead.
    pub upstreams: Option<Vec<SocketAddr>>,
    pub pods: NodeDns,
    pub node: NodeStep,
}

impl schema::control::Plan for DnsPlan {
    fn is_empty(&self) -> bool {
        self.bind.is_none() && self.upstreams.is_none() && self.node == NodeStep::Nothing
    }
}

/// Decides.
pub fn plan(seen: &Observed) -> DnsPlan {
    // To ask ourselves would go round in a circle.
    let is_other = |server: &&SocketAddr| Some(server.ip()) != seen.address.map(IpAddr::V4);
    let mut upstreams: Vec<SocketAddr> = seen.given.iter().filter(is_other).copied().collect();
    if upstreams.is_empty() {
        upstreams = resolv::upstreams(&seen.machine, seen.address);
    }
    DnsPlan {
        bind: seen.address.filter(|address| seen.bound != Some(*address)),
        upstreams: (upstreams != seen.asked).then_some(upstreams),
        pods: for_pods(&seen.domain, seen.address, &seen.machine),
        node: node_step(seen),
    }
}

/// What pods are given: they can't reach a server on the machine's loopback.
pub fn for_pods(domain: &str, server: Option<Ipv4Addr>, machine: &Machine) -> NodeDns {
    let own = machine.own();
    let reachable = own.nameservers.into_iter().filter(|address| !address.is_loopback());
    NodeDns {
        server,
        domain: domain.to_owned(),
        machine: ResolvConf { nameservers: reachable.collect(), ..own },
    }
}

fn node_step(seen: &Observed) -> NodeStep {
    let written = resolv::is_written_by(&seen.machine.text, &seen.instance);
    // Only once somebody answers: a machine without names is worse than one without ours.
    let ready = seen.address.filter(|address| seen.node_dns && seen.bound == Some(*address));
    let Some(server) = ready else {
        return if seen.node_dns { NodeStep::Nothing } else { undo(seen, written) };
    };
    match (&seen.resolved, &seen.former) {
        (Resolved::Silent(why), _) => return NodeStep::Wait(why.clone()),
        // The file was written instead once; with systemd-resolved there it leads there again.
        (Resolved::Says(_), Some(former)) if written => return NodeStep::Restore(former.clone()),
        (Resolved::Says(split), _) => {
            let wanted = split_of(server, seen);
            return if *split == wanted { NodeStep::Nothing } else { NodeStep::Split(wanted) };
        }
        (Resolved::NotAsked, _) => {}
    }
    let text = resolv::written(&seen.instance, server, &seen.machine.own());
    if seen.machine.text == text {
        return NodeStep::Nothing;
    }
    // Ours of another time or with another server: what is kept stands.
    let keep = (!written).then(|| Former {
        path: seen.path.clone(),
        link: seen.link.clone(),
        text: seen.machine.text.clone(),
    });
    NodeStep::Write { keep, text }
}

/// Without `--node-dns` all is as before.
fn undo(seen: &Observed, written: bool) -> NodeStep {
    let ours = seen.address.map(|address| address.to_string());
    let is_split = matches!(&seen.resolved, Resolved::Says(split)
        if ours.is_some_and(|ours| split.servers.contains(&ours)));
    match (&seen.former, written) {
        (Some(former), true) => NodeStep::Restore(former.clone()),
        (Some(_), false) => NodeStep::Forget,
        // What was there before is lost; the servers behind ours are what is left of it.
        (None, true) => {
            let own = seen.machine.own();
            let servers =
                own.nameservers.iter().filter(|other| seen.address.map(IpAddr::V4) != Some(**other));
            let text: String = servers.map(|server| format!("nameserver {server}\n")).collect();
            NodeStep::Restore(Former { path: seen.path.clone(), link: None, text })
        }
        (None, false) if is_split => NodeStep::Unsplit,
        (None, false) => NodeStep::Nothing,
    }
}

/// The zone, and every host outside of it.
fn split_of(server: Ipv4Addr, seen: &Observed) -> Split {
    let hosts = split_hosts(seen).take(HOSTS_MAX);
    let domains = [&seen.domain].into_iter().chain(hosts).map(|domain| format!("~{domain}")).collect();
    Split { servers: vec![server.to_string()], domains, switches: BTreeSet::new() }
}

/// The hosts that the zone does not hold, in order.
pub(super) fn split_hosts(seen: &Observed) -> impl Iterator<Item = &String> {
    let within = format!(".{}", seen.domain);
    seen.hosts.iter().filter(move |host| !host.ends_with(&within))
}
