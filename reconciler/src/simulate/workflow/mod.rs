//! `minik8s simulate workflow`: runs a workflow offline, with mocks instead of functions and a clock that jumps
//! to the next event.

pub mod cases;
mod mocks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Resource;
use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::FunctionSpec;
use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::Document;
use schema::meta::ObjectRef;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use crate::workflows::machine::{
    Call, Event, History, HistoryEvent, Outcome, Pending, Run, RunContext, errors,
};
use mocks::Answer;

pub use mocks::{MockError, Mocks, UnknownMock};

/// Start time of each run: always the same, so that the same input gives the same history.
pub const BEGIN: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// Result of a run.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Status in the terms of Step Functions.
    pub status: Status,
    /// Result, if the run succeeded.
    pub output: Option<Json>,
    /// Name of the error that ended it.
    pub error: Option<String>,
    /// Cause of the error, in a sentence.
    pub cause: Option<String>,
    /// Events of the run.
    pub history: Vec<HistoryEvent>,
    /// Number of events, from the first, without inputs and outputs: the history would be too large.
    #[serde(skip)]
    pub without_data: usize,
    /// Mocks of functions that the run did not call, or called less often than they have answers: a sentence each.
    #[serde(skip)]
    pub unused: Vec<String>,
}

/// Final status of a run, in the terms of Step Functions. A real run has the same as its phase: `Succeeded`,
/// `TimedOut`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    Succeeded,
    /// Ended by an error.
    Failed,
    /// Ended by its time limit.
    TimedOut,
    /// Ended by a person; never in a simulation.
    Aborted,
}

impl Status {
    /// The value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED_OUT",
            Self::Aborted => "ABORTED",
        }
    }
}

/// Runs the workflow from start to end. An error names the missing mock.
pub fn run(
    context: RunContext,
    spec: &WorkflowSpec,
    mocks: &Mocks,
    limits: &FunctionLimits,
) -> Result<Report, MockError> {
    let namespace = context.namespace.clone();
    let mut now = context.started_at;
    let (mut run, begun) = Run::begin(context, spec);
    let mut history = History::default();
    history.add(begun);
    let mut answers = MockedCalls { mocks, limits, namespace, given: BTreeMap::new(), open: BTreeMap::new() };
    while run.outcome().is_none() {
        let pending = run.pending();
        let event = if pending.continues {
            Event::Continue
        } else {
            answers.prepare(&pending, now)?;
            let (at, event) = answers.next(&pending);
            now = now.max(at);
            event
        };
        history.add(run.step(spec, now, &event).unwrap_or_default());
    }
    let unused = mocks.unused(&answers.given, spec, &answers.namespace);
    let (history, without_data) = history.into_events();
    Ok(Report { unused, without_data, ..report(run.outcome(), history) })
}

/// Answers from the mocks, with their times.
struct MockedCalls<'a> {
    mocks: &'a Mocks,
    limits: &'a FunctionLimits,
    namespace: String,
    /// Number of answers given, by mock.
    given: BTreeMap<String, usize>,
    /// The answers of calls under way, by call.
    open: BTreeMap<u64, (Timestamp, Event)>,
}

impl MockedCalls<'_> {
    /// Prepares answers for new calls, and drops those of calls that are gone.
    fn prepare(&mut self, pending: &Pending<'_>, now: Timestamp) -> Result<(), MockError> {
        self.open.retain(|id, _| pending.calls.iter().any(|call| call.id == *id));
        for call in &pending.calls {
            if !self.open.contains_key(&call.id) {
                let (after, event) = self.answer(call)?;
                self.open.insert(call.id, (now.checked_add(after).unwrap_or(Timestamp::MAX), event));
            }
        }
        Ok(())
    }

    fn answer(&mut self, call: &Call) -> Result<(SignedDuration, Event), MockError> {
        if let Some(refused) = call.rejection() {
            return Ok((SignedDuration::ZERO, refused));
        }
        let function = &call.function;
        let missing = |why: &str| {
            let message = format!("state {}: function {function} has no mock{why}", call.state);
            let help =
                format!("add a mock: {{\"{}\": {{\"return\": {{}}}}}}", function.replace(['"', '\\'], ""));
            MockError::new(Vec::new(), message, help)
        };
        let Some((name, answers)) = self.mocks.for_function(function, &self.namespace) else {
            return Err(missing(""));
        };
        let given = self.given.entry(name.to_owned()).or_default();
        *given += 1;
        let Some(Answer { returned, error, cause, after }) = answers.get(*given - 1) else {
            return Err(missing(&format!(" for its call {given}")));
        };
        // The node's gateway would end such a call.
        if let Some(seconds) = self.limits.seconds(function, &self.namespace)
            && *after > SignedDuration::from_secs(seconds.into())
        {
            let cause = format!("the call was ended after {seconds} s, the function's timeoutSeconds");
            return Ok((SignedDuration::from_secs(seconds.into()), call.failed(errors::TIMEOUT, cause)));
        }
        let event = match (returned, error) {
            (Some(output), _) => call.returned(output.clone()),
            (None, error) => call.failed(error.as_deref().unwrap_or(errors::TASK_FAILED), cause),
        };
        Ok((*after, event))
    }

    /// Next event: the earliest answer or timer; an answer comes before a timer of the same time.
    fn next(&self, pending: &Pending<'_>) -> (Timestamp, Event) {
        let answer = self.open.values().min_by_key(|(at, _)| *at).cloned();
        let timer = pending.timers.iter().min_by_key(|timer| (timer.due, std::cmp::Reverse(timer.id)));
        match (answer, timer) {
            (Some((at, event)), Some(timer)) if at <= timer.due => (at, event),
            (_, Some(timer)) => (timer.due, Event::Due { timer: timer.id }),
            (Some(answer), None) => answer,
            // An unfinished run has the timer of its own limit.
            (None, None) => {
                (Timestamp::MAX, Event::Cancelled { cause: "nothing is left to happen".to_owned() })
            }
        }
    }
}

fn report(outcome: Option<&Outcome>, history: Vec<HistoryEvent>) -> Report {
    let (status, output, error, cause) = match outcome.cloned() {
        Some(Outcome::Succeeded { output }) => (Status::Succeeded, Some(output), None, None),
        Some(Outcome::Failed { error, cause }) => (Status::Failed, None, Some(error), Some(cause)),
        Some(Outcome::TimedOut) => {
            let cause = "the run exceeded its time limit".to_owned();
            (Status::TimedOut, None, Some(errors::TIMEOUT.to_owned()), Some(cause))
        }
        Some(Outcome::Aborted { cause }) => (Status::Aborted, None, None, Some(cause)),
        None => (Status::Aborted, None, None, None),
    };
    Report { status, output, error, cause, history, without_data: 0, unused: Vec::new() }
}

// Time limits of functions, as far as their manifests are available.

/// Time limits of functions in seconds, by namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionLimits(BTreeMap<(String, String), u32>);

impl FunctionLimits {
    /// Collects the limits of the Functions in `documents`, with the defaults of the Cluster among them.
    pub fn from_documents<'a>(documents: impl Iterator<Item = &'a Document>) -> Self {
        let (mut functions, mut defaults) = (Vec::new(), FunctionDefaults::default());
        for document in documents {
            match &document.object.resource {
                Resource::Function(function) => functions.push((&document.reference, function)),
                Resource::Cluster(cluster) => defaults = cluster.functions.clone(),
                _ => {}
            }
        }
        let limit = |(reference, function): (&ObjectRef, &Arc<FunctionSpec>)| {
            let key = (reference.namespace.clone(), reference.name.clone());
            Some((key, function.with_defaults(&defaults).timeout_seconds?))
        };
        Self(functions.into_iter().filter_map(limit).collect())
    }

    /// The limit of the function that a Task of this namespace names.
    fn seconds(&self, function: &str, namespace: &str) -> Option<u32> {
        let (namespace, name) = function.split_once('/').unwrap_or((namespace, function));
        self.0.get(&(namespace.to_owned(), name.to_owned())).copied()
    }

    /// True if the limits of all functions that the workflow calls are known.
    pub fn cover_all(&self, spec: &WorkflowSpec, namespace: &str) -> bool {
        spec.functions().into_iter().all(|(_, function)| self.seconds(function, namespace).is_some())
    }
}
