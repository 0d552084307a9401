//! Views of sources and their history.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Provenance;
use schema::records::{ChangeCounts, Revision, SourceState, SourceStatus, Verdict};
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
    /// Verdict on the commit, as in its revision; empty before the first commit.
    #[serde(default)]
    pub verdict: String,
    /// Reason for the verdict, possibly of several lines.
    #[serde(default)]
    pub verdict_why: String,
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

/// Formats changes as `+1 ~2 -3`: created, changed, removed; `!4` for quarantined files and held removals.
pub fn changes(counts: &ChangeCounts) -> String {
    let text = format!("+{} ~{} -{}", counts.create, counts.update + counts.replace, counts.delete);
    match counts.quarantined + counts.held {
        0 => text,
        blocked => format!("{text} !{blocked}"),
    }
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

/// Returns the word for a verdict, and its reason, which may be empty.
pub(super) fn word_and_why(verdict: &Verdict) -> (&'static str, &str) {
    match verdict {
        Verdict::Applied => ("Applied", ""),
        Verdict::Degraded { why } => ("Degraded", why.as_str()),
        Verdict::Good => ("Good", ""),
        Verdict::Bad { why } => ("Bad", why.as_str()),
        Verdict::Superseded => ("Superseded", ""),
    }
}

fn revision_view(revision: &Revision, now: Timestamp) -> RevisionView {
    let (status, why) = word_and_why(&revision.verdict);
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
    let judged = revision.map(|revision| revision_view(revision, now));
    let (verdict, verdict_why) = judged.map(|judged| (judged.status, judged.why)).unwrap_or_default();
    SourceView {
        verdict,
        verdict_why,
        author: revision.map(|r| r.author.clone()).unwrap_or_default(),
        subject: revision.map(|r| r.subject.clone()).unwrap_or_default(),
        age: status.applied_at.map(|then| age(then, now)).unwrap_or_default(),
        problems: problems(status),
        status: status.clone(),
    }
}

/// Lines about the quarantined file that keeps an object, or the owner of a pod, as it was: the file, what runs
/// instead, and the errors. Empty if there is none.
pub fn quarantine(snapshot: &Snapshot, id: &ObjectRef) -> Vec<String> {
    let pod = NamespacedName::new(&id.namespace, &id.name);
    let pod = snapshot.pods.get(&pod).filter(|_| id.kind == Kind::Pod).map(|pod| &pod.value.owner);
    let owner = pod.map(|owner| ObjectRef { kind: owner.kind, name: owner.name.clone(), ..id.clone() });
    let id = owner.as_ref().unwrap_or(id);
    let (live, name) = (snapshot.objects.get(id).map(|found| &found.value.provenance), id.to_string());
    let instead = live.map_or_else(
        || "there is no earlier version of the object".to_owned(),
        |from| format!("{} runs instead", revision_of(snapshot, from)),
    );
    let mut lines = Vec::new();
    for status in snapshot.sources.values().map(|source| &source.value) {
        for file in &status.quarantined {
            let own: Vec<_> =
                file.violations.iter().filter(|one| one.object.as_ref() == Some(&name)).collect();
            let is_home = live.is_some_and(|from| (&from.source, &from.file) == (&status.name, &file.file));
            if own.is_empty() && !is_home {
                continue;
            }
            let commit = short(&file.commit);
            lines.push(format!(
                "{} of commit {commit} by {} is not applied; {instead}",
                file.file, file.author
            ));
            // The first error of the file, if none is about the object.
            let shown: Vec<_> = if own.is_empty() { file.violations.iter().take(1).collect() } else { own };
            lines.extend(shown.iter().map(ToString::to_string));
            let more = file.violations_total.saturating_sub(shown.len() as u64);
            lines.extend((more > 0).then(|| format!("{}: and {more} more", file.file)));
        }
    }
    lines
}

/// Commit that set an object, with its number in the history if that has it.
fn revision_of(snapshot: &Snapshot, from: &Provenance) -> String {
    let all = (from.source.clone(), 0)..=(from.source.clone(), u64::MAX);
    let mut history = snapshot.revisions.range(all).map(|(_, revision)| &revision.value);
    let number = history.rfind(|revision| revision.commit == from.commit);
    let number = number.map(|revision| format!(" (revision {})", revision.sequence)).unwrap_or_default();
    format!("commit {}{number}", short(&from.commit))
}

fn problems(status: &SourceStatus) -> Vec<String> {
    let (mut lines, mut seen) = (Vec::new(), BTreeSet::new());
    if let Some(error) = &status.error {
        lines.push(format!("{:?}: {}", error.kind, error.message));
    }
    for file in &status.quarantined {
        let from = format!("commit {}, {}", short(&file.commit), file.author);
        if file.violations.is_empty() {
            lines.push(format!("{}: quarantined ({from})", file.file));
        }
        // A kustomization is the one cause of all files that it names.
        let found = file.violations.iter().map(|violation| format!("{violation} ({from})"));
        lines.extend(found.filter(|line| seen.insert(line.clone())));
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
    use schema::records::{OwnerRef, Quarantine};
    use schema::violation::{Violation, rules};

    use super::*;
    use crate::view::testing::*;

    #[test]
    fn what_lies_in_a_quarantined_file_says_so_and_what_runs_instead() {
        let mut snapshot = snapshot();
        let web = put_object(&mut snapshot, "web", C1);
        put_object(&mut snapshot, "other", C1);
        let new = ObjectRef { name: "new".to_owned(), ..web.reference() };
        let violation = |line: u32, message: &str| {
            Violation::new(&rules::UNKNOWN_FIELD, "apps/web.yaml", (line, 1), message)
        };
        let file = Quarantine {
            file: "apps/web.yaml".to_owned(),
            commit: C2.to_owned(),
            author: "Bob <b@c>".to_owned(),
            violations: vec![violation(7, "`a`"), violation(17, "`b`").about(&new)],
            violations_total: 3,
        };
        put_source(&mut snapshot, SourceStatus { quarantined: vec![file], ..source(C2, C2, 2) });
        let said = |snapshot: &Snapshot, id: &ObjectRef| quarantine(snapshot, id).join("\n");
        insta::assert_snapshot!(said(&snapshot, &web.reference()), @r"
        apps/web.yaml of commit 2222222 by Bob <b@c> is not applied; commit 1111111 (revision 1) runs instead
        apps/web.yaml:7:1: error[unknown-field]: `a`
        apps/web.yaml: and 2 more
        ");
        insta::assert_snapshot!(said(&snapshot, &new), @r"
        apps/web.yaml of commit 2222222 by Bob <b@c> is not applied; there is no earlier version of the object
        apps/web.yaml:17:1: error[unknown-field]: `b`
        apps/web.yaml: and 2 more
        ");
        let other = ObjectRef { name: "other".to_owned(), ..web.reference() };
        assert_eq!(said(&snapshot, &other), "");
        // A pod is as its owner.
        let mut copy = put_instance(&mut snapshot, &web);
        copy.name = "web-0123abcd-0".to_owned();
        copy.owner = OwnerRef { kind: Kind::Pod, name: "web".to_owned() };
        snapshot.pods.insert(copy.reference(), versioned(copy.clone()));
        let copy = ObjectRef { name: copy.name, ..web.reference() };
        assert_eq!(said(&snapshot, &copy), said(&snapshot, &web.reference()));
    }

    #[test]
    fn a_source_without_objects_says_what_to_push() {
        let mut status = source("c1", "c1", 1);
        status.objects = 0;
        assert_eq!(problems(&status), [EMPTY_HINT]);
        status.objects = 1;
        assert_eq!(problems(&status), Vec::<String>::new());
    }
}
