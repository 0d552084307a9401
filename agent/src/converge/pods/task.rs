//! Work on one pod, step by step as planned. May be canceled at any call and repeated: every step checks for
//! existing results.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures::future::join_all;
use schema::records::EventType;

use super::steps::{Down, PauseStep, Target, Up};
use super::task_reports::{InFlight, TaskReport};
use super::volume::error::VolumeError;
use super::volume::folders;
use super::worker::{PodFailure, PodId, Worker};
use crate::converge::names;
use crate::worlds::docker::DockerError;

impl Worker {
    /// Creates and starts everything that is missing.
    pub async fn up(&self, id: &PodId, mut up: Up, busy: &Arc<InFlight>) -> Result<(), PodFailure> {
        // Before anything is stopped: a failure to fetch or read must not take down running containers. And without
        // a slot: a slow reconciler or file system must not hold up pods that don't need it.
        self.fetch_files(id, &up).await?;
        let secrets = self.read_values(&up).await?;
        self.down(id, &up.down, busy).await?;
        self.prepare_volumes(&up, secrets, busy).await?;
        self.mount_sub_paths(id, &mut up, busy).await;
        {
            // The semaphore is never closed.
            let _slot = self.creations.acquire().await;
            self.make(id, &up).await?;
        }
        self.remove_obsolete(id, &up.obsolete).await;
        Ok(())
    }

    /// Removes dead starts; a failed removal is retried separately, and holds up nothing.
    async fn remove_obsolete(&self, id: &PodId, targets: &[Target]) {
        let each = targets.iter().map(|target| async move {
            let failed = self.remove(id, target).await.err();
            if let Some(failure) = &failed {
                tracing::warn!(pod = %id.pod, container = target.name, message = %failure, "a dead container was not removed");
                self.record_event(id, EventType::Warning, failure.event, failure.to_string());
            }
            let failed = failed.map(|failure| failure.to_string());
            self.reporter.send(TaskReport::Removal(target.id.clone(), failed));
        });
        join_all(each).await;
    }

    async fn make(&self, id: &PodId, up: &Up) -> Result<(), PodFailure> {
        let pause = match &up.pause {
            PauseStep::Create(new) => self.create_pause(new).await?,
            PauseStep::Start(pause) | PauseStep::Runs(pause) => pause.clone(),
        };
        // Creating the containers needs only the pause container's id, so its start runs concurrently.
        let (network, made) = futures::join!(self.network(up, &pause), self.create_all(id, up, &pause));
        network?;
        join_all(made.iter().map(|(step, container)| self.start(id, &up.pod, step, container))).await;
        Ok(())
    }

    /// Takes containers down; anything already gone is fine.
    pub async fn down(&self, id: &PodId, down: &Down, busy: &Arc<InFlight>) -> Result<(), PodFailure> {
        join_all(down.stop.iter().map(|target| async move {
            self.stop(id, target, down.grace, busy).await;
            if down.folder {
                self.note_end(id, target).await;
            }
        }))
        .await;
        if down.unmount {
            // Before the pause container is removed: if the agent ends here, the next one repeats it.
            self.on_folder(id, busy, folders::unmount_pod).await?;
        }
        let (pauses, others): (Vec<_>, Vec<_>) =
            down.remove.iter().cloned().partition(|target| target.container == names::PAUSE);
        self.remove_all(id, &others).await?;
        self.remove_all(id, &pauses).await?;
        if let Some(link) = &down.link {
            let removed = self.netlink.remove_link(link).await;
            removed.map_err(|e| PodFailure::new("Terminating", "FailedKillPod", e))?;
        }
        if down.folder {
            self.on_folder(id, busy, folders::remove_pod).await?;
        }
        self.remove_obsolete(id, &down.obsolete).await;
        Ok(())
    }

    /// Runs `work` on the pod's folder. The task counts as in progress until it has ended, even if it is canceled.
    async fn on_folder(
        &self,
        id: &PodId,
        busy: &Arc<InFlight>,
        work: fn(&Path, &str) -> Result<(), VolumeError>,
    ) -> Result<(), PodFailure> {
        let (node, uid, busy) = (Arc::clone(&self.node), id.uid.clone(), Arc::clone(busy));
        let done = tokio::task::spawn_blocking(move || {
            let _busy = busy;
            work(&node.state_dir, &uid)
        });
        let failed = |e: &dyn fmt::Display| PodFailure::new("Terminating", "FailedUnmount", e);
        done.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))
    }

    async fn remove_all(&self, id: &PodId, targets: &[Target]) -> Result<(), PodFailure> {
        // All of them, even if one can't be removed: it must not hold up the others.
        join_all(targets.iter().map(|target| self.remove(id, target))).await.into_iter().collect()
    }

    async fn remove(&self, id: &PodId, target: &Target) -> Result<(), PodFailure> {
        match self.docker.remove(&target.id).await {
            Ok(()) | Err(DockerError::NotFound { .. }) => {}
            // Someone else is removing it at this moment.
            Err(DockerError::BeingRemoved { .. }) => {}
            Err(error) => return Err(PodFailure::new("Terminating", "FailedKillPod", error)),
        }
        let (node, uid, target) = (Arc::clone(&self.node), id.uid.clone(), target.clone());
        let _ = tokio::task::spawn_blocking(move || {
            folders::remove_sub_paths(&node.state_dir, &uid, &target.container, target.attempt);
        })
        .await;
        Ok(())
    }
}
