//! Views of workflows and their runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::workflow::{RunPhase, RunSummary, WorkflowSpec};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, StringMap};
use schema::object::Object;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use crate::view::age::age;
use crate::view::events::EventView;
use crate::view::objects::Selection;
use crate::view::rows::{Common, Rows, find};
use crate::workflows::machine::{Event, History, HistoryEvent, Outcome, Run, RunContext};
use crate::workflows::{Entry, LoadedJournal, RunHead};

mod graph;
mod mermaid;
mod triggers;

pub use graph::{Graph, GraphEdge, GraphNode, GridPoint, graph, run_path};
pub use mermaid::mermaid;
pub(super) use triggers::rows as trigger_rows;
pub use triggers::{TriggerView, triggers};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowView {
    pub namespace: String,
    pub name: String,
    /// Runs under way.
    pub running: u32,
    /// Runs that wait for others to end.
    pub waiting: u32,
    /// The run that the last push started.
    pub last_run: Option<RunSummary>,
    /// Healthy, Progressing or Degraded.
    pub health: String,
    pub note: String,
    /// Time since the object was first applied; empty if not known.
    pub age: String,
    pub labels: StringMap,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowDetail {
    #[serde(flatten)]
    pub row: WorkflowView,
    /// Manifest that defines it: `apps/web.yaml:1 of source main`.
    pub set_by: String,
    pub commit: String,
    pub annotations: StringMap,
    /// Spec with its defaults applied.
    pub spec: WorkflowSpec,
    pub triggers: Vec<TriggerView>,
    pub events: Vec<EventView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    pub namespace: String,
    pub workflow: String,
    /// Unique in its workflow.
    pub id: String,
    pub phase: RunPhase,
    /// Current or final state; empty in lists while the run is active.
    pub state: String,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Running time, so far or in total.
    pub duration: String,
    pub age: String,
    pub origin: String,
    pub error: String,
    pub cause: String,
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunPage {
    pub items: Vec<RunView>,
    /// Cursor of the next page: pass it as `before=` for older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunDetail {
    #[serde(flatten)]
    pub row: RunView,
    /// Number of states that the run went through.
    pub steps: u32,
    pub input: Json,
    /// Result of the run, once it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
    pub definition: WorkflowSpec,
    /// Calls that were answered, in order.
    pub calls: Vec<RunCall>,
    /// Events, with the names of Step Functions.
    pub history: Vec<HistoryEvent>,
    /// Number of events, from the first, without inputs and outputs: the history would be too large.
    #[serde(default)]
    pub without_data: usize,
}

/// A call that a run made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunCall {
    pub state: String,
    /// `name`, or `namespace/name`.
    pub function: String,
    /// Activation id of the call's lines in the function's log.
    pub activation: String,
}

/// Body of `POST /v1/workflows/<ns>/<name>/runs`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunBody {
    /// The input; `{}` when absent.
    pub input: Option<Json>,
    /// Id of the run; a repeated request with the same id starts no second run.
    pub id: Option<String>,
}

/// Response to [`RunBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunAccepted {
    pub id: String,
    /// False if the run exists or was requested before.
    pub is_new: bool,
}

pub fn workflows(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<WorkflowView> {
    let rows = Rows::new(snapshot, now);
    rows.chosen(Kind::Workflow, which).map(|object| row(&rows, object)).collect()
}

/// Returns a workflow in full, with the given `events`.
pub fn workflow(
    snapshot: &Snapshot,
    id: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<WorkflowDetail> {
    let object = find(snapshot, Kind::Workflow, id)?;
    let Resource::Workflow(spec) = &object.resource else { return None };
    let from = &object.provenance;
    Some(WorkflowDetail {
        row: row(&Rows::new(snapshot, now), object),
        set_by: from.set_by(),
        commit: from.commit_by(),
        annotations: object.metadata.annotations.clone(),
        triggers: triggers::rows(snapshot, object),
        spec: (**spec).clone(),
        events,
    })
}

fn row(rows: &Rows<'_>, object: &Object) -> WorkflowView {
    let Common { id, health, note, age, labels } = rows.common(object);
    let record = rows.snapshot.workflows.get(&id).map(|found| found.value.clone()).unwrap_or_default();
    WorkflowView {
        running: record.running,
        waiting: record.waiting,
        last_run: record.last_run,
        note,
        health,
        age,
        labels,
        namespace: id.namespace,
        name: id.name,
    }
}

/// Summary of a run.
pub fn run(workflow: &NamespacedName, id: &str, head: &RunHead, now: Timestamp) -> RunView {
    RunView {
        namespace: workflow.namespace.clone(),
        workflow: workflow.name.clone(),
        id: id.to_owned(),
        phase: head.phase,
        state: if head.is_running() { String::new() } else { head.state.clone() },
        started_at: head.started_at,
        finished_at: head.finished_at,
        duration: duration(head.started_at, head.finished_at.unwrap_or(now)),
        age: age(head.started_at, now),
        origin: head.origin.to_string(),
        error: head.error.clone(),
        cause: head.cause.clone(),
    }
}

/// A run in full, by replaying its journal.
pub fn run_detail(
    workflow: &NamespacedName,
    id: &str,
    (head, definition): (&RunHead, WorkflowSpec),
    journal: LoadedJournal,
    now: Timestamp,
) -> RunDetail {
    let context = RunContext {
        namespace: workflow.namespace.clone(),
        workflow: workflow.name.clone(),
        id: id.to_owned(),
        input: journal.input.clone(),
        started_at: head.started_at,
    };
    let (mut gone_through, begun) = Run::begin(context, &definition);
    let mut history = History::default();
    history.add(begun);
    for entry in &journal.entries {
        history.add(gone_through.step(&definition, entry.at, &entry.event).unwrap_or_default());
    }
    let (history, without_data) = history.into_events();
    let output = match gone_through.outcome() {
        Some(Outcome::Succeeded { output }) => Some(output.clone()),
        _ => None,
    };
    let made: BTreeMap<u64, &HistoryEvent> = history
        .iter()
        .filter(|event| event.detail.function.is_some())
        .filter_map(|event| Some((event.detail.call?, event)))
        .collect();
    let calls = journal.entries.iter().filter_map(|entry| answered_call(entry, &made)).collect();
    let row = RunView { state: gone_through.state_name().to_owned(), ..run(workflow, id, head, now) };
    let steps = gone_through.steps();
    RunDetail { row, steps, input: journal.input, output, definition, calls, history, without_data }
}

fn answered_call(entry: &Entry, made: &BTreeMap<u64, &HistoryEvent>) -> Option<RunCall> {
    let (Event::Returned { call, .. } | Event::Failed { call, .. }) = &entry.event else { return None };
    let made = made.get(call)?;
    Some(RunCall {
        state: made.state.clone()?,
        function: made.detail.function.clone()?,
        activation: entry.activation.clone()?,
    })
}

/// Formats a duration as `0.350s`, or from 10 s on like an age.
pub fn duration(from: Timestamp, to: Timestamp) -> String {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond()).max(0);
    if millis < 10_000 { format!("{}.{:03}s", millis / 1000, millis % 1000) } else { age(from, to) }
}
