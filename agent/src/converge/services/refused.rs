//! Finds the service whose rule iptables rejected. Services share transactions, and one that can't be programmed
//! must not block the others. A refused service is left out entirely, until its record changes or it is retried. A
//! rejection that names no rule of a service (the legacy backend may name only its COMMIT line) is a failure of the
//! whole, and leaves no service out. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use schema::codec::VALUE_MAX_BYTES;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;
use schema::snapshot::VersionedValue;
use schema::violation::shortened;
use tokio::time::Instant;

use super::plan::DesiredRules;
use super::render::ServiceRules;
use crate::packet_rules::chain::{ChainRef, Table};
use crate::worlds::iptables::IptablesError;

/// Time after which a refused service is tried again: the cause may have been memory, or a kernel module that
/// somebody has loaded since.
pub const RETRY: Duration = Duration::from_secs(60);

/// Maximum number of services with a reason in the node's status: an etcd value is limited. All have an event.
const EXPLAINED_MAX: usize = 50;
/// Maximum number of services named in the status.
const NAMED_MAX: usize = 1000;
/// Maximum length of a reason in the status, in characters.
const WHY_CHARS_MAX: usize = 300;
/// Placeholder for an omitted reason.
const ELSEWHERE: &str = "see the events";
/// Bytes of an etcd value for all these names and reasons; the rest is for the status' error.
const NAMED_BYTES_MAX: usize = VALUE_MAX_BYTES - 12 * 1024;

/// A service that iptables refused.
#[derive(Debug, Clone)]
pub struct RefusedService {
    pub record: Arc<VersionedValue<ServiceRecord>>,
    pub why: String,
    /// Time of the refusal; `None` during a retry.
    since: Option<Instant>,
}

/// Refused services by name.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<NamespacedName, RefusedService>);

impl Refusals {
    /// True if the service is left out.
    pub fn leaves_out(&self, id: &NamespacedName) -> bool {
        self.0.get(id).is_some_and(|refused| refused.since.is_some())
    }

    /// Records a refusal. True if it is new, i.e. the reason differs from the former one.
    pub fn refuse(
        &mut self,
        id: &NamespacedName,
        record: Arc<VersionedValue<ServiceRecord>>,
        why: &str,
        now: Instant,
    ) -> bool {
        let refused = RefusedService { record, why: why.to_owned(), since: Some(now) };
        self.0.insert(id.clone(), refused).is_none_or(|former| former.why != why)
    }

    /// Forgets services whose record changed or is gone.
    pub fn forget_changed<'a>(&mut self, record: impl Fn(&NamespacedName) -> Option<&'a ServiceRecord>) {
        self.0.retain(|id, refused| record(id) == Some(&refused.record.value));
    }

    /// True if any service is due for a retry.
    pub fn is_due(&self, now: Instant) -> bool {
        self.0.values().any(|refused| refused.is_due(now))
    }

    /// Includes the services that are due for a retry.
    pub fn try_again(&mut self, now: Instant) {
        for refused in self.0.values_mut().filter(|refused| refused.is_due(now)) {
            refused.since = None;
        }
    }

    /// Records that everything not left out was programmed; returns the services that were retried.
    pub fn confirm_programmed(&mut self) -> Vec<NamespacedName> {
        let healed = self.0.iter().filter(|(_, refused)| refused.since.is_none());
        let healed = healed.map(|(id, _)| id.clone()).collect();
        self.0.retain(|_, refused| refused.since.is_some());
        healed
    }

    /// Leaves retried services out again, because programming failed for an unknown reason that may be one of them.
    /// True if there are any.
    pub fn put_back(&mut self, now: Instant) -> bool {
        let mut any = false;
        for refused in self.0.values_mut().filter(|refused| refused.since.is_none()) {
            refused.since = Some(now);
            any = true;
        }
        any
    }

    /// Returns services with reasons for the node's status, and the number of services without room there. Names
    /// take precedence over reasons: a service that is not named looks as if it were programmed.
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

impl RefusedService {
    fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) >= RETRY)
    }
}

/// Returns the size of a text as stored.
fn json_bytes(text: &str) -> usize {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    });
    escaped.sum::<usize>() + 2
}

/// Returns the services whose rules were rejected in an input of `iptables-restore`, with the error message and the
/// rule, in wording that stays the same when the rule moves to another line.
pub fn owners(error: &IptablesError, input: &str, wanted: &DesiredRules) -> BTreeMap<NamespacedName, String> {
    let IptablesError::Refused { program, message, lines } = error else { return BTreeMap::new() };
    let text: Vec<&str> = input.lines().collect();
    let mut owners = BTreeMap::new();
    for line in lines {
        let rule = line.checked_sub(1).and_then(|at| text.get(at));
        let Some((id, rule)) = rule.and_then(|rule| Some((owner(rule, wanted)?, rule))) else { continue };
        let said = message_for_line(message, *line, lines);
        owners.entry(id.clone()).or_insert_with(|| format!("{program} failed: {said}; the rule is {rule}"));
    }
    owners
}

/// Returns the service that owns this rule; `None` if it is not a rule of a single service.
fn owner<'a>(rule: &str, wanted: &'a DesiredRules) -> Option<&'a NamespacedName> {
    let (chain, words) = rule.strip_prefix("-A ")?.split_once(' ')?;
    let chain = ChainRef::new(Table::Nat, chain);
    let is_of = |rules: &ServiceRules| {
        let shared = [&rules.services, &rules.node_ports, &rules.refusals];
        rules.chains.contains_key(&chain) || shared.iter().any(|part| part.iter().any(|one| one == words))
    };
    wanted.services.iter().find(|(_, rules)| is_of(rules)).map(|(id, _)| id)
}

/// Returns the parts of a message that are not about other lines, without the line's number.
fn message_for_line(message: &str, line: usize, lines: &[usize]) -> String {
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
