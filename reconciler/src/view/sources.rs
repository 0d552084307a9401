//! Views of sources and their history.

use jiff::Timestamp;
use schema::records::{Revision, SourceState, SourceStatus, Verdict};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use super::age::age;
use super::short;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceView {
    #[serde(flatten)]
    pub status: SourceStatus,
    #[serde(default)]
    pub author: String,
    #[serde(default)]
    pub subject: String,
    /// Time since the commit was applied; empty before the first commit.
    pub age: String,
    /// Problems, one line each; empty if there are none.
    pub problems: Vec<String>,
}

const EMPTY_HINT: &str =
    "the repository holds no manifest yet: push one, for example the files of sample-repo/apps";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionView {
    #[serde(flatten)]
    pub revision: Revision,
    /// Applied, Degraded, Good, Bad or Superseded.
    pub status: String,
    pub why: String,
    pub age: String,
}

pub fn sources(snapshot: &Snapshot, now: Timestamp) -> Vec<SourceView> {
    snapshot.sources.values().map(|source| source_view(snapshot, &source.value, now)).collect()
}

/// Applied commits, newest first, of one source if given.
pub fn history(snapshot: &Snapshot, source: Option<&str>, now: Timestamp) -> Vec<RevisionView> {
    let mut all: Vec<RevisionView> = snapshot
        .revisions
        .values()
        .filter(|revision| source.is_none_or(|wanted| wanted == revision.value.source))
        .map(|revision| revision_view(&revision.value, now))
        .collect();
    all.sort_by(|a, b| {
        (b.revision.applied_at, b.revision.sequence).cmp(&(a.revision.applied_at, a.revision.sequence))
    });
    all
}

fn revision_view(revision: &Revision, now: Timestamp) -> RevisionView {
    let (status, why) = match &revision.verdict {
        Verdict::Applied => ("Applied", ""),
        Verdict::Degraded { why } => ("Degraded", why.as_str()),
        Verdict::Good => ("Good", ""),
        Verdict::Bad { why } => ("Bad", why.as_str()),
        Verdict::Superseded => ("Superseded", ""),
    };
    let differs = revision.plan.as_ref().filter(|plan| plan.matches == Some(false));
    let differs = differs.map(|plan| format!("differs from the review: {}", plan.why));
    let why = [Some(why.to_owned()).filter(|why| !why.is_empty()), differs].into_iter().flatten();
    RevisionView {
        status: status.to_owned(),
        why: why.collect::<Vec<_>>().join("; "),
        age: age(revision.applied_at, now),
        revision: revision.clone(),
    }
}

fn source_view(snapshot: &Snapshot, status: &SourceStatus, now: Timestamp) -> SourceView {
    let revision = snapshot
        .revisions
        .get(&(status.name.clone(), status.revision))
        .map(|revision| &revision.value)
        .filter(|revision| Some(&revision.commit) == status.applied_commit.as_ref());
    SourceView {
        author: revision.map(|r| r.author.clone()).unwrap_or_default(),
        subject: revision.map(|r| r.subject.clone()).unwrap_or_default(),
        age: status.applied_at.map(|then| age(then, now)).unwrap_or_default(),
        problems: problems(status),
        status: status.clone(),
    }
}

fn problems(status: &SourceStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(error) = &status.error {
        lines.push(format!("{:?}: {}", error.kind, error.message));
    }
    for file in &status.quarantined {
        let from = format!("commit {}, {}", short(&file.commit), file.author);
        if file.violations.is_empty() {
            lines.push(format!("{}: quarantined ({from})", file.file));
        }
        lines.extend(file.violations.iter().map(|violation| format!("{violation} ({from})")));
        let more = file.violations_total.saturating_sub(file.violations.len() as u64);
        if more > 0 && !file.violations.is_empty() {
            lines.push(format!("{}: and {more} more", file.file));
        }
    }
    if let Some(held) = &status.held_prune {
        let commit = short(&held.commit);
        // The total is from the time when the prune was first held; more objects may be removed by now.
        let of = if held.deletes <= held.owned { format!(" of {}", held.owned) } else { String::new() };
        lines.push(format!("prune of {}{of} objects by commit {commit} is held: {}", held.deletes, held.why));
    }
    lines.extend(status.waiting.iter().map(ToString::to_string));
    let more = status.waiting_total.saturating_sub(status.waiting.len() as u64);
    if more > 0 {
        lines.push(format!("and {more} more objects are waiting"));
    }
    if lines.is_empty() && status.state == SourceState::Pending {
        lines.push("nothing fetched yet".to_owned());
    }
    if status.state == SourceState::Synced && status.objects == 0 {
        lines.push(EMPTY_HINT.to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::source;

    #[test]
    fn a_source_without_objects_says_what_to_push() {
        let mut status = source("c1", "c1", 1);
        status.objects = 0;
        assert_eq!(problems(&status), [EMPTY_HINT]);
        status.objects = 1;
        assert_eq!(problems(&status), Vec::<String>::new());
    }
}
