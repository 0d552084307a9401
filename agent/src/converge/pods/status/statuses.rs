//! Contents of this node's status keys, and the last reports on its pods.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schema::control::DiskRecord;
use schema::keys::Key;
use schema::kinds::pod::{PodPhase, PodStatus, RestartPolicy};
use schema::meta::NamespacedName;
use schema::records::Binding;
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use schema::store::status_writer::{Report, StatusWriter, StoredValues};
use schema::store::{SharedStore, StoreError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::converge::pods::facts::{FinalStatuses, LastReported, NodeFacts};
use crate::converge::pods::volume::folders;
use crate::desired::{DesiredState, StateOrigin};
use crate::names;
use schema::control::publish;

/// Desired contents of this node's status keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statuses {
    pub pods: BTreeMap<NamespacedName, Arc<PodStatus>>,
    /// True if everything of this node is known, so that the keys of other pods must be removed.
    pub complete: bool,
    /// True once Docker listed the containers here.
    pub is_listed: bool,
}

/// Returns a callback that publishes whether an etcd without a record of the node has the statuses of all pods that
/// run here.
pub fn publish_reported(
    node: String,
    statuses: watch::Receiver<Statuses>,
    snapshot: SnapshotReader,
    reported: watch::Sender<bool>,
) -> impl FnMut() + Send {
    move || {
        let (statuses, snapshot) = (statuses.borrow(), snapshot.current());
        let is_stored = |(pod, status): (&NamespacedName, &Arc<PodStatus>)| {
            let stored = snapshot.pod_status.get(&(node.clone(), pod.clone()));
            stored.is_some_and(|stored| stored.value.uid == status.uid)
        };
        // A snapshot with the node's record, while etcd has none, is from an etcd that was lost.
        let is_new = snapshot.synced && !snapshot.nodes.contains_key(&node);
        let all = is_new && statuses.is_listed && statuses.pods.iter().all(is_stored);
        publish(&reported, all);
    }
}

/// Returns the last reports on the pods of this node: by this agent, or else by the former one.
pub fn last_reported(own: &Statuses, snapshot: &Snapshot, node: &str) -> LastReported {
    let mut last_reported = own.pods.clone();
    for ((_, pod), stored) in snapshot.pod_status.iter().filter(|((of, _), _)| of == node) {
        last_reported.entry(pod.clone()).or_insert_with(|| Arc::new(stored.value.clone()));
    }
    last_reported
}

/// Returns the last report on this uid.
pub fn last_report_on<'a>(
    last_reported: &'a LastReported,
    pod: &NamespacedName,
    uid: &str,
) -> Option<&'a PodStatus> {
    last_reported.get(pod).map(|status| &**status).filter(|status| status.uid == uid)
}

/// Time for which the final report on a pod stays: the writer takes a few milliseconds, more with a slow etcd.
pub const FINAL_REPORT_MAX: Duration = Duration::from_secs(1);

/// Final reports that this agent would withdraw, and since when.
#[derive(Debug, Default)]
pub struct FinalReports {
    since: BTreeMap<NamespacedName, Instant>,
}

impl FinalReports {
    /// Keeps the final reports of the previous run in the statuses of this one until the snapshot shows them, at
    /// most for [`FINAL_REPORT_MAX`]: one that was reported while the pod's task was about to end may not be written yet.
    pub fn keep(&mut self, statuses: &mut Statuses, own: &Statuses, shown: &Snapshot, node: &str) {
        let mut since = BTreeMap::new();
        let is_last = |status: &PodStatus| status.is_terminating() && is_final(status);
        for (pod, status) in own.pods.iter().filter(|(_, status)| is_last(status)) {
            let stored = shown.pod_status.get(&(node.to_owned(), pod.clone()));
            if statuses.pods.contains_key(pod) || stored.is_some_and(|stored| stored.value == **status) {
                continue;
            }
            let begun = self.since.get(pod).copied().unwrap_or_else(Instant::now);
            if begun.elapsed() < FINAL_REPORT_MAX {
                since.insert(pod.clone(), begun);
                statuses.pods.insert(pod.clone(), Arc::clone(status));
            }
        }
        self.since = since;
    }
}

// Reports on this node's pods for [`StatusWriter`]: stored ones are read from the snapshot, changes of phase or
// readiness are urgent.

/// Reports of this node on its pods.
pub struct PodStatuses {
    node: String,
    snapshot: SnapshotReader,
}

/// Creates a writer for the pods of `node`.
pub fn status_writer(
    node: String,
    store: SharedStore,
    snapshot: SnapshotReader,
) -> StatusWriter<PodStatuses> {
    StatusWriter::new(PodStatuses { node, snapshot }, store)
}

#[async_trait]
impl Report for PodStatuses {
    type Id = NamespacedName;
    type Value = PodStatus;
    type Newest = Statuses;

    fn key(&self, pod: &NamespacedName) -> Key {
        Key::PodStatus(self.node.clone(), pod.clone())
    }

    fn values(newest: &Statuses) -> BTreeMap<NamespacedName, Arc<PodStatus>> {
        newest.pods.clone()
    }

    fn is_complete(newest: &Statuses) -> bool {
        newest.complete
    }

    fn is_urgent(old: Option<&PodStatus>, new: Option<&PodStatus>) -> bool {
        match (old, new) {
            (Some(old), Some(new)) => {
                old.phase != new.phase || old.uid != new.uid || old.is_ready() != new.is_ready()
            }
            _ => true,
        }
    }

    async fn stored(&self, _: bool) -> Result<Option<StoredValues<NamespacedName, PodStatus>>, StoreError> {
        let snapshot = self.snapshot.current();
        Ok(StoredValues::from_snapshot(&snapshot, &snapshot.pod_status, &self.node))
    }
}

// Pods that ended for good, with their final status: on the node's disk, because dead containers are not a safe
// place for it. `docker container prune` removes them, and the pod must not run again.

/// Final statuses of pods; disk and etcd are read once.
#[derive(Debug, Default)]
pub struct FinishedBook {
    pages: FinalStatuses,
    disk_read: bool,
    etcd_read: bool,
}

impl FinishedBook {
    /// Returns the pods of `desired` that ended for good. The status in etcd replaces a missing file, but only
    /// right after the agent started: later it may be that of a pod removed since.
    pub async fn update(
        &mut self,
        node: &NodeFacts,
        desired: &DesiredState,
        snapshot: &Snapshot,
    ) -> FinalStatuses {
        if !self.disk_read {
            let state_dir = node.state_dir.clone();
            let read = tokio::task::spawn_blocking(move || read(&state_dir)).await;
            self.pages.extend(read.unwrap_or_default());
            self.disk_read = true;
        }
        if !self.etcd_read && snapshot.synced {
            self.etcd_read = true;
            for (pod, binding) in &desired.pods {
                let status = snapshot.pod_status.get(&(node.node.clone(), pod.clone()));
                if let Some(status) = status.map(|s| &s.value).filter(|s| is_end_of(s, binding)) {
                    self.pages.entry(binding.pod.uid.clone()).or_insert_with(|| Arc::new(status.clone()));
                }
            }
        }
        if desired.known_from != StateOrigin::Unknown && desired.is_settled() && desired.unreadable.is_empty()
        {
            self.pages.retain(|uid, _| desired.pods.values().any(|binding| binding.pod.uid == *uid));
        }
        self.pages.clone()
    }

    /// Saves the final status of a pod, to disk first.
    pub async fn keep(&mut self, node: &NodeFacts, mut status: PodStatus) -> io::Result<()> {
        // Its address and ports are free.
        status.pod_ip = None;
        status.host_ports.clear();
        let record = DiskRecord::new(names::finished_file(&node.state_dir, &status.uid));
        let kept = status.clone();
        let written = tokio::task::spawn_blocking(move || record.write(&kept)).await;
        written.map_err(io::Error::other)??;
        self.pages.insert(status.uid.clone(), Arc::new(status));
        Ok(())
    }
}

/// True if the pod ended for good.
pub fn is_final(status: &PodStatus) -> bool {
    matches!(status.phase, PodPhase::Succeeded | PodPhase::Failed)
}

fn is_end_of(status: &PodStatus, binding: &Binding) -> bool {
    let pod = &binding.pod;
    status.uid == pod.uid && status.has_ended() && pod.spec.restart_policy != RestartPolicy::Always
}

fn read(state_dir: &Path) -> FinalStatuses {
    let kept = folders::folders(state_dir).into_iter().filter_map(|uid| {
        let record = DiskRecord::new(names::finished_file(state_dir, &uid));
        Some((uid, Arc::new(record.read_or_warn("how a pod ended")?)))
    });
    kept.collect()
}
