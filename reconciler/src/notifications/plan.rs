//! Plan of the outbox: entries to write, and messages to deliver now. Pure.
//!
//! A target has one delivery in flight at a time, of the subject that waits longest, so each target hears its messages
//! in order. Before a message is delivered, its entry holds it as an attempt. So whoever leads next knows what the target
//! may have heard, and says it again if it is still to be known, or says what is to be known instead.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schema::codec::content_hash;
use schema::kinds::cluster::NotificationEvent;
use schema::records::{Attempt, Message, MessageState, OutboxEntry, SentMessage};
use schema::snapshot::Table;
use schema::violation::shortened;

use super::fold::WantedMessages;

/// Most entries of one target.
const ENTRIES_MAX: usize = 1_000;
/// Wait after the first failed delivery of a message; it doubles up to the longest.
const RETRY_MIN_SECONDS: i64 = 5;
const RETRY_MAX_SECONDS: i64 = 600;
/// Longest wait that a target can ask for.
const RETRY_AFTER_MAX: SignedDuration = SignedDuration::from_hours(1);
/// Time that a problem must last before it is told, and that it must be over: a node that comes and goes is one message.
const PROBLEM_LASTS: SignedDuration = SignedDuration::from_secs(10);
const ALL_CLEAR_LASTS: SignedDuration = SignedDuration::from_secs(30);
/// Longest error in an entry, in characters.
const ERROR_MAX_CHARS: usize = 500;
/// Digits of a delivery's id.
const ID_DIGITS: usize = 32;

/// Target and subject of an entry.
pub type EntryKey = (String, String);

/// Memory of this process, for as long as it leads.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Delivery in flight to each target.
    pub in_flight: BTreeMap<String, InFlight>,
    /// Results that are not in the outbox yet, oldest first.
    pub results: Vec<DeliveryResult>,
    /// Times before which targets asked to be told nothing.
    pub holds: BTreeMap<String, Timestamp>,
}

/// A delivery in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub key: EntryKey,
    pub id: String,
}

/// Result of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryResult {
    pub key: EntryKey,
    pub id: String,
    pub at: Timestamp,
    pub outcome: Outcome,
}

/// Outcome of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The target knows the message.
    Accepted,
    /// It may or may not know it.
    Failed { error: String, retry_after: Option<Duration> },
    /// It was not delivered, because this process led no longer.
    NotTried,
}

impl Memory {
    /// True while the target may be hearing a message.
    fn is_busy(&self, target: &str) -> bool {
        self.in_flight.get(target).is_some_and(|flight| !self.has_result(flight))
    }

    fn is_in_flight(&self, key: &EntryKey) -> bool {
        self.in_flight.get(&key.0).is_some_and(|flight| flight.key == *key && !self.has_result(flight))
    }

    fn has_result(&self, flight: &InFlight) -> bool {
        self.results.iter().any(|result| result.id == flight.id && result.key == flight.key)
    }

    /// Forgets the results that were written, or had nothing to write. Those of `unwritten` entries are tried again.
    pub fn forget_written(&mut self, unwritten: &BTreeSet<EntryKey>) {
        let Self { in_flight, results, .. } = self;
        results.retain(|result| {
            let is_kept = unwritten.contains(&result.key);
            if !is_kept && in_flight.get(&result.key.0).is_some_and(|flight| flight.id == result.id) {
                in_flight.remove(&result.key.0);
            }
            is_kept
        });
    }
}

/// Decisions about the outbox.
#[derive(Debug, Default)]
pub struct OutboxPlan {
    pub writes: Vec<OutboxWrite>,
    /// Deliveries that the outbox holds as attempts already.
    pub repeats: Vec<PlannedDelivery>,
    /// Times before which targets asked to be told nothing.
    pub holds: BTreeMap<String, Timestamp>,
    again_at: Option<Timestamp>,
}

/// A write of an entry.
#[derive(Debug)]
pub struct OutboxWrite {
    pub key: EntryKey,
    /// Revision that it replaces; `None` for a new entry.
    pub over: Option<i64>,
    /// `None` removes the entry.
    pub entry: Option<OutboxEntry>,
    /// Delivery that begins once the entry is written.
    pub delivery: Option<PlannedDelivery>,
}

/// A message to deliver now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedDelivery {
    pub key: EntryKey,
    pub id: String,
    pub message: Message,
    /// Set if a delivery about the subject was begun before, and its outcome is not known.
    pub may_have_arrived: bool,
}

impl schema::control::Plan for OutboxPlan {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.repeats.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// An entry as it will be.
struct Draft<'a> {
    /// Revision of the present entry.
    over: Option<i64>,
    entry: Cow<'a, OutboxEntry>,
}

/// Decides. `targets` are the names of all targets; entries of others are removed.
pub fn plan(
    outbox: &Table<EntryKey, OutboxEntry>,
    targets: &BTreeSet<String>,
    wanted: &WantedMessages,
    memory: &Memory,
    now: Timestamp,
) -> OutboxPlan {
    let mut out = OutboxPlan { holds: holds(memory, now), ..OutboxPlan::default() };
    let mut drafts: BTreeMap<&EntryKey, Draft<'_>> = BTreeMap::new();
    for (key, found) in outbox {
        let over = Some(found.mod_revision);
        if targets.contains(&key.0) && (wanted.contains_key(key) || memory.is_in_flight(key)) {
            drafts.insert(key, Draft { over, entry: Cow::Borrowed(&found.value) });
        } else {
            out.writes.push(OutboxWrite { key: key.clone(), over, entry: None, delivery: None });
        }
    }
    for result in &memory.results {
        if let Some(draft) = drafts.get_mut(&result.key) {
            record(draft, result);
        }
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    drafts.keys().for_each(|key| *counts.entry(&key.0).or_default() += 1);
    for (key, message) in wanted.iter().filter(|(key, _)| targets.contains(&key.0)) {
        let hold = out.holds.get(&key.0).copied();
        if let Some(draft) = drafts.get_mut(key) {
            replace(draft, message, hold, now);
            continue;
        }
        let count = counts.entry(&key.0).or_default();
        if *count < ENTRIES_MAX {
            *count += 1;
            let entry = Cow::Owned(new_entry(key, message, hold, now));
            drafts.insert(key, Draft { over: None, entry });
        }
    }
    let mut deliveries = begin_due(&mut drafts, &mut out, memory, now);
    for (key, Draft { over, entry }) in drafts {
        let delivery = deliveries.remove(key);
        match entry {
            Cow::Owned(entry) => {
                out.writes.push(OutboxWrite { key: key.clone(), over, entry: Some(entry), delivery });
            }
            Cow::Borrowed(_) => out.repeats.extend(delivery),
        }
    }
    out
}

/// Returns the times before which targets asked to be told nothing.
fn holds(memory: &Memory, now: Timestamp) -> BTreeMap<String, Timestamp> {
    let mut holds = memory.holds.clone();
    for result in &memory.results {
        if let Some(until) = asked_until(result) {
            let hold = holds.entry(result.key.0.clone()).or_insert(until);
            *hold = until.max(*hold);
        }
    }
    holds.retain(|_, until| *until > now);
    holds
}

/// Returns the time before which the target asked to be told nothing, with a failed delivery.
fn asked_until(result: &DeliveryResult) -> Option<Timestamp> {
    let Outcome::Failed { retry_after: Some(wait), .. } = &result.outcome else { return None };
    let wait = SignedDuration::try_from(*wait).unwrap_or(RETRY_AFTER_MAX);
    Some(result.at + wait.min(RETRY_AFTER_MAX))
}

/// Notes the result of the delivery that the entry holds as its attempt.
fn record(draft: &mut Draft<'_>, result: &DeliveryResult) {
    if draft.entry.attempt.as_ref().is_none_or(|attempt| attempt.id != result.id) {
        return;
    }
    match &result.outcome {
        Outcome::NotTried => {}
        Outcome::Accepted => {
            let entry = draft.entry.to_mut();
            let accepted = entry.attempt.take();
            entry.sent =
                accepted.map(|Attempt { message, id, .. }| SentMessage { message, id, at: result.at });
            (entry.failures, entry.retry_at, entry.error) = (0, None, None);
        }
        Outcome::Failed { error, .. } => {
            let entry = draft.entry.to_mut();
            entry.error = Some(shortened(error.clone(), ERROR_MAX_CHARS));
            let asked = asked_until(result);
            let is_wanted = entry.attempt.as_ref().is_some_and(|attempt| attempt.message == entry.wanted);
            let retry_at = if is_wanted {
                entry.failures = entry.failures.saturating_add(1);
                asked.max(Some(result.at + retry_wait(entry.failures)))
            } else {
                // Another message is wanted by now, and its first try is due.
                asked
            };
            entry.retry_at = retry_at;
        }
    }
}

/// Returns the wait after that many failures.
fn retry_wait(failures: u32) -> SignedDuration {
    let seconds = RETRY_MIN_SECONDS << failures.saturating_sub(1).min(10);
    SignedDuration::from_secs(seconds.min(RETRY_MAX_SECONDS))
}

/// Replaces the wanted message, if it is another.
fn replace(draft: &mut Draft<'_>, message: &Message, hold: Option<Timestamp>, now: Timestamp) {
    if draft.entry.wanted == *message {
        return;
    }
    let entry = draft.entry.to_mut();
    // The target has waited for news of this kind since then.
    if !entry.is_owed() || entry.wanted.state != message.state {
        entry.since = now;
    }
    entry.wanted = message.clone();
    entry.sequence = entry.sequence.saturating_add(1);
    (entry.failures, entry.retry_at) = (0, hold);
    if !entry.is_owed() {
        (entry.retry_at, entry.error) = (None, None);
    }
}

fn new_entry(key: &EntryKey, message: &Message, hold: Option<Timestamp>, now: Timestamp) -> OutboxEntry {
    OutboxEntry {
        target: key.0.clone(),
        subject: key.1.clone(),
        wanted: message.clone(),
        sequence: 1,
        since: now,
        sent: None,
        attempt: None,
        failures: 0,
        retry_at: hold,
        error: None,
    }
}

/// Begins the delivery that waits longest for each target that hears nothing now; notes when the next one is due.
fn begin_due<'a>(
    drafts: &mut BTreeMap<&'a EntryKey, Draft<'_>>,
    out: &mut OutboxPlan,
    memory: &Memory,
    now: Timestamp,
) -> BTreeMap<&'a EntryKey, PlannedDelivery> {
    let mut first: BTreeMap<&str, (Timestamp, &'a EntryKey)> = BTreeMap::new();
    for (&key, draft) in drafts.iter() {
        if !draft.entry.is_owed() || memory.is_busy(&key.0) {
            continue;
        }
        let hold = out.holds.get(&key.0).copied().unwrap_or(Timestamp::MIN);
        let at = due_at(&draft.entry).max(hold);
        if at > now {
            out.again_at = out.again_at.into_iter().chain([at]).min();
            continue;
        }
        let place = (draft.entry.since, key);
        first.entry(&key.0).and_modify(|known| *known = place.min(*known)).or_insert(place);
    }
    let mut begun = BTreeMap::new();
    for (_, key) in first.into_values() {
        if let Some(draft) = drafts.get_mut(key) {
            begun.insert(key, begin(draft, key, now));
        }
    }
    begun
}

/// Returns the earliest time at which an entry may be delivered.
fn due_at(entry: &OutboxEntry) -> Timestamp {
    let was_failure = entry.sent.as_ref().is_some_and(|sent| sent.message.state == MessageState::Failure);
    let lasts = match (entry.wanted.event, entry.wanted.state) {
        // Final, or for a forge.
        (NotificationEvent::Verdict | NotificationEvent::Job, _) => SignedDuration::ZERO,
        (_, MessageState::Success) if was_failure => ALL_CLEAR_LASTS,
        _ => PROBLEM_LASTS,
    };
    let settled_at = entry.since + lasts;
    entry.retry_at.map_or(settled_at, |retry_at| retry_at.max(settled_at))
}

/// Makes the wanted message the entry's attempt, unless it is already.
fn begin(draft: &mut Draft<'_>, key: &EntryKey, now: Timestamp) -> PlannedDelivery {
    let id = delivery_id(&draft.entry);
    let before = draft.entry.attempt.as_ref();
    let (may_have_arrived, is_repeated) = (before.is_some(), before.is_some_and(|before| before.id == id));
    if !is_repeated {
        let entry = draft.entry.to_mut();
        entry.attempt = Some(Attempt { message: entry.wanted.clone(), id: id.clone(), began_at: now });
    }
    PlannedDelivery { key: key.clone(), id, message: draft.entry.wanted.clone(), may_have_arrived }
}

/// Returns the id of a delivery: the same for each repetition of a message, and of no other message. The time since which
/// it is wanted is in it, because numbers begin again after an entry was removed.
pub fn delivery_id(entry: &OutboxEntry) -> String {
    let OutboxEntry { target, subject, sequence, since, wanted, .. } = entry;
    let mut id = content_hash(&(target, subject, sequence, since, wanted));
    id.truncate(ID_DIGITS);
    id
}
