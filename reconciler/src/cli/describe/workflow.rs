//! Pages of a workflow, a trigger, and a run with its path through the states.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value as Json;

use super::page::{Page, pairs};
use crate::cli::error::CliError;
use crate::cli::output::{Detail, Screen, yaml};
use crate::view::{RunDetail, TriggerView, WorkflowDetail, WorkflowView, age, duration};
use crate::workflows::machine::HistoryEvent;

/// Number of characters shown of an input or output; `get run … -o json` prints it in full.
const VALUE_SHOWN_CHARS: usize = 300;

impl Detail for WorkflowDetail {
    type Row = WorkflowView;
    const PLURAL: &str = "workflows";

    fn row(&self) -> &WorkflowView {
        &self.row
    }

    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError> {
        workflow_page(self, screen, now)
    }
}

fn workflow_page(workflow: &WorkflowDetail, screen: Screen, now: Timestamp) -> Result<String, CliError> {
    let mut page = Page::default();
    let row = &workflow.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.state("Health", &row.health, screen);
    page.field(0, "Note", &row.note);
    page.field(0, "Runs", &format!("{} running, {} waiting", row.running, row.waiting));
    if let Some(run) = &row.last_run {
        let text = format!(
            "{}: {:?} in state {}, started {} ago",
            run.id,
            run.phase,
            run.state,
            age(run.started_at, now)
        );
        page.field(0, "Last push", &text);
    }
    page.fields(0, "Triggers", workflow.triggers.iter().map(trigger_line));
    page.field(0, "Run it", &format!("minik8s run {}/{} -d '{{…}}' --wait", row.namespace, row.name));
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &workflow.set_by);
    page.field(0, "Commit", &workflow.commit);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&workflow.annotations));
    page.block("Spec:", &yaml(&workflow.spec)?);
    page.events(&workflow.events, screen, now);
    Ok(page.text())
}

/// Page of a trigger and its last run.
pub(super) fn trigger_page(trigger: &TriggerView) -> String {
    let mut page = Page::default();
    page.field(0, "Trigger", &trigger.name);
    page.field(0, "Namespace", &trigger.namespace);
    page.field(0, "Object", &trigger.object);
    page.field(0, "On", &trigger.starts_on());
    page.field(0, "Next", &trigger.next.map(|next| next.to_string()).unwrap_or_default());
    if let Some(last) = &trigger.last {
        page.field(0, "Last run", &last.run);
        page.field(0, "Begun", &last.started_at.to_string());
        page.field(0, "For", &last.tick.map(|tick| tick.to_string()).unwrap_or_default());
        page.field(0, "Commit", last.commit.as_deref().unwrap_or_default());
        page.field(
            0,
            "Also covers",
            &match last.missed {
                0 => String::new(),
                1 => "1 missed time".to_owned(),
                missed => format!("{missed} missed times"),
            },
        );
    }
    page.field(
        0,
        "Missed since",
        &if trigger.skipped > 0 { trigger.skipped.to_string() } else { String::new() },
    );
    page.text()
}

/// Summary of a trigger: its cause, last run and next run.
pub(super) fn trigger_line(trigger: &TriggerView) -> String {
    let last = trigger.last.as_ref().map_or_else(String::new, |last| format!(", last run {}", last.run));
    let next = match (&trigger.schedule, trigger.next) {
        (None, _) => String::new(),
        (Some(_), Some(next)) => format!(", next {next}"),
        (Some(_), None) => ", next time not known yet".to_owned(),
    };
    format!("{}: {}{last}{next}", trigger.name, trigger.starts_on())
}

pub(in crate::cli) fn run_page(run: &RunDetail, screen: Screen) -> String {
    let mut page = Page::default();
    let row = &run.row;
    page.field(0, "Run", &row.id);
    page.field(0, "Workflow", &row.workflow);
    page.field(0, "Namespace", &row.namespace);
    page.state("Phase", &format!("{:?}", row.phase), screen);
    page.field(0, "Error", &row.error);
    page.fields(0, "Cause", row.cause.lines().map(str::to_owned));
    page.field(0, "State", &row.state);
    page.field(0, "Begun", &format!("{}, {} ago, by {}", row.started_at, row.age, row.origin));
    page.field(0, "Took", &format!("{}, {} steps", row.duration, run.steps));
    page.field(0, "Input", &short(&run.input));
    page.field(0, "Output", &run.output.as_ref().map(short).unwrap_or_default());
    page.block("Path:", &path(&run.history));
    page.text()
}

/// A visit of a state.
#[derive(Default)]
struct Visit<'a> {
    depth: usize,
    name: &'a str,
    kind: &'a str,
    entered: Option<&'a HistoryEvent>,
    left: Option<&'a HistoryEvent>,
    attempts: u32,
    error: Option<String>,
}

/// Every visited state, with the states of branches indented below their parent state.
fn path(history: &[HistoryEvent]) -> String {
    let mut visits: Vec<Visit<'_>> = Vec::new();
    // Maps each event to its visit, and to the depth of the events that follow it.
    let mut places: BTreeMap<u32, (Option<usize>, usize)> = BTreeMap::new();
    for event in history {
        let (before, depth) = places.get(&event.previous_event_id).copied().unwrap_or_default();
        let kind = &*event.kind;
        let place = if let Some(kind) = kind.strip_suffix("StateEntered") {
            let name = event.state.as_deref().unwrap_or_default();
            visits.push(Visit { depth, name, kind, entered: Some(event), ..Visit::default() });
            (Some(visits.len() - 1), depth)
        } else if kind.ends_with("StateExited") {
            let is_it =
                |visit: &&mut Visit<'_>| visit.left.is_none() && Some(visit.name) == event.state.as_deref();
            let mut visited = None;
            if let Some((number, visit)) = visits
                .iter_mut()
                .enumerate()
                .rev()
                .find(|(number, visit)| is_it(visit) && before.is_none_or(|before| *number <= before))
            {
                visit.left = Some(event);
                visited = Some((number, visit.depth));
            }
            visited.map_or((before, depth), |(number, depth)| (Some(number), depth))
        } else {
            if let Some(visit) = before.and_then(|before| visits.get_mut(before)) {
                visit.attempts += u32::from(kind == "TaskScheduled");
                if let Some(error) = &event.detail.error {
                    visit.error =
                        Some(format!("{error}: {}", event.detail.cause.as_deref().unwrap_or_default()));
                }
            }
            let opens = matches!(kind, "ParallelStateStarted" | "MapIterationStarted");
            let closes = kind.starts_with("MapIteration") && !opens;
            (before, if closes { depth.saturating_sub(1) } else { depth + usize::from(opens) })
        };
        places.insert(event.id, place);
    }
    let lines: Vec<String> = visits.iter().flat_map(lines).collect();
    lines.join("\n")
}

fn lines(visit: &Visit<'_>) -> Vec<String> {
    let indent = "  ".repeat(visit.depth);
    let took = match (visit.entered, visit.left) {
        (Some(entered), Some(left)) => duration(entered.timestamp, left.timestamp),
        _ => "not left".to_owned(),
    };
    let attempts = if visit.attempts > 1 { format!(", {} attempts", visit.attempts) } else { String::new() };
    let mut lines = vec![format!("{indent}{} ({}, {took}{attempts})", visit.name, visit.kind)];
    let mut more = |what: &str, value: Option<&Json>| {
        if let Some(value) = value {
            lines.push(format!("{indent}    {what} {}", short(value)));
        }
    };
    more("in ", visit.entered.and_then(|event| event.detail.input.as_ref()));
    more("out", visit.left.and_then(|event| event.detail.output.as_ref()));
    if let Some(error) = &visit.error {
        lines.push(format!("{indent}    error {}", error.lines().next().unwrap_or_default()));
    }
    lines
}

fn short(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_SHOWN_CHARS) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}
