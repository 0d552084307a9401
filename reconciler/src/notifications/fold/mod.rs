//! Messages that each target should have now: a fold of the state, not a sequence of events. Pure.
//!
//! Reads the snapshot with the outbox in it, and the state of etcd; decides the message of each subject. `commits.rs` has
//! the statuses of commits for forges, `problems.rs` verdicts and problems for people. A message holds no time and no
//! number that changes by itself, so equal states give equal messages.

mod commits;
mod problems;
mod subjects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::records::Message;
use schema::snapshot::Snapshot;

pub(super) use self::problems::ETCD;
use self::subjects::KnownSubjects;
use super::target::TargetScope;
use crate::upkeep::UpkeepState;

/// Messages that targets should have, by target and subject.
pub type WantedMessages = BTreeMap<(String, String), Message>;

/// Returns the message that each target should have about each subject. `scopes` are those of the targets, by name.
pub fn wanted(
    snapshot: &Snapshot,
    etcd: &UpkeepState,
    scopes: &BTreeMap<String, TargetScope>,
    now: Timestamp,
) -> WantedMessages {
    let mut out = WantedMessages::new();
    for (target, scope) in scopes {
        let known = KnownSubjects::of(snapshot, target);
        let messages = match scope {
            TargetScope::Commits { source } => commits::statuses(snapshot, source, &known, now),
            TargetScope::Events(events) => problems::messages(snapshot, etcd, &known, events, now),
        };
        out.extend(messages.into_iter().map(|(subject, message)| ((target.clone(), subject), message)));
    }
    out
}
