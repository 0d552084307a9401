//! Pods that ended for good, with their last status: on the node's disk, because dead containers are no
//! safe place for it. `docker container prune` takes them, and the pod must not run once more.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use schema::kinds::pod::{PodPhase, PodStatus, RestartPolicy};
use schema::records::Binding;
use schema::snapshot::Snapshot;

use crate::converge::names;
use crate::converge::pods::facts::{Finished, NodeFacts};
use crate::converge::pods::volume::folders;
use crate::desired::{Desired, Source};

/// What is known of it; the disk and etcd are read once.
#[derive(Debug, Default)]
pub struct FinishedBook {
    pages: Finished,
    disk_read: bool,
    etcd_read: bool,
}

impl FinishedBook {
    /// The pods of `desired` that ended for good. The status in etcd stands in for a file that is not
    /// there, for an agent that has just started alone: later it may be of a pod that was removed since.
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
        if desired.source != Source::Unknown && desired.is_settled() && desired.unreadable.is_empty() {
            self.pages.retain(|uid, _| desired.pods.values().any(|binding| binding.pod.uid == *uid));
        }
        self.pages.clone()
    }

    /// Keeps the last status of a pod, on the disk first.
    pub async fn keep(&mut self, node: &NodeFacts, mut status: PodStatus) -> io::Result<()> {
        // What it held is free.
        status.pod_ip = None;
        status.host_ports.clear();
        let (state_dir, kept) = (node.state_dir.clone(), status.clone());
        let written = tokio::task::spawn_blocking(move || write(&state_dir, &kept)).await;
        written.map_err(io::Error::other)??;
        self.pages.insert(status.uid.clone(), Arc::new(status));
        Ok(())
    }
}

/// The pod ended for good.
pub fn is_end(status: &PodStatus) -> bool {
    matches!(status.phase, PodPhase::Succeeded | PodPhase::Failed)
}

fn is_end_of(status: &PodStatus, binding: &Binding) -> bool {
    let pod = &binding.pod;
    status.uid == pod.uid && status.has_ended() && pod.spec.restart_policy != RestartPolicy::Always
}

fn read(state_dir: &Path) -> Finished {
    let kept = folders::folders(state_dir).into_iter().filter_map(|uid| {
        let path = names::finished_file(state_dir, &uid);
        let bytes = fs::read(&path).ok()?;
        match serde_json::from_slice::<PodStatus>(&bytes) {
            Ok(status) => Some((uid, Arc::new(status))),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "how a pod ended can't be read");
                None
            }
        }
    });
    kept.collect()
}

/// A whole file or none, also after a power failure.
fn write(state_dir: &Path, status: &PodStatus) -> io::Result<()> {
    let path = names::finished_file(state_dir, &status.uid);
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(status)?)?;
    file.sync_data()?;
    fs::rename(&temporary, &path)?;
    fs::File::open(folder)?.sync_all()
}
