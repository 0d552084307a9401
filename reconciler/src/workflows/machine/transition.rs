//! Transitions of a run: entering, executing and leaving states, and handling errors.

use std::borrow::Cow;
use std::cell::OnceCell;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::workflow::{Machine, MachineRef, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::context::{Context, RUN_MAX_BYTES, Random, STEPS_MAX, size};
use super::data::{place_result, within_limits};
use super::failure::{Failure, delay, errors};
use super::history::{HistoryDetail, HistoryEvent};
use super::strand::{Load, Phase, Strand};
use super::{Event, RunContext, Timer};

/// Name of a state in which the machine panics, in tests only.
#[cfg(test)]
pub(in crate::workflows) const PANICS: &str = "panics-in-tests";

/// Counters of a run, stored with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Counters {
    /// States entered.
    pub(super) steps: u32,
    /// Entries of the journal.
    pub(super) events: u32,
    /// Bytes of the functions' answers and errors.
    #[serde(default)]
    pub(super) bytes: usize,
    /// Events of the history.
    pub(super) history: u32,
    /// Ids given to calls and timers.
    pub(super) ids: u64,
    /// Random values drawn.
    pub(super) draws: u64,
}

/// Effect of an event on a strand.
pub(super) enum StrandProgress {
    /// No effect: the event does not concern this strand, is late or a duplicate.
    Unaffected,
    /// The strand went on.
    Moved,
    /// The strand's machine has ended.
    Ended(Result<Json, Failure>),
}

/// Position of a strand: its machine, and the state in it.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    pub(super) machine: MachineRef<'a>,
    pub(super) state: &'a State,
}

/// A transition of a run.
pub(super) struct Transition<'a> {
    pub(super) run: &'a RunContext,
    pub(super) at: Timestamp,
    pub(super) counters: &'a mut Counters,
    pub(super) random: &'a Random<'a>,
    /// Load of all strands before the transition, and what the transition adds.
    pub(super) load: Load,
    pub(super) history: Vec<HistoryEvent>,
    /// Error that ends the run, whatever is around the state.
    pub(super) fatal: Option<Failure>,
}

impl Transition<'_> {
    /// Adds an event to the history of a strand.
    pub(super) fn record(
        &mut self,
        strand: &mut Strand,
        kind: impl Into<Cow<'static, str>>,
        detail: HistoryDetail,
    ) {
        let id = self.note(strand.last_event, kind, Some(strand.state.clone()), detail);
        strand.last_event = id;
    }

    /// Adds an event to the history, and returns its id.
    pub(super) fn note(
        &mut self,
        previous_event_id: u32,
        kind: impl Into<Cow<'static, str>>,
        state: Option<String>,
        detail: HistoryDetail,
    ) -> u32 {
        self.counters.history += 1;
        let id = self.counters.history;
        let kind = kind.into();
        self.history.push(HistoryEvent { id, previous_event_id, timestamp: self.at, kind, state, detail });
        id
    }

    /// Returns a new id for a call or a timer.
    pub(super) fn id(&mut self) -> u64 {
        self.counters.ids += 1;
        self.counters.ids
    }

    /// Creates a timer that is due after this time.
    pub(super) fn timer(&mut self, after: SignedDuration) -> Timer {
        Timer { id: self.id(), due: self.at.checked_add(after).unwrap_or(Timestamp::MAX) }
    }

    /// Returns the context of a strand.
    pub(super) fn context<'b>(&'b self, strand: &'b Strand) -> Context<'b> {
        Context {
            run: self.run,
            random: self.random,
            state: &strand.state,
            entered: strand.entered,
            retries: strand.retry_count(),
            item: strand.item.as_ref().map(|item| (item.index, &item.value)),
            object_cell: OnceCell::new(),
        }
    }

    /// Enters a state of the strand's machine, as far as that goes without an event.
    pub(super) fn enter(&mut self, machine: MachineRef<'_>, strand: &mut Strand, name: &str, input: Json) {
        self.counters.steps += 1;
        name.clone_into(&mut strand.state);
        strand.entered = self.at;
        strand.step = u64::from(self.counters.steps);
        let bytes = size(&input) + strand.item.as_ref().map_or(0, |item| item.bytes);
        self.load.bytes = (self.load.bytes + bytes).saturating_sub(strand.bytes);
        (strand.input, strand.bytes) = (input, bytes);
        strand.phase = Phase::Ready;
        self.bound_data();
        if self.counters.steps > STEPS_MAX {
            let cause = format!("the run entered more than {STEPS_MAX} states; the last was {name}");
            self.fatal.get_or_insert(Failure::new(errors::STEP_LIMIT, cause));
        }
        if self.fatal.is_some() {
            return;
        }
        let Some(state) = machine.states.get(name) else {
            self.fatal.get_or_insert(Failure::runtime(format!("there is no state {name}")));
            return;
        };
        strand.retries = vec![0; state.handlers().0.len()];
        let detail = HistoryDetail::input(&strand.input);
        self.record(strand, format!("{}StateEntered", state.kind()), detail);
        self.start(state, strand);
    }

    /// Ends the run if its strands hold too much data.
    pub(super) fn bound_data(&mut self) {
        if self.load.bytes > RUN_MAX_BYTES {
            let cause = format!(
                "the branches and items of the run hold more than {RUN_MAX_BYTES} bytes at the same time; keep large data \
                 where functions can fetch it, and pass its name"
            );
            self.fatal.get_or_insert(Failure::new(errors::RUN_DATA_LIMIT, cause));
        }
    }

    /// Starts the work of a state that was entered or is retried.
    pub(super) fn start(&mut self, state: &State, strand: &mut Strand) {
        #[cfg(test)]
        assert!(strand.state != PANICS, "as the test wants it");
        let started = match state {
            State::Task(task) => self.call(task, strand),
            State::Wait(wait) => self.wait(wait, strand),
            State::Parallel(parallel) => self.open_parallel(parallel, strand),
            State::Map(map) => self.open_map(map, strand),
            State::Pass(_) | State::Choice(_) | State::Succeed(_) | State::Fail(_) => Ok(Phase::Ready),
        };
        strand.phase = started.unwrap_or_else(|failure| Phase::Broken { failure });
    }

    /// Applies the event to the strand and the strands inside it.
    pub(super) fn advance(
        &mut self,
        machine: MachineRef<'_>,
        strand: &mut Strand,
        event: &Event,
    ) -> StrandProgress {
        let Some(state) = machine.states.get(&strand.state) else {
            self.fatal.get_or_insert(Failure::runtime(format!("there is no state {}", strand.state)));
            return StrandProgress::Moved;
        };
        let position = Position { machine, state };
        match (&mut strand.phase, event) {
            (Phase::Ready, Event::Continue) => self.work(position, strand),
            (Phase::Broken { failure }, Event::Continue) => {
                let failure = failure.clone();
                self.fail(position, strand, failure)
            }
            (Phase::Waiting { timer }, Event::Due { timer: id })
                if timer.id == *id && timer.due <= self.at =>
            {
                let output = self.output_of_input(state, strand);
                self.leave_or_fail(position, strand, output)
            }
            (Phase::Retrying { timer }, Event::Due { timer: id })
                if timer.id == *id && timer.due <= self.at =>
            {
                self.start(state, strand);
                StrandProgress::Moved
            }
            (Phase::Calling { .. }, _) => self.apply_answer(position, strand, event),
            (Phase::Inside { .. }, _) => self.advance_branches(position, strand, event),
            _ => StrandProgress::Unaffected,
        }
    }

    /// Executes a state that needs nothing from outside.
    fn work(&mut self, position: Position<'_>, strand: &mut Strand) -> StrandProgress {
        let state = position.state;
        match state {
            State::Pass(pass) => {
                let output = self.pass(pass, strand);
                self.leave_or_fail(position, strand, output)
            }
            State::Choice(choice) => match self.choose(choice, strand) {
                Ok((next, output)) => self.leave(position, strand, output, Some(&next)),
                Err(failure) => self.fail(position, strand, failure),
            },
            State::Succeed(_) => {
                let output = self.output_of_input(state, strand);
                self.leave_or_fail(position, strand, output)
            }
            State::Fail(fail) => {
                let failure = self.failed_state(fail, strand).unwrap_or_else(|failure| failure);
                self.fail(position, strand, failure)
            }
            // These states have begun on entry.
            State::Task(_) | State::Wait(_) | State::Parallel(_) | State::Map(_) => {
                StrandProgress::Unaffected
            }
        }
    }

    /// Leaves the state with its output, or fails.
    pub(super) fn leave_or_fail(
        &mut self,
        position: Position<'_>,
        strand: &mut Strand,
        output: Result<Json, Failure>,
    ) -> StrandProgress {
        let state = position.state;
        match output.and_then(|output| within_limits("output", output)) {
            Ok(output) => {
                let next = state.transition().and_then(|(next, _)| next);
                self.leave(position, strand, output, next)
            }
            Err(failure) => self.fail(position, strand, failure),
        }
    }

    fn leave(
        &mut self,
        position: Position<'_>,
        strand: &mut Strand,
        output: Json,
        next: Option<&str>,
    ) -> StrandProgress {
        let Position { machine, state } = position;
        self.record(strand, format!("{}StateExited", state.kind()), HistoryDetail::output(&output));
        match next {
            Some(next) => {
                self.enter(machine, strand, next, output);
                StrandProgress::Moved
            }
            None => StrandProgress::Ended(Ok(output)),
        }
    }

    /// Handles the failure of a state: retriers first, then catchers, each in order.
    pub(super) fn fail(
        &mut self,
        position: Position<'_>,
        strand: &mut Strand,
        failure: Failure,
    ) -> StrandProgress {
        let state = position.state;
        if failure.is_fatal() {
            self.fatal.get_or_insert(failure);
            return StrandProgress::Moved;
        }
        let (retriers, catchers) = state.handlers();
        let retrier = retriers.iter().position(|retrier| failure.fits(&retrier.error_equals));
        if let Some((index, retrier)) = retrier.and_then(|index| Some((index, retriers.get(index)?)))
            && let Some(used) = strand.retries.get_mut(index).filter(|used| **used < retrier.max_attempts)
        {
            *used += 1;
            let after = delay(retrier, *used, self.random);
            strand.phase = Phase::Retrying { timer: self.timer(after) };
            return StrandProgress::Moved;
        }
        let Some(catcher) = catchers.iter().find(|catcher| failure.fits(&catcher.error_equals)) else {
            return StrandProgress::Ended(Err(failure));
        };
        let said = json!({ "Error": failure.error, "Cause": failure.cause });
        let caught = place_result(catcher.result_path.as_ref(), &strand.input, said);
        match caught.and_then(|output| within_limits("output", output)) {
            Ok(output) => self.leave(position, strand, output, Some(&catcher.next)),
            Err(failure) => StrandProgress::Ended(Err(failure)),
        }
    }
}

/// Returns the machine of a branch.
pub(super) fn inner_machine(state: &State, index: usize) -> Option<MachineRef<'_>> {
    match state {
        State::Parallel(parallel) => parallel.branches.get(index).map(Machine::as_ref),
        State::Map(map) => Some(map.item_processor.as_ref()),
        _ => None,
    }
}
