//! Whose a rule is that iptables refuses: all services are one transaction, and one that can't be
//! programmed must not keep the others from it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::meta::PodRef;
use schema::records::ServiceRecord;
use schema::violation::shortened;
use schema::world::Versioned;

use super::plan::Wanted;
use super::render::ServiceRules;

/// Services that are named in the node's status: a value of etcd has its limit. All have an event.
const NAMED_MAX: usize = 50;
/// Characters of a reason there.
const WHY_CHARS_MAX: usize = 500;

/// A service that is left out until its record changes.
#[derive(Debug, Clone)]
pub struct Refused {
    /// As it was refused.
    pub record: Arc<Versioned<ServiceRecord>>,
    /// The rules that were.
    pub rules: Arc<ServiceRules>,
    /// What iptables said, and of which rule.
    pub why: String,
}

/// The service whose rule stands in this line, counted from 1, of an input of `iptables-restore`, and the
/// rule. None if the line is no rule of one service.
pub fn owner(input: &str, line: usize, wanted: &Wanted) -> Option<(PodRef, String)> {
    let rule = input.lines().nth(line.checked_sub(1)?)?;
    let (chain, words) = rule.strip_prefix("-A ")?.split_once(' ')?;
    let is_of = |rules: &ServiceRules| {
        let shared = [&rules.services, &rules.node_ports, &rules.refusals];
        rules.chains.contains_key(chain) || shared.iter().any(|part| part.iter().any(|one| one == words))
    };
    let (id, _) = wanted.services.iter().find(|(_, rules)| is_of(rules))?;
    Some((id.clone(), rule.to_owned()))
}

/// Service and reason, for the node's status.
pub fn named(refused: &BTreeMap<PodRef, Refused>) -> BTreeMap<String, String> {
    let told = |(id, one): (&PodRef, &Refused)| (id.to_string(), shortened(one.why.clone(), WHY_CHARS_MAX));
    refused.iter().take(NAMED_MAX).map(told).collect()
}
