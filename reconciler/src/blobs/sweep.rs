//! Removes content that is no longer referenced. Reads the snapshot and the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::content_refs::Files;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::records::JobOrder;
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;

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
        plan(&seen.on_disk, &live(&seen.snapshot), now)
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

// Selects the content to keep and to remove. Pure.

/// Time that unreferenced content stays, for a push that returns to it and for slow agents.
pub(super) const KEPT: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Content that is still referenced: its hour restarts.
    pub keep: Vec<String>,
    /// Content without a reference for an hour.
    pub remove: Vec<String>,
}

impl schema::control::Plan for Sweep {
    fn is_empty(&self) -> bool {
        self.remove.is_empty()
    }
}

/// Digests that objects, templates, pods and job orders refer to: a pod of a former revision may still wait for its
/// files, and cancelling a removed job needs its login.
pub(super) fn live(snapshot: &Snapshot) -> BTreeSet<&str> {
    all_files(snapshot).flat_map(Files::values).map(|blob| blob.digest.as_str()).collect()
}

pub(super) fn all_files(snapshot: &Snapshot) -> impl Iterator<Item = &Files> {
    let objects = snapshot.objects.values().map(|object| &object.value.files);
    let templates = snapshot.templates.values().map(|template| &template.value.files);
    let jobs = snapshot.jobs.values().flat_map(|order| job_files(&order.value));
    objects.chain(templates).chain(snapshot.pods.values().map(|pod| &pod.value.files)).chain(jobs)
}

pub(super) fn job_files(order: &JobOrder) -> impl Iterator<Item = &Files> {
    std::iter::once(&order.files).chain(order.former.iter().map(|former| &former.files))
}

/// Decides on the content on disk, given as digests with the time of the last reference.
pub(super) fn plan(on_disk: &[(String, Timestamp)], live: &BTreeSet<&str>, now: Timestamp) -> Sweep {
    let mut sweep = Sweep::default();
    for (digest, last) in on_disk {
        if live.contains(digest.as_str()) {
            sweep.keep.push(digest.clone());
        } else if now.duration_since(*last) > KEPT {
            sweep.remove.push(digest.clone());
        }
    }
    sweep
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red without orders: the login of a removed job can no longer be fetched.
    #[test]
    fn what_an_order_names_is_live_without_its_object() {
        use schema::codec::encode;
        use schema::keys::Key;
        use schema::meta::NamespacedName;
        use schema::records::{FormerJob, JobDependencyState};
        let files = |digest: &str| {
            let blob = schema::content_refs::BlobRef {
                digest: digest.to_owned(),
                size: 1,
                kind: schema::content_refs::BlobKind::Secret,
                texts: Vec::new(),
                source: String::new(),
            };
            Files::from([("secrets/slurm.age".to_owned(), blob)])
        };
        let mut order = JobOrder {
            uid: "one".to_owned(),
            hash: String::new(),
            spec: schema::kinds::job::JobSpec::default(),
            files: files("before"),
            created_at: Timestamp::UNIX_EPOCH,
            dependency: JobDependencyState::None,
            reached: true,
            former: Vec::new(),
            deleting: true,
        };
        order.former = vec![FormerJob::from_order(&order)];
        order.files = files("now");
        let mut snapshot = Snapshot::default();
        let key = Key::Job("n1".to_owned(), NamespacedName::new("default", "sum")).to_string();
        let value = encode(&order).unwrap().into();
        snapshot.apply(&schema::snapshot::Change::Put { key, value, create_revision: 1, mod_revision: 1 });
        assert_eq!(live(&snapshot), BTreeSet::from(["before", "now"]));
    }

    #[test]
    fn what_nothing_refers_to_goes_after_an_hour() {
        let now = Timestamp::from_second(1_900_000_000).unwrap();
        let ago = |minutes: i64| now - SignedDuration::from_mins(minutes);
        let on_disk = [("live", 600), ("young", 59), ("old", 61)].map(|(name, m)| (name.to_owned(), ago(m)));
        let sweep = plan(&on_disk, &BTreeSet::from(["live"]), now);
        assert_eq!(sweep, Sweep { keep: vec!["live".into()], remove: vec!["old".into()] });
    }
}
