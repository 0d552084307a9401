//! State shared by all tasks on pods, and their failures.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::events::{EventDraft, EventRecorder};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::facts::{ContainerKey, NodeFacts, Uid};
use super::probe::perform::ActionRunner;
use super::steps::{BringUp, LinkStep, PauseStep, TakeDown, Target};
use super::supervisor::{Reporter, Retry, TaskReport, WorkGuard};
use super::volume::folders;
use super::volume::spec::VolumeError;
use crate::converge::shared::node_network::SandboxedPods;
use crate::converge::shared::pulls::Pulls;
use crate::files::PodFiles;
use crate::files::registry_logins::Credentials;
use crate::metrics::METRICS;
use crate::names;
use crate::worlds::docker::{Docker, DockerError, NewContainer};
use crate::worlds::netlink::{Netlink, PodLink};

/// Builds the archive of the pause image.
pub type PauseArchive = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// State shared by all tasks.
#[derive(Clone)]
pub struct Worker {
    pub docker: Arc<dyn Docker>,
    pub actions: ActionRunner,
    pub netlink: Arc<dyn Netlink>,
    pub node: Arc<NodeFacts>,
    /// Function pods that may start.
    pub sandboxed: watch::Receiver<SandboxedPods>,
    pub pause_archive: PauseArchive,
    pub reporter: Reporter,
    pub events: EventRecorder,
    pub files: Arc<PodFiles>,
    pub creations: Arc<Semaphore>,
    pub stops: Arc<Semaphore>,
    pub pulls: Pulls,
    pub credentials: Arc<dyn Credentials>,
}

/// A failure of the pod as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PodFailure {
    /// Reason in the status.
    pub reason: &'static str,
    /// Reason of the event.
    pub event: &'static str,
    pub message: String,
}

impl PodFailure {
    pub(crate) fn new(reason: &'static str, event: &'static str, message: impl fmt::Display) -> Self {
        Self { reason, event, message: message.to_string() }
    }
}

/// A pod, for events.
#[derive(Debug, Clone)]
pub struct PodId {
    pub pod: NamespacedName,
    pub uid: Uid,
}

impl PodId {
    /// Creates the span around a task on the pod. Not a child of the loop's span, which ends before the task.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::info_span!(parent: None, "pod", pod = %self.pod, uid = self.uid)
    }

    /// Returns the slot of one of its containers.
    pub fn slot(&self, container: &str) -> ContainerKey {
        (self.uid.clone(), container.to_owned())
    }
}

impl Worker {
    pub fn record_event(&self, id: &PodId, kind: EventType, reason: &str, message: String) {
        self.events.record(EventDraft::about(kind, Kind::Pod, &id.pod, reason, message));
    }

    pub(crate) fn report_container_failure(&self, id: &PodId, container: &str, reason: &str, message: &str) {
        METRICS.starts.count(false);
        tracing::warn!(container, reason, error = message, "container not started; it is tried again");
        self.record_event(id, EventType::Warning, "Failed", format!("{container}: {message}"));
        let failed =
            TaskReport::Failed(id.slot(container), reason.to_owned(), message.to_owned(), Retry::Soon);
        self.reporter.send(failed);
    }
}

/// A sidecar's turn to be stopped: once as many containers of its pod have ended. Its preStop hook does not wait for it,
/// so that a proxy learns early that no more requests should come in, as in Kubernetes.
pub(crate) struct Turn {
    /// Number of containers that have ended.
    ended: watch::Receiver<usize>,
    after: usize,
}

impl Turn {
    /// Waits for it, but no longer than the grace period.
    pub(crate) async fn wait(mut self, grace: Duration) {
        // There is no sender only when the task ends.
        let _ = timeout(grace, self.ended.wait_for(|ended| *ended >= self.after)).await;
    }
}

// Work on one pod, step by step as planned. May be canceled at any call and repeated: every step checks for
// existing results.

impl Worker {
    /// Creates and starts everything that is missing.
    pub async fn up(&self, id: &PodId, mut up: BringUp, busy: &Arc<WorkGuard>) -> Result<(), PodFailure> {
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
        if !up.obsolete.is_empty() {
            // The pod's new state is reported meanwhile.
            self.reporter.wake();
            self.remove_obsolete(id, &up.obsolete).await;
        }
        Ok(())
    }

    /// Removes dead starts; a failed removal is retried separately, and holds up nothing.
    async fn remove_obsolete(&self, id: &PodId, targets: &[Target]) {
        let each = targets.iter().map(|target| async move {
            let failed = self.remove(id, target).await.err();
            if let Some(failure) = &failed {
                tracing::warn!(container = target.container, error = %failure, "dead container not removed; it is tried again");
                self.record_event(id, EventType::Warning, failure.event, failure.to_string());
            }
            let failed = failed.map(|failure| failure.to_string());
            self.reporter.send(TaskReport::Removal(target.id.clone(), failed));
        });
        join_all(each).await;
    }

    async fn make(&self, id: &PodId, up: &BringUp) -> Result<(), PodFailure> {
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
    pub async fn down(&self, id: &PodId, down: &TakeDown, busy: &Arc<WorkGuard>) -> Result<(), PodFailure> {
        let ended = watch::Sender::new(0);
        join_all(down.stops().enumerate().map(|(place, target)| {
            let turn = (place >= down.stop.len()).then(|| Turn { ended: ended.subscribe(), after: place });
            let ended = &ended;
            async move {
                self.stop(id, target, (down.grace, turn), busy).await;
                ended.send_modify(|count| *count += 1);
                if down.folder {
                    self.note_end(id, target).await;
                }
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
        busy: &Arc<WorkGuard>,
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
            Ok(()) => tracing::info!(container = target.container, "container removed"),
            Err(DockerError::NotFound { .. }) => {}
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

// Creates the pause container and the link of a pod.

/// Maximum wait for the rules of a function's pod before the pod is retried.
const RULES_MAX: Duration = Duration::from_secs(5);

impl Worker {
    pub(crate) async fn create_pause(&self, new: &NewContainer) -> Result<String, PodFailure> {
        let failed = |e: DockerError| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e);
        let created = match self.create_or_adopt(new).await {
            Err(DockerError::NoSuchImage { .. }) => {
                self.docker.load((self.pause_archive)()).await.map_err(failed)?;
                self.create_or_adopt(new).await
            }
            other => other,
        };
        let created = created.map_err(failed)?;
        tracing::info!(container = names::PAUSE, "container created");
        Ok(created)
    }

    pub(crate) async fn network(&self, up: &BringUp, pause: &str) -> Result<(), PodFailure> {
        let failed = |e: DockerError| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e);
        if !matches!(up.pause, PauseStep::Runs(_)) {
            self.docker.start(pause).await.map_err(failed)?;
            tracing::info!(container = names::PAUSE, "container started");
        }
        let Some(link) = &up.link else { return Ok(()) };
        let details = self.docker.inspect(pause).await.map_err(failed)?;
        if details.pid == 0 {
            let message = format!("the pause container {pause} ended immediately");
            return Err(PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", message));
        }
        let LinkStep { host_name, bridge, address, gateway, mtu } = link.clone();
        let (pause_pid, pause_id) = (details.pid, Some(pause.to_owned()));
        let link = PodLink { pause_pid, pause_id, host_name, bridge, address, gateway, mtu };
        // Until this succeeds, the link is not known to be complete.
        self.reporter.send(TaskReport::Link(up.pod.uid.clone(), false));
        let ensured = self.netlink.ensure_pod_link(&link).await;
        ensured.map_err(|e| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e))?;
        self.reporter.send(TaskReport::Link(up.pod.uid.clone(), true));
        self.wait_for_rules(up, address.addr()).await
    }

    /// Waits for the packet rules that keep a function's pod away from the cluster's control plane.
    async fn wait_for_rules(&self, up: &BringUp, address: Ipv4Addr) -> Result<(), PodFailure> {
        if up.pod.owner.kind != Kind::Function {
            return Ok(());
        }
        let mut sandboxed = self.sandboxed.clone();
        let stand = timeout(RULES_MAX, sandboxed.wait_for(|pods| pods.contains(&address))).await;
        if matches!(stand, Ok(Ok(_))) {
            return Ok(());
        }
        let message = format!(
            "the packet rules that keep {address} from etcd and the APIs of the cluster are not in place yet; a \
             function does not start without them, and the agent's log says what delays them"
        );
        Err(PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", message))
    }
}
