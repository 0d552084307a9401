//! Decides when to compact, to defragment and to end an alarm, and which problems to report. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::{DiskSpace, EtcdMember, EtcdUpkeep, EventType, mib, repair_commands};
use schema::store::events::EventDraft;

/// Interval between compactions, and least age of what they delete: a watch that is behind by less goes on.
pub(super) const COMPACTION_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
/// Interval at which a revision is remembered, so that there is one of the age to compact at.
const REVISION_INTERVAL: SignedDuration = SignedDuration::from_secs(30);
/// Shortest time between two defragmentations of a member that nobody requested: it answers nothing meanwhile.
const DEFRAGMENTATION_GAP: SignedDuration = SignedDuration::from_mins(10);
/// Shortest time between two attempts to empty a full etcd.
const RESCUE_GAP: SignedDuration = SignedDuration::from_secs(30);
/// Share of the quota below which every member must be before an alarm ends, in percent: else it would return with
/// the next writes.
const ROOM_PERCENT: u64 = 90;
/// Kind of the object of events about etcd.
pub(super) const ETCD: &str = "Etcd";

/// Role of this process in the upkeep of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Leads,
    /// Another reconciler leads.
    Follows,
    /// Nobody leads, and nobody can: a lease is a write.
    Leaderless,
}

/// Memory of this process between runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Memory {
    /// Revisions with the time at which each was the newest, oldest first.
    pub(super) revisions: VecDeque<(Timestamp, i64)>,
    /// Time of the last attempt to compact.
    pub(super) compaction_tried: Option<Timestamp>,
    /// Time of the last compaction, and the newest compacted revision.
    pub(super) compacted_at: Option<Timestamp>,
    pub(super) compacted_revision: i64,
    /// Time of the last attempt to defragment each member, by id.
    pub(super) defragmentation_tried: BTreeMap<String, Timestamp>,
    /// Time since which a member has been at its quota.
    pub(super) full_since: Option<Timestamp>,
    /// Reasons and names of the problems of which there is an event.
    pub(super) reported: BTreeSet<(&'static str, String)>,
}

impl Memory {
    /// Notes the newest revision. A smaller one is that of another etcd.
    pub(super) fn note_revision(&mut self, revision: i64, now: Timestamp) {
        if self.revisions.back().is_some_and(|(at, last)| revision < *last || *at > now) {
            (self.revisions, self.compacted_revision) = (VecDeque::new(), 0);
        }
        let is_due = |(at, _): &(Timestamp, i64)| now.duration_since(*at) >= REVISION_INTERVAL;
        if self.revisions.back().is_none_or(is_due) {
            self.revisions.push_back((now, revision));
        }
        // The newest of those that are old enough stays.
        let is_old = |at: &Timestamp| now.duration_since(*at) >= COMPACTION_INTERVAL;
        while self.revisions.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.revisions.pop_front();
        }
    }

    fn old_revision(&self, now: Timestamp) -> Option<i64> {
        let (at, revision) = self.revisions.front()?;
        (now.duration_since(*at) >= COMPACTION_INTERVAL).then_some(*revision)
    }
}

/// A request that was not carried out yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingRequest {
    /// Time at which this process learned of it.
    pub(super) since: Timestamp,
    /// Revision of its key; 0 for one that could not be written.
    pub(super) revision: i64,
}

/// Input of the plan.
#[derive(Debug, Clone)]
pub struct Observed {
    pub(super) members: Vec<EtcdMember>,
    /// Set if this etcd is Minik8s's to maintain.
    pub(super) is_on: bool,
    pub(super) role: Role,
    pub(super) endpoints: Vec<String>,
    pub(super) memory: Memory,
    /// The record in etcd.
    pub(super) record: Option<EtcdUpkeep>,
    pub(super) request: Option<PendingRequest>,
    /// Name of this reconciler, and the disk of its state directory.
    pub(super) own_disk: (String, Option<DiskSpace>),
    /// Disks of the nodes that are ready.
    pub(super) node_disks: BTreeMap<String, DiskSpace>,
}

/// An act on etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Compact {
        revision: i64,
    },
    /// Defragments the member of this id.
    Defragment {
        member: String,
    },
    /// Ends the alarm of the member of this id.
    Disarm {
        member: String,
    },
}

/// A problem that a person should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// CamelCase word for the reason.
    pub reason: &'static str,
    /// Kind of the object: `Etcd`, `Reconciler` or `Node`.
    pub object_kind: &'static str,
    pub name: String,
    pub message: String,
}

/// At most one step, so that the members are observed again before the next.
#[derive(Debug)]
pub struct UpkeepPlan {
    pub(super) step: Option<Step>,
    /// Reason of the step.
    pub(super) why: &'static str,
    pub(super) problems: Vec<Problem>,
    pub(super) events: Vec<EventDraft>,
    /// Problems of which there is an event.
    pub(super) reported: BTreeSet<(&'static str, String)>,
    /// The pending request, if nothing is left to do for it.
    pub(super) answered: Option<PendingRequest>,
    /// The record to write.
    pub(super) record: Option<EtcdUpkeep>,
    again_at: Option<Timestamp>,
}

impl schema::control::Plan for UpkeepPlan {
    fn is_empty(&self) -> bool {
        self.step.is_none() && self.record.is_none() && self.events.is_empty() && self.answered.is_none()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

pub(super) fn plan(seen: &Observed, now: Timestamp) -> UpkeepPlan {
    let is_full = seen.members.iter().any(EtcdMember::is_full);
    let may_act = seen.is_on
        && match seen.role {
            Role::Leads => true,
            Role::Leaderless => is_full,
            Role::Follows => false,
        };
    let due = || {
        let disarmed = disarm(seen).map(|step| (step, "every member has room again"));
        disarmed.or_else(|| compaction(seen, is_full, now)).or_else(|| defragmentation(seen, is_full, now))
    };
    let (step, why) = may_act.then(due).flatten().map_or((None, ""), |(step, why)| (Some(step), why));
    // One that only this process knows of is carried out even if another has begun to lead since.
    let is_done = |request: &PendingRequest| {
        may_act || request.revision == 0 && seen.memory.compaction_tried >= Some(request.since)
    };
    let answered = seen.request.filter(|request| step.is_none() && is_done(request));
    let problems = problems(seen);
    let keys = problems.iter().map(|problem| (problem.reason, problem.name.clone()));
    let reported = keys.filter(|key| !is_full || seen.memory.reported.contains(key)).collect();
    let record = record(seen, answered);
    let is_news = seen.record.as_ref() != Some(&record) && !is_full && step.is_none();
    UpkeepPlan {
        again_at: step.is_some().then_some(now),
        step,
        why,
        events: events(seen, &problems, is_full, now),
        problems,
        reported,
        answered,
        record: (seen.role == Role::Leads && is_news).then_some(record),
    }
}

/// Ends an alarm once every member has room.
fn disarm(seen: &Observed) -> Option<Step> {
    let full = seen.members.iter().find(|member| member.is_full())?;
    let has_room = |member: &EtcdMember| match member.share_of_quota(member.size_bytes) {
        Some(share) => share < ROOM_PERCENT,
        // Without a quota only a defragmentation tells.
        None => seen.memory.defragmentation_tried.get(&member.id) > seen.memory.full_since.as_ref(),
    };
    // A silent member with no room raises its alarm again.
    let mut answering = seen.members.iter().filter(|member| member.error.is_none()).peekable();
    (answering.peek().is_some() && answering.all(has_room)).then(|| Step::Disarm { member: full.id.clone() })
}

fn compaction(seen: &Observed, is_full: bool, now: Timestamp) -> Option<(Step, &'static str)> {
    let (memory, record) = (&seen.memory, seen.record.as_ref());
    let newest = seen.members.iter().map(|member| member.revision).max().filter(|newest| *newest > 0)?;
    let tried = memory.compaction_tried;
    let is_requested = seen.request.is_some_and(|request| tried.is_none_or(|tried| tried < request.since));
    if is_requested {
        return Some((Step::Compact { revision: newest }, "a defragmentation was requested"));
    }
    if is_full {
        let begun = tried.is_some_and(|tried| Some(tried) >= memory.full_since);
        let may_again = newest > memory.compacted_revision && is_past(tried, RESCUE_GAP, now);
        return (!begun || may_again).then_some((Step::Compact { revision: newest }, "etcd is at its quota"));
    }
    let last = tried.max(record.and_then(|record| record.compacted_at));
    let compacted = memory.compacted_revision.max(record.map_or(0, |record| record.compacted_revision));
    // Of another etcd if it is beyond the newest.
    let compacted = if compacted > newest { 0 } else { compacted };
    let revision = memory.old_revision(now).filter(|revision| *revision > compacted)?;
    is_past(last, COMPACTION_INTERVAL, now)
        .then_some((Step::Compact { revision }, "the last compaction was five minutes ago"))
}

/// True if `last` is at least `gap` ago, or the clock was set back since.
fn is_past(last: Option<Timestamp>, gap: SignedDuration, now: Timestamp) -> bool {
    last.is_none_or(|last| last > now || now.duration_since(last) >= gap)
}

/// Defragments one member, the leader of etcd last.
fn defragmentation(seen: &Observed, is_full: bool, now: Timestamp) -> Option<(Step, &'static str)> {
    let memory = &seen.memory;
    let all_answer = seen.members.iter().all(|member| member.error.is_none());
    let due = |member: &&EtcdMember| {
        let tried = memory.defragmentation_tried.get(&member.id).copied();
        if member.error.is_some() {
            return None;
        }
        if seen.request.is_some_and(|request| tried.is_none_or(|tried| tried < request.since)) {
            return Some("a defragmentation was requested");
        }
        if is_full {
            // Once after each compaction.
            return (tried < memory.compaction_tried).then_some("etcd is at its quota");
        }
        // The others carry on meanwhile.
        let is_due =
            all_answer && member.is_worth_defragmenting() && is_past(tried, DEFRAGMENTATION_GAP, now);
        is_due.then_some("much of its file is unused")
    };
    let due = seen.members.iter().filter_map(|member| Some((member, due(&member)?)));
    let (member, why) = due.min_by_key(|(member, _)| member.is_leader)?;
    Some((Step::Defragment { member: member.id.clone() }, why))
}

fn record(seen: &Observed, answered: Option<PendingRequest>) -> EtcdUpkeep {
    let before = seen.record.clone().unwrap_or_default();
    let memory = &seen.memory;
    let is_known = memory.compacted_revision > 0;
    EtcdUpkeep {
        is_on: seen.is_on,
        quota_bytes: quota(&seen.members).or(before.quota_bytes),
        compacted_at: memory.compacted_at.filter(|_| is_known).or(before.compacted_at),
        compacted_revision: if is_known { memory.compacted_revision } else { before.compacted_revision },
        defragmented_at: memory.defragmentation_tried.values().max().copied().or(before.defragmented_at),
        answered: answered.map_or(before.answered, |request| request.revision.max(before.answered)),
    }
}

/// Returns the smallest quota of a member.
pub(super) fn quota(members: &[EtcdMember]) -> Option<u64> {
    members.iter().filter_map(|member| member.quota_bytes).min()
}

fn problems(seen: &Observed) -> Vec<Problem> {
    let mut found: Vec<Problem> =
        seen.members.iter().filter_map(|member| etcd_problem(seen, member)).collect();
    let disk = |object_kind, name: &String, disk: &DiskSpace| Problem {
        reason: "DiskNearlyFull",
        object_kind,
        name: name.clone(),
        message: format!(
            "the disk of its state directory has {} % free ({} of {}): make room, or what is written there is lost",
            disk.free_percent(),
            mib(disk.free_bytes),
            mib(disk.total_bytes)
        ),
    };
    if let (name, Some(own)) = &seen.own_disk
        && own.is_low()
    {
        found.push(disk("Reconciler", name, own));
    }
    let low = seen.node_disks.iter().filter(|(_, space)| space.is_low());
    found.extend(low.map(|(name, space)| disk(Kind::Node.as_str(), name, space)));
    found
}

fn etcd_problem(seen: &Observed, member: &EtcdMember) -> Option<Problem> {
    let (label, usage) = (member.label(), member.usage());
    let problem =
        |reason, message| Some(Problem { reason, object_kind: ETCD, name: label.to_owned(), message });
    if let Some(error) = member.error.as_ref().filter(|_| !member.is_full()) {
        // A cluster of one that does not answer is reported by every request.
        let message = || format!("member {label} does not answer: {error}");
        return if seen.members.len() > 1 { problem("EtcdMemberSilent", message()) } else { None };
    }
    let remedy = || match (seen.is_on, member.share_of_quota(member.in_use_bytes)) {
        (_, Some(share)) if share >= ROOM_PERCENT => format!(
            "its values alone take {}: raise the quota with etcd's --quota-backend-bytes",
            mib(member.in_use_bytes)
        ),
        (true, _) => "the leader compacts and defragments it".to_owned(),
        (false, _) => format!(
            "run '{}', or start the reconcilers with --etcd-upkeep",
            repair_commands(&seen.endpoints, member.revision)
        ),
    };
    if member.is_full() {
        let what = "etcd refuses writes, so nothing new is applied";
        return problem("EtcdFull", format!("{what}: member {label} has {usage}; {}", remedy()));
    }
    if let Some(alarm) = member.alarms.first() {
        return problem(
            "EtcdAlarm",
            format!("member {label} has the alarm {alarm}; see etcd's documentation"),
        );
    }
    if member.is_nearly_full() {
        let message = format!("member {label} has {usage}: at the quota etcd refuses writes; {}", remedy());
        return problem("EtcdNearlyFull", message);
    }
    None
}

/// Returns an event for each problem that is new; none while etcd is full, because none can be written. That it was is
/// told afterwards.
fn events(seen: &Observed, problems: &[Problem], is_full: bool, now: Timestamp) -> Vec<EventDraft> {
    let event = |object_kind: &str, name: &str, reason, message| {
        let object = NamespacedName::new("", name);
        EventDraft::about(EventType::Warning, object_kind, &object, reason, message)
    };
    if is_full {
        return Vec::new();
    }
    // Every reconciler tells of its own disk; the leader of all else.
    let is_told_here = |problem: &&Problem| problem.object_kind == "Reconciler" || seen.role == Role::Leads;
    let is_new = |problem: &&Problem| !seen.memory.reported.contains(&(problem.reason, problem.name.clone()));
    let new = problems.iter().filter(is_told_here).filter(is_new);
    let mut events: Vec<EventDraft> = new
        .map(|problem| event(problem.object_kind, &problem.name, problem.reason, problem.message.clone()))
        .collect();
    let full_since = seen.memory.full_since.filter(|_| seen.role == Role::Leads);
    if let Some(since) = full_since {
        let seconds = now.duration_since(since).as_secs();
        let message =
            format!("etcd was at its quota and refused writes for {seconds} s; now it accepts them");
        events.push(event(ETCD, "etcd", "EtcdFull", message));
    }
    events
}
