//! Views of the outbox: what was sent to each target, and what waits.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::records::{Message, OutboxEntry};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::age::{age, human_duration};

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotificationView {
    pub target: String,
    pub subject: String,
    /// State of the subject: pending, success or failure.
    pub state: String,
    /// Message that the target should have.
    pub message: Message,
    /// Time since it was sent; `None` before.
    pub sent: Option<String>,
    pub sent_at: Option<Timestamp>,
    /// Message that was sent last, if it is another one.
    pub known: Option<Message>,
    /// Next try of a message that is not sent yet: `try 3, next in 40s`.
    pub waiting: Option<String>,
    /// Earliest time of the next try, after a failed one.
    pub next_at: Option<Timestamp>,
    /// Failed tries of the message.
    #[serde(default)]
    pub failures: u32,
    /// Error of the last failed try.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// Entries of the outbox, by target and subject.
pub fn notifications(snapshot: &Snapshot, now: Timestamp) -> Vec<NotificationView> {
    snapshot.outbox.values().map(|entry| view(&entry.value, now)).collect()
}

/// Number of targets that did not accept their last message.
pub fn failing_targets(snapshot: &Snapshot) -> usize {
    let failing = snapshot.outbox.iter().filter(|(_, entry)| {
        let OutboxEntry { error, .. } = &entry.value;
        error.is_some() && entry.value.is_owed()
    });
    failing.map(|((target, _), _)| target).collect::<BTreeSet<_>>().len()
}

fn view(entry: &OutboxEntry, now: Timestamp) -> NotificationView {
    let is_owed = entry.is_owed();
    let sent = entry.sent.as_ref().filter(|sent| sent.message == entry.wanted);
    let known = entry.sent.as_ref().filter(|sent| sent.message != entry.wanted);
    NotificationView {
        target: entry.target.clone(),
        subject: entry.subject.clone(),
        state: entry.wanted.state.as_str().to_owned(),
        message: entry.wanted.clone(),
        sent: sent.map(|sent| age(sent.at, now)),
        sent_at: sent.map(|sent| sent.at),
        known: known.map(|sent| sent.message.clone()),
        waiting: is_owed.then(|| waiting(entry, now)),
        next_at: entry.retry_at.filter(|_| is_owed),
        failures: entry.failures,
        error: entry.error.clone().unwrap_or_default(),
    }
}

fn waiting(entry: &OutboxEntry, now: Timestamp) -> String {
    let number = entry.failures.saturating_add(1);
    match entry.retry_at.filter(|next| *next > now) {
        Some(next) => {
            let seconds = next.as_second().saturating_sub(now.as_second());
            format!("try {number}, next in {}", human_duration(seconds))
        }
        None => format!("try {number}"),
    }
}

#[cfg(test)]
mod tests {
    use schema::keys::Key;
    use schema::kinds::cluster::NotificationEvent;
    use schema::records::{Attempt, MessageState, SentMessage};

    use super::*;
    use crate::view::testing::at;

    fn message(title: &str) -> Message {
        Message {
            event: NotificationEvent::Node,
            state: MessageState::Failure,
            title: title.to_owned(),
            text: String::new(),
            page: String::new(),
            source: None,
            commit: None,
        }
    }

    fn entry(target: &str) -> OutboxEntry {
        OutboxEntry {
            target: target.to_owned(),
            subject: "nodes".to_owned(),
            settings: String::new(),
            wanted: message("n1"),
            sequence: 1,
            since: at(0),
            sent: None,
            attempt: None,
            failures: 0,
            retry_at: None,
            paused_until: None,
            error: None,
        }
    }

    fn sent(title: &str) -> Option<SentMessage> {
        Some(SentMessage { message: message(title), id: "1".to_owned(), at: at(10) })
    }

    fn snapshot_of(entries: &[OutboxEntry]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for entry in entries {
            snapshot.put(&Key::Outbox(entry.target.clone(), entry.subject.clone()), entry, 1);
        }
        snapshot
    }

    // Would fail if an open attempt of the message that was sent last counted as sent.
    #[test]
    fn an_entry_says_what_was_sent_and_what_waits() {
        let attempt = |title| Some(Attempt { message: message(title), id: "2".to_owned(), began_at: at(20) });
        let entries = [
            entry("a"),
            OutboxEntry { sent: sent("n1"), ..entry("b") },
            OutboxEntry {
                sent: sent("n2"),
                attempt: attempt("n1"),
                failures: 2,
                retry_at: Some(at(140)),
                ..entry("c")
            },
            OutboxEntry { sent: sent("n1"), attempt: attempt("n1"), retry_at: Some(at(90)), ..entry("d") },
        ];
        let rows: Vec<_> = notifications(&snapshot_of(&entries), at(100))
            .into_iter()
            .map(|row| (row.target, row.sent, row.waiting, row.known.map(|known| known.title)))
            .collect();
        let row = |target: &str, sent: Option<&str>, waiting: Option<&str>, known: Option<&str>| {
            (target.to_owned(), sent.map(str::to_owned), waiting.map(str::to_owned), known.map(str::to_owned))
        };
        assert_eq!(
            rows,
            [
                row("a", None, Some("try 1"), None),
                row("b", Some("90s"), None, None),
                row("c", None, Some("try 3, next in 40s"), Some("n2")),
                row("d", Some("90s"), Some("try 1"), None),
            ]
        );
    }

    #[test]
    fn a_target_with_several_failed_messages_is_counted_once_and_one_that_answered_again_not_at_all() {
        let failed = |target, subject: &str| OutboxEntry {
            subject: subject.to_owned(),
            error: Some("connection refused".to_owned()),
            ..entry(target)
        };
        let mended = OutboxEntry { sent: sent("n1"), ..failed("b", "nodes") };
        assert_eq!(failing_targets(&snapshot_of(&[failed("a", "nodes"), failed("a", "etcd"), mended])), 1);
    }
}
