//! Carries out the steps of a plan: one transaction each, and tasks for runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use schema::codec::{CodecError, decode, encode};
use schema::control::{LoopError, error_chain};
use schema::keys::{Key, prefix};
use schema::kinds::workflow::WorkflowSpec;
use schema::meta::NamespacedName;
use schema::store::election::Fence;
use schema::store::{Guard, Op, StoreError, TXN_OPS_MAX};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::active_runs::{Progress, RunHandle, StoredHead};
use super::journal;
use super::journal::{Journal, JournalError, LoadedJournal};
use super::machine::{Run, RunContext, errors};
use super::plan::{RunStart, RunStep, TriggerWrite, spec_cancel_reason};
use super::records::{Entry, JournalPart, RunHead, RunId, StoredValue};
use super::task::RunTask;
use super::workflows_loop::WorkflowsLoop;
use crate::guarded_writes::guarded;

/// Error of a step that was not carried out.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The run is resumed after a pause, like one whose task ended.
    #[error("can't compute the run's next steps: {0}")]
    Panicked(JoinError),
}

/// Effect of a step on the book.
enum Effect {
    None,
    Began(Box<ReadyRun>),
    Resumed(Box<ReadyRun>),
    /// The run has ended with this head: it had ended already, its journal is unreadable, or it was tried too often.
    Ended(RunId, Box<StoredHead>),
    /// The run may have begun although the response was lost, or it exists and the book does not have it.
    Unsure(RunId),
    /// The run's state can't be rebuilt.
    Stuck(RunId),
    Forgotten(RunId),
}

/// A run that is ready for its task.
struct ReadyRun {
    id: RunId,
    kept: StoredHead,
    spec: WorkflowSpec,
    run: Run,
    journal: Journal,
    /// Cause for which the run must end before it does anything more.
    cancelled: Option<String>,
    /// Number of earlier attempts to resume in vain; `None` for a run that begins.
    tried: Option<u32>,
}

impl WorkflowsLoop {
    /// Carries out batch after batch, the steps of each concurrently. A step that fails for its own reason holds up
    /// no other.
    pub(super) async fn carry_out(
        &mut self,
        fence: Fence,
        batches: Vec<Vec<RunStep>>,
    ) -> Result<(), LoopError> {
        for steps in batches {
            self.forget_definitions(&steps);
            let at_once = steps.len();
            let performed = stream::iter(steps).map(|step| self.perform(fence, step));
            let performed: Vec<_> = performed.buffer_unordered(at_once).collect().await;
            // Handle all results, even after a failure: runs that have begun must continue.
            let done = performed.into_iter().map(|(id, what, done)| self.apply_effect(fence, id, what, done));
            done.fold(Ok(()), Result::and)?;
        }
        Ok(())
    }

    /// Forgets definitions that the steps delete: a deletion may happen even if the response is lost, and the next
    /// run writes the definition again.
    fn forget_definitions(&mut self, steps: &[RunStep]) {
        for step in steps {
            if let RunStep::Forget { id, definition: Some(definition) } = step {
                self.book.definitions.remove(&(id.workflow.clone(), definition.clone()));
            }
        }
    }

    async fn perform(
        &self,
        fence: Fence,
        step: RunStep,
    ) -> (Option<RunId>, String, Result<Effect, StepError>) {
        let (id, what) = match &step {
            RunStep::Begin(begin) => (Some(begin.id.clone()), format!("beginning run {}", begin.id)),
            RunStep::Resume { id, .. } => (Some(id.clone()), format!("resuming run {id}")),
            RunStep::Cancel { id, .. } => (None, format!("ending run {id}")),
            RunStep::Dismiss { id, .. } => (None, format!("removing the request for run {id}")),
            RunStep::WriteStatus { workflow, .. } => {
                (None, format!("updating the status of workflow {workflow}"))
            }
            RunStep::WriteTrigger(write) => {
                (None, format!("updating trigger {} of {}", write.trigger, write.object))
            }
            RunStep::Forget { id, .. } => (None, format!("forgetting run {id}")),
        };
        let done = match step {
            RunStep::Begin(begin) => self.begin(fence, *begin).await,
            RunStep::Resume { id, cancelled } => self.resume(fence, &id, cancelled).await,
            RunStep::Cancel { id, cause } => {
                if let Some(carried) = self.book.carried.get(&id) {
                    carried.cancel.send_replace(Some(cause));
                }
                Ok(Effect::None)
            }
            RunStep::Dismiss { id, revision } => self.dismiss(fence, &id, revision).await,
            RunStep::WriteStatus { workflow, record, before } => {
                let key = Key::Workflow(workflow);
                let op = match &record {
                    Some(record) => put(&key, record),
                    None => Ok(Op::delete(&key)),
                };
                match op {
                    Ok(op) => self.write_one(fence, guard(&key, before), op).await,
                    Err(error) => Err(error.into()),
                }
            }
            RunStep::WriteTrigger(write) => match trigger_op(write) {
                Ok((guard, op)) => self.write_one(fence, guard, op).await,
                Err(error) => Err(error.into()),
            },
            RunStep::Forget { id, definition } => self.forget(fence, id, definition).await,
        };
        (id, what, done)
    }

    /// Updates the book after a step.
    fn apply_effect(
        &mut self,
        fence: Fence,
        id: Option<RunId>,
        what: String,
        done: Result<Effect, StepError>,
    ) -> Result<(), LoopError> {
        match done {
            Ok(Effect::None) => {}
            Ok(Effect::Began(ready)) => {
                tracing::info!(run = %ready.id, "run started");
                self.book.put(ready.id.clone(), ready.kept.clone());
                self.spawn_task(fence, *ready);
            }
            Ok(Effect::Resumed(ready)) => {
                tracing::info!(run = %ready.id, steps = ready.run.steps(), "run resumed");
                self.book.stuck.remove(&ready.id);
                self.spawn_task(fence, *ready);
            }
            Ok(Effect::Ended(id, kept)) => {
                span_of(&id).in_scope(|| log_end(&kept.head));
                self.book.stuck.remove(&id);
                self.book.put(id, *kept);
            }
            Ok(Effect::Unsure(id)) => {
                self.book.uncertain.insert(id);
            }
            Ok(Effect::Stuck(id)) => {
                self.book.stuck.insert(id, Instant::now());
            }
            Ok(Effect::Forgotten(id)) => {
                tracing::info!(run = %id, "run forgotten");
                self.book.remove(&id);
            }
            Err(error @ (StepError::Store(_) | StepError::Journal(JournalError::Store(_)))) => {
                self.book.uncertain.extend(id.filter(|id| !self.book.heads.contains_key(id)));
                return Err(LoopError::new(what, error));
            }
            // A fault of one run holds up no other.
            Err(error) => {
                tracing::warn!(step = what, error = error_chain(&error), "step of workflows failed");
            }
        }
        Ok(())
    }

    /// Writes one key. A conflict is left to the next plan.
    async fn write_one(&self, fence: Fence, guard: Guard, op: Op) -> Result<Effect, StepError> {
        guarded(&self.deps.store, fence, vec![guard], vec![op]).await?;
        Ok(Effect::None)
    }

    async fn begin(&self, fence: Fence, begin: RunStart) -> Result<Effect, StepError> {
        let RunStart { id, spec, input, head, request, record, trigger } = begin;
        let asked_parts = match &input {
            StoredValue::Parts(parts) if request.is_some() => parts.count,
            _ => 0,
        };
        let prefix = format!("{}{id}/", prefix::RUN_INPUTS);
        let input = journal::restore(&self.deps.store, input, &prefix).await?;
        let (stored, mut ops) = journal::store(&id, input.clone());
        let head_key = id.head();
        let mut guards = vec![Guard::Absent(head_key.to_string())];
        ops.push(put(&head_key, &head)?);
        ops.push(put(&id.entries(0), &JournalPart::Begun { input: stored })?);
        let bytes = journal::size_bytes(&ops);
        let definition = (id.workflow.clone(), head.definition.clone());
        if !self.book.definitions.contains(&definition) {
            ops.push(put(&definition_key(&definition), &spec)?);
        }
        if let Some((record, before)) = record {
            let key = Key::Workflow(id.workflow.clone());
            guards.push(guard(&key, before));
            ops.push(put(&key, &record)?);
        }
        if let Some(write) = trigger {
            let (guard, op) = trigger_op(write)?;
            guards.push(guard);
            ops.push(op);
        }
        if request.is_some() {
            ops.push(Op::delete(id.request()));
            ops.extend((0..asked_parts).map(|part| Op::delete(id.input(part))));
        }
        let Some(revision) = guarded(&self.deps.store, fence, guards, ops).await? else {
            return Ok(Effect::Unsure(id));
        };
        let kept = StoredHead { head, revision };
        let cancelled = spec_cancel_reason(&spec, &id).map(str::to_owned);
        let begun = context(&id, input, kept.head.started_at);
        let (run, spec) = match rebuild_run(begun, spec, Vec::new()).await {
            Ok(worked_out) => worked_out,
            // The run has begun, so it counts as one to resume.
            Err(error) => {
                tracing::error!(run = %id, %error, "run crashed; it is taken up again");
                return Ok(Effect::Unsure(id));
            }
        };
        let journal = Journal::at_beginning(id.clone(), bytes);
        Ok(Effect::Began(Box::new(ReadyRun { id, kept, spec, run, journal, cancelled, tried: None })))
    }

    async fn resume(&self, fence: Fence, id: &RunId, cancelled: Option<String>) -> Result<Effect, StepError> {
        // A failed task may have written the head since.
        let Some(found) = self.deps.store.get(&id.head().to_string()).await? else {
            return Ok(Effect::Forgotten(id.clone()));
        };
        let kept = StoredHead { head: decode(&found.value)?, revision: found.mod_revision };
        if !kept.head.is_running() {
            return Ok(Effect::Ended(id.clone(), Box::new(kept)));
        }
        let (spec, loaded) = match self.read_back(id, &kept).await {
            Ok(read) => read,
            Err(StepError::Journal(JournalError::Unreadable(why))) => {
                tracing::warn!(run = %id, error = why, "journal not read; the run ends");
                let error = (errors::JOURNAL, why.as_str());
                let ended = journal::end_failed(&self.deps.store, fence, id, &kept, error).await?;
                return Ok(Effect::Ended(id.clone(), Box::new(ended)));
            }
            Err(error) => return Err(error),
        };
        let LoadedJournal { input, entries, journal } = loaded;
        let entry = journal.next();
        let head = RunHead { bytes: journal.bytes(), ..kept.head };
        let kept = StoredHead { head, ..kept };
        let next = match kept.head.next_try(entry) {
            Ok(next) => next,
            Err(why) => {
                tracing::warn!(run = %id, error = why, "run given up");
                let error = (errors::CRASHED, why.as_str());
                let ended = journal::end_failed(&self.deps.store, fence, id, &kept, error).await?;
                return Ok(Effect::Ended(id.clone(), Box::new(ended)));
            }
        };
        let head = RunHead { tries: Some(next), ..kept.head.clone() };
        let kept = journal::write_head(&self.deps.store, fence, id, &kept, head).await?;
        let begun = context(id, input, kept.head.started_at);
        match rebuild_run(begun, spec, entries).await {
            Ok((run, spec)) => {
                let (id, tried) = (id.clone(), Some(next.count - 1));
                Ok(Effect::Resumed(Box::new(ReadyRun { id, kept, spec, run, journal, cancelled, tried })))
            }
            Err(error) => {
                tracing::error!(run = %id, %error, "run crashed; it is taken up again after a pause");
                Ok(Effect::Stuck(id.clone()))
            }
        }
    }

    /// Reads the definition of a run, and its journal.
    async fn read_back(
        &self,
        id: &RunId,
        kept: &StoredHead,
    ) -> Result<(WorkflowSpec, LoadedJournal), StepError> {
        let missing = |what: &str| JournalError::Unreadable(format!("its {what} is gone"));
        let definition = (id.workflow.clone(), kept.head.definition.clone());
        let found = self.deps.store.get(&definition_key(&definition).to_string()).await?;
        let found = found.ok_or_else(|| missing("definition"))?;
        let unknown = |error: CodecError| JournalError::Unreadable(format!("its definition: {error}"));
        let spec: WorkflowSpec = decode(&found.value).map_err(unknown)?;
        let loaded = Journal::load(&self.deps.store, id).await?.ok_or_else(|| missing("journal"))?;
        Ok((spec, loaded))
    }

    fn spawn_task(&mut self, fence: Fence, ready: ReadyRun) {
        let ReadyRun { id, kept, spec, run, journal, cancelled, tried } = ready;
        let (cancel, cancelled) = watch::channel(cancelled);
        let (state, steps) = (run.state_name().to_owned(), run.steps());
        let progress = Arc::new(Mutex::new(Progress { state, steps, bytes: journal.bytes() }));
        let task = RunTask {
            store: Arc::clone(&self.deps.store),
            caller: Arc::clone(&self.caller),
            fence,
            id: id.clone(),
            kept,
            spec: Arc::new(spec),
            run,
            journal,
            cancelled,
            progress: Arc::clone(&progress),
            is_marked: tried.is_some(),
            earlier_attempts: tried,
        };
        let nudge = self.deps.nudge.clone();
        let span = span_of(&id);
        let ending = async move {
            let ended = task.carry_on().await;
            if let Some(ended) = &ended {
                log_end(&ended.head);
            }
            nudge.nudge();
            ended
        };
        self.book.carry_on(id, RunHandle { progress, cancel }, ending.instrument(span));
    }

    async fn dismiss(&self, fence: Fence, id: &RunId, revision: i64) -> Result<Effect, StepError> {
        let parts = self.deps.store.list(&format!("{}{id}/", prefix::RUN_INPUTS)).await?;
        let mut ops = vec![Op::delete(id.request())];
        ops.extend(parts.items.into_iter().map(|part| Op::Delete { key: part.key }));
        let guards = vec![Guard::ModRevision(id.request().to_string(), revision)];
        guarded(&self.deps.store, fence, guards, ops).await?;
        Ok(Effect::None)
    }

    /// Deletes a run, the journal first: a head without a journal can be forgotten again.
    async fn forget(&self, fence: Fence, id: RunId, definition: Option<String>) -> Result<Effect, StepError> {
        for prefix in journal::prefixes_of(&id) {
            let keys = self.deps.store.list(&prefix).await?.items;
            let deletes: Vec<Op> = keys.into_iter().map(|item| Op::Delete { key: item.key }).collect();
            for some in deletes.chunks(TXN_OPS_MAX) {
                guarded(&self.deps.store, fence, Vec::new(), some.to_vec()).await?;
            }
        }
        let mut ops = vec![Op::delete(id.head())];
        ops.extend(definition.map(|hash| Op::delete(definition_key(&(id.workflow.clone(), hash)))));
        guarded(&self.deps.store, fence, Vec::new(), ops).await?;
        Ok(Effect::Forgotten(id))
    }
}

/// Creates the span around the work on a run. Not a child of the loop's span, which ends before the run.
fn span_of(id: &RunId) -> tracing::Span {
    tracing::info_span!(parent: None, "run", run = %id)
}

/// Logs the end of a run.
fn log_end(head: &RunHead) {
    let ended_at = head.finished_at.unwrap_or(head.started_at);
    let took = Duration::try_from(ended_at.duration_since(head.started_at)).unwrap_or_default();
    tracing::info!(phase = ?head.phase, steps = head.steps, ?took, "run ended");
}

/// Rebuilds a run from its journal. Runs on its own thread: it may take long, and a run that can't be rebuilt must
/// not end others.
async fn rebuild_run(
    begun: RunContext,
    spec: WorkflowSpec,
    entries: Vec<Entry>,
) -> Result<(Run, WorkflowSpec), StepError> {
    let working = tokio::task::spawn_blocking(move || {
        let (mut run, _) = Run::begin(begun, &spec);
        for entry in &entries {
            run.step(&spec, entry.at, &entry.event);
        }
        (run, spec)
    });
    working.await.map_err(StepError::Panicked)
}

fn context(id: &RunId, input: serde_json::Value, started_at: jiff::Timestamp) -> RunContext {
    RunContext {
        namespace: id.workflow.namespace.clone(),
        workflow: id.workflow.name.clone(),
        id: id.run.clone(),
        input,
        started_at,
    }
}

fn definition_key((workflow, hash): &(NamespacedName, String)) -> Key {
    Key::RunDefinition(workflow.clone(), hash.clone())
}

fn trigger_op(said: TriggerWrite) -> Result<(Guard, Op), CodecError> {
    let TriggerWrite { object, trigger, record, before } = said;
    let key = Key::Trigger(object, trigger);
    let op = match record {
        Some(record) => put(&key, &record)?,
        None => Op::delete(&key),
    };
    Ok((guard(&key, before), op))
}

fn put<T: Serialize>(key: &Key, value: &T) -> Result<Op, CodecError> {
    Ok(Op::put(key, Bytes::from(encode(value)?)))
}

fn guard(key: &Key, before: Option<i64>) -> Guard {
    match before {
        Some(revision) => Guard::ModRevision(key.to_string(), revision),
        None => Guard::Absent(key.to_string()),
    }
}
