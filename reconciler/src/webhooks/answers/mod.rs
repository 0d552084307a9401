//! Loop that answers sync requests: wakes the loops of sources for requests that other reconcilers accepted, and
//! answers every request once such a loop has checked the repository.
//!
//! Reads the snapshot, the last runs of the sources' loops and the status that such a run has just written; decides
//! in `plan.rs`, writes `answers/`. Keeps no state that a restart would lose.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use schema::control::{LastRun, LastRunReader, Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::records::SourceStatus;
use schema::snapshot::Snapshot;
use schema::store::election::{Fence, FenceReader};
use schema::store::{Guard, TxnOutcome};

use self::plan::{AnswersPlan, RepoCheck, WaitingRequests};
use super::intake::Intake;

mod plan;
#[cfg(test)]
mod tests;

pub struct AnswersLoop {
    intake: Arc<Intake>,
    fence: FenceReader,
    /// Last run of each source's loop, in the order of the targets.
    runs: Vec<LastRunReader>,
    waiting: WaitingRequests,
}

/// Observations of a run.
pub struct Observed {
    fence: Fence,
    snapshot: Arc<Snapshot>,
    /// Time at which the snapshot was read.
    at: Timestamp,
    identity: String,
    waiting: WaitingRequests,
    /// Last check of each source and the source's status, if a request waits for it.
    looks: BTreeMap<String, (RepoCheck, Option<SourceStatus>)>,
    /// Failure to read a status.
    error: Option<LoopError>,
}

impl AnswersLoop {
    /// Creates a loop that answers the requests accepted by `intake`, and those that other reconcilers accepted for
    /// its sources.
    pub fn new(intake: &Arc<Intake>, fence: FenceReader, runs: Vec<LastRunReader>) -> Self {
        Self { intake: Arc::clone(intake), fence, runs, waiting: WaitingRequests::default() }
    }

    /// Writes the answers. A request that was repeated or answered meanwhile is left to the next run.
    async fn write(&self, seen: &Observed, plan: &AnswersPlan) -> Result<(), LoopError> {
        let mut first_error = None;
        let mut orphans = plan.orphans.as_slice();
        for planned in &plan.answers {
            let (request, key) = (Key::Request(planned.id.clone()), Key::Answer(planned.id.clone()));
            let own = match planned.replaced_revision {
                Some(former) => Guard::ModRevision(key.to_string(), former),
                None => Guard::Absent(key.to_string()),
            };
            let asked = Guard::ModRevision(request.to_string(), planned.answer.request_revision);
            let mut guards = vec![seen.fence.guard(), asked, own];
            let remove = std::mem::take(&mut orphans);
            guards.extend(remove.iter().map(|(key, at)| Guard::ModRevision(key.to_string(), *at)));
            let remove: Vec<Key> = remove.iter().map(|(key, _)| key.clone()).collect();
            let written = self.intake.requests.write(&key, &planned.answer, guards, &remove).await;
            if matches!(written, Ok(TxnOutcome::Committed(_))) {
                tracing::info!(request = planned.id, "sync request answered");
            }
            let failed = |error| LoopError::new(format!("cannot answer sync request {}", planned.id), error);
            // After a conflict the next run reads the current request.
            first_error = first_error.or(written.map_err(failed).err());
        }
        first_error.map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Loop for AnswersLoop {
    type Observed = Observed;
    type Plan = AnswersPlan;
    type Outcome = Result<(), LoopError>;

    fn name(&self) -> &'static str {
        "answers"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.fence.current() else {
            return Ok(Observation::NotReady("another reconciler leads".to_owned()));
        };
        let snapshot = self.intake.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        let at = Timestamp::now();
        let (mut looks, mut error) = (BTreeMap::new(), None);
        let (requests, waiting) = (&self.intake.requests, &self.waiting);
        let sources = self.intake.targets().iter().map(|target| &target.source);
        let looked = sources.zip(&self.runs).filter_map(|(source, run)| {
            let look =
                look(&run.borrow()).filter(|look| waiting.may_be_answered(*look, source, &snapshot))?;
            // Not from the snapshot, which may lack the status that the run has just written.
            let key = Key::Source(source.clone());
            Some(async move { (source, look, requests.read(&key).await) })
        });
        for (source, look, status) in join_all(looked).await {
            match status {
                Ok(status) => drop(looks.insert(source.clone(), (look, status))),
                Err(why) => {
                    error = Some(LoopError::new(format!("cannot read the status of source {source}"), why));
                }
            }
        }
        let (identity, waiting) = (self.intake.identity.clone(), self.waiting.clone());
        Ok(Observation::Ready(Observed { fence, snapshot, at, identity, waiting, looks, error }))
    }

    fn plan(seen: &Observed, _: Timestamp) -> AnswersPlan {
        plan::plan(&seen.snapshot, &seen.identity, seen.waiting.clone(), &seen.looks, seen.at)
    }

    async fn act(&mut self, seen: &Observed, mut plan: AnswersPlan) -> Self::Outcome {
        self.waiting = std::mem::take(&mut plan.waiting);
        let targets = self.intake.targets().iter();
        targets.filter(|target| plan.wake.contains(&target.source)).for_each(|target| target.nudge.nudge());
        self.write(seen, &plan).await
    }

    async fn report(&mut self, seen: Observed, outcome: Self::Outcome) -> Result<Next, LoopError> {
        outcome?;
        seen.error.map_or(Ok(Next::Interval), Err)
    }
}

/// Converts a run to a check of the repository; `None` if the run failed or was not ready.
fn look(run: &Option<LastRun>) -> Option<RepoCheck> {
    let run = run.as_ref().filter(|run| run.error.is_none() && run.not_ready.is_none())?;
    let took = SignedDuration::try_from(run.took).ok()?;
    let over = run.started_at.checked_add(took).ok()?;
    Some(RepoCheck { began: run.started_at, over, wrote: run.did_something })
}
