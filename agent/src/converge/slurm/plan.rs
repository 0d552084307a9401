//! Plans changes of records, steps to start, login hosts to poll, and the report. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::control::Plan;
use schema::kinds::Kind;
use schema::kinds::job::{JobPhase, SlurmLogin};
use schema::meta::NamespacedName;
use schema::records::{EventType, JobOrder, JobReport};
use schema::store::events::EventDraft;

use super::machine::{JobRecord, JobState, JobStep, StepResult};

/// Shortest and longest interval between two polls of a login host; the shortest applies right after a change.
const POLL: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_secs(30));
/// Maximum number of concurrent steps: per login, so that an unresponsive host does not block others, and in total.
const LOGIN_STEPS_MAX: usize = 6;
const STEPS_MAX: usize = 60;
/// Time for which a job without an order is still reported: a restarted reconciler learns from the report who has it.
const UNORDERED_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Reports by job.
pub type ReportsByJob = BTreeMap<NamespacedName, Arc<JobReport>>;

/// A task under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskSlot {
    Job(NamespacedName),
    /// Poll of a login host.
    Poll(Box<SlurmLogin>),
}

/// Result of a step for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub id: NamespacedName,
    /// UID of the order that the step began with.
    pub uid: String,
    pub event: StepResult,
}

/// Observed inputs of the loop.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub orders: BTreeMap<NamespacedName, JobOrder>,
    /// Records as on disk.
    pub records: BTreeMap<NamespacedName, JobRecord>,
    /// Findings since the last observation, in order.
    pub findings: Vec<Finding>,
    /// Time since which a job has had no order although etcd is complete.
    pub unordered_since: BTreeMap<NamespacedName, Timestamp>,
    /// Set if etcd holds all orders of this node: a job without an order belongs to another node, or is over.
    pub is_whole: bool,
    pub busy: BTreeSet<TaskSlot>,
    /// Time of the last poll of each login host.
    pub polled_at: BTreeMap<SlurmLogin, Timestamp>,
}

/// A record to write, and the events to emit for the change.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordChange {
    pub record: JobRecord,
    pub events: Vec<EventDraft>,
}

/// Changes to make: first those of records, on which the rest depends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlurmPlan {
    pub changes: BTreeMap<NamespacedName, RecordChange>,
    pub steps: Vec<(NamespacedName, JobStep)>,
    /// Jobs to poll, by login.
    pub polls: BTreeMap<SlurmLogin, Vec<NamespacedName>>,
    /// Records that are no longer this node's.
    pub forget: Vec<NamespacedName>,
    pub reported: ReportsByJob,
    pub again_at: Option<Timestamp>,
}

impl Plan for SlurmPlan {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.steps.is_empty() && self.polls.is_empty() && self.forget.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> SlurmPlan {
    let changes = changes(observed, now);
    let mut records: BTreeMap<&NamespacedName, &JobRecord> = observed.records.iter().collect();
    records.extend(changes.iter().map(|(id, change)| (id, &change.record)));
    let mut plan = SlurmPlan::default();
    let mut polled: BTreeMap<&SlurmLogin, Vec<&JobRecord>> = BTreeMap::new();
    let mut under_way = under_way(observed);
    for (id, record) in records {
        let is_busy = observed.busy.contains(&TaskSlot::Job(id.clone()));
        if !observed.orders.contains_key(id) && observed.is_whole {
            let since = observed.unordered_since.get(id).copied().unwrap_or(now);
            let until = since.checked_add(UNORDERED_MAX).unwrap_or(now);
            if record.state == JobState::Gone || until <= now {
                if !is_busy {
                    plan.forget.push(id.clone());
                }
            } else {
                plan.reported.insert(id.clone(), Arc::new(record.report()));
                plan.again_at = plan.again_at.into_iter().chain([until]).min();
            }
            continue;
        }
        plan.reported.insert(id.clone(), Arc::new(record.report()));
        if record.is_polled() {
            polled.entry(&record.order.spec.login).or_default().push(record);
        }
        match record.step(now) {
            Some(step) if !is_busy => {
                let all: usize = under_way.values().sum();
                let of_login = under_way.entry(Some(&record.order.spec.login)).or_default();
                if *of_login < LOGIN_STEPS_MAX && all < STEPS_MAX {
                    *of_login += 1;
                    plan.steps.push((id.clone(), step));
                }
            }
            Some(_) => {}
            None => {
                let waits = record.trouble.as_ref().filter(|_| !matches!(record.state, JobState::Submitted));
                let retry_at = waits.map(|trouble| trouble.retry_at).filter(|at| *at > now);
                let waits = retry_at.or_else(|| record.clean_at());
                plan.again_at = plan.again_at.into_iter().chain(waits).min();
            }
        }
    }
    for (login, records) in polled {
        let last = observed.polled_at.get(login).copied().unwrap_or(Timestamp::MIN);
        let due = records.iter().map(|record| next_poll(record, last)).min().unwrap_or(now);
        if due > now || observed.busy.contains(&TaskSlot::Poll(Box::new(login.clone()))) {
            plan.again_at = plan.again_at.into_iter().chain([due]).filter(|at| *at > now).min();
        } else {
            // One query covers all jobs, including those that are not due yet.
            plan.polls.insert(login.clone(), records.iter().map(|record| record.id.clone()).collect());
        }
    }
    SlurmPlan { changes, ..plan }
}

/// Returns the records that change because of findings and orders.
fn changes(observed: &Observed, now: Timestamp) -> BTreeMap<NamespacedName, RecordChange> {
    let mut changes = BTreeMap::new();
    let mut change = |id: &NamespacedName, change: &dyn Fn(&mut JobRecord)| {
        let known = changes.get(id).map(|change: &RecordChange| &change.record).or(observed.records.get(id));
        let Some(before) = known else { return };
        let mut record = before.clone();
        change(&mut record);
        if record != *before {
            let event = event(before, &record);
            let of_job = changes.entry(id.clone());
            let of_job =
                of_job.or_insert_with(|| RecordChange { record: record.clone(), events: Vec::new() });
            of_job.record = record;
            of_job.events.extend(event);
        }
    };
    for Finding { id, uid, event } in &observed.findings {
        change(id, &|record| {
            if record.order.uid == *uid {
                record.apply(event.clone(), now);
            }
        });
    }
    // While a step is under way, the record keeps the order that the step began with.
    for id in observed.records.keys().filter(|id| !observed.busy.contains(&TaskSlot::Job((*id).clone()))) {
        change(id, &|record| record.follow(observed.orders.get(id), now));
    }
    for (id, order) in observed.orders.iter().filter(|(id, _)| !observed.records.contains_key(id)) {
        let mut record = JobRecord::first(id.clone(), order, Vec::new(), now);
        record.follow(Some(order), now);
        changes.insert(id.clone(), RecordChange { record, events: Vec::new() });
    }
    changes
}

/// Returns the event for changes that users wait for.
fn event(before: &JobRecord, now: &JobRecord) -> Option<EventDraft> {
    let (old, new) = (before.report().status, now.report().status);
    let number = new.slurm_id.unwrap_or_default();
    let (kind, reason, message) = match (&before.state, &now.state) {
        (JobState::Submitting, JobState::Submitted) => {
            let name = now.slurm_name();
            (EventType::Normal, "Submitted", format!("submitted as Slurm job {number}, named {name}"))
        }
        (before, JobState::Ended(_)) if *before != now.state => match new.phase {
            JobPhase::Succeeded => (EventType::Normal, "Succeeded", format!("Slurm job {number} completed")),
            phase => (EventType::Warning, "Failed", format!("{phase:?}: {}", new.reason)),
        },
        (_, JobState::Lost) if before.state != JobState::Lost => {
            (EventType::Warning, "Unknown", format!("Slurm no longer knows job {number}"))
        }
        _ if old.phase != new.phase && new.phase == JobPhase::Running => {
            (EventType::Normal, "Started", format!("Slurm job {number} runs on {}", new.nodes))
        }
        _ => {
            let trouble = now.trouble.as_ref().filter(|trouble| trouble.failures > 0)?;
            let is_known = before.trouble.as_ref().is_some_and(|old| old.why == trouble.why);
            (!is_known).then(|| (EventType::Warning, "Delayed", trouble.why.clone()))?
        }
    };
    Some(EventDraft::about(kind, Kind::Job, &now.id, reason, message))
}

/// Counts the steps under way, by login; `None` for jobs without a record.
fn under_way(observed: &Observed) -> BTreeMap<Option<&SlurmLogin>, usize> {
    let mut steps = BTreeMap::new();
    for slot in &observed.busy {
        let TaskSlot::Job(id) = slot else { continue };
        let login = observed.records.get(id).map(|record| &record.order.spec.login);
        *steps.entry(login).or_default() += 1;
    }
    steps
}

/// Returns the time of the next poll. A recent change is soon followed by another; a job that has waited for hours
/// may wait half a minute more.
fn next_poll(record: &JobRecord, last: Timestamp) -> Timestamp {
    let quiet = last.duration_since(record.changed_at).max(SignedDuration::ZERO);
    let wait = (quiet / 8).clamp(POLL.0, POLL.1);
    let of_trouble = record.trouble.as_ref().map_or(Timestamp::MIN, |trouble| trouble.retry_at);
    last.checked_add(wait).unwrap_or(Timestamp::MIN).max(of_trouble)
}
