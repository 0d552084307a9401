//! Which runs begin, go on, end and are forgotten, and what is said of each workflow. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::trigger::{StartedBy, Trigger};
use schema::kinds::workflow::{RunPhase, WorkflowSpec};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{TriggerRecord, TriggerStart, WorkflowRecord};
use schema::snapshot::{Snapshot, Versioned};

use super::book::{Heads, Progress};
use super::records::{Origin, RunHead, RunId, RunRequest, Stored};
use super::triggers;
use crate::controllers::LastKnown;

/// Most runs under way at once; more wait.
pub(super) const RUNNING_MAX: usize = 500;
/// How long a run that has ended is kept, unless its workflow says otherwise.
pub(super) const KEPT_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);
/// And how many of a workflow.
pub(super) const KEPT_PER_WORKFLOW: usize = 1_000;
/// For so long a workflow that a run is asked for may be unknown.
const UNKNOWN_FOR: SignedDuration = SignedDuration::from_secs(10);
/// Most runs that are forgotten in one go: so long others wait to begin.
const FORGOTTEN_AT_ONCE: usize = 200;
/// Where a run is, is said at most so often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// What the loop saw.
pub struct Observed {
    /// All of etcd but the runs.
    pub snapshot: Arc<Snapshot>,
    /// What etcd knew before it was lost, until it is settled.
    pub last_known: Arc<LastKnown>,
    pub heads: Heads,
    /// Runs that a task carries on.
    pub carried: BTreeMap<RunId, Progress>,
    /// Runs under way that none does, and that may be resumed now.
    pub idle: Vec<RunId>,
    /// Runs under way that are resumed after a pause.
    pub resting: Vec<RunId>,
    /// Runs that are asked for, each with the revision of its request.
    pub requests: Vec<(RunId, RunRequest, i64)>,
    /// Requests that can't be read, likewise.
    pub unreadable: Vec<(RunId, i64)>,
    /// It is time to forget old runs.
    pub forgets: bool,
}

/// A run to begin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Begin {
    pub id: RunId,
    pub spec: WorkflowSpec,
    /// Its input, or where it lies among those asked for.
    pub input: Stored,
    pub head: RunHead,
    /// Revision of the request that goes with it.
    pub request: Option<i64>,
    /// What is said of the workflow in the same transaction, and the revision of what was said before.
    pub record: Option<(WorkflowRecord, Option<i64>)>,
    /// What is said of the trigger that starts it, likewise.
    pub trigger: Option<TriggerWrite>,
}

/// What is said of a trigger.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TriggerWrite {
    pub object: ObjectRef,
    pub trigger: String,
    /// What; nothing once the trigger is gone.
    pub record: Option<TriggerRecord>,
    /// Revision of what was said before.
    pub before: Option<i64>,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Begins a run.
    Begin(Box<Begin>),
    /// Takes up a run where its journal ends. `cancelled`: why it is to end before it does anything more.
    Resume { id: RunId, cancelled: Option<String> },
    /// Ends a run.
    Cancel { id: RunId, cause: String },
    /// Takes away a request that has nothing left to ask for, as of this revision of it.
    Dismiss { id: RunId, revision: i64 },
    /// Says how the runs of a workflow go; no record once it is gone. `before`: revision of what was said before.
    WriteStatus { workflow: NamespacedName, record: Option<WorkflowRecord>, before: Option<i64> },
    /// Says what a trigger did and will do.
    WriteTrigger(TriggerWrite),
    /// Forgets a run that ended long ago. `definition`: its hash, if it goes, too, because no run that stays needs it, and
    /// none that is forgotten after this one.
    Forget { id: RunId, definition: Option<String> },
}

/// The steps in order.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) steps: Vec<Step>,
    /// There are more runs to forget.
    pub(super) has_more_to_forget: bool,
    pub(super) again_at: Option<Timestamp>,
}

impl Steps {
    fn look_again(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

/// Decides. What Git asks for comes before what people ask for, which may be without end.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> Steps {
    let mut out = Steps::default();
    let runnables = runnables(seen);
    let mut free = RUNNING_MAX.saturating_sub(seen.carried.len() + seen.idle.len() + seen.resting.len());
    let resumed = seen.idle.iter().map(|id| Step::Resume {
        id: id.clone(),
        cancelled: why_cancelled(&runnables, id).map(str::to_owned),
    });
    out.steps.extend(resumed);
    for id in seen.carried.keys() {
        if let Some(cause) = why_cancelled(&runnables, id) {
            out.steps.push(Step::Cancel { id: id.clone(), cause: cause.to_owned() });
        }
    }

    let running = running(seen);
    let statuses: Vec<Status<'_>> = runnables
        .iter()
        .filter(|(_, runnable)| runnable.object.resource.kind() == Kind::Workflow)
        .map(|(id, runnable)| {
            let running = running.get(id).copied().unwrap_or(0);
            status(seen, (id, runnable), (&mut free, running), now)
        })
        .collect();
    fire_all(seen, &runnables, &mut free, now, &mut out);
    let dismissed = seen.unreadable.iter().cloned();
    out.steps.extend(dismissed.map(|(id, revision)| Step::Dismiss { id, revision }));
    let waiting = begin_requested(seen, &runnables, &mut free, now, &mut out);
    for mut status in statuses {
        status.record.waiting += waiting.get(status.id).copied().unwrap_or(0);
        out.steps.extend(status.step());
    }
    for (id, record) in &seen.snapshot.workflows {
        if !runnables.contains_key(id) {
            let before = Some(record.mod_revision);
            out.steps.push(Step::WriteStatus { workflow: id.clone(), record: None, before });
        }
    }
    if seen.forgets {
        forget(seen, &runnables, now, &mut out);
    }
    if !seen.carried.is_empty() {
        out.look_again(now + STATUS_INTERVAL);
    }
    out
}

/// Why a run is to end, if it is.
fn why_cancelled(runnables: &Runnables<'_>, id: &RunId) -> Option<&'static str> {
    match runnables.get(&id.workflow) {
        None if RunId::function(&id.workflow).is_some() => Some("its function was removed"),
        None => Some("its workflow was removed"),
        Some(runnable) => named_by(&runnable.spec, id),
    }
}

/// Why a run of this workflow is to end, if the workflow says so.
pub(super) fn named_by(spec: &WorkflowSpec, id: &RunId) -> Option<&'static str> {
    spec.cancel.contains(&id.run).then_some("spec.cancel names it")
}

/// Runs under way of each workflow.
fn running(seen: &Observed) -> BTreeMap<&NamespacedName, u32> {
    let mut running: BTreeMap<_, u32> = BTreeMap::new();
    for id in seen.carried.keys().chain(&seen.idle).chain(&seen.resting) {
        *running.entry(&id.workflow).or_default() += 1;
    }
    running
}

/// The runs that are asked for, and how many of each workflow must wait.
fn begin_requested<'a>(
    seen: &'a Observed,
    runnables: &Runnables<'_>,
    free: &mut usize,
    now: Timestamp,
    out: &mut Steps,
) -> BTreeMap<&'a NamespacedName, u32> {
    let mut waiting: BTreeMap<&NamespacedName, u32> = BTreeMap::new();
    // The last start of each trigger: one write for all that begin now.
    let mut started = BTreeMap::new();
    for (id, request, revision) in &seen.requests {
        let known = runnables.get(&id.workflow).filter(|_| !seen.heads.contains_key(id));
        let Some(Runnable { object, spec, triggers }) = known else {
            // Another reconciler may know of a workflow before this one.
            if seen.heads.contains_key(id) || now.duration_since(request.asked_at) > UNKNOWN_FOR {
                out.steps.push(Step::Dismiss { id: id.clone(), revision: *revision });
            } else {
                out.look_again(request.asked_at + UNKNOWN_FOR + STATUS_INTERVAL);
            }
            continue;
        };
        if *free == 0 {
            *waiting.entry(&id.workflow).or_default() += 1;
            continue;
        }
        *free -= 1;
        let known = |name: &str| triggers.iter().any(|trigger| trigger.name == name);
        if let Some((name, commit)) = request.origin.asking_trigger().filter(|(name, _)| known(name)) {
            let commit = commit.map(str::to_owned);
            let start = TriggerStart { run: id.run.clone(), tick: None, commit, started_at: now, missed: 0 };
            started.insert((object.reference(), name.to_owned()), start);
        }
        out.steps.push(Step::Begin(Box::new(Begin {
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
        out.steps.push(Step::WriteTrigger(TriggerWrite { object, trigger, record: Some(record), before }));
    }
    waiting
}

/// What can run: a workflow, or a function that a trigger or a request names.
struct Runnable<'a> {
    object: &'a Object,
    spec: Cow<'a, WorkflowSpec>,
    triggers: &'a [Trigger],
}

type Runnables<'a> = BTreeMap<NamespacedName, Runnable<'a>>;

/// All of it, by what runs are of.
fn runnables(seen: &Observed) -> Runnables<'_> {
    let asked = seen.requests.iter().map(|(id, ..)| &id.workflow);
    let under_way = seen.carried.keys().chain(&seen.idle).map(|id| &id.workflow);
    let in_use: BTreeSet<&NamespacedName> = under_way.chain(asked).collect();
    let all = seen.snapshot.objects.iter();
    all.filter_map(|(id, found)| {
        let object = &found.value;
        match &object.resource {
            Resource::Workflow(spec) => {
                let runnable = Runnable { object, spec: Cow::Borrowed(spec), triggers: &spec.triggers };
                Some((NamespacedName::new(&id.namespace, &id.name), runnable))
            }
            Resource::Function(function) => {
                let run_of = RunId::of_object(id, "").workflow;
                let triggers = function.triggers.as_slice();
                if triggers.is_empty() && !in_use.contains(&run_of) {
                    return None;
                }
                let spec = Cow::Owned(WorkflowSpec::of_function(&id.name));
                Some((run_of, Runnable { object, spec, triggers }))
            }
            _ => None,
        }
    })
    .collect()
}

/// What is to be written of a workflow.
struct Status<'a> {
    id: &'a NamespacedName,
    record: WorkflowRecord,
    there: Option<&'a Arc<Versioned<WorkflowRecord>>>,
    /// The run that its push starts, with which it is written.
    begin: Option<Begin>,
}

impl Status<'_> {
    fn step(self) -> Option<Step> {
        let before = self.there.map(|there| there.mod_revision);
        match self.begin {
            Some(begin) => {
                Some(Step::Begin(Box::new(Begin { record: Some((self.record, before)), ..begin })))
            }
            None if self.there.is_some_and(|there| there.value == self.record) => None,
            None => Some(Step::WriteStatus { workflow: self.id.clone(), record: Some(self.record), before }),
        }
    }
}

/// The record of one workflow, and the run that its push starts.
fn status<'a>(
    seen: &'a Observed,
    (id, Runnable { object, spec, .. }): (&'a NamespacedName, &Runnable<'_>),
    (free, running): (&mut usize, u32),
    now: Timestamp,
) -> Status<'a> {
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
        return Status { id, record, there, begin: None };
    };
    if *free == 0 {
        record.waiting = 1;
        // What is said stays that of the run before, so that this one is not taken for begun.
        record.generation = before.map_or(0, |before| before.generation);
        return Status { id, record, there, begin: None };
    }
    *free -= 1;
    let base = format!("push-{}-{}", object.generation, &hash[..8]);
    // A workflow that was removed and comes back has the generations of before.
    let is_free = |run: &String| !seen.heads.contains_key(&RunId::new(id.clone(), run));
    let mut names = [base.clone()].into_iter().chain((2..).map(|number: u64| format!("{base}-{number}")));
    let run = names.find(is_free).unwrap_or(base);
    let head = RunHead::begun(spec, hash.clone(), Origin::Push { generation: object.generation }, now);
    record.last_run = Some(head.summary(&run));
    record.started_hash = hash;
    record.running += 1;
    let begin = Begin {
        id: RunId::new(id.clone(), run),
        spec: spec.clone(),
        input: Stored::Inline(params.clone()),
        head,
        request: None,
        record: None,
        trigger: None,
    };
    Status { id, record, there, begin: Some(begin) }
}

/// All triggers; the records of those that are gone go, too.
fn fire_all(seen: &Observed, runnables: &Runnables<'_>, free: &mut usize, now: Timestamp, out: &mut Steps) {
    let mut known = BTreeSet::new();
    for (id, runnable) in runnables {
        for trigger in runnable.triggers {
            fire(seen, (id, runnable, trigger), free, now, out);
            known.insert((runnable.object.reference(), &trigger.name));
        }
    }
    for ((object, trigger), record) in &seen.snapshot.triggers {
        if !known.contains(&(object.clone(), trigger)) {
            out.steps.push(Step::WriteTrigger(TriggerWrite {
                object: object.clone(),
                trigger: trigger.clone(),
                record: None,
                before: Some(record.mod_revision),
            }));
        }
    }
}

/// The run that a trigger starts now, and what is said of it.
fn fire(
    seen: &Observed,
    (id, runnable, trigger): (&NamespacedName, &Runnable<'_>, &Trigger),
    free: &mut usize,
    now: Timestamp,
    out: &mut Steps,
) {
    let object = runnable.object.reference();
    let there = seen.snapshot.triggers.get(&(object.clone(), trigger.name.clone()));
    let known = there.map(|there| &there.value).or_else(|| seen.last_known.trigger(&object, &trigger.name));
    let decided = match trigger.started_by() {
        Some(StartedBy::Schedule(schedule)) => triggers::decide((trigger, schedule), known, now),
        // These are asked for.
        Some(StartedBy::Commit(_) | StartedBy::Call(_)) | None => None,
    };
    let next = decided.as_ref().map(|decided| &decided.record).or(known).and_then(|record| record.next);
    if let Some(next) = next.filter(|next| *next > now) {
        out.look_again(next);
    }
    let before = there.map(|there| there.mod_revision);
    let write = |record| TriggerWrite { object, trigger: trigger.name.clone(), record: Some(record), before };
    let Some(decided) = decided else {
        // What is only on the disk goes back to etcd.
        if let Some(known) = known.filter(|_| there.is_none()) {
            out.steps.push(Step::WriteTrigger(write(known.clone())));
        }
        return;
    };
    // A run of this id that somebody asked for is the run of the tick.
    let start = decided.start.filter(|start| !seen.heads.contains_key(&RunId::new(id.clone(), &start.run)));
    let Some(start) = start else {
        out.steps.push(Step::WriteTrigger(write(decided.record)));
        return;
    };
    if *free == 0 {
        // The tick stays due, and the end of another run wakes the loop.
        return;
    }
    *free -= 1;
    let tick = start.tick.unwrap_or(now);
    let origin = Origin::Schedule { trigger: trigger.name.clone(), tick, missed: start.missed };
    let spec = &runnable.spec;
    out.steps.push(Step::Begin(Box::new(Begin {
        id: RunId::new(id.clone(), &start.run),
        spec: (**spec).clone(),
        input: Stored::Inline(triggers::input(trigger, tick)),
        head: RunHead::begun(spec, spec.run_hash(), origin, now),
        request: None,
        record: None,
        trigger: Some(write(decided.record)),
    })));
}

/// Runs that ended too long ago, or that too many of the same workflow ended after. The last one of a push stays.
fn forget(seen: &Observed, runnables: &Runnables<'_>, now: Timestamp, out: &mut Steps) {
    let mut ended: BTreeMap<&NamespacedName, BTreeSet<(Timestamp, &RunId)>> = BTreeMap::new();
    for (id, kept) in &seen.heads {
        if let Some(at) = kept.head.finished_at {
            ended.entry(&id.workflow).or_default().insert((at, id));
        }
    }
    let mut gone = Vec::new();
    'workflows: for (workflow, runs) in ended {
        let spec = runnables.get(workflow).map(|runnable| &*runnable.spec);
        let kept_for = spec.and_then(|spec| spec.ttl_seconds_after_finished);
        let kept_for = kept_for.map_or(KEPT_FOR, |seconds| SignedDuration::from_secs(i64::from(seconds)));
        let most = spec.and_then(|spec| spec.runs_history_limit);
        let most = most.map_or(KEPT_PER_WORKFLOW, |most| usize::try_from(most).unwrap_or(usize::MAX));
        let record = spec.and(seen.snapshot.workflows.get(workflow));
        let last = record.and_then(|record| record.value.last_run.as_ref()).map(|last| last.id.as_str());
        let too_many = runs.len().saturating_sub(most);
        for (number, (at, id)) in runs.into_iter().enumerate() {
            let is_old = now.duration_since(at) > kept_for;
            if !(is_old || number < too_many) || last == Some(id.run.as_str()) {
                continue;
            }
            if gone.len() == FORGOTTEN_AT_ONCE {
                out.has_more_to_forget = true;
                out.look_again(now);
                break 'workflows;
            }
            gone.push(id);
        }
    }
    if !gone.is_empty() {
        out.steps.extend(with_definitions(seen, gone, &out.steps));
    }
}

/// Forgets these runs. A definition goes with the last of them that needs it, unless a run that stays needs it, too. If a
/// run that begins now is the only other one, an ended run stays and keeps it: that run may not begin after all.
fn with_definitions(seen: &Observed, gone: Vec<&RunId>, steps: &[Step]) -> Vec<Step> {
    let definition = |id: &RunId| seen.heads[id].head.definition.as_str();
    let begun = steps.iter().filter_map(|step| match step {
        Step::Begin(begin) => Some((&begin.id.workflow, &*begin.head.definition)),
        _ => None,
    });
    let begun: BTreeSet<(&NamespacedName, &str)> = begun.collect();
    let forgotten: BTreeSet<&RunId> = gone.iter().copied().collect();
    let stay = seen.heads.keys().filter(|id| !forgotten.contains(id));
    let mut needed: BTreeSet<_> = stay.map(|id| (&id.workflow, definition(id))).collect();
    let mut forgets = Vec::with_capacity(gone.len());
    // Backwards, the first run that needs another definition is the last one that does.
    for id in gone.into_iter().rev() {
        let own = (&id.workflow, definition(id));
        let is_last = needed.insert(own);
        if !(is_last && begun.contains(&own)) {
            let definition = is_last.then(|| own.1.to_owned());
            forgets.push(Step::Forget { id: id.clone(), definition });
        }
    }
    forgets.reverse();
    forgets
}
