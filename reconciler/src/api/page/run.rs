//! Runs of workflows: their list on the page of the object, and the page of one run.
//!
//! Both are read from etcd and not from the snapshot: the list for each visit, a run again and again while it lasts.

use std::time::Duration;

use askama::Template;
use axum::http::StatusCode;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::workflow::RunPhase;
use schema::meta::ObjectRef;
use schema::violation::plural;
use serde_json::Value as Json;
use tokio::time::timeout;

use super::graph::{draw, shortened};
use super::parts::{Page, Part, TemplateHelpers, cut};
use crate::api::app::ApiState;
use crate::api::error::ApiError;
use crate::api::kinds::workflows::replay;
use crate::view::{self, RunDetail, RunView, seconds};
use crate::workflows::{RunId, newest_runs};

/// Number of runs in a list, the newest.
const RUNS_MAX: u16 = 50;
/// Longest wait for the list: without etcd, the page shows the rest.
const RUNS_WAIT: Duration = Duration::from_secs(2);
/// Number of events shown, the last.
const EVENTS_MAX: usize = 200;
/// Number of states of a path that are named, the last.
const PATH_MAX: usize = 100;
/// Longest input or output that is shown, in bytes.
const DATA_MAX: usize = 16 * 1024;
/// Longest description of an event, in letters.
const FACTS_MAX: usize = 200;

/// Returns the part with the newest runs of a workflow, or of a function that has runs; `None` for other kinds.
pub(super) async fn list(app: &ApiState, id: &ObjectRef, now: Timestamp) -> Option<Part> {
    if !matches!(id.kind, Kind::Workflow | Kind::Function) {
        return None;
    }
    let below = format!("{}/", RunId::for_object(id, "").workflow);
    let found = timeout(RUNS_WAIT, newest_runs(&app.deps.store, &below, RUNS_MAX, None)).await;
    let template = match found {
        Ok(Ok((heads, next))) => RunListTemplate {
            is_shown: id.kind == Kind::Workflow || !heads.is_empty(),
            runs: heads.iter().map(|(id, head)| view::run(&id.workflow, &id.run, head, now)).collect(),
            has_more: next.is_some(),
            problem: String::new(),
        },
        failed => {
            let problem = match failed {
                Ok(Err(error)) => error.to_string(),
                _ => "etcd does not answer".to_owned(),
            };
            RunListTemplate { is_shown: true, runs: Vec::new(), has_more: false, problem }
        }
    };
    Some(Part::new("runs-of-workflow", &template))
}

#[derive(Template)]
#[template(path = "workflow_runs.html")]
struct RunListTemplate {
    is_shown: bool,
    runs: Vec<RunView>,
    has_more: bool,
    /// Reason why the runs could not be read.
    problem: String,
}

impl RunListTemplate {
    fn phase(&self, run: &RunView) -> String {
        format!("{:?}", run.phase)
    }

    /// Address of the run's page.
    fn address(&self, run: &RunView) -> String {
        format!("/runs/{}/{}/{}", run.namespace, run.workflow, run.id)
    }

    fn why(&self, run: &RunView) -> String {
        let words = [run.error.as_str(), run.cause.as_str()];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(": ")
    }
}

/// Renders the page of a run. Returns true with it once the run has ended.
pub(super) async fn page(app: &ApiState, id: &RunId) -> Result<(Page, bool), ApiError> {
    replay(app, id.clone(), |detail| (run_page(&detail), detail.row.phase != RunPhase::Running)).await
}

/// Renders the page of a run again; `None` if it can't be read. Returns true once it can't change any more.
pub(super) async fn next_page(app: &ApiState, id: &RunId) -> (Option<Page>, bool) {
    // Visits and other requests go first.
    if app.replays.available_permits() == 0 {
        return (None, false);
    }
    match page(app, id).await {
        Ok((page, is_over)) => (Some(page), is_over),
        // The last page of a run that is gone stays; the next visit says so.
        Err(error) => (None, error.status() == StatusCode::NOT_FOUND),
    }
}

fn run_page(detail: &RunDetail) -> Page {
    let row = detail.row.clone();
    let path = view::run_path(detail.definition.machine(), &detail.history);
    let graph = view::graph(detail.definition.machine());
    let svg = graph.map(|graph| draw(&graph, &path, row.phase)).unwrap_or_default();
    let left_out = path.len().saturating_sub(PATH_MAX);
    let named = path[left_out..].join(" → ");
    let path = if left_out > 0 { format!("… → {named}") } else { named };
    let output = detail.output.as_ref().map(json).unwrap_or_default();
    let (rows, left_out) = event_rows(detail);
    Page {
        title: format!("Run {} of {}/{}", row.id, row.namespace, row.workflow),
        parts: vec![
            Part::new("run", &RunTemplate { steps: plural(detail.steps, "state"), row }),
            Part::new("run-graph", &GraphTemplate { svg, path }),
            Part::new("run-data", &DataTemplate { input: json(&detail.input), output }),
            Part::new("run-events", &EventsTemplate { rows, left_out }),
        ],
    }
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunTemplate {
    row: RunView,
    /// Number of states entered, with the noun.
    steps: String,
}

impl RunTemplate {
    fn phase(&self) -> String {
        format!("{:?}", self.row.phase)
    }

    /// Object that the run belongs to, as in [`TemplateHelpers::link`].
    fn object(&self) -> String {
        let RunView { namespace, workflow, .. } = &self.row;
        match workflow.strip_prefix("function:") {
            Some(function) => format!("Function/{namespace}/{function}"),
            None => format!("Workflow/{namespace}/{workflow}"),
        }
    }

    fn finished(&self) -> String {
        self.row.finished_at.map_or_else(|| "not yet".to_owned(), |at| self.time(&at))
    }
}

#[derive(Template)]
#[template(path = "run_graph.html")]
struct GraphTemplate {
    /// Picture of the states; empty if there are too many.
    svg: String,
    /// Names of the states that were entered.
    path: String,
}

#[derive(Template)]
#[template(path = "run_data.html")]
struct DataTemplate {
    input: String,
    output: String,
}

/// Formats a value, shortened if it is long.
fn json(value: &Json) -> String {
    cut(serde_json::to_string_pretty(value).unwrap_or_default(), DATA_MAX, "minik8s get run -o json")
}

#[derive(Template)]
#[template(path = "run_events.html")]
struct EventsTemplate {
    rows: Vec<EventRow>,
    /// Number of earlier events.
    left_out: usize,
}

/// An event of a run, as its table shows it.
struct EventRow {
    id: u32,
    /// Time since the run began.
    at: String,
    kind: String,
    state: String,
    /// State of the outermost machine that the event is inside of; empty for its own events.
    inside: String,
    facts: String,
}

/// Returns the last events of a run, and the number of those before.
fn event_rows(detail: &RunDetail) -> (Vec<EventRow>, usize) {
    let left_out = detail.history.len().saturating_sub(EVENTS_MAX);
    let (mut outer, mut rows) = ("", Vec::new());
    for (number, event) in detail.history.iter().enumerate() {
        let state = event.state.as_deref().unwrap_or_default();
        let is_outer = detail.definition.states.contains_key(state);
        if is_outer {
            outer = state;
        }
        if number < left_out {
            continue;
        }
        let began = detail.row.started_at.as_millisecond();
        let at = u64::try_from(event.timestamp.as_millisecond().saturating_sub(began)).unwrap_or_default();
        let more = &event.detail;
        let facts = [
            more.function.as_ref().map(|function| format!("function {function}")),
            more.attempt.map(|attempt| format!("attempt {attempt}")),
            more.index.map(|index| format!("item {index}")),
            more.length.map(|length| plural(length, "item")),
            more.error.clone(),
            more.cause.clone(),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().filter(|fact| !fact.is_empty()).collect();
        rows.push(EventRow {
            id: event.id,
            at: seconds(at),
            kind: event.kind.to_string(),
            state: state.to_owned(),
            inside: if is_outer || state.is_empty() { String::new() } else { outer.to_owned() },
            facts: shortened(&facts.join("; "), FACTS_MAX),
        });
    }
    (rows, left_out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::testing::at;

    fn detail(history: &Json) -> RunDetail {
        let states = json!({
            "each": {"type": "Map", "next": "end",
                     "itemProcessor": {"startAt": "one", "states": {"one": {"type": "Pass", "end": true}}}},
            "end": {"type": "Succeed"},
        });
        let value = json!({
            "namespace": "default", "workflow": "flow", "id": "r1", "phase": "Running", "state": "each",
            "startedAt": at(0), "duration": "1s", "age": "1s", "origin": "a request", "error": "", "cause": "",
            "steps": 2, "input": {}, "definition": {"startAt": "each", "states": states}, "calls": [],
            "history": history,
        });
        serde_json::from_value(value).unwrap()
    }

    fn event(id: usize, kind: &str, state: &str) -> Json {
        json!({"id": id, "previousEventId": 0, "timestamp": at(1), "type": kind, "state": state, "index": id})
    }

    #[test]
    fn events_of_branches_name_the_state_around_them_and_the_last_are_kept() {
        let mut history = vec![event(1, "MapStateEntered", "each")];
        history.extend((2..=EVENTS_MAX + 1).map(|id| event(id, "PassStateEntered", "one")));
        history.push(event(EVENTS_MAX + 2, "MapStateExited", "each"));
        let (rows, left_out) = event_rows(&detail(&Json::Array(history)));
        let shown = |row: &EventRow| {
            format!("{} {} {} {} {} {}", row.id, row.at, row.kind, row.state, row.inside, row.facts)
        };
        assert_eq!((rows.len(), left_out), (EVENTS_MAX, 2));
        assert_eq!(shown(&rows[0]), "3 1.000 s PassStateEntered one each item 3");
        assert_eq!(shown(&rows[EVENTS_MAX - 1]), "202 1.000 s MapStateExited each  item 202");
    }

    #[test]
    fn long_data_is_shortened() {
        let text = json(&Json::String("ä".repeat(DATA_MAX)));
        assert!(text.len() < DATA_MAX + 100 && text.contains("… shortened"), "{}", text.len());
        assert_eq!(json(&json!({"a": 1})), "{\n  \"a\": 1\n}");
    }
}
