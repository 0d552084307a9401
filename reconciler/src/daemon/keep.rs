//! Keeps on disk the state that exists only in etcd, so that a lost etcd can be filled again. Reads the snapshot,
//! writes `<state>/reconciler/last-known.json`; controllers read the newest state in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{DiskRecord, Loop, LoopError, Next, Observation, Row};
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;

use crate::controllers::{LastKnown, OnDisk};

/// Longest time between two writes, in case the file disappears from the disk.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Shortest time between two writes: a change within it before a loss is not kept.
const GAP: Duration = Duration::from_millis(500);

/// Loop that keeps the last known state. Every reconciler runs one: each may have to fill etcd again.
pub(super) struct KeepLoop {
    disk: DiskRecord,
    snapshot: SnapshotReader,
    newest: watch::Sender<Arc<LastKnown>>,
}

impl KeepLoop {
    /// Loads the state that the last process kept in the reconciler's own directory.
    pub(super) fn open(dir: &Path, snapshot: SnapshotReader) -> Self {
        let disk = DiskRecord::new(dir.join("last-known.json"));
        let kept = disk.read_or_warn::<OnDisk>("what etcd held last").as_ref().map(LastKnown::from_disk);
        Self { disk, snapshot, newest: watch::Sender::new(Arc::new(kept.unwrap_or_default())) }
    }

    pub(super) fn newest(&self) -> watch::Receiver<Arc<LastKnown>> {
        self.newest.subscribe()
    }

    pub(super) fn row(&self) -> Row {
        // While etcd is filled again, forget objects that are no longer in Git.
        let is_filled = |before: &Snapshot, now: &Snapshot| {
            now.settled.is_empty()
                && !(before.objects.ptr_eq(&now.objects) && before.sources.ptr_eq(&now.sources))
        };
        let is_news = move |before: &Snapshot, now: &Snapshot| {
            !LastKnown::is_same(before, now) || is_filled(before, now)
        };
        Row::every(INTERVAL).wake_if(self.snapshot.clone(), GAP, is_news)
    }
}

/// Snapshot of etcd, and the state kept so far.
pub(super) struct Kept {
    snapshot: Arc<Snapshot>,
    last_known: Arc<LastKnown>,
}

/// State to keep; `None` if it does not change, as mostly while etcd is not whole.
pub(super) struct Keep(Option<LastKnown>);

/// Omits the content, which includes every template.
impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keep").field(&self.0.is_some()).finish()
    }
}

impl schema::control::Plan for Keep {
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[async_trait]
impl Loop for KeepLoop {
    type Observed = Kept;
    type Plan = Keep;
    type Outcome = std::io::Result<()>;

    fn name(&self) -> &'static str {
        "last-known"
    }

    async fn observe(&mut self) -> Result<Observation<Self::Observed>, LoopError> {
        let snapshot = self.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd is not listed yet".to_owned()));
        }
        let last_known = Arc::clone(&self.newest.borrow());
        Ok(Observation::Ready(Kept { snapshot, last_known }))
    }

    fn plan(Kept { snapshot, last_known }: &Kept, now: Timestamp) -> Keep {
        Keep(LastKnown::of(snapshot, now).or_else(|| last_known.without_deleted(snapshot)))
    }

    async fn act(&mut self, _: &Self::Observed, plan: Keep) -> std::io::Result<()> {
        let Some(newest) = plan.0.map(Arc::new) else { return Ok(()) };
        self.newest.send_replace(Arc::clone(&newest));
        let disk = self.disk.clone();
        let written = tokio::task::spawn_blocking(move || disk.write(&newest.to_disk())).await;
        written.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    async fn report(&mut self, _: Self::Observed, written: std::io::Result<()>) -> Result<Next, LoopError> {
        let what = || format!("writing {}", self.disk.path().display());
        written.map_err(|error| LoopError::new(what(), error)).map(|()| Next::Interval)
    }
}
