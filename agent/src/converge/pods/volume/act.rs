//! Brings files, secrets and volumes of a pod to the node before its containers are created.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use schema::content_refs::find_content;
use schema::control::lock;
use schema::records::EventType;

use super::spec::{FilesSource, FilesVolumeSpec, VolumeError, VolumeFile, VolumePrep};
use super::{prepare, sub_path};
use crate::converge::pods::steps::{BringUp, ContainerAct};
use crate::converge::pods::supervisor::WorkGuard;
use crate::converge::pods::worker::{PodFailure, PodId, Worker};
use crate::files::secrets::check_file_names;
use crate::files::{EnsureOutcome, SecretError};

/// Maximum wait for the volumes of a pod: an unreachable file system hangs forever.
const VOLUMES_MAX: Duration = Duration::from_secs(30);

/// A volume and its files, by their paths in it.
type FilesVolume = (FilesVolumeSpec, BTreeMap<String, VolumeFile>);

/// Runs work on volumes that reports its current path; the error names the failure, or the path that did not respond.
async fn on_disk(
    busy: &Arc<WorkGuard>,
    work: impl FnOnce(&dyn Fn(&Path)) -> Result<(), VolumeError> + Send + 'static,
) -> Result<(), String> {
    // A call that hangs can't be aborted: until it returns, nothing else is done for the pod.
    let (busy, at) = (Arc::clone(busy), Arc::new(Mutex::new(PathBuf::new())));
    let now_at = {
        let at = Arc::clone(&at);
        move |path: &Path| path.clone_into(&mut lock(&at))
    };
    let work = tokio::task::spawn_blocking(move || {
        let _busy = busy;
        work(&now_at)
    });
    let Ok(done) = tokio::time::timeout(VOLUMES_MAX, work).await else {
        let path = lock(&at).display().to_string();
        let seconds = VOLUMES_MAX.as_secs();
        return Err(format!(
            "{path} did not answer within {seconds} s; check its file system, such as a network share whose server is down"
        ));
    };
    done.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

impl Worker {
    /// Ensures that all files of the pod are on this node before anything of it is created.
    pub(crate) async fn fetch_files(&self, id: &PodId, up: &BringUp) -> Result<(), PodFailure> {
        if up.containers.is_empty() {
            return Ok(());
        }
        for (path, blob) in &up.pod.files {
            let done = self.files.ensure(path, blob).await;
            if done.map_err(|e| PodFailure::new("ContainerCreating", "FailedMount", e))?
                == EnsureOutcome::Repaired
            {
                let message =
                    format!("{path} on this node differed from the repository; it was fetched again");
                self.record_event(id, EventType::Warning, "FilesChanged", message);
            }
        }
        Ok(())
    }

    /// Reads the values for the volumes of secrets and objects.
    pub(crate) async fn read_values(&self, up: &BringUp) -> Result<Vec<FilesVolume>, PodFailure> {
        let unreadable = |e: SecretError| PodFailure::new("CreateContainerConfigError", "FailedMount", e);
        let mut volumes = Vec::new();
        for prep in &up.volumes {
            let VolumePrep::Files(volume) = prep else { continue };
            let mut all = Vec::new();
            for source in &volume.sources {
                let FilesSource::Values { of, items, is_optional } = source else { continue };
                let is_absent = *is_optional && find_content(&up.pod.files, of).is_none();
                let values = match is_absent {
                    true => BTreeMap::new(),
                    false => self.files.values(&up.pod, of).await.map_err(unreadable)?,
                };
                if items.is_empty() {
                    check_file_names(of, &values).map_err(unreadable)?;
                }
                all.push(values);
            }
            let files = prepare::volume_files(volume, all);
            let files = files.map_err(|e| PodFailure::new("CreateContainerConfigError", "FailedMount", e))?;
            volumes.push((volume.clone(), files));
        }
        Ok(volumes)
    }

    pub(crate) async fn prepare_volumes(
        &self,
        up: &BringUp,
        written: Vec<FilesVolume>,
        busy: &Arc<WorkGuard>,
    ) -> Result<(), PodFailure> {
        let list: Vec<VolumePrep> = up.volumes.clone();
        if list.is_empty() {
            return Ok(());
        }
        let done = on_disk(busy, move |now_at| {
            list.iter().try_for_each(|prep| {
                now_at(prep.path());
                prepare::prepare(prep)
            })?;
            written.iter().try_for_each(|(volume, files)| {
                now_at(&volume.path);
                prepare::write_files(volume, files)
            })
        });
        done.await.map_err(|why| PodFailure::new("ContainerCreating", "FailedMount", why))
    }

    /// Mounts the containers' `subPath`s and drops containers for which that fails: the failure is their own, as in
    /// Kubernetes, and the others are created.
    pub(crate) async fn mount_sub_paths(&self, id: &PodId, up: &mut BringUp, busy: &Arc<WorkGuard>) {
        let pod = &up.pod;
        let each = up.containers.iter().map(|step| async move {
            let ContainerAct::Create(rendered) = &step.act else { return true };
            if rendered.sub_paths.is_empty() {
                return true;
            }
            let done = match self.expand_sub_paths(rendered, pod).await {
                Err(why) => Err(why),
                Ok(sub_paths) => {
                    let work = move |now_at: &dyn Fn(&Path)| {
                        sub_paths.iter().try_for_each(|sub| {
                            now_at(&sub.root.join(sub.as_written()));
                            sub_path::mount_sub_path(sub)
                        })
                    };
                    on_disk(busy, work).await
                }
            };
            if let Err(why) = &done {
                self.report_container_failure(id, &step.container, "CreateContainerConfigError", why);
            }
            done.is_ok()
        });
        let mut mounted = join_all(each).await.into_iter();
        up.containers.retain(|_| mounted.next().unwrap_or(true));
    }
}
