//! Carries out the steps of a plan: one transaction each, and tasks for runs.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use schema::codec::{CodecError, decode, encode};
use schema::control::LoopError;
use schema::keys::{Key, prefix};
use schema::kinds::workflow::WorkflowSpec;
use schema::meta::NamespacedName;
use schema::store::election::Fence;
use schema::store::{Guard, Op, StoreError, TXN_OPS_MAX, TxnOutcome};
use serde::Serialize;
use tokio::sync::watch;

use super::book::{Carried, KeptHead, Progress};
use super::journal::{self, Journal, JournalError};
use super::machine::{Run, RunContext};
use super::plan::{Begin, Step, TriggerWrite};
use super::records::{JournalPart, RunId};
use super::task::RunTask;
use super::workflows_loop::WorkflowsLoop;

/// Why a step was not carried out.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl WorkflowsLoop {
    pub(super) async fn carry_out(&mut self, fence: Fence, step: Step) -> Result<(), LoopError> {
        let what = match &step {
            Step::Begin(begin) => format!("beginning run {}", begin.id),
            Step::Resume(id) => format!("resuming run {id}"),
            Step::Cancel { id, .. } => format!("ending run {id}"),
            Step::Dismiss { id, .. } => format!("removing the request for run {id}"),
            Step::WriteStatus { workflow, .. } => format!("updating the status of workflow {workflow}"),
            Step::WriteTrigger(said) => format!("updating trigger {} of {}", said.trigger, said.object),
            Step::Forget(id) => format!("forgetting run {id}"),
        };
        let done = match step {
            Step::Begin(begin) => self.begin(fence, *begin).await,
            Step::Resume(id) => match self.resume(fence, &id).await {
                // One journal that can't be read holds nothing else up.
                Err(StepError::Journal(JournalError::Unreadable(why))) => {
                    tracing::warn!(run = %id, why, "the run can't be resumed");
                    self.book.stuck.insert(id, tokio::time::Instant::now());
                    Ok(())
                }
                other => other,
            },
            Step::Cancel { id, cause } => {
                if let Some(carried) = self.book.tasks.get(&id) {
                    carried.cancel.send_replace(Some(cause));
                }
                Ok(())
            }
            Step::Dismiss { id, revision } => self.dismiss(fence, &id, revision).await,
            Step::WriteStatus { workflow, record, before } => {
                let key = Key::Workflow(workflow);
                let op = match &record {
                    Some(record) => put(&key, record),
                    None => Ok(Op::delete(&key)),
                };
                match op {
                    Ok(op) => self.write(fence, vec![guard(&key, before)], vec![op]).await.map(|_| ()),
                    Err(error) => Err(error.into()),
                }
            }
            Step::WriteTrigger(said) => match trigger_op(said) {
                Ok((guard, op)) => self.write(fence, vec![guard], vec![op]).await.map(|_| ()),
                Err(error) => Err(error.into()),
            },
            Step::Forget(id) => self.forget(fence, &id).await,
        };
        match done {
            Err(error @ (StepError::Store(_) | StepError::Journal(JournalError::Store(_)))) => {
                Err(LoopError::new(what, error))
            }
            // What is wrong with one run holds no other up.
            Err(error) => {
                tracing::warn!(%error, "{what} failed");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The revision at which it was done; none after a conflict, which the next plan sees.
    async fn write(
        &self,
        fence: Fence,
        mut guards: Vec<Guard>,
        ops: Vec<Op>,
    ) -> Result<Option<i64>, StepError> {
        guards.push(fence.guard());
        Ok(match self.deps.store.txn(guards, ops).await? {
            TxnOutcome::Committed(revision) => Some(revision),
            TxnOutcome::Conflict => None,
        })
    }

    async fn begin(&mut self, fence: Fence, begin: Begin) -> Result<(), StepError> {
        let Begin { id, spec, input, head, request, record, trigger } = begin;
        let prefix = format!("{}{id}/", prefix::RUN_INPUTS);
        let input = journal::restore(&self.deps.store, input, &prefix).await?;
        let (stored, mut ops) = journal::store(&id, input.clone());
        let head_key = id.head();
        let mut guards = vec![Guard::Absent(head_key.to_string())];
        ops.push(put(&head_key, &head)?);
        ops.push(put(&id.entries(0), &JournalPart::Begun { input: stored })?);
        let definition = (id.workflow.clone(), head.definition.clone());
        if !self.book.definitions.contains(&definition) {
            ops.push(put(&definition_key(&definition), &spec)?);
        }
        if let Some((record, before)) = record {
            let key = Key::Workflow(id.workflow.clone());
            guards.push(guard(&key, before));
            ops.push(put(&key, &record)?);
        }
        if let Some(said) = trigger {
            let (guard, op) = trigger_op(said)?;
            guards.push(guard);
            ops.push(op);
        }
        if request.is_some() {
            ops.push(Op::delete(id.request()));
            let parts = self.deps.store.list(&prefix).await?;
            ops.extend(parts.items.into_iter().map(|part| Op::Delete { key: part.key }));
        }
        let written = self.write(fence, guards, ops).await;
        let Ok(Some(revision)) = written else {
            // It may have begun although the answer was lost; or there is such a run, and the book does not have it.
            self.book.unsure.insert(id);
            return written.map(|_| ());
        };
        self.book.definitions.insert(definition);
        let context = context(&id, input, head.started_at);
        let (run, _) = Run::begin(context, &spec);
        let kept = KeptHead { head, revision };
        self.book.put(id.clone(), kept.clone());
        self.carry_on(fence, (id.clone(), kept), Arc::new(spec), (run, Journal::of_begun(id)));
        Ok(())
    }

    async fn resume(&mut self, fence: Fence, id: &RunId) -> Result<(), StepError> {
        let Some(kept) = self.book.heads.get(id).cloned() else { return Ok(()) };
        let missing = |what: &str| JournalError::Unreadable(format!("its {what} is gone"));
        let definition = (id.workflow.clone(), kept.head.definition.clone());
        let found = self.deps.store.get(&definition_key(&definition).to_string()).await?;
        let found = found.ok_or_else(|| missing("definition"))?;
        let unknown = |error: CodecError| JournalError::Unreadable(format!("its definition: {error}"));
        let spec: WorkflowSpec = decode(&found.value).map_err(unknown)?;
        let loaded = Journal::load(&self.deps.store, id).await?.ok_or_else(|| missing("journal"))?;
        let (mut run, _) = Run::begin(context(id, loaded.input, kept.head.started_at), &spec);
        for entry in &loaded.entries {
            run.step(&spec, entry.at, &entry.event);
        }
        self.book.stuck.remove(id);
        self.carry_on(fence, (id.clone(), (*kept).clone()), Arc::new(spec), (run, loaded.journal));
        Ok(())
    }

    fn carry_on(
        &mut self,
        fence: Fence,
        (id, kept): (RunId, KeptHead),
        spec: Arc<WorkflowSpec>,
        (run, journal): (Run, Journal),
    ) {
        let (cancel, cancelled) = watch::channel(None);
        let progress =
            Arc::new(Mutex::new(Progress { state: run.state_name().to_owned(), steps: run.steps() }));
        let task = RunTask {
            store: Arc::clone(&self.deps.store),
            caller: Arc::clone(&self.caller),
            fence,
            id: id.clone(),
            kept,
            spec,
            run,
            journal,
            cancelled,
            progress: Arc::clone(&progress),
        };
        let nudge = self.deps.nudge.clone();
        let task = tokio::spawn(async move {
            let ended = task.carry_on().await;
            nudge.nudge();
            ended
        });
        self.book.tasks.insert(id, Carried::new(task, progress, cancel));
    }

    async fn dismiss(&mut self, fence: Fence, id: &RunId, revision: i64) -> Result<(), StepError> {
        let parts = self.deps.store.list(&format!("{}{id}/", prefix::RUN_INPUTS)).await?;
        let mut ops = vec![Op::delete(id.request())];
        ops.extend(parts.items.into_iter().map(|part| Op::Delete { key: part.key }));
        self.write(fence, vec![Guard::ModRevision(id.request().to_string(), revision)], ops).await.map(|_| ())
    }

    /// The journal first: a head without one can be forgotten again.
    async fn forget(&mut self, fence: Fence, id: &RunId) -> Result<(), StepError> {
        for prefix in journal::prefixes_of(id) {
            let keys = self.deps.store.list(&prefix).await?.items;
            let deletes: Vec<Op> = keys.into_iter().map(|item| Op::Delete { key: item.key }).collect();
            for some in deletes.chunks(TXN_OPS_MAX) {
                self.write(fence, Vec::new(), some.to_vec()).await?;
            }
        }
        let mut ops = vec![Op::delete(id.head())];
        let definition =
            self.book.heads.get(id).map(|kept| (id.workflow.clone(), kept.head.definition.clone()));
        let unused = definition.filter(|definition| !self.is_used(definition, id));
        ops.extend(unused.as_ref().map(|definition| Op::delete(definition_key(definition))));
        self.write(fence, Vec::new(), ops).await?;
        self.book.remove(id);
        if let Some(definition) = unused {
            self.book.definitions.remove(&definition);
        }
        Ok(())
    }

    /// Another run than this one has the definition.
    fn is_used(&self, (workflow, hash): &(NamespacedName, String), except: &RunId) -> bool {
        let first = RunId::new(workflow.clone(), "");
        let below = self.book.heads.range(first..).take_while(|(id, _)| id.workflow == *workflow);
        below.into_iter().any(|(id, kept)| id != except && kept.head.definition == *hash)
    }
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
