//! Executes one run: writes each event to the journal, and only then acts on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use schema::control::{error_chain, lock};
use schema::kinds::workflow::{RunPhase, WorkflowSpec};
use schema::store::SharedStore;
use schema::store::election::Fence;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, sleep};

use super::active_runs::{SharedProgress, StoredHead};
use super::caller::{Answer, Caller};
use super::journal::{Journal, JournalError};
use super::machine::context::CALLS_MAX;
use super::machine::{Event, Outcome, Run, Timer, errors};
use super::records::{Attempts, Entry, RunHead, RunId};
use super::{caller, journal};

/// A run, and everything it needs to continue.
pub(super) struct RunTask {
    pub(super) store: SharedStore,
    pub(super) caller: Arc<Caller>,
    pub(super) fence: Fence,
    pub(super) id: RunId,
    pub(super) kept: StoredHead,
    pub(super) spec: Arc<WorkflowSpec>,
    pub(super) run: Run,
    pub(super) journal: Journal,
    pub(super) cancelled: watch::Receiver<Option<String>>,
    pub(super) progress: SharedProgress,
    /// Number of earlier attempts to resume in vain; `None` once the run has made progress.
    pub(super) earlier_attempts: Option<u32>,
    /// Set while the head says that this reconciler works on the run.
    pub(super) is_marked: bool,
}

/// Calls in progress.
struct Calls {
    answers: JoinSet<Answer>,
    by_id: BTreeMap<u64, AbortHandle>,
    /// Ids of calls whose functions report that they are alive.
    beats: mpsc::Receiver<u64>,
    beating: mpsc::Sender<u64>,
}

impl Calls {
    fn new() -> Self {
        let (beating, beats) = mpsc::channel(CALLS_MAX);
        Self { answers: JoinSet::new(), by_id: BTreeMap::new(), beats, beating }
    }
}

impl RunTask {
    /// Executes the run until it ends, and returns its final head. `None` if another reconciler took over.
    pub(super) async fn carry_on(mut self) -> Option<StoredHead> {
        let mut calls = Calls::new();
        let mut last = self.run.at().max(Timestamp::now());
        self.restart_heartbeats(last);
        loop {
            if let Some(outcome) = self.run.outcome() {
                if !self.kept.head.is_running() {
                    return Some(self.kept);
                }
                // The journal alone ends the run: today's limits are tighter than those it was written under, or
                // the run ended as it began.
                let head = final_head(&self.kept.head, outcome, &self.run, self.run.at());
                let head = RunHead { bytes: self.journal.bytes(), ..head };
                let ended = journal::write_head(&self.store, self.fence, &self.id, &self.kept, head).await;
                return self.written(ended);
            }
            match self.go_on(&mut calls, last).await {
                Ok(at) => last = at,
                Err(error) => return self.end_with_error(error).await,
            }
            // A run that never waits must not block others.
            tokio::task::consume_budget().await;
        }
    }

    /// Waits for the next event and applies it; returns its time.
    async fn go_on(&mut self, calls: &mut Calls, last: Timestamp) -> Result<Timestamp, JournalError> {
        let cancelled = self.cancelled.borrow_and_update().clone();
        let answer = match cancelled {
            // Before any call is made.
            Some(cause) => Event::Cancelled { cause }.into(),
            None => {
                self.follow_up(calls);
                if !self.run.pending().continues {
                    self.mark(false).await?;
                }
                self.next_event(calls).await
            }
        };
        if !matches!(answer.event, Event::Beat { .. }) {
            self.mark(true).await?;
        }
        // The clock may have been set back.
        let at = last.max(Timestamp::now());
        self.apply_event(answer, at).await.map(|()| at)
    }

    /// Marks in the head of a resumed run if it is worked on or waits, until it makes progress: if this process
    /// ends meanwhile, the run counts as the cause only if it was worked on.
    async fn mark(&mut self, is_at_work: bool) -> Result<(), JournalError> {
        let Some(before) = self.earlier_attempts.filter(|_| is_at_work != self.is_marked) else {
            return Ok(());
        };
        let count = before + u32::from(is_at_work);
        let tries = (count > 0).then(|| Attempts { entry: self.journal.next(), count });
        let head = RunHead { tries, ..self.kept.head.clone() };
        self.kept = journal::write_head(&self.store, self.fence, &self.id, &self.kept, head).await?;
        self.is_marked = is_at_work;
        Ok(())
    }

    /// Restarts the heartbeat timers: a call that is repeated after a change of leader has a new token, and as long
    /// for its first heartbeat as the first one had.
    fn restart_heartbeats(&mut self, at: Timestamp) {
        let calls: Vec<u64> = self.run.pending().calls.iter().map(|call| call.id).collect();
        for call in calls {
            let _ = self.run.step(&self.spec, at, &Event::Beat { call });
        }
    }

    /// Final state when the journal can't be written; `None` if another reconciler took over.
    async fn end_with_error(&self, error: JournalError) -> Option<StoredHead> {
        self.written(match error {
            JournalError::Unreadable(why) => {
                tracing::warn!(error = why, "journal not written; the run ends");
                let error = (errors::JOURNAL, why.as_str());
                journal::end_failed(&self.store, self.fence, &self.id, &self.kept, error).await
            }
            other => Err(other),
        })
    }

    fn written(&self, ended: Result<StoredHead, JournalError>) -> Option<StoredHead> {
        ended
            .inspect_err(|error| tracing::info!(error = error_chain(error), "run left to the next leader"))
            .ok()
    }

    /// Makes the calls that the run waits for, and aborts the others.
    fn follow_up(&self, calls: &mut Calls) {
        let pending = self.run.pending();
        let wanted: BTreeSet<u64> = pending.calls.iter().map(|call| call.id).collect();
        calls.by_id.retain(|id, call| {
            let is_wanted = wanted.contains(id);
            if !is_wanted {
                call.abort();
            }
            is_wanted
        });
        for call in pending.calls {
            if calls.by_id.contains_key(&call.id) {
                continue;
            }
            let (caller, id, made) = (Arc::clone(&self.caller), self.id.clone(), call.clone());
            let beating = calls.beating.clone();
            let handle = calls.answers.spawn(async move { caller.call(&id, &made, beating).await });
            calls.by_id.insert(call.id, handle);
        }
    }

    /// Returns the next event: an inner transition, a cancellation, an answer or the end of a wait.
    async fn next_event(&mut self, calls: &mut Calls) -> Answer {
        let pending = self.run.pending();
        // A beat may be on its way when its time is over.
        let fires_at = |timer: &Timer| match pending.heartbeats.contains(&timer.id) {
            true => timer.due.checked_add(caller::BEAT_DELAY_MAX).unwrap_or(Timestamp::MAX),
            false => timer.due,
        };
        let timer = pending.timers.iter().copied().min_by_key(fires_at);
        let left = timer.as_ref().map(|timer| fires_at(timer).duration_since(Timestamp::now()));
        if pending.continues {
            // A branch that needs nothing from outside must not block others.
            return match (&timer, calls.answers.try_join_next()) {
                (_, Some(Ok(answer))) => answer,
                (_, Some(Err(error))) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                (Some(timer), _) if left.is_some_and(|left| !left.is_positive()) => {
                    Event::Due { timer: timer.id }.into()
                }
                _ => calls.beats.try_recv().map_or(Event::Continue, |call| Event::Beat { call }).into(),
            };
        }
        let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
        loop {
            tokio::select! {
                Some(answer) = calls.answers.join_next() => match answer {
                    Ok(answer) => return answer,
                    // The call was aborted.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                Some(call) = calls.beats.recv() => return Event::Beat { call }.into(),
                () = sleep(left.unwrap_or_default()), if left.is_some() => {
                    if let Some(timer) = &timer {
                        return Event::Due { timer: timer.id }.into();
                    }
                }
                Ok(()) = self.cancelled.changed() => {
                    if let Some(cause) = self.cancelled.borrow_and_update().clone() {
                        return Event::Cancelled { cause }.into();
                    }
                }
            }
        }
    }

    /// Makes the transition, and writes it to the journal.
    async fn apply_event(&mut self, answer: Answer, at: Timestamp) -> Result<(), JournalError> {
        let Answer { event, activation } = answer;
        if self.run.step(&self.spec, at, &event).is_none() {
            return Ok(());
        }
        // The next leader restarts the heartbeat timers, so it does not need beats.
        if matches!(event, Event::Beat { .. }) {
            return Ok(());
        }
        let entry = Entry { at, event, output: None, activation };
        let ended = self.run.outcome().map(|outcome| final_head(&self.kept.head, outcome, &self.run, at));
        let head = ended.as_ref().map(|head| (head, self.kept.revision));
        self.journal.append(&self.store, self.fence, entry, head).await?;
        self.earlier_attempts = None;
        if let Some(head) = ended {
            self.kept.head = RunHead { bytes: self.journal.bytes(), ..head };
        }
        let mut progress = lock(&self.progress);
        self.run.state_name().clone_into(&mut progress.state);
        progress.steps = self.run.steps();
        progress.bytes = self.journal.bytes();
        Ok(())
    }
}

/// Returns the head of a run at its end.
fn final_head(begun: &RunHead, outcome: &Outcome, run: &Run, at: Timestamp) -> RunHead {
    let mut head = RunHead {
        finished_at: Some(at),
        state: run.state_name().to_owned(),
        steps: run.steps(),
        tries: None,
        ..begun.clone()
    };
    head.phase = match outcome {
        Outcome::Succeeded { .. } => RunPhase::Succeeded,
        Outcome::Failed { error, cause } => {
            head.set_error(error, cause);
            RunPhase::Failed
        }
        Outcome::TimedOut => {
            head.set_error("States.Timeout", "the run exceeded its time limit");
            RunPhase::TimedOut
        }
        Outcome::Aborted { cause } => {
            head.set_error("", cause);
            RunPhase::Aborted
        }
    };
    head
}
