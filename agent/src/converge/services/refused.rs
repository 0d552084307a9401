//! Whose a rule is that iptables refuses: all services are one transaction, and one that can't be
//! programmed must not keep the others from it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::meta::PodRef;
use schema::records::ServiceRecord;
use schema::world::Versioned;

use super::plan::Wanted;
use super::render::ServiceRules;

/// Services that are named in the node's status; of more the number is told.
const NAMED_MAX: usize = 4;

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

/// `service default/web is left out: …`, for the node's status; empty without any.
pub fn summary(refused: &BTreeMap<PodRef, Refused>) -> Vec<String> {
    let told = |(id, one): (&PodRef, &Refused)| format!("service {id} is left out: {}", one.why);
    let mut sentences: Vec<String> = refused.iter().take(NAMED_MAX).map(told).collect();
    if refused.len() > NAMED_MAX {
        sentences.push(format!("{} more are left out", refused.len() - NAMED_MAX));
    }
    sentences
}
