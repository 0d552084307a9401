//! Subjects of messages, the entry of each in the outbox, and the form of a message. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Kind;
use schema::kinds::cluster::NotificationEvent;
use schema::meta::ObjectRef;
use schema::records::{Message, MessageState, OutboxEntry, Revision};
use schema::snapshot::Snapshot;
use schema::violation::{shortened, visible};

/// Age up to which a new target still gets a message about what has ended, and for which an entry stays after its last
/// message.
const RECENT: SignedDuration = SignedDuration::from_hours(1);
/// Longest title and text, in characters: an entry holds three messages and must fit under its key.
const TITLE_MAX_CHARS: usize = 200;
const TEXT_MAX_CHARS: usize = 2_000;

/// Part of the outbox of one target, by subject.
pub(super) struct KnownSubjects<'a>(BTreeMap<&'a str, &'a OutboxEntry>);

impl<'a> KnownSubjects<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, target: &str) -> Self {
        let own = snapshot.outbox.range((target.to_owned(), String::new())..);
        let own = own.take_while(|((of, _), _)| of == target);
        Self(own.map(|((_, subject), entry)| (subject.as_str(), &entry.value)).collect())
    }

    pub(super) fn get(&self, subject: &str) -> Option<&'a OutboxEntry> {
        self.0.get(subject).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, &'a OutboxEntry)> {
        self.0.iter().map(|(subject, entry)| (*subject, *entry))
    }
}

/// True if the message that the subject has failed was delivered, or may have been, and none that this is over.
pub(super) fn may_show_failure(entry: &OutboxEntry) -> bool {
    let sent = entry.sent.as_ref().map(|sent| &sent.message);
    let begun = entry.attempt.as_ref().map(|attempt| &attempt.message);
    sent.into_iter().chain(begun).any(|message| message.state == MessageState::Failure)
}

/// True while the entry of a subject that is gone stays: until its last message is sent, and an hour longer.
pub(super) fn is_kept(entry: &OutboxEntry, now: Timestamp) -> bool {
    entry.is_owed() || entry.sent.as_ref().is_some_and(|sent| is_recent(sent.at, now))
}

/// True once the target has had this message for an hour: a subject that ended with it needs no entry any more.
pub(super) fn is_settled(entry: &OutboxEntry, message: &Message, now: Timestamp) -> bool {
    entry.wanted == *message && !is_kept(entry, now)
}

/// True for times within the last hour.
pub(super) fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) < RECENT
}

pub(super) fn subject_of_commit(commit: &str) -> String {
    format!("commit.{commit}")
}

pub(super) fn subject_of_rollout(workload: &ObjectRef) -> String {
    format!("rollout.{}.{}.{}", workload.kind, workload.namespace, workload.name)
}

/// Returns the workload of a rollout's subject.
pub(super) fn workload_of(subject: &str) -> Option<ObjectRef> {
    // Only the name may have dots.
    let mut parts = subject.splitn(4, '.').skip(1);
    let (kind, namespace, name) = (parts.next()?.parse::<Kind>().ok()?, parts.next()?, parts.next()?);
    Some(ObjectRef { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Returns the page of a revision.
pub(super) fn page_of(revision: &Revision) -> String {
    format!("/history/{}/{}", revision.source, revision.sequence)
}

/// Creates a message of bounded length, with control characters made visible: much of a text is from repositories, nodes
/// and login hosts. Its page is the overview.
pub(super) fn message(event: NotificationEvent, state: MessageState, title: &str, text: &str) -> Message {
    let lines: Vec<Cow<'_, str>> = text.lines().map(visible).collect();
    Message {
        event,
        state,
        title: shortened(visible(title).into_owned(), TITLE_MAX_CHARS),
        text: shortened(lines.join("\n"), TEXT_MAX_CHARS),
        page: "/".to_owned(),
        source: None,
        commit: None,
    }
}
