//! What the leader knows of all runs, and the tasks that carry them on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use imbl::OrdMap;
use schema::control::lock;
use schema::meta::NamespacedName;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::records::{RunHead, RunId};

/// All runs that are kept, by name.
pub(super) type Heads = OrdMap<RunId, Arc<KeptHead>>;

/// A head, and when it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptHead {
    /// The head.
    pub head: RunHead,
    /// Revision of its last write.
    pub revision: i64,
}

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Its state.
    pub state: String,
    /// States that it went through.
    pub steps: u32,
}

/// Where a run is, as its task says.
pub(super) type SharedProgress = Arc<Mutex<Progress>>;

/// A run that a task carries on.
pub(super) struct Carried {
    /// Where it is.
    pub progress: SharedProgress,
    /// Ends it, with the reason.
    pub cancel: watch::Sender<Option<String>>,
    task: JoinHandle<Option<KeptHead>>,
}

impl Carried {
    /// A task that gives the head of the run once it has ended; none if another reconciler carries it on.
    pub(super) fn new(
        task: JoinHandle<Option<KeptHead>>,
        progress: SharedProgress,
        cancel: watch::Sender<Option<String>>,
    ) -> Self {
        Self { progress, cancel, task }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All of it. Empty while another reconciler leads.
#[derive(Default)]
pub(super) struct Book {
    /// Every run.
    pub heads: Heads,
    /// Those that have not ended.
    pub running: BTreeSet<RunId>,
    /// The tasks.
    pub tasks: BTreeMap<RunId, Carried>,
    /// Runs whose task ended before they did, and when.
    pub stuck: BTreeMap<RunId, Instant>,
    /// Runs that may have begun although the answer of etcd was lost.
    pub(super) unsure: BTreeSet<RunId>,
    /// Definitions that etcd has.
    pub definitions: BTreeSet<(NamespacedName, String)>,
}

impl Book {
    /// Takes in a head.
    pub(super) fn put(&mut self, id: RunId, kept: KeptHead) {
        if kept.head.is_running() {
            self.running.insert(id.clone());
        } else {
            self.running.remove(&id);
        }
        self.definitions.insert((id.workflow.clone(), kept.head.definition.clone()));
        self.heads.insert(id, Arc::new(kept));
    }

    /// Forgets a run.
    pub(super) fn remove(&mut self, id: &RunId) {
        self.heads.remove(id);
        self.running.remove(id);
        self.stuck.remove(id);
    }

    /// Takes in what tasks that ended have to say.
    pub(super) async fn reap(&mut self, now: Instant) {
        let ended: Vec<RunId> = self
            .tasks
            .iter()
            .filter(|(_, carried)| carried.task.is_finished())
            .map(|(id, _)| id.clone())
            .collect();
        for id in ended {
            let Some(mut carried) = self.tasks.remove(&id) else { continue };
            match (&mut carried.task).await {
                Ok(Some(kept)) => self.put(id, kept),
                Ok(None) | Err(_) => {
                    self.stuck.insert(id, now);
                }
            }
        }
    }

    /// Where each run is that a task carries on.
    pub(super) fn progress(&self) -> BTreeMap<RunId, Progress> {
        let read = |carried: &Carried| lock(&carried.progress).clone();
        self.tasks.iter().map(|(id, carried)| (id.clone(), read(carried))).collect()
    }
}
