//! Statuses of a source's commits for its forge, as `minik8s history` has them. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::cluster::NotificationEvent;
use schema::object::short_commit;
use schema::records::{Message, MessageState, OutboxEntry, Revision, SourceErrorKind, SourceStatus, Verdict};
use schema::snapshot::Snapshot;
use schema::violation::{Violation, shortened, visible};

use super::subjects::{KnownSubjects, is_kept, is_recent, is_settled, message, page_of, subject_of_commit};

/// Longest reason in the status of a commit, as GitHub allows.
const REASON_MAX_CHARS: usize = 140;
/// Time for which the last status of a commit that the history no longer has is tried.
const TRIED_FOR: SignedDuration = SignedDuration::from_hours(6);

/// Returns the status of each commit of a source, by subject: of those applied within the last hour, of those whose last
/// status is not settled, and of the newest commit if it cannot be applied.
pub(super) fn statuses(
    snapshot: &Snapshot,
    source: &str,
    known: &KnownSubjects<'_>,
    now: Timestamp,
) -> BTreeMap<String, Message> {
    let history: Vec<&Revision> = snapshot.revisions_of(source).collect();
    let mut newest = BTreeMap::new();
    for (position, revision) in history.iter().copied().enumerate() {
        // A commit that was applied again has several revisions: the newest counts.
        newest.insert(revision.commit.as_str(), (revision, history.get(position + 1).copied()));
    }
    let mut out = BTreeMap::new();
    for (commit, (revision, next)) in &newest {
        let subject = subject_of_commit(commit);
        let status = status(revision, *next, first_violation(snapshot, revision).as_deref());
        let status = keep_first_reason(known.get(&subject), status);
        let is_open = status.state == MessageState::Pending;
        let is_due = |entry: &OutboxEntry| is_open || !is_settled(entry, &status, now);
        if is_recent(revision.applied_at, now) || known.get(&subject).is_some_and(is_due) {
            out.insert(subject, status);
        }
    }
    let unapplied = unapplied(snapshot, source).filter(|(_, commit)| !newest.contains_key(commit));
    if let Some((status, commit)) = unapplied {
        let subject = subject_of_commit(commit);
        // While the error is another one, or gone and the commit not applied yet, the status stays.
        let before = || known.get(&subject).map(|entry| entry.wanted.clone());
        if let Some(status) = refusal(status, commit).or_else(before) {
            out.insert(subject, status);
        }
    }
    for (subject, entry) in known.iter().filter(|(_, entry)| stays(entry, now)) {
        if !out.contains_key(subject) {
            out.insert(subject.to_owned(), last_status(&entry.wanted));
        }
    }
    out
}

/// True while the entry of a commit stays that the history no longer has.
fn stays(entry: &OutboxEntry, now: Timestamp) -> bool {
    let is_given_up = || entry.is_owed() && now.duration_since(entry.since) >= TRIED_FOR;
    // An undecided one gets another last status.
    entry.wanted.state == MessageState::Pending || is_kept(entry, now) && !is_given_up()
}

/// Returns the place and the message of the first error in the commit's files, while these are in quarantine.
fn first_violation(snapshot: &Snapshot, revision: &Revision) -> Option<String> {
    let files = &snapshot.sources.get(&revision.source)?.value.quarantined;
    let Violation { file, line, column, message, .. } =
        files.iter().find(|file| file.commit == revision.commit)?.violations.first()?;
    Some(format!("{file}:{line}:{column}: {message}"))
}

/// Returns the status with the reason that it has already, if it stays a failure: a forge shows the first one.
fn keep_first_reason(known: Option<&OutboxEntry>, status: Message) -> Message {
    let before = known.map(|entry| &entry.wanted);
    let before = before
        .filter(|before| (before.state, status.state) == (MessageState::Failure, MessageState::Failure));
    before.cloned().unwrap_or(status)
}

/// Returns the status of an applied commit. `next` is the revision that followed, `violation` the first error in its files.
fn status(revision: &Revision, next: Option<&Revision>, violation: Option<&str>) -> Message {
    let (state, title) = match &revision.verdict {
        Verdict::Applied => (MessageState::Pending, "applied; what it changed is not healthy yet".to_owned()),
        Verdict::Good => (MessageState::Success, "everything it changed is healthy".to_owned()),
        Verdict::Degraded { why } => (MessageState::Failure, first_reason(violation.unwrap_or(why))),
        Verdict::Bad { why } => (MessageState::Failure, first_reason(why)),
        Verdict::Superseded => {
            let by = next.map_or("a newer commit", |next| short_commit(&next.commit));
            let title = format!("superseded by {by} before its outcome was known");
            (MessageState::Success, title)
        }
    };
    about_commit(state, &title, (&revision.source, &revision.commit), page_of(revision))
}

/// Returns the status of a source and its newest commit, if that is not the applied one.
fn unapplied<'a>(snapshot: &'a Snapshot, source: &str) -> Option<(&'a SourceStatus, &'a str)> {
    let status = &snapshot.sources.get(source)?.value;
    let commit = status.observed_commit.as_deref()?;
    (status.applied_commit.as_deref() != Some(commit)).then_some((status, commit))
}

/// Returns the status of the newest commit, if it cannot be applied. Its words are our own: an error may hold paths of
/// this machine.
fn refusal(status: &SourceStatus, commit: &str) -> Option<Message> {
    let error = status.error.as_ref().filter(|error| error.kind.is_about_commit())?;
    let title = match error.kind {
        SourceErrorKind::PathNotFound => "not applied: it does not have the source's folder",
        SourceErrorKind::Empty => "not applied: it holds no manifest",
        SourceErrorKind::SignatureInvalid => "not applied: its signature is not accepted",
        SourceErrorKind::Refused => "not applied: a file cannot be applied, and the source is strict",
        _ => "not applied: it cannot be read",
    };
    Some(about_commit(MessageState::Failure, title, (&status.name, commit), "/".to_owned()))
}

/// Returns the last status of a commit that the history no longer has.
fn last_status(before: &Message) -> Message {
    match before.state {
        MessageState::Pending => {
            let title = "superseded by newer commits".to_owned();
            Message { state: MessageState::Success, title, ..before.clone() }
        }
        MessageState::Success | MessageState::Failure => before.clone(),
    }
}

fn about_commit(state: MessageState, title: &str, (source, commit): (&str, &str), page: String) -> Message {
    Message {
        page,
        source: Some(source.to_owned()),
        commit: Some(commit.to_owned()),
        ..message(NotificationEvent::Verdict, state, title, "")
    }
}

fn first_reason(why: &str) -> String {
    let first = why.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("not healthy");
    // One character for the mark of what is cut off.
    shortened(visible(first).into_owned(), REASON_MAX_CHARS - 1)
}
