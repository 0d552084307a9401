//! State shared by all tasks on pods, and their failures.

use std::fmt;
use std::sync::Arc;

use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::events::{EventDraft, EventRecorder};
use tokio::sync::{Semaphore, watch};

use super::facts::{NodeFacts, Slot, Uid};
use super::image::credentials::Credentials;
use super::image::pulls::Pulls;
use super::probe::perform::Asker;
use super::task_reports::{Reporter, Retry, TaskReport};
use crate::converge::pod_table::SandboxedPods;
use crate::files::PodFiles;
use crate::worlds::docker::Docker;
use crate::worlds::netlink::Netlink;

/// Builds the archive of the pause image.
pub type PauseArchive = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// State shared by all tasks.
#[derive(Clone)]
pub struct Worker {
    pub docker: Arc<dyn Docker>,
    pub asker: Asker,
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
    /// Returns the slot of one of its containers.
    pub fn slot(&self, container: &str) -> Slot {
        (self.uid.clone(), container.to_owned())
    }
}

impl Worker {
    pub fn record_event(&self, id: &PodId, kind: EventType, reason: &str, message: String) {
        self.events.record(EventDraft::of(kind, Kind::Pod, &id.pod, reason, message));
    }

    pub(crate) fn trouble(&self, id: &PodId, container: &str, reason: &str, message: &str) {
        tracing::warn!(pod = %id.pod, container, reason, message, "a container was not started");
        self.record_event(id, EventType::Warning, "Failed", format!("{container}: {message}"));
        let failed =
            TaskReport::Failed(id.slot(container), reason.to_owned(), message.to_owned(), Retry::Soon);
        self.reporter.send(failed);
    }
}
