//! The leader's side of the requests: wakes the loops for those that other reconcilers took, and answers all of them
//! once a loop has looked. Decides in `decide.rs`, writes `answers/`, and keeps nothing that a restart would lose.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{pending, select_all};
use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::control::{LastRun, LastRunReader};
use schema::keys::Key;
use schema::records::{Delivery, DeliveryAnswer, SourceStatus};
use schema::snapshot::Snapshot;
use schema::store::election::{Fence, FenceReader};
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, SharedStore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::decide::{self, Look, Waiting};
use super::intake::{Intake, SourceTarget};

const PAUSE: Duration = Duration::from_millis(10);

pub struct Follower {
    pub snapshot: SnapshotReader,
    pub fence: FenceReader,
    /// etcd, for the status that a run has just written.
    pub store: SharedStore,
    pub intake: Arc<Intake>,
    /// The last run of each source's loop, in the order of the targets.
    pub runs: Vec<LastRunReader>,
    pub identity: String,
}

impl Follower {
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut waiting = Waiting::new();
        // By source: a run that answers nothing, and is not asked again.
        let mut said: Vec<Option<Timestamp>> = vec![None; self.runs.len()];
        loop {
            let snapshot = self.snapshot.current();
            // etcd did not take or give something: any change is a reason to try again.
            let mut again = false;
            if snapshot.synced {
                let sources = decide::notice(&mut waiting, &snapshot, &self.identity, Timestamp::now());
                let targets = self.intake.targets().iter();
                targets
                    .filter(|target| sources.contains(&target.source))
                    .for_each(|target| target.nudge.nudge());
            }
            if let (true, Some(fence)) = (snapshot.synced, self.fence.current()) {
                for (at, said) in said.iter_mut().enumerate() {
                    let Some(look) = look(&self.runs[at].borrow_and_update()) else { continue };
                    let target = &self.intake.targets()[at];
                    let answered: Vec<_> =
                        decide::answered(&waiting, &snapshot, &target.source, look).collect();
                    if !answered.is_empty() && *said != Some(look.began) {
                        match self.commit_after(target, look).await {
                            RunResult::Commit(commit) => {
                                let answer = DeliveryAnswer { request_revision: 0, at: look.over, commit };
                                again |= !self.answer(&snapshot, fence, &answer, &answered).await;
                            }
                            RunResult::Nothing => *said = Some(look.began),
                            RunResult::Half => {
                                *said = Some(look.began);
                                target.nudge.nudge();
                            }
                            RunResult::NotNow => again = true,
                        }
                    }
                }
            }
            loop {
                tokio::select! {
                    // Cancel-safe: a cancelled token stays so.
                    () = shutdown.cancelled() => return,
                    // Cancel-safe: a change that was not seen is seen at the next call.
                    () = self.snapshot.changed() => {
                        // Each node writes its usage every 15 s: with many nodes that is all the time.
                        if again || !is_same(&snapshot, &self.snapshot.current()) {
                            break;
                        }
                    }
                    () = self.fence.changed() => break,
                    () = any_ran(&mut self.runs) => break,
                }
            }
            sleep(PAUSE).await;
        }
    }
}

fn is_same(before: &Snapshot, now: &Snapshot) -> bool {
    before.synced == now.synced
        && before.requests.ptr_eq(&now.requests)
        && before.answers.ptr_eq(&now.answers)
        && before.sources.ptr_eq(&now.sources)
}

enum RunResult {
    /// All of it; this commit is applied since.
    Commit(Option<String>),
    /// Nothing, the status says why.
    Nothing,
    /// It wrote, but not to the end: something changed under it.
    Half,
    /// etcd does not say now.
    NotNow,
}

impl Follower {
    /// From etcd: the snapshot may not have what the run has just written.
    async fn commit_after(&self, target: &SourceTarget, look: Look) -> RunResult {
        let status = match self.store.get(&Key::Source(target.source.clone()).to_string()).await {
            Ok(status) => status.and_then(|status| decode::<SourceStatus>(&status.value).ok()),
            Err(_) => return RunResult::NotNow,
        };
        match status {
            Some(status) if status.error.is_none() => {
                let noted = status.applied_at.is_some_and(|at| at >= look.began);
                if look.wrote && !noted { RunResult::Half } else { RunResult::Commit(status.applied_commit) }
            }
            _ => RunResult::Nothing,
        }
    }

    /// False: something kept an answer from being written.
    async fn answer(
        &self,
        snapshot: &Snapshot,
        fence: Fence,
        answer: &DeliveryAnswer,
        all: &[(&Delivery, i64)],
    ) -> bool {
        let mut orphans = decide::orphans(snapshot);
        for (delivery, revision) in all {
            let answer = DeliveryAnswer { request_revision: *revision, ..answer.clone() };
            let (request, key) = (Key::Request(delivery.id.clone()), Key::Answer(delivery.id.clone()));
            let own = match snapshot.answers.get(&delivery.id) {
                Some(former) => Guard::ModRevision(key.to_string(), former.mod_revision),
                None => Guard::Absent(key.to_string()),
            };
            // Repeated or answered meanwhile: then the next pass sees it as it is.
            let mut guards = vec![fence.guard(), Guard::ModRevision(request.to_string(), *revision), own];
            let remove = std::mem::take(&mut orphans);
            guards.extend(remove.iter().map(|(key, at)| Guard::ModRevision(key.to_string(), *at)));
            let remove: Vec<Key> = remove.into_iter().map(|(key, _)| key).collect();
            if let Err(error) = self.intake.receipts.write(&key, &answer, guards, &remove).await {
                tracing::debug!(%error, id = delivery.id, "an answer is not written down");
                return false;
            }
        }
        true
    }
}

/// Returns when a loop has ended a run. Cancel-safe.
async fn any_ran(runs: &mut [LastRunReader]) {
    let changed = runs.iter_mut().map(|run| {
        Box::pin(async move {
            if run.changed().await.is_err() {
                // The loop has ended, and with it soon the process.
                pending::<()>().await;
            }
        })
    });
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() { pending().await } else { drop(select_all(changed).await) }
}

/// The look that a run was; none if it came to none.
fn look(run: &Option<LastRun>) -> Option<Look> {
    let run = run.as_ref().filter(|run| run.error.is_none() && run.not_ready.is_none())?;
    let took = SignedDuration::try_from(run.took).ok()?;
    let over = run.started_at.checked_add(took).ok()?;
    Some(Look { began: run.started_at, over, wrote: run.did_something })
}

#[cfg(test)]
mod tests {
    use schema::records::NodeUsage;

    use super::*;

    #[test]
    fn a_node_that_writes_its_usage_wakes_nobody() {
        let before = Snapshot { synced: true, ..Snapshot::default() };
        let mut now = before.clone();
        let usage = NodeUsage {
            at: Timestamp::UNIX_EPOCH,
            window_seconds: 15,
            cpu: 0,
            memory: 0,
            pods: Default::default(),
            left_out: String::new(),
        };
        now.put(&Key::Usage("n1".to_owned()), &usage, 1);
        assert!(is_same(&before, &now) && now.usage.len() == 1);
        now.synced = false;
        assert!(!is_same(&before, &now));
    }
}
