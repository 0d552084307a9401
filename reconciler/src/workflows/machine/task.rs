//! Task: a function call, its answer, its time limits.

use jiff::SignedDuration;
use schema::kinds::workflow::{COUNT_MAX, MachineRef, State, TaskState};
use serde_json::Value as Json;

use super::context::{CALLS_MAX, Context, DEPTH_MAX};
use super::data::{fill, is_deeper_than, lookup, place_result, select, within_limits};
use super::failure::{Failure, errors};
use super::history::HistoryDetail;
use super::strand::{Branch, Load, Phase, Strand};
use super::transition::{Position, StrandProgress, Transition, inner_machine};
use super::{Call, Event, Timer};

impl Call {
    /// Returns the failure of a call that is not made because no function takes its payload. Used by real and
    /// simulated runs.
    pub fn rejection(&self) -> Option<Event> {
        let found = match &self.payload {
            Json::Object(_) => return None,
            Json::Null => "null",
            Json::Bool(_) => "true or false",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "a list",
        };
        let cause = format!(
            "function {} takes a JSON object, but is given {found}; make one with parameters or itemSelector, such as \
             {{\"value.$\": \"$\"}}",
            self.function
        );
        Some(self.failed(errors::RUNTIME, cause))
    }

    /// Returns the event for this answer of the function. Used by real and simulated runs.
    pub fn returned(&self, output: Json) -> Event {
        if is_deeper_than(&output, DEPTH_MAX) {
            let cause = format!("the answer is nested more than {DEPTH_MAX} levels deep");
            return self.failed("Function.InvalidResult", cause);
        }
        Event::Returned { call: self.id, output }
    }

    /// Returns the event for a failure of the call.
    pub fn failed(&self, error: &str, cause: impl Into<String>) -> Event {
        Event::Failed { call: self.id, error: error.to_owned(), cause: cause.into() }
    }
}

/// Values that a call takes from the state's data.
struct CallParameters {
    payload: Json,
    timeout: Option<u32>,
    heartbeat: Option<u32>,
}

impl Transition<'_> {
    /// Schedules the call of a Task, or queues it if the run has as many as it may.
    pub(super) fn call(&mut self, task: &TaskState, strand: &mut Strand) -> Result<Phase, Failure> {
        if self.load.calls >= CALLS_MAX {
            self.load.queued += 1;
            return Ok(Phase::Queued);
        }
        let CallParameters { payload, timeout, heartbeat } = prepare(task, strand, &self.context(strand))?;
        let call = Call {
            id: self.id(),
            state: strand.state.clone(),
            function: task.function.clone(),
            payload,
            attempt: strand.retry_count() + 1,
            step: strand.step,
            timeout_seconds: timeout,
            heartbeat_seconds: heartbeat,
        };
        let scheduled = HistoryDetail {
            input: Some(call.payload.clone()),
            function: Some(call.function.clone()),
            call: Some(call.id),
            attempt: Some(call.attempt),
            ..HistoryDetail::default()
        };
        self.record(strand, "TaskScheduled", scheduled);
        let started = HistoryDetail { call: Some(call.id), ..HistoryDetail::default() };
        self.record(strand, "TaskStarted", started);
        let mut timer = |seconds: Option<u32>| {
            seconds.map(|seconds| self.timer(SignedDuration::from_secs(i64::from(seconds))))
        };
        let (timeout, heartbeat) = (timer(timeout), timer(heartbeat));
        self.load.calls += 1;
        Ok(Phase::Calling { call, timeout, heartbeat })
    }

    /// Makes queued calls while there is room, beginning with the states that were entered first.
    pub(super) fn call_queued(&mut self, machine: MachineRef<'_>, root: &mut Strand) {
        if self.load.queued == 0 {
            return;
        }
        self.load = Load::of(root);
        let mut steps = Vec::new();
        root.queued(&mut steps);
        steps.sort_unstable();
        steps.truncate(CALLS_MAX.saturating_sub(self.load.calls));
        if !steps.is_empty() {
            self.start_queued(machine, root, &steps);
        }
    }

    fn start_queued(&mut self, machine: MachineRef<'_>, strand: &mut Strand, steps: &[u64]) {
        let Some(state) = machine.states.get(&strand.state) else { return };
        if strand.phase == Phase::Queued && steps.binary_search(&strand.step).is_ok() {
            self.start(state, strand);
        } else if let Phase::Inside { branches, .. } = &mut strand.phase {
            for (index, branch) in branches.iter_mut().enumerate() {
                if let (Branch::Running { strand: inner }, Some(machine)) =
                    (branch, inner_machine(state, index))
                {
                    self.start_queued(machine, inner, steps);
                }
            }
        }
    }

    /// Applies an event to a strand that waits for a function.
    pub(super) fn apply_answer(
        &mut self,
        position: Position<'_>,
        strand: &mut Strand,
        event: &Event,
    ) -> StrandProgress {
        let state = position.state;
        let (Phase::Calling { call, timeout, heartbeat }, State::Task(task)) = (&mut strand.phase, state)
        else {
            return StrandProgress::Unaffected;
        };
        match event {
            Event::Returned { call: id, output } if *id == call.id => {
                let of_call = HistoryDetail { call: Some(*id), ..HistoryDetail::output(output) };
                let sized = within_limits("answer of the function", output.clone());
                if sized.is_ok() {
                    self.record(strand, "TaskSucceeded", of_call);
                }
                let output = sized.and_then(|output| self.result(task, strand, &output));
                self.leave_or_fail(position, strand, output)
            }
            Event::Failed { call: id, error, cause } if *id == call.id => {
                let of_call = HistoryDetail { call: Some(*id), ..HistoryDetail::error(error, cause) };
                let kind = if error == errors::TIMEOUT { "TaskTimedOut" } else { "TaskFailed" };
                self.record(strand, kind, of_call);
                let failure = Failure { of_task: true, ..Failure::new(error, cause) };
                self.fail(position, strand, failure)
            }
            Event::Beat { call: id } if *id == call.id => {
                let (Some(timer), Some(seconds)) = (heartbeat, call.heartbeat_seconds) else {
                    return StrandProgress::Unaffected;
                };
                let due = self.at.checked_add(SignedDuration::from_secs(i64::from(seconds)));
                match due {
                    Ok(due) if due > timer.due => {
                        timer.due = due;
                        StrandProgress::Moved
                    }
                    _ => StrandProgress::Unaffected,
                }
            }
            Event::Due { timer: id } => {
                let is_due = |timer: &Option<Timer>| {
                    timer.is_some_and(|timer| timer.id == *id && timer.due <= self.at)
                };
                let (error, cause) = if is_due(timeout) {
                    let seconds = call.timeout_seconds.unwrap_or_default();
                    (errors::TIMEOUT, format!("no answer within {seconds} s"))
                } else if is_due(heartbeat) {
                    let seconds = call.heartbeat_seconds.unwrap_or_default();
                    (errors::HEARTBEAT_TIMEOUT, format!("no sign of life for {seconds} s"))
                } else {
                    return StrandProgress::Unaffected;
                };
                let of_call = HistoryDetail { call: Some(call.id), ..HistoryDetail::error(error, &cause) };
                self.record(strand, "TaskTimedOut", of_call);
                let failure = Failure { of_task: true, ..Failure::new(error, cause) };
                self.fail(position, strand, failure)
            }
            _ => StrandProgress::Unaffected,
        }
    }

    fn result(&self, task: &TaskState, strand: &Strand, output: &Json) -> Result<Json, Failure> {
        let context = self.context(strand);
        let result = match &task.result_selector {
            Some(template) => fill(template, output, &context)?,
            None => output.clone(),
        };
        let placed = place_result(task.result_path.as_ref(), &strand.input, result)?;
        Ok(select("outputPath", task.output_path.as_ref(), &placed, &context)?.into_owned())
    }
}

fn prepare(task: &TaskState, strand: &Strand, context: &Context<'_>) -> Result<CallParameters, Failure> {
    let input = select("inputPath", task.input_path.as_ref(), &strand.input, context)?;
    let limit = |name: &str, plain: Option<u32>, path: &Option<String>| match path {
        Some(path) => whole_number(name, path, &input, context).map(Some),
        None => Ok(plain),
    };
    let timeout = limit("timeoutSecondsPath", task.timeout_seconds, &task.timeout_seconds_path)?;
    let heartbeat = limit("heartbeatSecondsPath", task.heartbeat_seconds, &task.heartbeat_seconds_path)?;
    let payload = match &task.parameters {
        Some(template) => fill(template, &input, context)?,
        None => input.into_owned(),
    };
    Ok(CallParameters { payload: within_limits("payload", payload)?, timeout, heartbeat })
}

/// Returns the whole number at a path.
pub(super) fn whole_number(
    field: &str,
    path: &str,
    data: &Json,
    context: &Context<'_>,
) -> Result<u32, Failure> {
    let value = lookup(field, path, data, context)?;
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number <= COUNT_MAX).ok_or_else(|| {
        let most = format!("expected a whole number up to {COUNT_MAX}");
        Failure::runtime(format!("{field}: `{path}` is {value}; {most}"))
    })
}
