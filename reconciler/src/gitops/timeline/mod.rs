//! Loop that completes the timelines of commits: when their pods were bound, were ready and received clients.
//!
//! Reads the snapshot, decides in `plan.rs`, writes `revisions/` once the verdict is final. Its state is in memory
//! only: a commit that is being applied when the leader changes has a timeline with gaps.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::codec;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::records::{Revision, Timeline};
use schema::snapshot::Snapshot;
use schema::store::election::{Fence, FenceReader};
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, Op, SharedStore};

use super::bounds;
use super::head::ReadTimes;
use crate::guarded_writes::guarded;

pub mod plan;
#[cfg(test)]
mod tests;

use plan::{SeenCommits, Timelines, milliseconds};

/// Returns the first steps of a commit's timeline. The commit was seen when the first request arrived that waits for
/// it, else when the remote was queried.
pub(super) fn first_steps(
    snapshot: &Snapshot,
    source: &str,
    times: ReadTimes,
    planned: Timestamp,
    applied: Timestamp,
) -> Timeline {
    let requests = snapshot.waiting_requests().map(|(_, request)| &request.value);
    let requests = requests.filter(|request| request.source == source && request.last_at() <= times.fetched);
    let request = requests.min_by_key(|request| request.last_at());
    let seen_at = request.map_or(times.began, |request| request.last_at().min(times.began));
    let after = |at: Timestamp| Some(milliseconds(seen_at, at));
    Timeline {
        seen_at,
        seen_by: request.map(|request| request.provider),
        read: after(times.fetched),
        checked: after(times.checked),
        planned: after(planned),
        applied: after(applied),
        bound: None,
        ready: None,
        programmed: None,
        decided: None,
        pods: 0,
        slowest: Vec::new(),
    }
}

/// Completes timelines.
pub struct TimelineLoop {
    store: SharedStore,
    snapshot: SnapshotReader,
    fence: FenceReader,
    seen: SeenCommits,
}

/// Observations of one run.
pub struct Observed {
    fence: Fence,
    snapshot: Arc<Snapshot>,
    seen: SeenCommits,
}

impl TimelineLoop {
    /// Creates a loop that has followed nothing yet.
    pub fn new(store: SharedStore, snapshot: SnapshotReader, fence: FenceReader) -> Self {
        Self { store, snapshot, fence, seen: SeenCommits::default() }
    }

    /// Writes a revision over the observed version; a conflict is left to the next run.
    async fn write(&self, fence: Fence, revision: &Revision, over: i64) -> Result<(), LoopError> {
        let context = "cannot write a timeline";
        let key = Key::Revision(revision.source.clone(), revision.sequence).to_string();
        let value = codec::encode(&bounds::revision(revision.clone()));
        let value = value.map_err(|error| LoopError::new(context, error))?;
        let guards = vec![Guard::ModRevision(key.clone(), over)];
        let written = guarded(&self.store, fence, guards, vec![Op::put(&key, value)]).await;
        written.map(drop).map_err(|error| LoopError::new(context, error))
    }
}

#[async_trait]
impl Loop for TimelineLoop {
    type Observed = Observed;
    type Plan = Timelines;
    type Outcome = Result<(), LoopError>;

    fn name(&self) -> &'static str {
        "timelines"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.fence.current() else {
            self.seen = SeenCommits::default();
            return Ok(Observation::NotReady("another reconciler leads".to_owned()));
        };
        let snapshot = self.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        Ok(Observation::Ready(Observed { fence, snapshot, seen: self.seen.clone() }))
    }

    fn plan(observed: &Observed, now: Timestamp) -> Timelines {
        plan::plan(&observed.snapshot, &observed.seen, now)
    }

    async fn act(&mut self, observed: &Observed, timelines: Timelines) -> Self::Outcome {
        self.seen = timelines.seen;
        for (revision, over) in &timelines.completed {
            self.write(observed.fence, revision, *over).await?;
        }
        Ok(())
    }

    async fn report(&mut self, _: Observed, outcome: Self::Outcome) -> Result<Next, LoopError> {
        outcome.map(|()| Next::Interval)
    }
}
