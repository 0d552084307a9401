//! Messages for people: verdicts on commits, jobs that ended, and problems while they last. Pure.
//!
//! Each cause gives one message. A message is left out for a target that gets its cause in another one: a verdict that is
//! Degraded for files in quarantine or held removals alone, a failed rollout of a commit whose verdict is Bad, and the
//! files for which a strict source refused a commit. A problem that was sent is followed up until it ends.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::condition::ConditionStatus;
use schema::kinds::Kind;
use schema::kinds::cluster::NotificationEvent;
use schema::kinds::job::JobPhase;
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::short_commit;
use schema::records::{
    EtcdMember, JobReport, Message, MessageState, OutboxEntry, Quarantine, Revision, SourceErrorKind,
    SourceStatus, Verdict,
};
use schema::snapshot::Snapshot;
use schema::violation::{grouped, plural};

use super::subjects::{
    KnownSubjects, is_kept, is_recent, is_settled, may_show_failure, message, page_of, subject_of_rollout,
    workload_of,
};
use crate::upkeep::UpkeepState;

/// Most files, objects, or names for one reason that a message lists.
const NAMED_MAX: usize = 10;
/// Most nodes with a disk that is nearly full that a message lists, one a line.
const DISKS_MAX: usize = 50;
/// Share of its quota from which on a member of etcd is nearly full, in percent, and below which it no longer is.
const ETCD_FULL_PERCENT: u64 = 80;
const ETCD_ROOM_PERCENT: u64 = 70;
/// Free share below which a disk is nearly full, in percent, and from which on it no longer is.
const DISK_FULL_PERCENT: u64 = 10;
const DISK_ROOM_PERCENT: u64 = 15;
/// Time for which a remote may be away before that is a problem.
const REMOTE_AWAY: SignedDuration = SignedDuration::from_mins(3);

const NODES: &str = "nodes";
/// Subject of problems of etcd.
pub(in crate::notifications) const ETCD: &str = "etcd";
const DISKS: &str = "disks";

/// Returns the messages for a target of these events, by subject; of all events if the list is empty.
pub(super) fn messages(
    snapshot: &Snapshot,
    etcd: &UpkeepState,
    known: &KnownSubjects<'_>,
    events: &[NotificationEvent],
    now: Timestamp,
) -> BTreeMap<String, Message> {
    let mut fold = EventFold { snapshot, known, events, now, out: BTreeMap::new() };
    for source in snapshot.sources.values().map(|source| &source.value) {
        fold.verdict(&source.name);
        fold.source(source);
        fold.quarantine(source);
        fold.prune(source);
    }
    fold.nodes();
    fold.rollouts();
    fold.jobs();
    fold.etcd(etcd);
    fold.disks();
    fold.former(etcd);
    fold.out
}

struct EventFold<'a> {
    snapshot: &'a Snapshot,
    known: &'a KnownSubjects<'a>,
    events: &'a [NotificationEvent],
    now: Timestamp,
    out: BTreeMap<String, Message>,
}

impl EventFold<'_> {
    fn reports(&self, event: NotificationEvent) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }

    /// Adds a problem. One that another message covers is added only if it may have been sent before.
    fn add_problem(&mut self, subject: String, problem: Message, is_covered: bool) {
        if self.reports(problem.event) && (!is_covered || self.may_show_failure(&subject)) {
            self.out.insert(subject, problem);
        }
    }

    fn may_show_failure(&self, subject: &str) -> bool {
        self.known.get(subject).is_some_and(may_show_failure)
    }

    fn verdict(&mut self, source: &str) {
        if !self.reports(NotificationEvent::Verdict) {
            return;
        }
        let mut newest_first = self.snapshot.revisions_of(source).rev();
        let Some(revision) = newest_first.find(|revision| self.reports_verdict(revision)) else { return };
        let Revision { commit, subject, author, verdict, decided_at, .. } = revision;
        let (state, word, why) = match verdict {
            Verdict::Bad { why } => (MessageState::Failure, "bad", why.as_str()),
            Verdict::Degraded { why } => (MessageState::Failure, "applied in part", why.as_str()),
            Verdict::Good | Verdict::Applied | Verdict::Superseded => (MessageState::Success, "good", ""),
        };
        let key = format!("verdict.{source}");
        let is_news = decided_at.is_some_and(|at| is_recent(at, self.now));
        if state == MessageState::Failure || is_news || self.known.get(&key).is_some() {
            let title = format!("source {source}: commit {} is {word}", short_commit(commit));
            let text = format!("{subject}, by {author}\n{why}");
            let decided = Message {
                page: page_of(revision),
                source: Some(source.to_owned()),
                commit: Some(commit.clone()),
                ..message(NotificationEvent::Verdict, state, &title, &text)
            };
            self.out.insert(key, decided);
        }
    }

    /// True if the target gets the verdict: a final one, unless it is superseded or other messages have all of its reasons.
    fn reports_verdict(&self, revision: &Revision) -> bool {
        let (files, removals) = (revision.counts.quarantined, revision.counts.held);
        let is_covered = || {
            (files > 0 || removals > 0)
                && (files == 0 || self.reports(NotificationEvent::Quarantine))
                && (removals == 0 || self.reports(NotificationEvent::Prune))
        };
        revision.decided_at.is_some()
            && match revision.verdict {
                Verdict::Good | Verdict::Bad { .. } => true,
                Verdict::Degraded { .. } => !is_covered(),
                Verdict::Applied | Verdict::Superseded => false,
            }
    }

    /// True if the message about the commit's verdict has its failed rollouts, or will. It does not once that of a newer
    /// commit came before.
    fn is_in_verdict(&self, source: &str, commit: &str) -> bool {
        let mut newer_decided = None::<Timestamp>;
        for revision in self.snapshot.revisions_of(source).rev() {
            if revision.commit == commit {
                return match (&revision.verdict, revision.decided_at) {
                    (_, None) => true,
                    (Verdict::Bad { .. }, Some(at)) => newer_decided.is_none_or(|newer| at < newer),
                    _ => false,
                };
            }
            if self.reports_verdict(revision) {
                newer_decided = newer_decided.into_iter().chain(revision.decided_at).min();
            }
        }
        false
    }

    fn source(&mut self, status: &SourceStatus) {
        let Some(error) = &status.error else { return };
        if error.kind == SourceErrorKind::NoCommit && status.applied_commit.is_none() {
            // A new repository.
            return;
        }
        let (name, subject) = (&status.name, format!("source.{}", status.name));
        let is_brief = error.kind == SourceErrorKind::RemoteUnreachable
            && (SignedDuration::ZERO..REMOTE_AWAY).contains(&self.now.duration_since(error.since));
        if is_brief && !self.may_show_failure(&subject) {
            return;
        }
        let title = format!("source {name}: {}", fault(error.kind));
        let problem = Message {
            source: Some(name.clone()),
            commit: status.observed_commit.clone().filter(|_| error.kind.is_about_commit()),
            ..message(NotificationEvent::Source, MessageState::Failure, &title, &error.message)
        };
        // Each try may word the same failure differently.
        let same = self.known.get(&subject).map(|entry| &entry.wanted).filter(|before| {
            let Message { state, title, commit, .. } = before;
            (*state, title, commit) == (problem.state, &problem.title, &problem.commit)
        });
        let problem = same.cloned().unwrap_or(problem);
        self.add_problem(subject, problem, false);
    }

    fn quarantine(&mut self, status: &SourceStatus) {
        let (name, files) = (&status.name, &status.quarantined);
        let Some(first) = files.first() else { return };
        let line = |file: &Quarantine| {
            file.violations.first().map_or_else(|| file.file.clone(), ToString::to_string)
        };
        let lines = listed(files.iter().map(line), files.len(), NAMED_MAX);
        let title = format!("source {name}: {} in quarantine", plural(files.len(), "file"));
        let problem = Message {
            source: Some(name.clone()),
            commit: Some(first.commit.clone())
                .filter(|commit| files.iter().all(|file| file.commit == *commit)),
            ..message(NotificationEvent::Quarantine, MessageState::Failure, &title, &lines.join("\n"))
        };
        let is_refused = status.error.as_ref().is_some_and(|error| error.kind == SourceErrorKind::Refused);
        let is_covered = is_refused && self.reports(NotificationEvent::Source);
        self.add_problem(format!("quarantine.{name}"), problem, is_covered);
    }

    fn prune(&mut self, status: &SourceStatus) {
        let (name, Some(held)) = (&status.name, &status.held_prune) else { return };
        let total = usize::try_from(held.deletes).unwrap_or(usize::MAX);
        let objects = listed(held.objects.iter().map(ToString::to_string), total, NAMED_MAX);
        let title = format!("source {name}: {} held back", plural(held.deletes, "removal"));
        let text = format!("{}\n{}", held.why, objects.join(", "));
        let problem = Message {
            source: Some(name.clone()),
            commit: Some(held.commit.clone()),
            ..message(NotificationEvent::Prune, MessageState::Failure, &title, &text)
        };
        self.add_problem(format!("prune.{name}"), problem, false);
    }

    /// Adds the nodes that are not ready, except those that Git drains or declares gone.
    fn nodes(&mut self) {
        let snapshot = self.snapshot;
        let reason = |node: &String| {
            if snapshot.is_gone(node) || snapshot.is_draining(node) {
                return None;
            }
            match snapshot.conditions_of(node)?.ready {
                ConditionStatus::True => None,
                ConditionStatus::False => Some("it waits for a range of pod addresses"),
                ConditionStatus::Unknown => Some("no heartbeat: its agent is stopped or can't reach etcd"),
            }
        };
        let reasons: Vec<(String, String)> =
            snapshot.nodes.keys().filter_map(|node| Some((node.clone(), reason(node)?.to_owned()))).collect();
        let (title, page) = match reasons.as_slice() {
            [] => return,
            [(node, _)] => (format!("node {node} is not ready"), format!("/nodes/{node}")),
            nodes => (format!("{} nodes are not ready", nodes.len()), "/".to_owned()),
        };
        let text = grouped(reasons, NAMED_MAX).join("\n");
        let problem = message(NotificationEvent::Node, MessageState::Failure, &title, &text);
        self.add_problem(NODES.to_owned(), Message { page, ..problem }, false);
    }

    fn rollouts(&mut self) {
        let snapshot = self.snapshot;
        for (workload, rollout) in &snapshot.rollouts {
            let rollout = &rollout.value;
            let Some(failure) = &rollout.failure else { continue };
            let source = source_of(snapshot, workload);
            let is_covered = self.reports(NotificationEvent::Verdict)
                && source.as_ref().is_some_and(|source| self.is_in_verdict(source, &rollout.commit));
            let title = format!("the rollout of {workload} has failed: {}", failure.reason);
            let problem = Message {
                page: page_of_object(workload),
                source,
                commit: Some(rollout.commit.clone()),
                ..message(NotificationEvent::Rollout, MessageState::Failure, &title, &failure.message)
            };
            self.add_problem(subject_of_rollout(workload), problem, is_covered);
        }
    }

    fn jobs(&mut self) {
        if !self.reports(NotificationEvent::Job) {
            return;
        }
        let snapshot = self.snapshot;
        for (key, order) in &snapshot.jobs {
            let report = snapshot.job_reports.get(key).map(|report| &report.value);
            let report = report.filter(|report| report.uid == order.value.uid && !order.value.deleting);
            let Some((report, (state, word))) = report.and_then(|report| Some((report, job_end(report)?)))
            else {
                continue;
            };
            let NamespacedName { namespace, name } = &key.1;
            let subject = format!("job.{namespace}.{name}");
            let job = ObjectRef { kind: Kind::Job, namespace: namespace.clone(), name: name.clone() };
            let commit = snapshot.objects.get(&job).map(|job| job.value.provenance.commit.clone());
            let ended = Message {
                page: page_of_object(&job),
                source: source_of(snapshot, &job),
                commit,
                ..message(NotificationEvent::Job, state, &format!("{job} {word}"), &job_text(report))
            };
            let is_news = is_recent(report.ended_at.unwrap_or(report.since), self.now);
            let is_due = |entry: &OutboxEntry| !is_settled(entry, &ended, self.now);
            if is_news || self.known.get(&subject).is_some_and(is_due) {
                self.out.insert(subject, ended);
            }
        }
    }

    fn etcd(&mut self, etcd: &UpkeepState) {
        let problem = self.known.get(ETCD).filter(|entry| entry.wanted.state == MessageState::Failure);
        let limit = if problem.is_some() { ETCD_ROOM_PERCENT } else { ETCD_FULL_PERCENT };
        let found = etcd.members.iter().filter_map(|member| Some((member, etcd_fault(member, limit)?)));
        let mut found: Vec<(&EtcdMember, EtcdFault)> = found.collect();
        found.sort_by_key(|(_, fault)| *fault);
        let title = match found.first() {
            None => return,
            Some((_, EtcdFault::Full)) => "etcd is at its quota and refuses writes: nothing new is applied",
            Some((_, EtcdFault::Alarm)) => "etcd has an alarm",
            Some((_, EtcdFault::NearlyFull)) => "etcd is nearly full: at its quota it refuses writes",
        };
        let line = |(member, fault): &(&EtcdMember, EtcdFault)| match fault {
            EtcdFault::Full => format!("member {} is at its quota", member.label()),
            EtcdFault::Alarm => {
                format!("member {} has the alarm {}", member.label(), member.alarms.join(", "))
            }
            EtcdFault::NearlyFull => format!("member {} is near its quota", member.label()),
        };
        let lines = listed(found.iter().map(line), found.len(), NAMED_MAX);
        let problem = message(NotificationEvent::Etcd, MessageState::Failure, title, &lines.join("\n"));
        self.add_problem(ETCD.to_owned(), problem, false);
    }

    /// Adds the nodes whose state directory is on a disk that is nearly full. A node that was named stays until there is
    /// more room than that.
    fn disks(&mut self) {
        let snapshot = self.snapshot;
        let problem = self.known.get(DISKS).filter(|entry| entry.wanted.state == MessageState::Failure);
        let named: BTreeSet<&str> = problem.into_iter().flat_map(|entry| entry.wanted.text.lines()).collect();
        let is_low = |node: &String| {
            let disk = snapshot.usage.get(node)?.value.disk.filter(|disk| disk.total_bytes > 0)?;
            let limit = if named.contains(node.as_str()) { DISK_ROOM_PERCENT } else { DISK_FULL_PERCENT };
            (disk.free_percent() < limit).then(|| node.clone())
        };
        let nodes: Vec<String> = snapshot.nodes.keys().filter_map(is_low).collect();
        let (title, page) = match nodes.as_slice() {
            [] => return,
            [node] => (format!("the disk of node {node} is nearly full"), format!("/nodes/{node}")),
            nodes => (format!("the disks of {} nodes are nearly full", nodes.len()), "/".to_owned()),
        };
        let lines = listed(nodes.iter().cloned(), nodes.len(), DISKS_MAX);
        let problem = message(NotificationEvent::Disk, MessageState::Failure, &title, &lines.join("\n"));
        self.add_problem(DISKS.to_owned(), Message { page, ..problem }, false);
    }

    /// Adds the messages about subjects of the outbox of which there is nothing new: the end of a problem that may have
    /// been sent, and for an hour the last message. A problem that is over and was never sent is forgotten.
    fn former(&mut self, etcd: &UpkeepState) {
        let known = self.known;
        for (subject, entry) in known.iter() {
            let event = entry.wanted.event;
            if self.out.contains_key(subject) || !self.reports(event) {
                continue;
            }
            // An attempt may have replaced that of the problem, whose outcome was not known either.
            let was_sent = may_show_failure(entry) || entry.attempt.is_some();
            let kept = match event {
                NotificationEvent::Verdict | NotificationEvent::Job => {
                    is_kept(entry, self.now).then(|| entry.wanted.clone())
                }
                // Not read yet since this process leads.
                NotificationEvent::Etcd if etcd.members.is_empty() => Some(entry.wanted.clone()),
                NotificationEvent::Rollout if was_sent && self.goes_on(subject) => Some(entry.wanted.clone()),
                _ if was_sent => Some(self.all_clear(subject, &entry.wanted)),
                _ => {
                    let last = entry.sent.as_ref().filter(|sent| is_recent(sent.at, self.now));
                    last.map(|sent| sent.message.clone())
                }
            };
            self.out.extend(kept.map(|kept| (subject.to_owned(), kept)));
        }
    }

    /// True if the rollout of a subject is tried again and has not come to its end.
    fn goes_on(&self, subject: &str) -> bool {
        let workload = workload_of(subject);
        let rollout = workload.and_then(|workload| self.snapshot.rollouts.get(&workload));
        rollout.is_some_and(|rollout| !rollout.value.complete)
    }

    /// Returns the message that a problem is over.
    fn all_clear(&self, subject: &str, problem: &Message) -> Message {
        let about = subject.split_once('.').map_or("", |(_, about)| about);
        let title = match problem.event {
            NotificationEvent::Quarantine | NotificationEvent::Prune | NotificationEvent::Source
                if !self.snapshot.sources.contains_key(about) =>
            {
                format!("source {about} is no longer followed")
            }
            NotificationEvent::Quarantine => format!("source {about}: no file is in quarantine any more"),
            NotificationEvent::Prune => format!("source {about}: no removal is held back any more"),
            NotificationEvent::Source => format!("source {about} is read and applied again"),
            NotificationEvent::Node => "all nodes are ready".to_owned(),
            NotificationEvent::Rollout => {
                let workload = workload_of(subject).map_or_else(|| about.to_owned(), |it| it.to_string());
                format!("{workload} no longer has a failed rollout")
            }
            NotificationEvent::Etcd => "etcd has room and no alarm".to_owned(),
            NotificationEvent::Disk => "no node's disk is nearly full any more".to_owned(),
            NotificationEvent::Verdict | NotificationEvent::Job => problem.title.clone(),
        };
        Message {
            page: problem.page.clone(),
            source: problem.source.clone(),
            ..message(problem.event, MessageState::Success, &title, "")
        }
    }
}

/// Returns what is wrong with a source, as the end of a sentence. It stays the same while the error lasts.
fn fault(kind: SourceErrorKind) -> &'static str {
    match kind {
        SourceErrorKind::RemoteUnreachable => "its repository does not answer",
        SourceErrorKind::AuthenticationFailed => "its repository rejects the credentials",
        SourceErrorKind::ReferenceNotFound => "its branch, tag or commit does not exist",
        SourceErrorKind::NoCommit => "its repository has no commit",
        SourceErrorKind::PathNotFound => "its folder does not exist",
        SourceErrorKind::CommitUnreadable => "its newest commit cannot be read",
        SourceErrorKind::Empty => "its newest commit holds no manifest",
        SourceErrorKind::SignatureInvalid => "its newest commit is not signed as required",
        SourceErrorKind::MirrorBroken => "its mirror is broken",
        SourceErrorKind::ApplyFailed => "its newest commit cannot be written to etcd",
        SourceErrorKind::Refused => "its newest commit is refused",
        SourceErrorKind::NotConfigured => "it is no longer configured",
    }
}

/// Returns the state and the word for the end of a job; `None` before it.
fn job_end(report: &JobReport) -> Option<(MessageState, &'static str)> {
    match report.status.phase {
        JobPhase::Succeeded => Some((MessageState::Success, "has succeeded")),
        JobPhase::Cancelled => Some((MessageState::Failure, "was cancelled")),
        phase => phase.is_final().then_some((MessageState::Failure, "has failed")),
    }
}

/// Returns the reason of a job's end, and its number in Slurm, which tells it from the run before.
fn job_text(report: &JobReport) -> String {
    let status = &report.status;
    let class = status.class.map(|class| format!("{class:?}"));
    let reason = Some(status.reason.clone()).filter(|reason| !reason.is_empty());
    let number = status.slurm_id.map(|number| format!("job {number} at {}", report.login));
    class.into_iter().chain(reason).chain(number).collect::<Vec<_>>().join("\n")
}

/// A fault of a member of etcd, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EtcdFault {
    Full,
    Alarm,
    NearlyFull,
}

fn etcd_fault(member: &EtcdMember, limit_percent: u64) -> Option<EtcdFault> {
    if member.is_full() {
        return Some(EtcdFault::Full);
    }
    if !member.alarms.is_empty() {
        return Some(EtcdFault::Alarm);
    }
    let share = member.share_of_quota(member.size_bytes)?;
    (share >= limit_percent).then_some(EtcdFault::NearlyFull)
}

/// Collects the first `max` of `total` items, and counts the others.
fn listed(items: impl Iterator<Item = String>, total: usize, max: usize) -> Vec<String> {
    let mut lines: Vec<String> = items.take(max).collect();
    let more = total.saturating_sub(lines.len());
    lines.extend((more > 0).then(|| format!("and {more} more")));
    lines
}

fn source_of(snapshot: &Snapshot, object: &ObjectRef) -> Option<String> {
    snapshot.objects.get(object).map(|object| object.value.provenance.source.clone())
}

fn page_of_object(object: &ObjectRef) -> String {
    format!("/object/{}/{}/{}", object.kind, object.namespace, object.name)
}
