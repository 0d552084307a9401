//! The loop over all runs: observes and reports. It plans in `plan.rs` and `batches.rs` and acts in `act.rs`; each
//! run has its own task, so that a transition needs no plan.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::codec::decode;
use schema::control::{Loop, LoopError, Next, Nudge, Observation, error_chain};
use schema::keys::{Key, prefix};
use schema::records::DEFAULT_QUOTA_BYTES;
use schema::store::SharedStore;
use schema::store::election::{Fence, FenceReader};
use schema::store::reflector::SnapshotReader;
use schema::trust::TrustReader;
use tokio::sync::watch;
use tokio::time::Instant;

use super::active_runs::{RunBook, StoredHead};
use super::batches::Batches;
use super::caller::Caller;
use super::plan;
use super::plan::Observed;
use super::records::{RunHead, RunId, RunRequest};
use crate::controllers::LastKnown;
use crate::upkeep::UpkeepState;

/// Pause before a run is resumed whose task ended before it did.
const RESUMED_AFTER: Duration = Duration::from_secs(10);
/// Interval between searches for old runs.
const FORGETS_EVERY: Duration = Duration::from_secs(60);

/// Requests, each with its revision.
type Requests = Vec<(RunId, RunRequest, i64)>;

/// Dependencies of the loop.
pub struct WorkflowsDeps {
    /// Store of the runs.
    pub store: SharedStore,
    /// Snapshot of the rest of etcd.
    pub snapshot: SnapshotReader,
    /// The present fence, while this process leads.
    pub fence: FenceReader,
    /// State of etcd when it was last settled.
    pub last_known: watch::Receiver<Arc<LastKnown>>,
    /// Wakes the loop when a task ends.
    pub nudge: Nudge,
    /// State of etcd, whose quota bounds the runs that are kept.
    pub etcd: watch::Receiver<Arc<UpkeepState>>,
    /// Names of the nodes on this machine, whose gateways may listen on loopback.
    pub local_nodes: Arc<BTreeSet<String>>,
    /// Own certificate, which gateways must see; `None` in tests without TLS.
    pub trust: Option<TrustReader>,
}

impl WorkflowsDeps {
    fn caller(&self) -> Caller {
        Caller::new(self.snapshot.clone(), Arc::clone(&self.local_nodes), self.trust.clone())
    }
}

/// The loop over all runs.
pub struct WorkflowsLoop {
    pub(super) deps: WorkflowsDeps,
    pub(super) caller: Arc<Caller>,
    pub(super) term: Option<Fence>,
    pub(super) book: RunBook,
    /// Set while the loop searches for old runs to forget.
    forgets: bool,
    forget_checked_at: Option<Instant>,
}

impl WorkflowsLoop {
    /// Creates a loop that has observed nothing yet.
    pub fn new(deps: WorkflowsDeps) -> Self {
        let caller = Arc::new(deps.caller());
        Self { deps, caller, term: None, book: RunBook::default(), forgets: false, forget_checked_at: None }
    }

    /// Starts a new term: ends the tasks of the previous one, and lists the runs again. The leader key is younger
    /// than all writes of these tasks.
    async fn enter(&mut self, fence: Fence) -> Result<(), LoopError> {
        if self.term == Some(fence) {
            return Ok(());
        }
        self.leave();
        self.caller = Arc::new(self.deps.caller());
        let listing = self.deps.store.list(prefix::RUN_HEADS).await;
        for item in listing.map_err(|error| LoopError::new("listing the runs", error))?.items {
            let (Ok(Key::RunHead(workflow, run)), Ok(head)) =
                (item.key.parse(), decode::<RunHead>(&item.value))
            else {
                tracing::warn!(key = item.key, "head of a run not read; it is left alone");
                continue;
            };
            self.book.put(RunId { workflow, run }, StoredHead { head, revision: item.mod_revision });
        }
        self.term = Some(fence);
        Ok(())
    }

    fn leave(&mut self) {
        self.term = None;
        self.book = RunBook::default();
    }

    /// Records runs that began although the response was lost.
    async fn resolve_uncertain(&mut self) -> Result<(), LoopError> {
        for id in self.book.uncertain.clone() {
            let found = self.deps.store.get(&id.head().to_string()).await;
            let found = found.map_err(|error| LoopError::new(format!("looking for run {id}"), error))?;
            self.book.uncertain.remove(&id);
            let Some(found) = found.filter(|_| !self.book.carried.contains_key(&id)) else { continue };
            if let Ok(head) = decode::<RunHead>(&found.value) {
                self.book.put(id, StoredHead { head, revision: found.mod_revision });
            }
        }
        Ok(())
    }

    /// Returns the requests for runs, oldest first, and the unreadable ones.
    async fn requests(&self) -> Result<(Requests, Vec<(RunId, i64)>), LoopError> {
        let listing = self.deps.store.list(prefix::RUN_REQUESTS).await;
        let listing =
            listing.map_err(|error| LoopError::new("listing the runs that are asked for", error))?;
        let (mut requests, mut unreadable) = (Vec::new(), Vec::new());
        for item in listing.items {
            let Ok(Key::RunRequest(workflow, run)) = item.key.parse() else { continue };
            let id = RunId { workflow, run };
            match decode::<RunRequest>(&item.value) {
                Ok(request) => requests.push((id, request, item.mod_revision)),
                Err(error) => {
                    tracing::warn!(
                        key = item.key,
                        error = error_chain(&error),
                        "request for a run not read; it is removed"
                    );
                    unreadable.push((id, item.mod_revision));
                }
            }
        }
        requests.sort_by_key(|(_, _, revision)| *revision);
        Ok((requests, unreadable))
    }
}

#[async_trait]
impl Loop for WorkflowsLoop {
    type Observed = Observed;
    type Plan = Batches;
    type Outcome = Result<(), LoopError>;

    fn name(&self) -> &'static str {
        "workflows"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.deps.fence.current() else {
            self.leave();
            return Ok(Observation::NotReady("this reconciler does not lead".to_owned()));
        };
        let snapshot = self.deps.snapshot.current();
        if !snapshot.synced || snapshot.revision < fence.create_revision {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        self.enter(fence).await?;
        let now = Instant::now();
        self.book.reap(now);
        self.resolve_uncertain().await?;
        let (requests, unreadable) = self.requests().await?;
        let book = &self.book;
        let rests = |id: &RunId| book.stuck.get(id).is_some_and(|at| now - *at < RESUMED_AFTER);
        let (resting, idle): (Vec<_>, Vec<_>) =
            book.running.iter().filter(|id| !book.carried.contains_key(*id)).cloned().partition(rests);
        let is_whole = !snapshot.settled.is_empty();
        let last_known = if is_whole { Arc::default() } else { Arc::clone(&self.deps.last_known.borrow()) };
        if self.forget_checked_at.is_none_or(|at| now - at >= FORGETS_EVERY) {
            (self.forgets, self.forget_checked_at) = (true, Some(now));
        }
        Ok(Observation::Ready(Observed {
            idle,
            resting,
            carried: book.progress(),
            heads: book.heads.clone(),
            snapshot,
            last_known,
            requests,
            unreadable,
            forgets: is_whole && self.forgets,
            quota_bytes: self.deps.etcd.borrow().quota_bytes().unwrap_or(DEFAULT_QUOTA_BYTES),
        }))
    }

    fn plan(seen: &Observed, now: Timestamp) -> Batches {
        Batches::of(plan::plan(seen, now), &seen.heads)
    }

    async fn act(&mut self, _: &Observed, plan: Batches) -> Result<(), LoopError> {
        let Some(fence) = self.term else { return Ok(()) };
        let forgets_all = !plan.has_more_to_forget;
        self.carry_out(fence, plan.batches).await?;
        if forgets_all {
            self.forgets = false;
        }
        Ok(())
    }

    async fn report(&mut self, _: Observed, done: Result<(), LoopError>) -> Result<Next, LoopError> {
        done.map(|()| if self.book.stuck.is_empty() { Next::Interval } else { Next::After(RESUMED_AFTER) })
    }
}
