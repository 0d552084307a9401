//! Plans which runs begin, go on, end and are forgotten, and the record of each workflow. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::trigger::{Trigger, TriggerEvent};
use schema::kinds::workflow::{RunPhase, WorkflowSpec};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{TriggerRecord, TriggerStart, WorkflowRecord};
use schema::snapshot::{Snapshot, VersionedValue};

use super::active_runs::{Heads, Progress};
use super::records::{Origin, RunHead, RunId, RunRequest, StoredValue};
use super::triggers;
use crate::controllers::LastKnown;

/// Maximum number of runs in progress; more wait.
pub(super) const RUNNING_MAX: usize = 500;
/// Time for which an ended run is kept, unless its workflow says otherwise.
pub(super) const KEPT_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Number of ended runs kept per workflow, unless it says otherwise.
pub(super) const KEPT_PER_WORKFLOW: usize = 1_000;
/// Time for which the workflow of a requested run may be unknown.
const UNKNOWN_FOR: SignedDuration = SignedDuration::from_secs(10);
/// Share of etcd's quota for all runs, as a divisor.
const SHARE_OF_QUOTA: u64 = 10;
/// Maximum number of runs forgotten at once: others wait to begin meanwhile.
const FORGOTTEN_AT_ONCE: usize = 200;
/// Minimum interval between updates of a run's progress.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Input of the plan.
pub struct Observed {
    /// Snapshot of etcd, without the runs.
    pub snapshot: Arc<Snapshot>,
    /// State of etcd before it was lost, until it is settled again.
    pub last_known: Arc<LastKnown>,
    pub heads: Heads,
    /// Runs that a task executes.
    pub carried: BTreeMap<RunId, Progress>,
    /// Runs in progress without a task that may be resumed now.
    pub idle: Vec<RunId>,
    /// Runs in progress that are resumed after a pause.
    pub resting: Vec<RunId>,
    /// Requested runs, each with the revision of its request.
    pub requests: Vec<(RunId, RunRequest, i64)>,
    /// Unreadable requests, likewise.
    pub unreadable: Vec<(RunId, i64)>,
    /// Set when it is time to forget old runs.
    pub forgets: bool,
    /// Quota of etcd.
    pub quota_bytes: u64,
}

/// A run to begin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunStart {
    pub id: RunId,
    pub spec: WorkflowSpec,
    /// Input, or its location among the requests.
    pub input: StoredValue,
    pub head: RunHead,
    /// Revision of the request that is deleted with it.
    pub request: Option<i64>,
    /// Record of the workflow for the same transaction, and the revision of the former record.
    pub record: Option<(WorkflowRecord, Option<i64>)>,
    /// Record of the trigger that starts the run, likewise.
    pub trigger: Option<TriggerWrite>,
}

/// A write of a trigger's record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TriggerWrite {
    pub object: ObjectRef,
    pub trigger: String,
    /// New record; `None` once the trigger is gone.
    pub record: Option<TriggerRecord>,
    /// Revision of the former record.
    pub before: Option<i64>,
}

/// A step of the plan.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RunStep {
    /// Begins a run.
    Begin(Box<RunStart>),
    /// Resumes a run where its journal ends. `cancelled` is the cause for which it must end before it does anything
    /// more.
    Resume { id: RunId, cancelled: Option<String> },
    /// Ends a run.
    Cancel { id: RunId, cause: String },
    /// Deletes a request that has nothing left to ask for, if it is still at this revision.
    Dismiss { id: RunId, revision: i64 },
    /// Writes the record of a workflow's runs; `record` is `None` once the workflow is gone. `before` is the
    /// revision of the former record.
    WriteStatus { workflow: NamespacedName, record: Option<WorkflowRecord>, before: Option<i64> },
    /// Writes the record of a trigger.
    WriteTrigger(TriggerWrite),
    /// Forgets a run that ended long ago. `definition` is its hash if it is deleted as well, because neither a run
    /// that stays needs it nor one that is forgotten after this one.
    Forget { id: RunId, definition: Option<String> },
}

/// Steps in order.
#[derive(Debug, Default)]
pub(super) struct RunSteps {
    pub(super) steps: Vec<RunStep>,
    /// Set if there are more runs to forget.
    pub(super) has_more_to_forget: bool,
    pub(super) again_at: Option<Timestamp>,
}

impl RunSteps {
    fn plan_again_by(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

/// Plans the steps. Runs that Git asks for come before those that people ask for, which may be without end.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> RunSteps {
    let mut out = RunSteps::default();
    let runnables = runnables(seen);
    let mut free = RUNNING_MAX.saturating_sub(seen.carried.len() + seen.idle.len() + seen.resting.len());
    let resumed = seen.idle.iter().map(|id| RunStep::Resume {
        id: id.clone(),
        cancelled: cancel_reason(&runnables, id).map(str::to_owned),
    });
    out.steps.extend(resumed);
    for id in seen.carried.keys() {
        if let Some(cause) = cancel_reason(&runnables, id) {
            out.steps.push(RunStep::Cancel { id: id.clone(), cause: cause.to_owned() });
        }
    }

    let running = running(seen);
    let statuses: Vec<RecordUpdate<'_>> = runnables
        .iter()
        .filter(|(_, runnable)| runnable.object.resource.kind() == Kind::Workflow)
        .map(|(id, runnable)| {
            let running = running.get(id).copied().unwrap_or(0);
            status(seen, (id, runnable), (&mut free, running), now)
        })
        .collect();
    fire_all(seen, &runnables, &mut free, now, &mut out);
    let dismissed = seen.unreadable.iter().cloned();
    out.steps.extend(dismissed.map(|(id, revision)| RunStep::Dismiss { id, revision }));
    let waiting = begin_requested(seen, &runnables, &mut free, now, &mut out);
    for mut status in statuses {
        status.record.waiting += waiting.get(status.id).copied().unwrap_or(0);
        out.steps.extend(status.step());
    }
    for (id, record) in &seen.snapshot.workflows {
        if !runnables.contains_key(id) {
            let before = Some(record.mod_revision);
            out.steps.push(RunStep::WriteStatus { workflow: id.clone(), record: None, before });
        }
    }
    if seen.forgets {
        forget(seen, &runnables, now, &mut out);
    }
    if !seen.carried.is_empty() {
        out.plan_again_by(now + STATUS_INTERVAL);
    }
    out
}

/// Returns why a run must end; `None` if it goes on.
fn cancel_reason(runnables: &RunnableObjects<'_>, id: &RunId) -> Option<&'static str> {
    match runnables.get(&id.workflow) {
        None if RunId::function(&id.workflow).is_some() => Some("its function was removed"),
        None => Some("its workflow was removed"),
        Some(runnable) => spec_cancel_reason(&runnable.spec, id),
    }
}

/// Returns why a run of this workflow must end; `None` unless the workflow says so.
pub(super) fn spec_cancel_reason(spec: &WorkflowSpec, id: &RunId) -> Option<&'static str> {
    spec.cancel.contains(&id.run).then_some("spec.cancel names it")
}

/// Counts the runs in progress of each workflow.
fn running(seen: &Observed) -> BTreeMap<&NamespacedName, u32> {
    let mut running: BTreeMap<_, u32> = BTreeMap::new();
    for id in seen.carried.keys().chain(&seen.idle).chain(&seen.resting) {
        *running.entry(&id.workflow).or_default() += 1;
    }
    running
}

/// Begins the requested runs, and returns how many of each workflow must wait.
fn begin_requested<'a>(
    seen: &'a Observed,
    runnables: &RunnableObjects<'_>,
    free: &mut usize,
    now: Timestamp,
    out: &mut RunSteps,
) -> BTreeMap<&'a NamespacedName, u32> {
    let mut waiting: BTreeMap<&NamespacedName, u32> = BTreeMap::new();
    // The last start of each trigger: one write for all runs that begin now.
    let mut started = BTreeMap::new();
    for (id, request, revision) in &seen.requests {
        let known = runnables.get(&id.workflow).filter(|_| !seen.heads.contains_key(id));
        // An id of a trigger's runs is its own, and with it the input.
        let is_reserved = |runnable: &&RunnableObject<'_>| {
            let owner = Trigger::owner_of(runnable.triggers, &id.run);
            owner.is_some_and(|owner| request.origin.trigger() != Some(owner.name.as_str()))
        };
        if known.as_ref().is_some_and(is_reserved) {
            out.steps.push(RunStep::Dismiss { id: id.clone(), revision: *revision });
            continue;
        }
        let Some(RunnableObject { object, spec, triggers }) = known else {
            // Another reconciler may know of a workflow before this one.
            if seen.heads.contains_key(id) || now.duration_since(request.asked_at) > UNKNOWN_FOR {
                out.steps.push(RunStep::Dismiss { id: id.clone(), revision: *revision });
            } else {
                out.plan_again_by(request.asked_at + UNKNOWN_FOR + STATUS_INTERVAL);
            }
            continue;
        };
        if *free == 0 {
            *waiting.entry(&id.workflow).or_default() += 1;
            continue;
        }
        *free -= 1;
        let known = |name: &str| triggers.iter().any(|trigger| trigger.name == name);
        if let Some((name, commit)) = request.origin.requesting_trigger().filter(|(name, _)| known(name)) {
            let commit = commit.map(str::to_owned);
            let start = TriggerStart { run: id.run.clone(), tick: None, commit, started_at: now, missed: 0 };
            started.insert((object.reference(), name.to_owned()), start);
        }
        out.steps.push(RunStep::Begin(Box::new(RunStart {
            id: id.clone(),
            spec: (**spec).clone(),
            input: request.input.clone(),
            head: RunHead::begun(spec, spec.run_hash(), request.origin.clone(), now),
            request: Some(*revision),
            record: None,
            trigger: None,
        })));
    }
    for ((object, trigger), start) in started {
        let before = seen.snapshot.triggers.get(&(object.clone(), trigger.clone()));
        let record = TriggerRecord { schedule: None, next: None, last: Some(start), skipped: 0 };
        let before = before.map(|before| before.mod_revision);
        out.steps.push(RunStep::WriteTrigger(TriggerWrite { object, trigger, record: Some(record), before }));
    }
    waiting
}

/// An object that can run: a workflow, or a function that a trigger or a request names.
struct RunnableObject<'a> {
    object: &'a Object,
    spec: Cow<'a, WorkflowSpec>,
    triggers: &'a [Trigger],
}

type RunnableObjects<'a> = BTreeMap<NamespacedName, RunnableObject<'a>>;

/// Returns everything that can run, by the workflow in the ids of its runs.
fn runnables(seen: &Observed) -> RunnableObjects<'_> {
    let asked = seen.requests.iter().map(|(id, ..)| &id.workflow);
    let under_way = seen.carried.keys().chain(&seen.idle).map(|id| &id.workflow);
    let in_use: BTreeSet<&NamespacedName> = under_way.chain(asked).collect();
    let all = seen.snapshot.objects.iter();
    all.filter_map(|(id, found)| {
        let object = &found.value;
        match &object.resource {
            Resource::Workflow(spec) => {
                let runnable = RunnableObject { object, spec: Cow::Borrowed(spec), triggers: &spec.triggers };
                Some((NamespacedName::new(&id.namespace, &id.name), runnable))
            }
            Resource::Function(function) => {
                let run_of = RunId::for_object(id, "").workflow;
                let triggers = function.triggers.as_slice();
                if triggers.is_empty() && !in_use.contains(&run_of) {
                    return None;
                }
                let spec = Cow::Owned(WorkflowSpec::for_function(&id.name));
                Some((run_of, RunnableObject { object, spec, triggers }))
            }
            _ => None,
        }
    })
    .collect()
}

/// Record to write for a workflow.
struct RecordUpdate<'a> {
    id: &'a NamespacedName,
    record: WorkflowRecord,
    there: Option<&'a Arc<VersionedValue<WorkflowRecord>>>,
    /// Run that the workflow's push starts, written together with the record.
    begin: Option<RunStart>,
}

impl RecordUpdate<'_> {
    fn step(self) -> Option<RunStep> {
        let before = self.there.map(|there| there.mod_revision);
        match self.begin {
            Some(begin) => {
                Some(RunStep::Begin(Box::new(RunStart { record: Some((self.record, before)), ..begin })))
            }
            None if self.there.is_some_and(|there| there.value == self.record) => None,
            None => {
                Some(RunStep::WriteStatus { workflow: self.id.clone(), record: Some(self.record), before })
            }
        }
    }
}

/// Returns the record of one workflow, and the run that its push starts.
fn status<'a>(
    seen: &'a Observed,
    (id, RunnableObject { object, spec, .. }): (&'a NamespacedName, &RunnableObject<'_>),
    (free, running): (&mut usize, u32),
    now: Timestamp,
) -> RecordUpdate<'a> {
    let spec: &WorkflowSpec = spec;
    let there = seen.snapshot.workflows.get(id);
    let before = there.map(|there| &there.value).or_else(|| seen.last_known.workflow(id));
    let mut record = before.cloned().unwrap_or_default();
    record.running = running;
    record.waiting = 0;
    record.generation = object.generation;
    if let Some(last) = &mut record.last_run {
        let run = RunId::new(id.clone(), &last.id);
        if let Some(kept) = seen.heads.get(&run) {
            *last = kept.head.summary(&run.run);
        }
        if let Some(progress) = seen.carried.get(&run) {
            last.state.clone_from(&progress.state);
        } else if last.phase == RunPhase::Running && !seen.heads.contains_key(&run) {
            last.phase = RunPhase::Aborted;
            last.finished_at = Some(now);
            "its journal was lost with etcd".clone_into(&mut last.cause);
        }
    }
    let hash = spec.run_hash();
    let Some(params) = spec.params.as_ref().filter(|_| record.started_hash != hash) else {
        return RecordUpdate { id, record, there, begin: None };
    };
    if *free == 0 {
        record.waiting = 1;
        // Keep the former generation, so that the new run is not taken for begun.
        record.generation = before.map_or(0, |before| before.generation);
        return RecordUpdate { id, record, there, begin: None };
    }
    *free -= 1;
    let base = format!("push-{}-{}", object.generation, &hash[..8]);
    // A workflow that was removed and comes back has the same generations as before.
    let is_free = |run: &String| !seen.heads.contains_key(&RunId::new(id.clone(), run));
    let mut names = [base.clone()].into_iter().chain((2..).map(|number: u64| format!("{base}-{number}")));
    let run = names.find(is_free).unwrap_or(base);
    let head = RunHead::begun(spec, hash.clone(), Origin::Push { generation: object.generation }, now);
    record.last_run = Some(head.summary(&run));
    record.started_hash = hash;
    record.running += 1;
    let begin = RunStart {
        id: RunId::new(id.clone(), run),
        spec: spec.clone(),
        input: StoredValue::Inline(params.clone()),
        head,
        request: None,
        record: None,
        trigger: None,
    };
    RecordUpdate { id, record, there, begin: Some(begin) }
}

/// Fires all triggers, and deletes the records of those that are gone.
fn fire_all(
    seen: &Observed,
    runnables: &RunnableObjects<'_>,
    free: &mut usize,
    now: Timestamp,
    out: &mut RunSteps,
) {
    let mut known = BTreeSet::new();
    for (id, runnable) in runnables {
        for trigger in runnable.triggers {
            fire(seen, (id, runnable, trigger), free, now, out);
            known.insert((runnable.object.reference(), &trigger.name));
        }
    }
    for ((object, trigger), record) in &seen.snapshot.triggers {
        if !known.contains(&(object.clone(), trigger)) {
            out.steps.push(RunStep::WriteTrigger(TriggerWrite {
                object: object.clone(),
                trigger: trigger.clone(),
                record: None,
                before: Some(record.mod_revision),
            }));
        }
    }
}

/// Begins the run that a trigger starts now, and writes the trigger's record.
fn fire(
    seen: &Observed,
    (id, runnable, trigger): (&NamespacedName, &RunnableObject<'_>, &Trigger),
    free: &mut usize,
    now: Timestamp,
    out: &mut RunSteps,
) {
    let object = runnable.object.reference();
    let there = seen.snapshot.triggers.get(&(object.clone(), trigger.name.clone()));
    let known = there.map(|there| &there.value).or_else(|| seen.last_known.trigger(&object, &trigger.name));
    let decided = match trigger.event() {
        Some(TriggerEvent::Schedule(schedule)) => triggers::decide((trigger, schedule), known, now),
        // These start runs through requests.
        Some(TriggerEvent::Commit(_) | TriggerEvent::Call(_)) | None => None,
    };
    let next = decided.as_ref().map(|decided| &decided.record).or(known).and_then(|record| record.next);
    if let Some(next) = next.filter(|next| *next > now) {
        out.plan_again_by(next);
    }
    let before = there.map(|there| there.mod_revision);
    let write = |record| TriggerWrite { object, trigger: trigger.name.clone(), record: Some(record), before };
    let Some(mut decided) = decided else {
        // A record that is only on disk goes back to etcd.
        if let Some(known) = known.filter(|_| there.is_none()) {
            out.steps.push(RunStep::WriteTrigger(write(known.clone())));
        }
        return;
    };
    let start = decided.start.take().and_then(|start| unstarted(seen, id, trigger, start));
    let Some(start) = start else {
        out.steps.push(RunStep::WriteTrigger(write(decided.record)));
        return;
    };
    if *free == 0 {
        // The tick stays due, and the end of another run wakes the loop.
        return;
    }
    *free -= 1;
    decided.record.last = Some(start.clone());
    let tick = start.tick.unwrap_or(now);
    let origin = Origin::Schedule { trigger: trigger.name.clone(), tick, missed: start.missed };
    let spec = &runnable.spec;
    out.steps.push(RunStep::Begin(Box::new(RunStart {
        id: RunId::new(id.clone(), &start.run),
        spec: (**spec).clone(),
        input: StoredValue::Inline(triggers::input(trigger, tick)),
        head: RunHead::begun(spec, spec.run_hash(), origin, now),
        request: None,
        record: None,
        trigger: Some(write(decided.record)),
    })));
}

/// Returns the run of a tick under an id that no other run has; `None` if the tick has its run already. Somebody may
/// have requested a run with the id of a tick before there was such a trigger.
fn unstarted(
    seen: &Observed,
    id: &NamespacedName,
    trigger: &Trigger,
    start: TriggerStart,
) -> Option<TriggerStart> {
    let origin = |run: &String| seen.heads.get(&RunId::new(id.clone(), run)).map(|kept| &kept.head.origin);
    let base = start.run.clone();
    let further = (2..).map(|number: u64| format!("{base}-{number}"));
    let mut names = [base.clone()].into_iter().chain(further);
    let run =
        names.find(|run| origin(run).is_none_or(|origin| origin.trigger() == Some(trigger.name.as_str())))?;
    origin(&run).is_none().then_some(TriggerStart { run, ..start })
}

/// Forgets runs that ended too long ago, or that too many runs of the same workflow followed, and further ones while
/// all runs together take more than their share of etcd. The last run of a push stays, unless there is nothing else.
fn forget(seen: &Observed, runnables: &RunnableObjects<'_>, now: Timestamp, out: &mut RunSteps) {
    let mut ended: BTreeMap<&NamespacedName, BTreeSet<(Timestamp, &RunId)>> = BTreeMap::new();
    for (id, kept) in &seen.heads {
        if let Some(at) = kept.head.finished_at {
            ended.entry(&id.workflow).or_default().insert((at, id));
        }
    }
    let (mut gone, mut kept) = (Vec::new(), BTreeSet::new());
    for (workflow, runs) in ended {
        let spec = runnables.get(workflow).map(|runnable| &*runnable.spec);
        let kept_for = spec.and_then(|spec| spec.ttl_seconds_after_finished);
        let kept_for = kept_for.map_or(KEPT_FOR, |seconds| SignedDuration::from_secs(i64::from(seconds)));
        let most = spec.and_then(|spec| spec.runs_history_limit);
        let most = most.map_or(KEPT_PER_WORKFLOW, |most| usize::try_from(most).unwrap_or(usize::MAX));
        let record = spec.and(seen.snapshot.workflows.get(workflow));
        let last = record.and_then(|record| record.value.last_run.as_ref()).map(|last| last.id.as_str());
        let too_many = runs.len().saturating_sub(most);
        for (number, (at, id)) in runs.into_iter().enumerate() {
            let is_last = last == Some(id.run.as_str());
            let is_old = now.duration_since(at) > kept_for;
            if (is_old || number < too_many) && !is_last {
                gone.push(id);
            } else {
                kept.insert((is_last, at, id));
            }
        }
    }
    gone.extend(beyond_share(seen, &kept));
    if gone.len() > FORGOTTEN_AT_ONCE {
        gone.truncate(FORGOTTEN_AT_ONCE);
        out.has_more_to_forget = true;
        out.plan_again_by(now);
    }
    if !gone.is_empty() {
        out.steps.extend(with_definitions(seen, gone, &out.steps));
    }
}

/// Returns the first of these ended runs without which the others and those in progress fit into their share of etcd.
fn beyond_share<'a>(seen: &Observed, ended: &BTreeSet<(bool, Timestamp, &'a RunId)>) -> Vec<&'a RunId> {
    let bytes_of = |id: &RunId| seen.heads.get(id).map_or(0, |kept| kept.head.bytes);
    let in_progress = seen.carried.values().map(|progress| progress.bytes);
    let idle = seen.idle.iter().chain(&seen.resting).map(bytes_of);
    let ended_bytes = ended.iter().map(|(_, _, id)| bytes_of(id));
    let mut bytes: u64 = in_progress.chain(idle).chain(ended_bytes).sum();
    let most = seen.quota_bytes / SHARE_OF_QUOTA;
    let is_beyond = |(_, _, id): &&(bool, Timestamp, &RunId)| {
        let is_beyond = bytes > most;
        bytes -= bytes_of(id);
        is_beyond
    };
    ended.iter().take_while(is_beyond).map(|(_, _, id)| *id).collect()
}

/// Returns the steps that forget these runs. A definition is deleted with the last of them that needs it, unless a
/// run that stays needs it as well. If the only other one is a run that begins now, an ended run stays and keeps
/// the definition: the new run may not begin after all.
fn with_definitions(seen: &Observed, gone: Vec<&RunId>, steps: &[RunStep]) -> Vec<RunStep> {
    let definition = |id: &RunId| seen.heads[id].head.definition.as_str();
    let begun = steps.iter().filter_map(|step| match step {
        RunStep::Begin(begin) => Some((&begin.id.workflow, &*begin.head.definition)),
        _ => None,
    });
    let begun: BTreeSet<(&NamespacedName, &str)> = begun.collect();
    let forgotten: BTreeSet<&RunId> = gone.iter().copied().collect();
    let stay = seen.heads.keys().filter(|id| !forgotten.contains(id));
    let mut needed: BTreeSet<_> = stay.map(|id| (&id.workflow, definition(id))).collect();
    let mut forgets = Vec::with_capacity(gone.len());
    // Going backwards, the first run with another definition is the last one that needs it.
    for id in gone.into_iter().rev() {
        let own = (&id.workflow, definition(id));
        let is_last = needed.insert(own);
        if !(is_last && begun.contains(&own)) {
            let definition = is_last.then(|| own.1.to_owned());
            forgets.push(RunStep::Forget { id: id.clone(), definition });
        }
    }
    forgets.reverse();
    forgets
}
