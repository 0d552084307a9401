//! Plans the steps to the node's desired network: the bridge, our rules, removal of UDP connections to former pods.
//! Inspects foreign chains only for the position of our jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use schema::kinds::pod::{HostPort, Protocol};
use schema::records::Vtep;

use super::render::{HostPortTarget, Model, frame_rules, rules};
use super::tunnel::{self, TunnelState, TunnelStep};
use crate::packet_rules::jumps::{RuleReason, jump_changes};
use crate::packet_rules::restore::RuleChange;
use crate::packet_rules::saved::{KnownSpellings, SavedRules, Words, flag_value, words};
use crate::worlds::iptables::StaleUdp;
use crate::worlds::netlink::Bridge;

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub model: Model,
    pub bridge: Bridge,
    pub bridge_is_whole: bool,
    /// True if the table for frames is as this agent wrote it for this range.
    pub frames_are_right: bool,
    /// Tunnel to the other nodes; `None` while the node has no address.
    pub tunnel: Option<TunnelState>,
    pub tunnel_failure: Option<String>,
    pub saved: Arc<SavedRules>,
    /// Rules that this iptables prints differently from how they were written: by chain, the written and the
    /// printed form.
    pub spellings: Arc<KnownSpellings<Vec<Words>>>,
}

/// Changes to make, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPlan {
    /// Input of `nft`: before the bridge, without which no pod sends.
    pub frames: Option<String>,
    pub bridge: Option<Bridge>,
    pub tunnel: Vec<TunnelStep>,
    /// Reason why the tunnel could not be inspected: logged once, and no step is taken.
    pub tunnel_failure: Option<String>,
    pub vtep: Option<Vtep>,
    /// Changes of rules, all in one transaction per table.
    pub rules: Vec<(RuleChange, RuleReason)>,
    pub stale_udp: BTreeSet<StaleUdp>,
}

impl schema::control::Plan for NetworkPlan {
    fn is_empty(&self) -> bool {
        self.frames.is_none()
            && self.bridge.is_none()
            && self.tunnel.is_empty()
            && self.rules.is_empty()
            && self.stale_udp.is_empty()
    }
}

/// Plans from the observed state.
pub fn plan(observed: &Observed) -> NetworkPlan {
    let Model { names, node_cidr, .. } = &observed.model;
    let mut plan = NetworkPlan {
        frames: (!observed.frames_are_right).then(|| frame_rules(names, *node_cidr)),
        bridge: (!observed.bridge_is_whole).then(|| observed.bridge.clone()),
        tunnel: observed.tunnel.as_ref().map(tunnel::plan).unwrap_or_default(),
        tunnel_failure: observed.tunnel_failure.clone(),
        vtep: observed.tunnel.as_ref().map(TunnelState::vtep),
        stale_udp: stale_udp(observed),
        ..NetworkPlan::default()
    };
    plan_chains(observed, &mut plan.rules);
    plan_jumps(observed, &mut plan.rules);
    plan
}

fn plan_chains(observed: &Observed, changes: &mut Vec<(RuleChange, RuleReason)>) {
    for (chain, wanted) in rules(&observed.model) {
        let wanted_words: Vec<Words> = wanted.iter().map(|rule| words(rule)).collect();
        let why = match observed.saved.get(&chain) {
            None => RuleReason::Missing,
            Some(there) if *there == wanted_words => continue,
            Some(there) => {
                let known = observed.spellings.get(&chain);
                if known.is_some_and(|(written, printed)| *written == wanted_words && printed == there) {
                    continue;
                }
                RuleReason::Differs
            }
        };
        changes.push((RuleChange::WriteChain { chain, rules: wanted }, why));
    }
}

fn plan_jumps(observed: &Observed, changes: &mut Vec<(RuleChange, RuleReason)>) {
    let names = &observed.model.names;
    let of_builds = observed.model.builds.as_ref().map(|_| names.builds_jump());
    for jump in names.jumps().into_iter().chain(of_builds) {
        let there = observed.saved.get(&jump.base).map(Vec::as_slice).unwrap_or_default();
        jump_changes(&jump, there, |_| false, changes);
    }
}

/// Returns the UDP ports whose target differs from the rules in the kernel. TCP is left alone: its connections end
/// by themselves when the pod does.
fn stale_udp(observed: &Observed) -> BTreeSet<StaleUdp> {
    let former = udp_targets(observed.saved.get(&observed.model.names.hostport));
    let wanted: BTreeMap<UdpPort, SocketAddrV4> = observed
        .model
        .host_ports
        .iter()
        .filter(|(port, _)| port.protocol == Protocol::Udp)
        .map(|(HostPort { port, address, .. }, to)| ((*port, *address), to.target))
        .collect();
    let ports: BTreeSet<UdpPort> = former.keys().chain(wanted.keys()).copied().collect();
    let changed = ports.into_iter().filter(|port| former.get(port) != wanted.get(port));
    changed
        .map(|at| StaleUdp { port: at.0, former_target: former.get(&at).map(|target| *target.ip()) })
        .collect()
}

/// A UDP port of the node, with its address if it answers at only one.
type UdpPort = (u16, Option<Ipv4Addr>);

fn udp_targets(chain: Option<&Vec<Words>>) -> BTreeMap<UdpPort, SocketAddrV4> {
    let target = |rule: &Words| {
        if flag_value(rule, "-p") != Some("udp") {
            return None;
        }
        let address = flag_value(rule, "-d").and_then(|at| at.trim_end_matches("/32").parse().ok());
        let port = flag_value(rule, "--dport")?.parse().ok()?;
        Some(((port, address), flag_value(rule, "--to-destination")?.parse().ok()?))
    };
    chain.into_iter().flatten().filter_map(target).collect()
}

/// Returns the target of each port. A port that two pods want stays with the first of them.
pub fn assign_host_ports<'a>(
    wanted: impl Iterator<Item = (HostPort, Ipv4Addr, u16, &'a str)>,
) -> BTreeMap<HostPort, HostPortTarget> {
    let mut targets: BTreeMap<HostPort, HostPortTarget> = BTreeMap::new();
    for (port, address, container_port, pod) in wanted {
        if targets.range(port.at_any_address()).any(|(other, _)| other.clashes(&port)) {
            continue;
        }
        let target = SocketAddrV4::new(address, container_port);
        targets.insert(port, HostPortTarget { target, pod: pod.to_owned() });
    }
    targets
}
