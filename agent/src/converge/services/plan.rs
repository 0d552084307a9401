//! Plans the chains of services to write and to remove, and the UDP flows to reset.
//!
//! Rules that affect traffic change in one transaction per table: packets meet either the old rules or the new
//! ones. Inspects foreign chains only for the position of our jumps.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use schema::meta::NamespacedName;

use super::names::ServiceNames;
use super::present::{ExistingRules, Fingerprint};
use super::render::{ChainRules, RenderContext, ServiceRules, UdpFront, UdpServing, fixed_rules};
use crate::packet_rules::chain::{ChainRef, Table};
use crate::packet_rules::jumps::{RuleReason, jump_changes};
use crate::packet_rules::restore::RuleChange;
use crate::packet_rules::saved::{KnownSpellings, flag_value};
use crate::worlds::iptables::UdpFlow;

/// Desired rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredRules {
    /// Chains that exist even without any service.
    pub fixed: BTreeMap<ChainRef, ChainRules>,
    pub services: BTreeMap<NamespacedName, Arc<ServiceRules>>,
    pub udp: Arc<UdpServing>,
}

impl DesiredRules {
    /// Creates the desired rules of these services.
    pub fn new(place: &RenderContext, services: BTreeMap<NamespacedName, Arc<ServiceRules>>) -> Self {
        let fixed = fixed_rules(place, &services.values().map(|rules| &**rules));
        let mut udp = UdpServing::new();
        for (front, serving) in services.values().flat_map(|rules| &rules.udp) {
            udp.entry(*front).or_default().extend(serving);
        }
        Self { fixed, services, udp: Arc::new(udp) }
    }

    /// Returns every chain with its rules.
    pub fn chains(&self) -> impl Iterator<Item = (&ChainRef, &ChainRules)> {
        self.fixed.iter().chain(self.services.values().flat_map(|rules| &rules.chains))
    }
}

/// Inputs of the last check of UDP connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpCheck {
    pub serving: Arc<UdpServing>,
    pub node: Option<Ipv4Addr>,
}

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub names: ServiceNames,
    pub wanted: Arc<DesiredRules>,
    pub present: Arc<ExistingRules>,
    /// Chains that this iptables prints differently from how they were written: the written and the printed form.
    pub spellings: Arc<KnownSpellings<Fingerprint>>,
    pub node: Option<Ipv4Addr>,
    /// Inputs of the last check of UDP connections; `None` since the start of the agent.
    pub udp_settled: Option<UdpCheck>,
    /// Revision of the catalog behind these inputs; `None` if it is not from etcd.
    pub revision: Option<i64>,
}

impl Observed {
    /// Returns the inputs of this run's check of UDP connections.
    pub fn udp(&self) -> UdpCheck {
        UdpCheck { serving: Arc::clone(&self.wanted.udp), node: self.node }
    }
}

/// Changes to make, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicesPlan {
    /// Changes of rules; those that affect traffic in one transaction per table.
    pub rules: Vec<(RuleChange, RuleReason)>,
    /// Changed chains that no active rule leads to yet: they may be written before.
    pub unreached: BTreeSet<ChainRef>,
    /// UDP fronts whose connections are removed unless they lead to one of the endpoints.
    pub udp: Option<UdpServing>,
}

impl schema::control::Plan for ServicesPlan {
    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.udp.is_none()
    }
}

/// Plans from the observed state.
pub fn plan(observed: &Observed) -> ServicesPlan {
    let mut rules = Vec::new();
    let wanted = plan_chains(observed, &mut rules);
    plan_removals(observed, &wanted, &mut rules);
    for jump in observed.names.jumps() {
        let there = observed.present.bases.get(&jump.base).map(Vec::as_slice).unwrap_or_default();
        let hides = |name: &str| observed.names.must_stand_before(jump.base.table, name);
        jump_changes(&jump, there, hides, &mut rules);
    }
    let unreached = unreached(observed, &rules);
    ServicesPlan { rules, unreached, udp: plan_udp(observed) }
}

/// Returns the chains to write that no packet reaches now: missing chains, and, if no rule of a table leads to
/// ours, all of that table, for example after a flush of its rules.
fn unreached(observed: &Observed, changes: &[(RuleChange, RuleReason)]) -> BTreeSet<ChainRef> {
    let Observed { present, names, .. } = observed;
    let leads = |table: Table, rule: &[String]| {
        let target = flag_value(rule, "-j").or_else(|| flag_value(rule, "-g"));
        target.is_some_and(|to| names.is_ours(&ChainRef::new(table, to)))
    };
    let is_reached = |table: Table| {
        let mut bases = present.bases.iter().filter(|(base, _)| base.table == table);
        present.held.iter().any(|chain| chain.table == table)
            || bases.any(|(_, rules)| rules.iter().any(|rule| leads(table, rule)))
    };
    let reached = BTreeMap::from([Table::Filter, Table::Nat].map(|table| (table, is_reached(table))));
    let written = changes.iter().filter_map(|(change, why)| match change {
        RuleChange::WriteChain { chain, .. } if *why == RuleReason::Missing || !reached[&chain.table] => {
            Some(chain)
        }
        _ => None,
    });
    written.cloned().collect()
}

fn plan_chains<'a>(
    observed: &'a Observed,
    changes: &mut Vec<(RuleChange, RuleReason)>,
) -> HashSet<&'a ChainRef> {
    let mut wanted = HashSet::new();
    for (chain, rules) in observed.wanted.chains() {
        let why = match observed.present.chains.get(chain) {
            None => Some(RuleReason::Missing),
            Some(there) if *there == rules.fingerprint => None,
            Some(there) => {
                let known = observed.spellings.get(chain);
                (known != Some(&(rules.fingerprint, *there))).then_some(RuleReason::Differs)
            }
        };
        if let Some(why) = why {
            let write = RuleChange::WriteChain { chain: chain.clone(), rules: rules.rules.clone() };
            changes.push((write, why));
        }
        wanted.insert(chain);
    }
    wanted
}

/// Plans the removal of chains to which no rule of ours leads once the others are written.
fn plan_removals(
    observed: &Observed,
    wanted: &HashSet<&ChainRef>,
    changes: &mut Vec<(RuleChange, RuleReason)>,
) {
    let empty = ChainRules::new(Vec::new()).fingerprint;
    for (chain, there) in observed.present.chains.iter().filter(|(chain, _)| !wanted.contains(chain)) {
        if !observed.present.held.contains(chain) {
            changes.push((RuleChange::DropChain { chain: chain.clone() }, RuleReason::Surplus));
        } else if *there != empty {
            let write = RuleChange::WriteChain { chain: chain.clone(), rules: Vec::new() };
            changes.push((write, RuleReason::Surplus));
        }
    }
}

/// Plans the check of UDP connections: after a change, including one of the node's address, and once after a start,
/// as the former agent may have died between rules and connections. TCP is left alone: its connections end by
/// themselves when the endpoint does.
fn plan_udp(observed: &Observed) -> Option<UdpServing> {
    let wanted = &observed.wanted.udp;
    let settled = observed.udp_settled.as_ref();
    let serves_so = |settled: &UdpCheck| Arc::ptr_eq(&settled.serving, wanted) || settled.serving == *wanted;
    if settled.is_some_and(|settled| settled.node == observed.node && serves_so(settled)) {
        return None;
    }
    let mut serving = UdpServing::clone(wanted);
    // Fronts of former services have no endpoint.
    for front in settled.iter().flat_map(|settled| settled.serving.keys()) {
        serving.entry(*front).or_default();
    }
    (!serving.is_empty()).then_some(serving)
}

/// Returns the connections that lead to no endpoint. `node` is the node's own address.
pub fn stale_flows(flows: &BTreeSet<UdpFlow>, serving: &UdpServing, node: Option<Ipv4Addr>) -> Vec<UdpFlow> {
    let is_stale = |flow: &&UdpFlow| {
        if let Some(endpoints) = serving.get(&UdpFront::Address(flow.to)) {
            return !endpoints.contains(&flow.from);
        }
        let Some(endpoints) = serving.get(&UdpFront::NodePort(flow.to.port())) else { return false };
        // Traffic that passes through to the same port of another host is not ours to end; traffic to the node
        // itself dates from before the service.
        let is_strangers = flow.from == flow.to && node != Some(*flow.to.ip());
        !is_strangers && !endpoints.contains(&flow.from)
    };
    flows.iter().filter(is_stale).copied().collect()
}
