//! Status of a source, its revisions and its events, folded from the observations and results of a run. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::meta::ObjectRef;
use schema::object::short_commit;
use schema::records::{
    ChangeCounts, HeldPrune, Quarantine, Revision, SourceError, SourceErrorKind, SourceState, SourceStatus,
    Verdict, WaitingObject,
};
use schema::violation::{Severity, Violation};

use super::bounds;
use super::plan::{Act, PruneBaseline, SyncPlan};
use super::prune::{Prune, RELEASE_HELP};
use crate::git::{CommitMeta, SourceConfig};
use schema::violation::plural;

/// Limit on the shown violations of a file, and on the shown objects of a held prune.
const SHOWN_MAX: usize = 20;
/// Limit on removed objects that a revision names.
const REMOVED_MAX: usize = 100;
/// Limit on files named in one event.
const QUARANTINED_NAMED_MAX: usize = 10;

/// Observations and results of one run.
#[derive(Debug)]
pub struct RunSummary<'a> {
    pub config: &'a SourceConfig,
    /// Status before the run.
    pub previous: Option<&'a SourceStatus>,
    /// Newest commit at the remote, if it could be queried.
    pub head: Option<String>,
    /// The commit that the plan was for.
    pub commit: Option<&'a CommitMeta>,
    /// The plan; `None` if nothing was read or nothing changed.
    pub plan: Option<&'a SyncPlan>,
    /// Problem that kept the remote from being read.
    pub problem: Option<Problem>,
    /// Failure that kept the plan from being executed.
    pub failure: Option<String>,
    /// Number for a new revision.
    pub next_sequence: u64,
    /// Time since the start of the fetch, in milliseconds.
    pub duration_ms: u64,
    pub now: Timestamp,
}

/// A problem that keeps a source from being read or applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Step that failed.
    pub kind: SourceErrorKind,
    /// Cause and remedy, in one line.
    pub message: String,
}

/// Folds a run into the source's status, and a revision if its commit is newly applied.
pub fn fold(run: &RunSummary<'_>) -> (SourceStatus, Option<Revision>) {
    let config = run.config;
    let mut status = run.previous.cloned().unwrap_or_else(|| fresh(config));
    status.name.clone_from(&config.name);
    status.url = config.shown_url();
    status.reference = config.reference.to_string();
    status.path.clone_from(&config.path);
    status.strict = config.strict;
    status.allow.clone_from(&config.allow);
    if run.head.is_some() {
        status.observed_commit.clone_from(&run.head);
    }
    let problem = run.problem.clone().or_else(|| empty(run)).or_else(|| refused(run));
    if let (Some(plan), Some(commit)) = (run.plan, run.commit) {
        status.objects = plan.owned;
        let goes_on =
            |waited: &WaitingObject| plan.waiting.iter().all(|waiting| waiting.object != waited.object);
        if status.waiting.iter().any(goes_on) {
            status.released_at = Some(run.now);
        }
        status.waiting = plan.waiting.iter().take(SHOWN_MAX).cloned().collect();
        status.waiting_total = plan.waiting.len() as u64;
        status.quarantined = quarantined(plan, commit, run.previous);
        status.replaced_pod_security.clone_from(&plan.replaced_pod_security);
        let held = held(plan, commit, run.previous);
        // While the remote can't be read completely, the earlier hold still applies.
        status.held_prune = match (&run.problem, status.held_prune) {
            (Some(_), Some(before)) => Some(HeldPrune {
                owned: plan.prune_baseline.owned,
                since: plan.prune_baseline.since,
                ..before
            }),
            _ => held,
        };
    }
    let error = problem.or_else(|| failed(run));
    status.error = error.map(|problem| since(problem, run));
    let revision = match (&status.error, run.plan, run.commit) {
        (None, Some(plan), Some(commit)) if status.applied_commit.as_deref() != Some(&commit.id) => {
            Some(revision(run, plan, commit))
        }
        _ => None,
    };
    if let Some(revision) = &revision {
        status.applied_commit = Some(revision.commit.clone());
        status.applied_at = Some(run.now);
        status.revision = revision.sequence;
    }
    status.state = match &status.error {
        // A new repository has no commit.
        Some(error) if error.kind == SourceErrorKind::NoCommit && status.applied_commit.is_none() => {
            SourceState::Pending
        }
        Some(_) => SourceState::Failed,
        None if status.applied_commit.is_none() => SourceState::Pending,
        None if !status.quarantined.is_empty() || status.held_prune.is_some() => SourceState::Degraded,
        None if !status.waiting.is_empty() => SourceState::Waiting,
        None => SourceState::Synced,
    };
    (bounds::status(status), revision)
}

fn fresh(config: &SourceConfig) -> SourceStatus {
    SourceStatus {
        name: config.name.clone(),
        url: config.shown_url(),
        reference: config.reference.to_string(),
        path: config.path.clone(),
        strict: config.strict,
        state: SourceState::Pending,
        observed_commit: None,
        applied_commit: None,
        applied_at: None,
        revision: 0,
        objects: 0,
        quarantined: Vec::new(),
        held_prune: None,
        waiting: Vec::new(),
        waiting_total: 0,
        released_at: None,
        error: None,
        replaced_pod_security: Vec::new(),
        allow: config.allow.clone(),
    }
}

fn empty(run: &RunSummary<'_>) -> Option<Problem> {
    let commit = run.commit.filter(|_| run.plan.is_some_and(|plan| plan.empty))?;
    let place =
        if run.config.path.is_empty() { String::new() } else { format!(" below `{}`", run.config.path) };
    let message = format!(
        "commit {} of {} holds no manifest{place}; nothing is removed; {RELEASE_HELP}",
        short_commit(&commit.id),
        run.config.shown_url()
    );
    Some(Problem { kind: SourceErrorKind::Empty, message })
}

/// Reports a strict source with a file that can't be applied. The errors are reported with each file.
fn refused(run: &RunSummary<'_>) -> Option<Problem> {
    let (plan, commit) = (run.plan.filter(|plan| plan.refused)?, run.commit?);
    let files: Vec<&str> = plan.quarantined.keys().map(|file| &**file).collect();
    let shown = files.iter().take(SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = files.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "nothing of commit {} is applied, because the source is strict and {} can't be applied: {shown}{more}; fix that in a new \
         commit",
        short_commit(&commit.id),
        plural(files.len(), "file"),
    );
    Some(Problem { kind: SourceErrorKind::Refused, message })
}

fn failed(run: &RunSummary<'_>) -> Option<Problem> {
    let message = run.failure.clone()?;
    Some(Problem { kind: SourceErrorKind::ApplyFailed, message })
}

fn since(problem: Problem, run: &RunSummary<'_>) -> SourceError {
    let before =
        run.previous.and_then(|status| status.error.as_ref()).filter(|error| error.kind == problem.kind);
    let since = before.map_or(run.now, |error| error.since);
    SourceError { kind: problem.kind, message: problem.message, since }
}

fn quarantined(plan: &SyncPlan, commit: &CommitMeta, previous: Option<&SourceStatus>) -> Vec<Quarantine> {
    let files = plan.quarantined.iter().map(|(file, violations)| {
        let total = violations.len() as u64;
        // Errors first: with many warnings the cause must not be cut off.
        let mut shown = violations.clone();
        shown.sort_by_key(|violation| violation.severity != Severity::Error);
        shown.truncate(SHOWN_MAX);
        // While the violations are the same, the older commit is to blame.
        let before = previous.and_then(|status| status.quarantined.iter().find(|q| *q.file == **file));
        match before.filter(|before| before.violations == shown && before.violations_total == total) {
            Some(before) => before.clone(),
            None => Quarantine {
                file: file.to_string(),
                commit: commit.id.clone(),
                author: commit.author.clone(),
                violations: shown,
                violations_total: total,
            },
        }
    });
    files.collect()
}

/// Returns the status to write before a plan starts to write objects; `None` if all that matters of it is written
/// already. Later plans measure held removals against it, and pods against replaced restrictions, so neither must be
/// lost.
pub fn ahead(
    config: &SourceConfig,
    previous: Option<&SourceStatus>,
    commit: &CommitMeta,
    plan: &SyncPlan,
) -> Option<SourceStatus> {
    let before = previous.and_then(|status| status.held_prune.as_ref());
    // The baseline must outlive this run, which adds objects.
    let is_known =
        |held: &HeldPrune| PruneBaseline { owned: held.owned, since: held.since } == plan.prune_baseline;
    let held = held(plan, commit, previous).filter(|_| !before.is_some_and(is_known));
    let replaced = &plan.replaced_pod_security;
    let is_remembered =
        replaced.is_empty() || previous.is_some_and(|status| status.replaced_pod_security == *replaced);
    if plan.steps.is_empty() || held.is_none() && is_remembered {
        return None;
    }
    let status = previous.cloned().unwrap_or_else(|| fresh(config));
    let held_prune = held.or_else(|| status.held_prune.clone());
    Some(bounds::status(SourceStatus { held_prune, replaced_pod_security: replaced.clone(), ..status }))
}

fn held(plan: &SyncPlan, commit: &CommitMeta, previous: Option<&SourceStatus>) -> Option<HeldPrune> {
    let Prune::Held { why, objects } = &plan.prune else { return None };
    let shown: Vec<ObjectRef> = objects.iter().take(SHOWN_MAX).cloned().collect();
    let deletes = objects.len() as u64;
    let before = previous.and_then(|status| status.held_prune.as_ref());
    let same = before.filter(|before| before.deletes == deletes && before.objects == shown);
    let commit = same.map_or(&commit.id, |before| &before.commit);
    Some(HeldPrune {
        commit: commit.clone(),
        why: why.to_string(),
        deletes,
        owned: plan.prune_baseline.owned,
        since: plan.prune_baseline.since,
        objects: shown,
    })
}

fn revision(run: &RunSummary<'_>, plan: &SyncPlan, commit: &CommitMeta) -> Revision {
    let counts = plan.counts();
    // An earlier run of this commit may have removed more: then none are named. One that could not read it did not.
    let is_first = run.previous.is_none_or(|status| {
        status.observed_commit.as_ref() != Some(&commit.id)
            || status.error.as_ref().is_some_and(|error| error.kind.is_about_commit())
    });
    let removed = plan.steps.iter().filter(|step| is_first && matches!(step.act, Act::Delete));
    Revision {
        source: run.config.name.clone(),
        sequence: run.next_sequence,
        commit: commit.id.clone(),
        author: commit.author.clone(),
        subject: commit.subject.clone(),
        committed_at: commit.committed_at,
        applied_at: run.now,
        duration_ms: run.duration_ms,
        verdict: verdict(plan, &counts),
        decided_at: None,
        counts,
        removed: removed.map(|step| step.object.clone()).take(REMOVED_MAX).collect(),
        plan: None,
        timeline: None,
    }
}

fn verdict(plan: &SyncPlan, counts: &ChangeCounts) -> Verdict {
    let mut parts = Vec::new();
    if counts.quarantined > 0 {
        let files: Vec<&str> = plan.quarantined.keys().map(|file| &**file).take(SHOWN_MAX).collect();
        parts.push(format!(
            "{} could not be applied: {}",
            plural(counts.quarantined, "file"),
            files.join(", ")
        ));
    }
    if let Prune::Held { why, objects } = &plan.prune {
        parts.push(format!("{} held: {why}", plural(objects.len(), "removal")));
    }
    if parts.is_empty() { Verdict::Applied } else { Verdict::Degraded { why: parts.join("; ") } }
}

/// A report about a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Set if someone should investigate.
    pub warning: bool,
    /// Event reason, a CamelCase word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// Returns the news between two statuses.
pub fn news(before: Option<&SourceStatus>, after: &SourceStatus, revision: Option<&Revision>) -> Vec<News> {
    let mut news = Vec::new();
    if let Some(revision) = revision {
        let ChangeCounts { create, update, replace, delete, .. } = revision.counts;
        let message = format!(
            "commit {} by {} applied: {create} created, {update} updated, {replace} replaced, {delete} removed",
            short_commit(&revision.commit),
            revision.author
        );
        news.push(News { warning: false, reason: "Synced", message });
    }
    if let Some(plan) =
        revision.and_then(|revision| revision.plan.as_ref()).filter(|plan| plan.matches == Some(false))
    {
        let message = format!("the applied plan differs from the reviewed plan: {}", plan.why);
        news.push(News { warning: true, reason: "PlanDiffers", message });
    }
    news.extend(news_of_quarantine(before, after));
    if let Some(held) =
        after.held_prune.as_ref().filter(|held| before.and_then(|b| b.held_prune.as_ref()) != Some(*held))
    {
        let message =
            format!("{} removals of commit {} wait: {}", held.deletes, short_commit(&held.commit), held.why);
        news.push(News { warning: true, reason: "PruneHeld", message });
    }
    let waited = |object| before.is_some_and(|before| before.waiting.iter().any(|w| w.object == object));
    for waiting in after.waiting.iter().filter(|waiting| !waited(waiting.object.clone())) {
        news.push(News { warning: false, reason: "Waiting", message: waiting.to_string() });
    }
    let kind = |status: &SourceStatus| status.error.as_ref().map(|error| error.kind);
    if let Some(error) = after.error.as_ref().filter(|error| before.and_then(kind) != Some(error.kind)) {
        let reason = match error.kind {
            SourceErrorKind::ApplyFailed => "ApplyFailed",
            SourceErrorKind::Refused => "Refused",
            SourceErrorKind::NotConfigured => "NotConfigured",
            _ => "FetchFailed",
        };
        news.push(News { warning: true, reason, message: error.message.clone() });
    }
    news
}

/// Reports the files that are new in quarantine, once for each commit that they came with.
fn news_of_quarantine(before: Option<&SourceStatus>, after: &SourceStatus) -> Vec<News> {
    let is_new = |file: &&Quarantine| before.is_none_or(|before| !before.quarantined.contains(file));
    let mut by_commit: BTreeMap<&str, Vec<&Quarantine>> = BTreeMap::new();
    for file in after.quarantined.iter().filter(is_new) {
        by_commit.entry(&file.commit).or_default().push(file);
    }
    let news = by_commit.into_iter().map(|(commit, files)| {
        let total: u64 = files.iter().map(|file| errors(file)).sum();
        let named = files.iter().take(QUARANTINED_NAMED_MAX);
        let mut named: Vec<String> = named.map(|file| format!("{} ({})", file.file, errors(file))).collect();
        let more = files.len().saturating_sub(QUARANTINED_NAMED_MAX);
        if more > 0 {
            named.push(format!("{more} more"));
        }
        let first = files.iter().find_map(|file| file.violations.first());
        let first = first.map(|first| format!("; the first: {first}")).unwrap_or_default();
        let author = files.first().map(|file| file.author.as_str()).unwrap_or_default();
        let message = format!(
            "at commit {} by {author}: {} in {}: {}{first}",
            short_commit(commit),
            plural(total, "error"),
            plural(files.len(), "file"),
            named.join(", ")
        );
        News { warning: true, reason: "Quarantined", message }
    });
    news.collect()
}

/// Counts the errors of a file: they come first, so that if warnings are among the kept violations, all errors are.
fn errors(file: &Quarantine) -> u64 {
    let is_error = |violation: &&Violation| violation.severity == Severity::Error;
    let kept = file.violations.iter().filter(is_error).count();
    if kept < file.violations.len() { kept as u64 } else { file.violations_total }
}

#[cfg(test)]
mod tests {
    use schema::kinds::Kind;

    use super::*;
    use crate::gitops::plan::{Precondition, Step, StepReason};
    use crate::gitops::tests::kit::{Repo, pods};

    // Would fail with the commit taken for one of which a part was applied before.
    #[test]
    fn what_a_commit_removed_is_named_although_it_could_not_be_read_at_first() {
        let config = Repo::new(pods(["a"])).config();
        let (at, id) = (Timestamp::UNIX_EPOCH, "0123456789abcdef".to_owned());
        let (author, subject) = (String::new(), String::new());
        let commit = CommitMeta { id, author, subject, committed_at: at, allows_prune: false };
        let object = ObjectRef { kind: Kind::Pod, namespace: "default".to_owned(), name: "a".to_owned() };
        let (precondition, why) = (Precondition::Revision(1), StepReason::Removed);
        let step = Step { object: object.clone(), act: Act::Delete, precondition, why };
        let plan = SyncPlan { steps: vec![step], ..SyncPlan::default() };
        let removed = |before: Option<SourceErrorKind>| {
            let error = before.map(|kind| SourceError { kind, message: String::new(), since: at });
            let observed_commit = Some(commit.id.clone());
            let previous = SourceStatus { observed_commit, error, ..fresh(&config) };
            let run = RunSummary {
                config: &config,
                previous: Some(&previous),
                head: Some(commit.id.clone()),
                commit: Some(&commit),
                plan: Some(&plan),
                problem: None,
                failure: None,
                next_sequence: 1,
                duration_ms: 0,
                now: at,
            };
            fold(&run).1.unwrap().removed
        };
        assert_eq!(removed(Some(SourceErrorKind::SignatureInvalid)), [object]);
        assert!(removed(Some(SourceErrorKind::ApplyFailed)).is_empty() && removed(None).is_empty());
    }

    // Seen red with one event for each file.
    #[test]
    fn the_files_that_a_commit_brought_into_quarantine_are_one_event() {
        let repo = Repo::new(pods(["a"]));
        let before = fresh(&repo.config());
        let violation = |file: &str, severity| Violation {
            file: file.to_owned(),
            line: 2,
            column: 1,
            severity,
            rule: "required".to_owned(),
            message: "m".to_owned(),
            help: String::new(),
            object: None,
        };
        let file = |name: &str, severities: &[Severity]| Quarantine {
            file: name.to_owned(),
            commit: "0123456789abcdef".to_owned(),
            author: "Ada <a@b>".to_owned(),
            violations: severities.iter().map(|severity| violation(name, *severity)).collect(),
            violations_total: severities.len() as u64,
        };
        let quarantined = vec![
            file("a.yaml", &[Severity::Error, Severity::Error, Severity::Warning]),
            file("b.yaml", &[Severity::Error]),
        ];
        let after = SourceStatus { quarantined, ..before.clone() };
        let shown = news(Some(&before), &after, None);
        assert_eq!((shown.len(), shown[0].reason), (1, "Quarantined"));
        assert_eq!(
            shown[0].message,
            "at commit 0123456789ab by Ada <a@b>: 3 errors in 2 files: a.yaml (2), b.yaml (1); \
             the first: a.yaml:2:1: error[required]: m"
        );
        assert!(news(Some(&after), &after, None).is_empty(), "reported once");
        let mut less = after.clone();
        less.quarantined.truncate(1);
        assert!(news(Some(&less), &after, None)[0].message.contains("1 error in 1 file: b.yaml (1)"));
    }
}
