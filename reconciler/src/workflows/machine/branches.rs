//! Parallel and Map: strands inside a strand.

use std::borrow::Cow;
use std::mem;

use schema::kinds::workflow::{MapState, ParallelState, State};
use serde_json::{Value as Json, json};

use super::Event;
use super::context::{Context, MAP_CONCURRENCY_MAX, STEPS_MAX, STRANDS_MAX, size};
use super::data::{fill, lookup, place_result, select, within_limits};
use super::failure::{Failure, errors};
use super::history::HistoryDetail;
use super::strand::{Branch, Item, MapLimits, Phase, Strand};
use super::task::whole_number;
use super::transition::{Position, StrandProgress, Transition, inner_machine};

impl Transition<'_> {
    /// Begins all branches of a Parallel.
    pub(super) fn open_parallel(
        &mut self,
        parallel: &ParallelState,
        strand: &mut Strand,
    ) -> Result<Phase, Failure> {
        let input = {
            let context = self.context(strand);
            let input = select("inputPath", parallel.input_path.as_ref(), &strand.input, &context)?;
            match &parallel.parameters {
                Some(template) => fill(template, &input, &context)?,
                None => input.into_owned(),
            }
        };
        let input = within_limits("input of the branches", input)?;
        self.record(strand, "ParallelStateStarted", HistoryDetail::default());
        let mut branches = Vec::with_capacity(parallel.branches.len());
        for machine in &parallel.branches {
            let mut inner = Strand::new(self.at, strand.last_event, strand.item.clone());
            self.load.strands += 1;
            self.enter(machine.as_ref(), &mut inner, &machine.start_at, input.clone());
            branches.push(Branch::Running { strand: Box::new(inner) });
            // A run that has ended begins nothing more.
            if self.fatal.is_some() {
                break;
            }
        }
        Ok(Phase::Inside { branches, bounds: MapLimits::default() })
    }

    /// Begins as many items of a Map as may run at the same time.
    pub(super) fn open_map(&mut self, map: &MapState, strand: &mut Strand) -> Result<Phase, Failure> {
        let (length, bounds) = {
            let context = self.context(strand);
            let input = select("inputPath", map.input_path.as_ref(), &strand.input, &context)?;
            (items(map, &input, &context)?.len(), bounds(map, &input, &context)?)
        };
        // Each item enters a state, including items of other Maps that have not begun: such a run can only end by
        // its limit.
        let left = (STEPS_MAX as usize).saturating_sub(self.counters.steps as usize + self.load.waiting);
        if length > left {
            let cause = format!(
                "the list has {length} items, but the run may enter only {left} more of {STEPS_MAX} states"
            );
            return Err(Failure::new(errors::STEP_LIMIT, cause));
        }
        self.load.waiting += length;
        let detail = HistoryDetail { length: Some(length), ..HistoryDetail::default() };
        self.record(strand, "MapStateStarted", detail);
        let mut branches = vec![Branch::Waiting; length];
        self.fill_up(map, strand, &mut branches, bounds)?;
        Ok(Phase::Inside { branches, bounds })
    }

    /// Begins waiting items while there is room.
    fn fill_up(
        &mut self,
        map: &MapState,
        strand: &Strand,
        branches: &mut [Branch],
        bounds: MapLimits,
    ) -> Result<(), Failure> {
        let running = branches.iter().filter(|branch| matches!(branch, Branch::Running { .. })).count();
        let waiting = branches.iter().enumerate().filter(|(_, branch)| **branch == Branch::Waiting);
        let room = usize::try_from(bounds.concurrency).unwrap_or(usize::MAX).saturating_sub(running);
        // At least one: the end of another Map's item does not wake this Map.
        let room = room.min(STRANDS_MAX.saturating_sub(self.load.strands).max(usize::from(running == 0)));
        let begun: Vec<usize> = waiting.map(|(index, _)| index).take(room).collect();
        if begun.is_empty() {
            return Ok(());
        }
        for (index, value, input) in self.item_inputs(map, strand, &begun)? {
            let bytes = size(&value);
            let mut inner = Strand::new(self.at, strand.last_event, Some(Item { index, value, bytes }));
            self.load.strands += 1;
            self.load.waiting = self.load.waiting.saturating_sub(1);
            inner.last_event = self.note(
                strand.last_event,
                "MapIterationStarted",
                Some(strand.state.clone()),
                HistoryDetail::index(index),
            );
            let machine = map.item_processor.as_ref();
            self.enter(machine, &mut inner, machine.start_at, input);
            if let Some(branch) = branches.get_mut(index) {
                *branch = Branch::Running { strand: Box::new(inner) };
            }
            if self.fatal.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Returns index, value and input of these items.
    fn item_inputs(
        &self,
        map: &MapState,
        strand: &Strand,
        wanted: &[usize],
    ) -> Result<Vec<(usize, Json, Json)>, Failure> {
        let context = self.context(strand);
        let seen = select("inputPath", map.input_path.as_ref(), &strand.input, &context)?;
        let items = items(map, &seen, &context)?;
        let one = |index: &usize| {
            let value = items.get(*index).cloned().unwrap_or_default();
            let input = match &map.item_selector {
                None => value.clone(),
                Some(template) => {
                    let of_item = Context { item: Some((*index, &value)), ..self.context(strand) };
                    within_limits("input of an item", fill(template, &seen, &of_item)?)?
                }
            };
            Ok((*index, value, input))
        };
        wanted.iter().map(one).collect()
    }

    /// Applies the event to the branches; the state ends once all of them have.
    pub(super) fn advance_branches(
        &mut self,
        position: Position<'_>,
        strand: &mut Strand,
        event: &Event,
    ) -> StrandProgress {
        let state = position.state;
        let Phase::Inside { branches, bounds } = &mut strand.phase else { return StrandProgress::Unaffected };
        let (mut branches, bounds) = (mem::take(branches), *bounds);
        // A Map without items ends at the first `Continue`.
        let mut has_moved = *event == Event::Continue && branches.is_empty();
        let mut failed = None;
        for index in 0..branches.len() {
            let (Some(inner_machine), Some(Branch::Running { strand: inner })) =
                (inner_machine(state, index), branches.get_mut(index))
            else {
                continue;
            };
            let ended = match self.advance(inner_machine, inner, event) {
                StrandProgress::Unaffected => continue,
                StrandProgress::Moved => None,
                StrandProgress::Ended(ended) => Some((inner.last_event, ended)),
            };
            has_moved = true;
            if let Some((last_event, ended)) = ended {
                strand.last_event = last_event;
                failed = self.end_branch(strand, &mut branches, (index, ended), bounds);
            }
            // Any other event concerns only one branch.
            if *event != Event::Continue || self.fatal.is_some() || failed.is_some() {
                break;
            }
        }
        if let (None, None, true, State::Map(map)) = (&failed, &self.fatal, has_moved, state) {
            failed = self.fill_up(map, strand, &mut branches, bounds).err();
        }
        if let Some(failure) = failed {
            return self.fail_with_branches(position, strand, &mut branches, failure);
        }
        let is_over = |branch: &Branch| matches!(branch, Branch::Done { .. } | Branch::Failed { .. });
        if has_moved && self.fatal.is_none() && branches.iter().all(is_over) {
            return self.join(position, strand, branches);
        }
        strand.phase = Phase::Inside { branches, bounds };
        if has_moved { StrandProgress::Moved } else { StrandProgress::Unaffected }
    }

    /// Records the end of a branch. Returns the failure of the state if this makes it fail.
    fn end_branch(
        &mut self,
        strand: &mut Strand,
        branches: &mut [Branch],
        (index, ended): (usize, Result<Json, Failure>),
        bounds: MapLimits,
    ) -> Option<Failure> {
        let is_map = bounds.is_map;
        let (ended, failed) = match ended {
            Ok(output) => {
                if is_map {
                    self.record(strand, "MapIterationSucceeded", HistoryDetail::index(index));
                }
                let bytes = size(&output);
                (Branch::Done { output, bytes }, None)
            }
            Err(failure) => {
                let failure = Failure { of_branch: !is_map, ..failure };
                if is_map {
                    let detail = HistoryDetail::error(&failure.error, &failure.cause);
                    let detail = HistoryDetail { index: Some(index), ..detail };
                    self.record(strand, "MapIterationFailed", detail);
                }
                (Branch::Failed { failure: failure.clone() }, Some(failure))
            }
        };
        if let Some(branch) = branches.get_mut(index) {
            self.load.remove(branch);
            self.load.add(&ended);
            *branch = ended;
        }
        self.bound_data();
        failed.and_then(|failure| bounds.exceeded(branches, failure))
    }

    /// Ends all running branches, and fails the state.
    fn fail_with_branches(
        &mut self,
        position: Position<'_>,
        strand: &mut Strand,
        branches: &mut [Branch],
        failure: Failure,
    ) -> StrandProgress {
        let state = position.state;
        branches.iter().for_each(|branch| self.load.remove(branch));
        self.abort(matches!(state, State::Map(_)).then_some(&strand.state), branches);
        let detail = HistoryDetail::error(&failure.error, &failure.cause);
        self.record(strand, format!("{}StateFailed", state.kind()), detail);
        self.fail(position, strand, failure)
    }

    /// Ends all that runs in branches, innermost first; `map` is the state, if it is a Map.
    fn abort(&mut self, map: Option<&String>, branches: &mut [Branch]) {
        for (index, branch) in branches.iter_mut().enumerate() {
            let Branch::Running { strand: inner } = branch else { continue };
            let kind = match mem::replace(&mut inner.phase, Phase::Over) {
                Phase::Calling { .. } | Phase::Queued => Some("TaskStateAborted"),
                Phase::Waiting { .. } => Some("WaitStateAborted"),
                Phase::Inside { branches: mut inside, bounds: MapLimits { is_map, .. } } => {
                    self.abort(is_map.then_some(&inner.state), &mut inside);
                    Some(if is_map { "MapStateAborted" } else { "ParallelStateAborted" })
                }
                _ => None,
            };
            if let Some(kind) = kind {
                self.record(inner, kind, HistoryDetail::default());
            }
            if let Some(map) = map {
                let detail = HistoryDetail::index(index);
                self.note(inner.last_event, "MapIterationAborted", Some(map.clone()), detail);
            }
        }
    }

    /// Joins the branches after all have ended: the list of their outputs is the result.
    fn join(&mut self, position: Position<'_>, strand: &mut Strand, branches: Vec<Branch>) -> StrandProgress {
        let state = position.state;
        self.record(strand, format!("{}StateSucceeded", state.kind()), HistoryDetail::default());
        branches.iter().for_each(|branch| self.load.remove(branch));
        let outputs = branches.into_iter().map(|branch| match branch {
            Branch::Done { output, .. } => output,
            Branch::Failed { failure } => json!({ "Error": failure.error, "Cause": failure.cause }),
            Branch::Waiting | Branch::Running { .. } => Json::Null,
        });
        let outputs = Json::Array(outputs.collect());
        let output = self.joined(state, strand, outputs);
        self.leave_or_fail(position, strand, output)
    }

    fn joined(&self, state: &State, strand: &Strand, outputs: Json) -> Result<Json, Failure> {
        let (selector, result, output) = match state {
            State::Parallel(s) => (&s.result_selector, &s.result_path, &s.output_path),
            State::Map(s) => (&s.result_selector, &s.result_path, &s.output_path),
            _ => (&None, &None, &None),
        };
        let context = self.context(strand);
        let outputs = match selector {
            Some(template) => fill(template, &outputs, &context)?,
            None => outputs,
        };
        let placed = place_result(result.as_ref(), &strand.input, outputs)?;
        Ok(select("outputPath", output.as_ref(), &placed, &context)?.into_owned())
    }
}

impl MapLimits {
    /// Returns the failure of the Map or Parallel that has this failed branch; `None` if the failure is tolerated.
    fn exceeded(self, branches: &[Branch], failure: Failure) -> Option<Failure> {
        if self.failures == 0 && self.failure_percentage == 0 {
            return Some(failure);
        }
        let failed = branches.iter().filter(|branch| matches!(branch, Branch::Failed { .. })).count() as u64;
        let too_many = self.failures > 0 && failed > u64::from(self.failures);
        let of_all = u64::from(self.failure_percentage) * branches.len() as u64;
        let too_large_a_part = self.failure_percentage > 0 && failed * 100 > of_all;
        (too_many || too_large_a_part).then(|| {
            let cause = format!("{failed} of {} items failed, the last by {}", branches.len(), failure.error);
            Failure { of_task: failure.of_task, ..Failure::new(errors::TOLERATED_FAILURES, cause) }
        })
    }
}

/// Returns the items of a Map in its effective input.
fn items<'a>(map: &MapState, seen: &'a Json, context: &'a Context<'_>) -> Result<Cow<'a, [Json]>, Failure> {
    let path = map.items_path.as_deref().unwrap_or("$");
    match lookup("itemsPath", path, seen, context)? {
        Cow::Owned(Json::Array(items)) => Ok(Cow::Owned(items)),
        Cow::Borrowed(Json::Array(items)) => Ok(Cow::Borrowed(items)),
        _ => Err(Failure::runtime(format!("itemsPath: there is no list at `{path}` in the data"))),
    }
}

fn bounds(map: &MapState, seen: &Json, context: &Context<'_>) -> Result<MapLimits, Failure> {
    let number = |field: &str, plain: u32, path: &Option<String>| match path {
        None => Ok(plain),
        Some(path) => whole_number(field, path, seen, context),
    };
    let concurrency = number("maxConcurrencyPath", map.max_concurrency, &map.max_concurrency_path)?;
    Ok(MapLimits {
        is_map: true,
        concurrency: if concurrency == 0 {
            MAP_CONCURRENCY_MAX
        } else {
            concurrency.min(MAP_CONCURRENCY_MAX)
        },
        failures: number(
            "toleratedFailureCountPath",
            map.tolerated_failure_count,
            &map.tolerated_failure_count_path,
        )?,
        failure_percentage: number(
            "toleratedFailurePercentagePath",
            map.tolerated_failure_percentage,
            &map.tolerated_failure_percentage_path,
        )?,
    })
}
