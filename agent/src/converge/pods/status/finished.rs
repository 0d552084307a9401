//! Pods that ended for good, with their final status: on the node's disk, because dead containers are not a safe
//! place for it. `docker container prune` removes them, and the pod must not run again.

use std::io;
use std::path::Path;
use std::sync::Arc;

use schema::control::DiskRecord;
use schema::kinds::pod::{PodPhase, PodStatus, RestartPolicy};
use schema::records::Binding;
use schema::snapshot::Snapshot;

use crate::converge::names;
use crate::converge::pods::facts::{Finished, NodeFacts};
use crate::converge::pods::volume::folders;
use crate::desired::{Desired, KnownFrom};

/// Final statuses of pods; disk and etcd are read once.
#[derive(Debug, Default)]
pub struct FinishedBook {
    pages: Finished,
    disk_read: bool,
    etcd_read: bool,
}

impl FinishedBook {
    /// Returns the pods of `desired` that ended for good. The status in etcd replaces a missing file, but only
    /// right after the agent started: later it may be that of a pod removed since.
    pub async fn look(&mut self, node: &NodeFacts, desired: &Desired, snapshot: &Snapshot) -> Finished {
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
        if desired.known_from != KnownFrom::Unknown && desired.is_settled() && desired.unreadable.is_empty() {
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
pub fn is_end(status: &PodStatus) -> bool {
    matches!(status.phase, PodPhase::Succeeded | PodPhase::Failed)
}

fn is_end_of(status: &PodStatus, binding: &Binding) -> bool {
    let pod = &binding.pod;
    status.uid == pod.uid && status.has_ended() && pod.spec.restart_policy != RestartPolicy::Always
}

fn read(state_dir: &Path) -> Finished {
    let kept = folders::folders(state_dir).into_iter().filter_map(|uid| {
        let record = DiskRecord::new(names::finished_file(state_dir, &uid));
        Some((uid, Arc::new(record.read_or_warn("how a pod ended")?)))
    });
    kept.collect()
}
