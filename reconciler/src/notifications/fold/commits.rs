//! Statuses of a source's commits for its forge, as `minik8s history` has them. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::cluster::NotificationEvent;
use schema::object::short_commit;
use schema::records::{Message, MessageState, Revision, Verdict};
use schema::snapshot::Snapshot;
use schema::violation::{shortened, visible};

use super::subjects::{
    KnownSubjects, history, is_about_commit, is_kept, is_recent, message, page_of, subject_of_commit,
};

/// Longest reason in the status of a commit, as GitHub allows.
const REASON_MAX_CHARS: usize = 140;

/// Returns the status of each commit of a source, by subject: of those applied within the last hour, of those with a
/// status, and of the newest commit if it cannot be applied.
pub(super) fn statuses(
    snapshot: &Snapshot,
    source: &str,
    known: &KnownSubjects<'_>,
    now: Timestamp,
) -> BTreeMap<String, Message> {
    let history: Vec<&Revision> = history(snapshot, source).collect();
    let mut newest = BTreeMap::new();
    for (position, revision) in history.iter().copied().enumerate() {
        // A commit that was applied again has several revisions: the newest counts.
        newest.insert(revision.commit.as_str(), (revision, history.get(position + 1).copied()));
    }
    let mut out = BTreeMap::new();
    for (commit, (revision, next)) in &newest {
        let subject = subject_of_commit(commit);
        if is_recent(revision.applied_at, now) || known.get(&subject).is_some() {
            out.insert(subject, status(revision, *next));
        }
    }
    if let Some((commit, refusal)) =
        refusal(snapshot, source).filter(|(commit, _)| !newest.contains_key(commit))
    {
        out.insert(subject_of_commit(commit), refusal);
    }
    for (subject, entry) in known.iter().filter(|(_, entry)| is_kept(entry, now)) {
        if !out.contains_key(subject) {
            out.insert(subject.to_owned(), last_status(&entry.wanted));
        }
    }
    out
}

/// Returns the status of an applied commit. `next` is the revision that followed.
fn status(revision: &Revision, next: Option<&Revision>) -> Message {
    let (state, title) = match &revision.verdict {
        Verdict::Applied => (MessageState::Pending, "applied; what it changed is not healthy yet".to_owned()),
        Verdict::Good => (MessageState::Success, "all that it changed is healthy".to_owned()),
        Verdict::Bad { why } | Verdict::Degraded { why } => (MessageState::Failure, first_reason(why)),
        Verdict::Superseded => {
            let by = next.map_or("a newer commit", |next| short_commit(&next.commit));
            let title = format!("superseded by {by}; its changes are part of that commit");
            (MessageState::Success, title)
        }
    };
    about_commit(state, &title, (&revision.source, &revision.commit), page_of(revision))
}

/// Returns the newest commit of a source and its status, if it cannot be applied.
fn refusal<'a>(snapshot: &'a Snapshot, source: &str) -> Option<(&'a str, Message)> {
    let status = &snapshot.sources.get(source)?.value;
    let error = status.error.as_ref().filter(|error| is_about_commit(error.kind))?;
    let commit =
        status.observed_commit.as_deref().filter(|_| status.observed_commit != status.applied_commit)?;
    let title = first_reason(&error.message);
    let page = "/".to_owned();
    Some((commit, about_commit(MessageState::Failure, &title, (&status.name, commit), page)))
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
