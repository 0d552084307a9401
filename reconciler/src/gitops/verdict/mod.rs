//! Loop that follows applied commits: verdicts on commits, sources that are no longer configured, and a nudge for a
//! source whose objects may stop waiting.
//!
//! Reads the snapshot, decides in `plan.rs`, writes `revisions/` and the statuses of sources without a loop. Nudged
//! by changes of the snapshot; an irrelevant change costs no write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::codec;
use schema::control::{Loop, LoopError, Next, Nudge, Observation};
use schema::keys::Key;
use schema::object::short_commit;
use schema::records::{EventType, Revision, Verdict};
use schema::snapshot::Snapshot;
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, Op, SharedStore};

use super::apply::record::record_about;
use super::bounds;
use crate::guarded_writes::guarded;

pub mod plan;
#[cfg(test)]
mod tests;

use plan::{Verdicts, WakeHistory};

/// Follows applied commits.
pub struct VerdictLoop {
    /// The configured sources, with the nudges for their loops.
    sources: BTreeMap<String, Nudge>,
    store: SharedStore,
    snapshot: SnapshotReader,
    fence: FenceReader,
    events: EventRecorder,
    woken: WakeHistory,
}

/// Observations of one run.
pub struct Observed {
    fence: Fence,
    snapshot: Arc<Snapshot>,
    configured: BTreeSet<String>,
    woken: WakeHistory,
}

impl VerdictLoop {
    /// Creates the loop for the sources of these names, with the nudges for their loops.
    pub fn new(
        sources: BTreeMap<String, Nudge>,
        store: SharedStore,
        snapshot: SnapshotReader,
        fence: FenceReader,
        events: &EventRecorder,
    ) -> Self {
        let events = events.reporting_as("gitops");
        Self { sources, store, snapshot, fence, events, woken: WakeHistory::default() }
    }

    /// Writes a value over the observed version. A conflict is left to the next run, which reads the present state.
    async fn write(&self, fence: Fence, key: Key, value: Vec<u8>, over: i64) -> Result<bool, LoopError> {
        let key = key.to_string();
        let guards = vec![Guard::ModRevision(key.clone(), over)];
        let written = guarded(&self.store, fence, guards, vec![Op::put(&key, value)]).await;
        let done = written.map_err(|error| LoopError::new("cannot write a verdict", error))?;
        Ok(done.is_some())
    }

    fn record_verdict(&self, revision: &Revision) {
        let commit = short_commit(&revision.commit);
        let (kind, reason, message) = match &revision.verdict {
            Verdict::Good => {
                (EventType::Normal, "Healthy", format!("everything that commit {commit} changed is healthy"))
            }
            Verdict::Bad { why } => (EventType::Warning, "Bad", format!("commit {commit}: {why}")),
            Verdict::Applied | Verdict::Degraded { .. } | Verdict::Superseded => return,
        };
        record_about(&self.events, &revision.source, kind, reason, message);
    }
}

#[async_trait]
impl Loop for VerdictLoop {
    type Observed = Observed;
    type Plan = Verdicts;
    type Outcome = Result<(), LoopError>;

    fn name(&self) -> &'static str {
        "verdicts"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.fence.current() else {
            return Ok(Observation::NotReady("another reconciler leads".to_owned()));
        };
        let snapshot = self.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        let configured = self.sources.keys().cloned().collect();
        Ok(Observation::Ready(Observed { fence, snapshot, configured, woken: self.woken.clone() }))
    }

    fn plan(seen: &Observed, now: Timestamp) -> Verdicts {
        plan::plan_and_wake(&seen.snapshot, &seen.configured, &seen.woken, now)
    }

    async fn act(&mut self, seen: &Observed, verdicts: Verdicts) -> Self::Outcome {
        for (revision, over) in &verdicts.decided {
            let key = Key::Revision(revision.source.clone(), revision.sequence);
            let value = encoded(&bounds::revision(revision.clone()))?;
            if self.write(seen.fence, key, value, *over).await? {
                self.record_verdict(revision);
            }
        }
        for (status, over) in &verdicts.orphaned {
            let value = encoded(&bounds::status(status.clone()))?;
            self.write(seen.fence, Key::Source(status.name.clone()), value, *over).await?;
        }
        self.woken = verdicts.woken;
        verdicts.wake.iter().filter_map(|name| self.sources.get(name)).for_each(Nudge::nudge);
        Ok(())
    }

    async fn report(&mut self, _: Observed, outcome: Self::Outcome) -> Result<Next, LoopError> {
        outcome.map(|()| Next::Interval)
    }
}

fn encoded<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, LoopError> {
    codec::encode(value).map_err(|error| LoopError::new("cannot write a verdict", error))
}
