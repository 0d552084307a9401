//! A run at one point of its journal.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::workflow::WorkflowSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::context::{EVENTS_MAX, RUN_MAX, RUN_MAX_BYTES, Random, size};
use super::data::within_limits;
use super::failure::{Failure, errors};
use super::history::{HistoryDetail, HistoryEvent};
use super::strand::{Load, Phase, Strand};
use super::transition::{Counters, StrandProgress, Transition};
use super::{Event, Outcome, Pending, RunContext, Timer};

/// Timer id of the run's own limit.
const LIMIT_ID: u64 = 0;

/// A run at one point of its journal. Serializable, so that a journal can be compacted to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    context: RunContext,
    root: Strand,
    counters: Counters,
    /// Time at which the run times out.
    deadline: Timestamp,
    /// Time of the last event: it never goes back, whatever the clocks of leaders say.
    at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

impl Run {
    /// Begins a run in its first state.
    pub fn begin(context: RunContext, spec: &WorkflowSpec) -> (Self, Vec<HistoryEvent>) {
        let at = context.started_at;
        let longest = spec.timeout_seconds.map_or(RUN_MAX, |s| SignedDuration::from_secs(i64::from(s)));
        let mut run = Self {
            root: Strand::new(at, 0, None),
            counters: Counters::default(),
            deadline: at.checked_add(longest).unwrap_or(Timestamp::MAX),
            at,
            outcome: None,
            context,
        };
        let history = run.transition(|transition, root| {
            let input = transition.run.input.clone();
            root.last_event =
                transition.note(0, "ExecutionStarted", None, HistoryDetail::input(&transition.run.input));
            let machine = spec.machine();
            match within_limits("input", input) {
                Ok(input) => transition.enter(machine, root, machine.start_at, input),
                Err(failure) => transition.fatal = Some(failure),
            }
            StrandProgress::Moved
        });
        (run, history.unwrap_or_default())
    }

    /// Makes one transition: in each branch that the event concerns, at most one state is left and one entered.
    /// `None` if the event is late or a duplicate, and changes nothing.
    pub fn step(&mut self, spec: &WorkflowSpec, at: Timestamp, event: &Event) -> Option<Vec<HistoryEvent>> {
        if self.outcome.is_some() {
            return None;
        }
        let before = self.at;
        self.at = before.max(at);
        let history = match event {
            Event::Cancelled { cause } => {
                let detail = HistoryDetail { cause: Some(cause.clone()), ..HistoryDetail::default() };
                Some(self.end(Outcome::Aborted { cause: cause.clone() }, "ExecutionAborted", detail))
            }
            Event::Due { timer: LIMIT_ID } if self.deadline <= self.at => {
                let detail = HistoryDetail::error(errors::TIMEOUT, "the run took too long");
                Some(self.end(Outcome::TimedOut, "ExecutionTimedOut", detail))
            }
            event => self.transition(|transition, root| {
                let progress = transition.advance(spec.machine(), root, event);
                if matches!(progress, StrandProgress::Moved) && transition.fatal.is_none() {
                    transition.call_queued(spec.machine(), root);
                }
                progress
            }),
        };
        let Some(mut history) = history else {
            self.at = before;
            return None;
        };
        // A beat is no entry: it only postpones a timer.
        self.counters.events += u32::from(!matches!(event, Event::Beat { .. }));
        self.counters.bytes += match event {
            Event::Returned { output, .. } => size(output),
            Event::Failed { error, cause, .. } => error.len() + cause.len(),
            _ => 0,
        };
        if self.outcome.is_none() && self.counters.events >= EVENTS_MAX {
            let cause = format!("the run's journal has {EVENTS_MAX} entries");
            history.extend(self.fail(Failure::new(errors::EVENT_LIMIT, cause)));
        }
        if self.outcome.is_none() && self.counters.bytes > RUN_MAX_BYTES {
            let cause = format!(
                "the answers and errors of the run's functions have more than {RUN_MAX_BYTES} bytes in all; keep large data where \
                 functions can fetch it, and pass its name"
            );
            history.extend(self.fail(Failure::new(errors::RUN_DATA_LIMIT, cause)));
        }
        Some(history)
    }

    /// Returns the actions that the run needs from outside now. Asking again gives the same.
    pub fn pending(&self) -> Pending<'_> {
        let mut pending =
            Pending { continues: false, calls: Vec::new(), timers: Vec::new(), heartbeats: Vec::new() };
        if self.outcome.is_none() {
            pending.timers.push(Timer { id: LIMIT_ID, due: self.deadline });
            self.root.pending(&mut pending);
        }
        pending
    }

    /// Returns the parameters of the run.
    pub fn context(&self) -> &RunContext {
        &self.context
    }

    /// Returns the outcome, once the run has ended.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Returns the state that the run is or ended in; for parallel branches, the state around them.
    pub fn state_name(&self) -> &str {
        &self.root.state
    }

    /// Returns the number of states entered, in all branches.
    pub fn steps(&self) -> u32 {
        self.counters.steps
    }

    /// Returns the number of events that changed the run: the entries of its journal.
    pub fn events(&self) -> u32 {
        self.counters.events
    }

    /// Returns the time of the last event.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    fn transition(
        &mut self,
        act: impl FnOnce(&mut Transition<'_>, &mut Strand) -> StrandProgress,
    ) -> Option<Vec<HistoryEvent>> {
        let (progress, mut history, fatal) = {
            let random = Random::new(&self.context.id, self.counters.draws);
            let mut transition = Transition {
                run: &self.context,
                at: self.at,
                counters: &mut self.counters,
                random: &random,
                load: Load::of(&self.root),
                history: Vec::new(),
                fatal: None,
            };
            let progress = act(&mut transition, &mut self.root);
            let (history, fatal) = (transition.history, transition.fatal);
            self.counters.draws = random.draws();
            (progress, history, fatal)
        };
        let ended = match (fatal, progress) {
            (Some(failure), _) | (None, StrandProgress::Ended(Err(failure))) => self.fail(failure),
            (None, StrandProgress::Ended(Ok(output))) => self.succeed(output),
            (None, StrandProgress::Moved) => Vec::new(),
            (None, StrandProgress::Unaffected) => return None,
        };
        history.extend(ended);
        Some(history)
    }

    fn succeed(&mut self, output: Json) -> Vec<HistoryEvent> {
        let detail = HistoryDetail::output(&output);
        self.end(Outcome::Succeeded { output }, "ExecutionSucceeded", detail)
    }

    fn fail(&mut self, failure: Failure) -> Vec<HistoryEvent> {
        let Failure { error, cause, .. } = failure;
        let detail = HistoryDetail::error(&error, &cause);
        self.end(Outcome::Failed { error, cause }, "ExecutionFailed", detail)
    }

    fn end(&mut self, outcome: Outcome, kind: &'static str, detail: HistoryDetail) -> Vec<HistoryEvent> {
        self.outcome = Some(outcome);
        self.root.phase = Phase::Over;
        self.root.input = Json::Null;
        self.root.retries = Vec::new();
        self.counters.history += 1;
        let (id, previous_event_id) = (self.counters.history, self.root.last_event);
        vec![HistoryEvent {
            id,
            previous_event_id,
            timestamp: self.at,
            kind: kind.into(),
            state: None,
            detail,
        }]
    }
}
