//! Plan of the outbox: entries to write, and messages to deliver now. Pure.
//!
//! A target has one delivery in flight at a time: problems and verdicts come before jobs, and among those the subject that
//! waits longest. Before a message is delivered, its entry holds it as an attempt. So the next leader knows what may have
//! arrived, and delivers it again if it is still wanted, or the message that is wanted instead.

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
pub const ENTRIES_MAX: usize = 1_000;
/// Time for which a message is tried before it gives way to new ones of a target that has the most entries.
const TRIED_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Wait after the first failed delivery of a message; it doubles up to the longest.
const RETRY_MIN_SECONDS: i64 = 5;
const RETRY_MAX_SECONDS: i64 = 600;
/// Longest pause that a target can ask for.
const RETRY_AFTER_MAX: SignedDuration = SignedDuration::from_hours(1);
/// Time after which no delivery of another term arrives any more: it takes 5 s at most.
const FLIGHT_MAX: SignedDuration = SignedDuration::from_secs(6);
/// Time that a problem must last before it is sent, and that it must be over: a node that comes and goes is one message.
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
    /// Pauses of targets, by their end. `None` before the first plan of a term, which takes them from the outbox.
    pub pauses: Option<BTreeMap<String, Timestamp>>,
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
    /// The target has the message.
    Accepted,
    /// The delivery failed, and may have arrived all the same.
    Failed { error: String, retry_after: Option<Duration> },
    /// No delivery: this process no longer led.
    NotTried,
}

impl Memory {
    /// True while a delivery to the target is in flight.
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
    /// Pauses of targets, by their end.
    pub pauses: BTreeMap<String, Timestamp>,
    /// Targets with messages that give way to new ones.
    pub crowded: BTreeSet<String>,
    /// Entries whose delivery begins although etcd refuses to write them.
    pub unrecorded: BTreeSet<EntryKey>,
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
    /// Set unless another message is known to be the last one that was delivered about the subject.
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

impl OutboxPlan {
    fn remove(&mut self, key: &EntryKey, over: Option<i64>) {
        self.writes.push(OutboxWrite { key: key.clone(), over, entry: None, delivery: None });
    }
}

/// An entry as it will be.
struct Draft<'a> {
    /// Revision of the present entry.
    over: Option<i64>,
    entry: Cow<'a, OutboxEntry>,
}

type Drafts<'a> = BTreeMap<&'a EntryKey, Draft<'a>>;

/// Decides. `targets` has the hash of the settings of each target. Entries of other targets, and of other settings, are
/// removed: who is there now has received nothing.
pub fn plan(
    outbox: &Table<EntryKey, OutboxEntry>,
    targets: &BTreeMap<String, String>,
    wanted: &WantedMessages,
    memory: &Memory,
    now: Timestamp,
) -> OutboxPlan {
    let mut out = OutboxPlan { pauses: pauses(outbox, memory, now), ..OutboxPlan::default() };
    let mut drafts = Drafts::new();
    for (key, found) in outbox {
        let over = Some(found.mod_revision);
        let is_same = targets.get(&key.0) == Some(&found.value.settings);
        if is_same && (wanted.contains_key(key) || memory.is_in_flight(key)) {
            drafts.insert(key, Draft { over, entry: clamped(&found.value, now) });
        } else {
            out.remove(key, over);
        }
    }
    for result in &memory.results {
        if let Some(draft) = drafts.get_mut(&result.key) {
            record(draft, result);
        }
    }
    let mut fresh = Vec::new();
    for (key, message) in wanted {
        match (drafts.get_mut(key), targets.get(&key.0)) {
            (Some(draft), _) => replace(draft, message, now),
            // One that is removed begins anew with the next plan.
            (None, Some(settings)) if !outbox.contains_key(key) => {
                fresh.push((key, new_entry(key, message, settings, now)));
            }
            (None, _) => {}
        }
    }
    add(&mut drafts, fresh, &mut out, memory, now);
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

/// Returns the pauses that are not over, by their end: those that targets asked for, and at the beginning of a term the
/// time in which a delivery of another one may still arrive.
fn pauses(
    outbox: &Table<EntryKey, OutboxEntry>,
    memory: &Memory,
    now: Timestamp,
) -> BTreeMap<String, Timestamp> {
    let mut pauses = memory.pauses.clone().unwrap_or_default();
    let mut pause = |target: &String, until: Option<Timestamp>| {
        if let Some(until) = until.filter(|until| *until > now) {
            let end = pauses.entry(target.clone()).or_insert(until);
            *end = until.max(*end);
        }
    };
    for ((target, _), found) in outbox.iter().filter(|_| memory.pauses.is_none()) {
        let OutboxEntry { attempt, paused_until, .. } = &found.value;
        pause(target, *paused_until);
        pause(target, attempt.as_ref().map(|_| now + FLIGHT_MAX));
    }
    for result in &memory.results {
        pause(&result.key.0, asked_until(result));
    }
    pauses.retain(|_, end| {
        // The clock may have been set back.
        *end = (now + RETRY_AFTER_MAX).min(*end);
        *end > now
    });
    pauses
}

/// Returns the end of the pause that the target asked for with a failed delivery.
fn asked_until(result: &DeliveryResult) -> Option<Timestamp> {
    let Outcome::Failed { retry_after: Some(wait), .. } = &result.outcome else { return None };
    let wait = SignedDuration::try_from(*wait).unwrap_or(RETRY_AFTER_MAX);
    Some(result.at + wait.min(RETRY_AFTER_MAX))
}

/// Returns an entry with times that the clock allows: it may have been set back since.
fn clamped(entry: &OutboxEntry, now: Timestamp) -> Cow<'_, OutboxEntry> {
    let latest = now + RETRY_AFTER_MAX;
    if entry.since <= now && entry.retry_at.is_none_or(|at| at <= latest) {
        return Cow::Borrowed(entry);
    }
    let retry_at = entry.retry_at.map(|at| at.min(latest));
    Cow::Owned(OutboxEntry { since: entry.since.min(now), retry_at, ..entry.clone() })
}

/// Notes the result of the delivery that the entry holds as its attempt.
fn record(draft: &mut Draft<'_>, result: &DeliveryResult) {
    let Some(attempt) = draft.entry.attempt.as_ref().filter(|attempt| attempt.id == result.id) else {
        return;
    };
    let is_wanted = attempt.message == draft.entry.wanted;
    match &result.outcome {
        Outcome::NotTried => {}
        Outcome::Accepted => {
            let entry = draft.entry.to_mut();
            let accepted = entry.attempt.take();
            entry.sent =
                accepted.map(|Attempt { message, id, .. }| SentMessage { message, id, at: result.at });
            (entry.failures, entry.retry_at, entry.paused_until, entry.error) = (0, None, None, None);
        }
        Outcome::Failed { error, .. } => {
            let entry = draft.entry.to_mut();
            entry.error = Some(shortened(error.clone(), ERROR_MAX_CHARS));
            entry.paused_until = asked_until(result);
            // Else another message is wanted by now, and its first try is due after the pause.
            entry.failures = if is_wanted { entry.failures.saturating_add(1) } else { 0 };
            let retry_at = is_wanted.then(|| result.at + retry_wait(entry.failures));
            entry.retry_at = retry_at.max(entry.paused_until);
        }
    }
}

/// Returns the wait after that many failures.
fn retry_wait(failures: u32) -> SignedDuration {
    let seconds = RETRY_MIN_SECONDS << failures.saturating_sub(1).min(10);
    SignedDuration::from_secs(seconds.min(RETRY_MAX_SECONDS))
}

/// Replaces the wanted message, if it is another.
fn replace(draft: &mut Draft<'_>, message: &Message, now: Timestamp) {
    if draft.entry.wanted == *message {
        return;
    }
    let entry = draft.entry.to_mut();
    // News of this kind have waited since then.
    if !entry.is_owed() || entry.wanted.state != message.state {
        entry.since = now;
    }
    entry.wanted = message.clone();
    entry.sequence = entry.sequence.saturating_add(1);
    (entry.failures, entry.retry_at) = (0, entry.paused_until);
    if !entry.is_owed() {
        (entry.retry_at, entry.error) = (None, None);
    }
}

fn new_entry(key: &EntryKey, message: &Message, settings: &str, now: Timestamp) -> OutboxEntry {
    OutboxEntry {
        target: key.0.clone(),
        subject: key.1.clone(),
        settings: settings.to_owned(),
        wanted: message.clone(),
        sequence: 1,
        since: now,
        sent: None,
        attempt: None,
        failures: 0,
        retry_at: None,
        paused_until: None,
        error: None,
    }
}

/// Adds new entries. Those of a target that has the most entries take the places of the messages that were tried in vain
/// for an hour, the oldest first.
fn add<'a>(
    drafts: &mut Drafts<'a>,
    fresh: Vec<(&'a EntryKey, OutboxEntry)>,
    out: &mut OutboxPlan,
    memory: &Memory,
    now: Timestamp,
) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut stale: BTreeMap<&str, BTreeSet<(Timestamp, &EntryKey)>> = BTreeMap::new();
    for (&key, Draft { entry, .. }) in drafts.iter() {
        *counts.entry(&key.0).or_default() += 1;
        let is_stale = entry.is_owed() && now.duration_since(entry.since) >= TRIED_FOR;
        if is_stale && !memory.is_in_flight(key) {
            stale.entry(&key.0).or_default().insert((entry.since, key));
        }
    }
    for (key, entry) in fresh {
        let count = counts.entry(&key.0).or_default();
        if *count < ENTRIES_MAX {
            *count += 1;
        } else {
            let oldest = stale.get_mut(key.0.as_str()).and_then(BTreeSet::pop_first);
            let Some((_, oldest)) = oldest else { continue };
            let over = drafts.remove(oldest).and_then(|draft| draft.over);
            out.remove(oldest, over);
            out.crowded.insert(key.0.clone());
        }
        drafts.insert(key, Draft { over: None, entry: Cow::Owned(entry) });
    }
}

/// Begins the first delivery of each idle target; notes when the next one is due.
fn begin_due<'a>(
    drafts: &mut Drafts<'a>,
    out: &mut OutboxPlan,
    memory: &Memory,
    now: Timestamp,
) -> BTreeMap<&'a EntryKey, PlannedDelivery> {
    let mut first: BTreeMap<&str, (u8, Timestamp, &'a EntryKey)> = BTreeMap::new();
    for (&key, draft) in drafts.iter() {
        if !draft.entry.is_owed() || memory.is_busy(&key.0) {
            continue;
        }
        let pause = out.pauses.get(&key.0).copied().unwrap_or(Timestamp::MIN);
        let at = due_at(&draft.entry).max(pause);
        if at > now {
            out.again_at = out.again_at.into_iter().chain([at]).min();
            continue;
        }
        let place = (rank(draft.entry.wanted.event), draft.entry.since, key);
        first.entry(&key.0).and_modify(|known| *known = place.min(*known)).or_insert(place);
    }
    let mut begun = BTreeMap::new();
    for (_, _, key) in first.into_values() {
        if let Some(draft) = drafts.get_mut(key) {
            begun.insert(key, begin(draft, key, now));
        }
    }
    begun
}

/// Returns the place of an event among those that wait for one target. While etcd is full, only its own can be delivered.
fn rank(event: NotificationEvent) -> u8 {
    match event {
        NotificationEvent::Etcd => 0,
        NotificationEvent::Job => 2,
        _ => 1,
    }
}

/// Returns the earliest time at which an entry may be delivered.
fn due_at(entry: &OutboxEntry) -> Timestamp {
    let was_failure = entry.sent.as_ref().is_some_and(|sent| sent.message.state == MessageState::Failure);
    let lasts = match (entry.wanted.event, entry.wanted.state) {
        // Final, or for a forge; etcd has a lower limit for the all-clear.
        (NotificationEvent::Verdict | NotificationEvent::Job | NotificationEvent::Etcd, _) => {
            SignedDuration::ZERO
        }
        (_, MessageState::Success) if was_failure => ALL_CLEAR_LASTS,
        _ => PROBLEM_LASTS,
    };
    let settled_at = entry.since + lasts;
    entry.retry_at.map_or(settled_at, |retry_at| retry_at.max(settled_at))
}

/// Makes the wanted message the entry's attempt, unless it is already.
fn begin(draft: &mut Draft<'_>, key: &EntryKey, now: Timestamp) -> PlannedDelivery {
    let before = draft.entry.attempt.as_ref();
    let may_have_arrived = before.is_some() || draft.entry.sent.is_none();
    let repeated =
        before.filter(|before| before.message == draft.entry.wanted).map(|before| before.id.clone());
    let id = repeated.unwrap_or_else(|| {
        let id = delivery_id(&draft.entry);
        let entry = draft.entry.to_mut();
        entry.attempt = Some(Attempt { message: entry.wanted.clone(), id: id.clone(), began_at: now });
        id
    });
    PlannedDelivery { key: key.clone(), id, message: draft.entry.wanted.clone(), may_have_arrived }
}

/// Returns the id of a new delivery: that of no other message. The time since which the message is wanted is in it,
/// because numbers begin again after an entry was removed.
fn delivery_id(entry: &OutboxEntry) -> String {
    let OutboxEntry { target, subject, settings, sequence, since, wanted, .. } = entry;
    let mut id = content_hash(&(target, subject, settings, sequence, since, wanted));
    id.truncate(ID_DIGITS);
    id
}
