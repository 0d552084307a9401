//! What all tasks on pods share, and the words for how one ends.

use std::fmt;
use std::sync::Arc;

use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::events::{EventDraft, EventRecorder};
use tokio::sync::Semaphore;

use super::facts::{NodeFacts, Slot, Uid};
use super::image::credentials::Credentials;
use super::image::pulls::Pulls;
use super::probe::perform::Asker;
use super::task_reports::{Reporter, Retry, TaskReport};
use crate::files::PodFiles;
use crate::worlds::docker::Docker;
use crate::worlds::netlink::Netlink;

/// Makes the archive of the pause image.
pub type PauseArchive = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// What all tasks share.
#[derive(Clone)]
pub struct Worker {
    /// The engine.
    pub docker: Arc<dyn Docker>,
    /// Runs hooks.
    pub asker: Asker,
    /// The kernel.
    pub netlink: Arc<dyn Netlink>,
    /// The node.
    pub node: Arc<NodeFacts>,
    /// The pause image's bytes.
    pub pause_archive: PauseArchive,
    /// To the supervisor.
    pub reporter: Reporter,
    /// Events.
    pub events: EventRecorder,
    /// Files of the repository and secrets.
    pub files: Arc<PodFiles>,
    /// Pods being made at once.
    pub creations: Arc<Semaphore>,
    /// Containers being stopped at once.
    pub stops: Arc<Semaphore>,
    /// Images being fetched.
    pub pulls: Pulls,
    /// Logins at registries.
    pub credentials: Arc<dyn Credentials>,
}

/// The pod as a whole could not go on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PodFailure {
    /// The word in status.
    pub reason: &'static str,
    /// The word of the event.
    pub event: &'static str,
    /// What happened.
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
    /// Namespace and name.
    pub pod: NamespacedName,
    /// Which incarnation.
    pub uid: Uid,
}

impl PodId {
    /// A container of it.
    pub fn slot(&self, container: &str) -> Slot {
        (self.uid.clone(), container.to_owned())
    }
}

impl Worker {
    /// Tells of something about a pod.
    pub fn tell(&self, id: &PodId, kind: EventType, reason: &str, message: String) {
        self.events.record(EventDraft {
            kind,
            object_kind: "Pod".to_owned(),
            namespace: id.pod.namespace.clone(),
            name: id.pod.name.clone(),
            reason: reason.to_owned(),
            message,
        });
    }

    pub(crate) fn trouble(&self, id: &PodId, container: &str, reason: &str, message: &str) {
        tracing::warn!(pod = %id.pod, container, reason, message, "a container was not started");
        self.tell(id, EventType::Warning, "Failed", format!("{container}: {message}"));
        let failed =
            TaskReport::Failed(id.slot(container), reason.to_owned(), message.to_owned(), Retry::Soon);
        self.reporter.send(failed);
    }
}
