//! Runs of small workflows.

mod branches;
mod data;
mod errors;
mod histories;
mod intrinsics;
mod limits;
mod properties;
mod states;
use jiff::{SignedDuration, Timestamp};
use schema::kinds::Resource;
use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::load_definition;
use serde_json::{Value as Json, json};

use super::{Call, Event, HistoryEvent, Outcome, Run, RunContext};

/// Answer to a call.
type Answer = Result<Json, (&'static str, &'static str)>;

/// Parses a workflow from JSON or YAML, in either spelling.
fn spec(text: &str) -> WorkflowSpec {
    let loaded = load_definition("flow.yaml", text.as_bytes());
    assert!(!loaded.has_errors(), "{:#?}", loaded.violations);
    match loaded.documents.first().map(|document| &document.object.resource) {
        Some(Resource::Workflow(spec)) => WorkflowSpec::clone(spec),
        other => panic!("{other:?}"),
    }
}

fn context(input: Json) -> RunContext {
    RunContext {
        namespace: "shop".to_owned(),
        workflow: "flow".to_owned(),
        id: "r1".to_owned(),
        input,
        started_at: at(0),
    }
}

/// Time `seconds` after the start.
fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

/// A run played to its end.
struct Played {
    spec: WorkflowSpec,
    run: Run,
    history: Vec<HistoryEvent>,
    journal: Vec<(Timestamp, Event)>,
    now: Timestamp,
}

impl Played {
    fn begin(spec: WorkflowSpec, input: Json) -> Self {
        let (run, history) = Run::begin(context(input), &spec);
        Self { spec, run, history, journal: Vec::new(), now: at(0) }
    }

    fn step(&mut self, event: Event) -> bool {
        let Some(history) = self.run.step(&self.spec, self.now, &event) else { return false };
        self.history.extend(history);
        self.journal.push((self.now, event));
        true
    }

    /// Advances while nothing outside is waited for.
    fn go_on(&mut self) {
        while self.run.pending().continues {
            assert!(self.step(Event::Continue));
        }
    }

    /// Runs to the end: calls are answered immediately, and without calls time advances.
    fn finish(mut self, mut answer: impl FnMut(&Call) -> Answer) -> Self {
        while self.run.outcome().is_none() {
            let pending = self.run.pending();
            let event = match (pending.continues, pending.calls.first()) {
                (true, _) => Event::Continue,
                (false, Some(call)) => match answer(call) {
                    Ok(output) => Event::Returned { call: call.id, output },
                    Err((error, cause)) => {
                        Event::Failed { call: call.id, error: error.to_owned(), cause: cause.to_owned() }
                    }
                },
                (false, None) => {
                    let timer = pending.timers.iter().min_by_key(|timer| timer.due).copied().unwrap();
                    self.now = timer.due;
                    Event::Due { timer: timer.id }
                }
            };
            assert!(self.step(event));
        }
        self
    }

    fn outcome(&self) -> Json {
        said(self.run.outcome())
    }

    /// Names of the events, with the state where the name does not give its type.
    fn kinds(&self) -> Vec<&str> {
        self.history.iter().map(|event| event.kind.as_ref()).collect()
    }
}

/// Output of a run that succeeded; name of the error of a failed run, or its other end.
fn said(outcome: Option<&Outcome>) -> Json {
    match outcome {
        Some(Outcome::Succeeded { output }) => output.clone(),
        Some(Outcome::Failed { error, .. }) => json!({ "failed": error }),
        Some(Outcome::TimedOut) => json!("timed out"),
        Some(Outcome::Aborted { .. }) => json!("aborted"),
        None => json!("not over"),
    }
}

/// Outcome of a workflow whose functions answer so.
fn play(text: &str, input: Json, answer: impl FnMut(&Call) -> Answer) -> Played {
    Played::begin(spec(text), input).finish(answer)
}

/// Outcome of a workflow that calls no functions.
fn outcome(text: &str, input: Json) -> Json {
    play(text, input, |call| panic!("calls {}", call.function)).outcome()
}

/// Output of a Pass state with these fields.
fn passed(fields: &str, input: Json) -> Json {
    outcome(&format!("{{startAt: a, states: {{a: {{type: Pass, end: true, {fields}}}}}}}"), input)
}
