//! The leader's book of all runs, and the tasks that execute them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use imbl::OrdMap;
use schema::control::lock;
use schema::meta::NamespacedName;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use super::records::{RunHead, RunId};

/// Heads of all stored runs.
pub(super) type Heads = OrdMap<RunId, Arc<StoredHead>>;

/// A head, and the revision of its last write.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredHead {
    pub head: RunHead,
    pub revision: i64,
}

/// Progress of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub state: String,
    /// Number of states entered.
    pub steps: u32,
    /// Bytes of the run in etcd.
    pub bytes: u64,
}

/// Progress of a run, shared with its task.
pub(super) type SharedProgress = Arc<Mutex<Progress>>;

/// A run that a task executes.
pub(super) struct RunHandle {
    pub progress: SharedProgress,
    /// Ends the run, with the cause.
    pub cancel: watch::Sender<Option<String>>,
}

/// Known runs and their tasks. Empty while another reconciler leads.
#[derive(Default)]
pub(super) struct RunBook {
    pub heads: Heads,
    /// Runs that have not ended.
    pub running: BTreeSet<RunId>,
    /// Runs that a task executes.
    pub carried: BTreeMap<RunId, RunHandle>,
    /// Tasks: each returns the head of its run once the run has ended, or `None` if another reconciler took over.
    /// They end with the book.
    tasks: JoinSet<Option<StoredHead>>,
    /// Run that each task executes.
    run_of_task: BTreeMap<Id, RunId>,
    /// Runs whose task ended before they did, with the time.
    pub stuck: BTreeMap<RunId, Instant>,
    /// Runs that may have begun although etcd's response was lost.
    pub(super) uncertain: BTreeSet<RunId>,
    /// Definitions stored in etcd.
    pub definitions: BTreeSet<(NamespacedName, String)>,
}

impl RunBook {
    /// Records a head.
    pub(super) fn put(&mut self, id: RunId, kept: StoredHead) {
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

    /// Executes a run in its own task, which returns the head at the end.
    pub(super) fn carry_on(
        &mut self,
        id: RunId,
        carried: RunHandle,
        task: impl Future<Output = Option<StoredHead>> + Send + 'static,
    ) {
        self.run_of_task.insert(self.tasks.spawn(task).id(), id.clone());
        let former = self.carried.insert(id, carried);
        debug_assert!(former.is_none(), "one task for a run");
    }

    /// Records the results of tasks that ended.
    pub(super) fn reap(&mut self, now: Instant) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let (task, kept) = match ended {
                Ok((task, kept)) => (task, kept),
                Err(error) => (error.id(), None),
            };
            let Some(id) = self.run_of_task.remove(&task) else { continue };
            self.carried.remove(&id);
            match kept {
                Some(kept) => self.put(id, kept),
                None => {
                    self.stuck.insert(id, now);
                }
            }
        }
    }

    /// Returns the progress of each run that a task executes.
    pub(super) fn progress(&self) -> BTreeMap<RunId, Progress> {
        let read = |carried: &RunHandle| lock(&carried.progress).clone();
        self.carried.iter().map(|(id, carried)| (id.clone(), read(carried))).collect()
    }
}
