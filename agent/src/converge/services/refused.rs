//! Whose a rule is that iptables refuses: services share transactions, and one that can't be programmed
//! must not keep the others from it. A refused service is left out wholly, until its record
//! changes or it is tried again. A refusal that names no rule of a service (the legacy backend may name
//! its COMMIT line only) is a failure of the whole, and leaves no service out. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use schema::codec::VALUE_MAX_BYTES;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;
use schema::snapshot::Versioned;
use schema::violation::shortened;
use tokio::time::Instant;

use super::plan::Wanted;
use super::render::ServiceRules;
use crate::packet_rules::chain::{ChainRef, Table};
use crate::worlds::iptables::IptablesError;

/// After this time a refused service is tried once more: the cause may have been memory, or a module of
/// the kernel that somebody has loaded since.
pub const RETRY: Duration = Duration::from_secs(60);

/// Services whose reason stands in the node's status: a value of etcd has its limit. All have an event.
const EXPLAINED_MAX: usize = 50;
/// Services that stand there at all.
const NAMED_MAX: usize = 1000;
/// Characters of a reason there.
const WHY_CHARS_MAX: usize = 300;
/// In place of a reason.
const ELSEWHERE: &str = "see the events";
/// Bytes of a value that all these names and reasons may take; the rest is for the status' error.
const NAMED_BYTES_MAX: usize = VALUE_MAX_BYTES - 12 * 1024;

/// A service that iptables refused.
#[derive(Debug, Clone)]
pub struct Refused {
    pub record: Arc<Versioned<ServiceRecord>>,
    pub why: String,
    /// When; none while it is tried again.
    since: Option<Instant>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<NamespacedName, Refused>);

impl Refusals {
    /// Whether the service is left out.
    pub fn leaves_out(&self, id: &NamespacedName) -> bool {
        self.0.get(id).is_some_and(|refused| refused.since.is_some())
    }

    /// Takes a refusal in. True if it is news: not the answer that was there before.
    pub fn refuse(
        &mut self,
        id: &NamespacedName,
        record: Arc<Versioned<ServiceRecord>>,
        why: &str,
        now: Instant,
    ) -> bool {
        let refused = Refused { record, why: why.to_owned(), since: Some(now) };
        self.0.insert(id.clone(), refused).is_none_or(|former| former.why != why)
    }

    /// Forgets those whose record is another or gone.
    pub fn forget_changed<'a>(&mut self, record: impl Fn(&NamespacedName) -> Option<&'a ServiceRecord>) {
        self.0.retain(|id, refused| record(id) == Some(&refused.record.value));
    }

    /// Some are due to be tried again.
    pub fn is_due(&self, now: Instant) -> bool {
        self.0.values().any(|refused| refused.is_due(now))
    }

    /// Leaves those no more out that are due.
    pub fn try_again(&mut self, now: Instant) {
        for refused in self.0.values_mut().filter(|refused| refused.is_due(now)) {
            refused.since = None;
        }
    }

    /// All that is not left out stands. Who was tried again.
    pub fn stood(&mut self) -> Vec<NamespacedName> {
        let healed = self.0.iter().filter(|(_, refused)| refused.since.is_none());
        let healed = healed.map(|(id, _)| id.clone()).collect();
        self.0.retain(|_, refused| refused.since.is_some());
        healed
    }

    /// Nothing stands, for an unknown reason: those that are tried again may be it, and wait once more. True if there are any.
    pub fn put_back(&mut self, now: Instant) -> bool {
        let mut any = false;
        for refused in self.0.values_mut().filter(|refused| refused.since.is_none()) {
            refused.since = Some(now);
            any = true;
        }
        any
    }

    /// Service and reason, for the node's status, and how many have no room there. A name is worth more
    /// than a reason: who is not named looks as if it were programmed.
    pub fn named(&self) -> (BTreeMap<String, String>, usize) {
        let mut named = BTreeMap::new();
        let mut room = NAMED_BYTES_MAX;
        for id in self.0.keys().take(NAMED_MAX) {
            let id = id.to_string();
            let Some(left) = room.checked_sub(json_bytes(&id) + json_bytes(ELSEWHERE) + 2) else { break };
            room = left;
            named.insert(id, ELSEWHERE.to_owned());
        }
        for (id, refused) in self.0.iter().take(EXPLAINED_MAX) {
            let why = shortened(refused.why.clone(), WHY_CHARS_MAX);
            let (Some(left), Some(shown)) =
                (room.checked_sub(json_bytes(&why)), named.get_mut(&id.to_string()))
            else {
                break;
            };
            room = left;
            *shown = why;
        }
        let more = self.0.len() - named.len();
        (named, more)
    }
}

impl Refused {
    fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) >= RETRY)
    }
}

/// Bytes of a text as it is stored.
fn json_bytes(text: &str) -> usize {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    });
    escaped.sum::<usize>() + 2
}

/// The services whose rules were refused in an input of `iptables-restore`, and why: what was said and of
/// which rule, in words that are the same when the rule stands in another line.
pub fn owners(error: &IptablesError, input: &str, wanted: &Wanted) -> BTreeMap<NamespacedName, String> {
    let IptablesError::Refused { program, message, lines } = error else { return BTreeMap::new() };
    let text: Vec<&str> = input.lines().collect();
    let mut owners = BTreeMap::new();
    for line in lines {
        let rule = line.checked_sub(1).and_then(|at| text.get(at));
        let Some((id, rule)) = rule.and_then(|rule| Some((owner(rule, wanted)?, rule))) else { continue };
        let said = said_of(message, *line, lines);
        owners.entry(id.clone()).or_insert_with(|| format!("{program} failed: {said}; the rule is {rule}"));
    }
    owners
}

/// The service that this rule is of. None if it is no rule of one service.
fn owner<'a>(rule: &str, wanted: &'a Wanted) -> Option<&'a NamespacedName> {
    let (chain, words) = rule.strip_prefix("-A ")?.split_once(' ')?;
    let chain = ChainRef::new(Table::Nat, chain);
    let is_of = |rules: &ServiceRules| {
        let shared = [&rules.services, &rules.node_ports, &rules.refusals];
        rules.chains.contains_key(&chain) || shared.iter().any(|part| part.iter().any(|one| one == words))
    };
    wanted.services.iter().find(|(_, rules)| is_of(rules)).map(|(id, _)| id)
}

/// The parts of a message that are not of other lines, without the line's number.
fn said_of(message: &str, line: usize, lines: &[usize]) -> String {
    let others: BTreeSet<String> =
        lines.iter().filter(|other| **other != line).map(|other| format!("line {other}:")).collect();
    let numbered =
        [format!("line {line}: "), format!("line {line} "), format!("Error occurred at line: {line}")];
    let parts = message.split("; ").filter(|part| {
        let mut words = part.splitn(3, ' ');
        let begin = format!("{} {}", words.next().unwrap_or_default(), words.next().unwrap_or_default());
        !others.contains(&begin)
    });
    let parts = parts.map(|part| numbered.iter().fold(part.to_owned(), |part, n| part.replace(n, "")));
    parts.map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}
