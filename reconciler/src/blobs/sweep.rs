//! Removes content that is no longer referenced. Reads the snapshot and the store.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;

use super::plan::{self, Sweep};
use super::store::BlobStore;

/// Loop that limits the content on disk. Every reconciler runs one, for its own disk.
pub struct SweepLoop {
    store: BlobStore,
    snapshot: SnapshotReader,
}

pub struct Observed {
    snapshot: Arc<Snapshot>,
    on_disk: Vec<(String, Timestamp)>,
}

impl SweepLoop {
    pub fn new(store: BlobStore, snapshot: SnapshotReader) -> Self {
        Self { store, snapshot }
    }
}

#[async_trait]
impl Loop for SweepLoop {
    type Observed = Observed;
    type Plan = Sweep;
    type Outcome = Vec<String>;

    fn name(&self) -> &'static str {
        "blobs"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let snapshot = self.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        let store = self.store.clone();
        let listed = tokio::task::spawn_blocking(move || store.list()).await;
        let on_disk = listed
            .map_err(|error| LoopError::new("cannot list the content on disk", error))?
            .map_err(|error| LoopError::new("cannot list the content on disk", error))?;
        Ok(Observation::Ready(Observed { snapshot, on_disk }))
    }

    fn plan(seen: &Observed, now: Timestamp) -> Sweep {
        plan::plan(&seen.on_disk, &plan::live(&seen.snapshot), now)
    }

    async fn act(&mut self, _: &Observed, sweep: Sweep) -> Vec<String> {
        let store = self.store.clone();
        let work = move || {
            let kept = sweep.keep.iter().map(|name| (name, store.keep(name)));
            let removed = sweep.remove.iter().map(|name| (name, store.remove(name)));
            let failed = kept.chain(removed).filter_map(|(name, done)| Some((name, done.err()?)));
            failed.map(|(name, error)| format!("{name}: {error}")).collect()
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_default()
    }

    async fn report(&mut self, _: Observed, failed: Vec<String>) -> Result<Next, LoopError> {
        match failed.as_slice() {
            [] => Ok(Next::Interval),
            _ => Err(LoopError::message(format!("cannot sweep the content on disk: {}", failed.join("; ")))),
        }
    }
}
