//! What the leader knows of all runs, and the tasks that carry them on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use imbl::OrdMap;
use schema::control::lock;
use schema::meta::NamespacedName;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use super::records::{RunHead, RunId};

/// All runs that are kept, by name.
pub(super) type Heads = OrdMap<RunId, Arc<KeptHead>>;

/// A head, and when it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptHead {
    pub head: RunHead,
    /// Revision of its last write.
    pub revision: i64,
}

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub state: String,
    /// States that it went through.
    pub steps: u32,
}

/// Where a run is, as its task says.
pub(super) type SharedProgress = Arc<Mutex<Progress>>;

/// A run that a task carries on.
pub(super) struct Carried {
    pub progress: SharedProgress,
    /// Ends it, with the reason.
    pub cancel: watch::Sender<Option<String>>,
}

/// All of it. Empty while another reconciler leads.
#[derive(Default)]
pub(super) struct Book {
    pub heads: Heads,
    /// Those that have not ended.
    pub running: BTreeSet<RunId>,
    /// Those that a task carries on.
    pub carried: BTreeMap<RunId, Carried>,
    /// The tasks: each gives the head of its run once that has ended, or none if another reconciler carries it on. They end
    /// with the book.
    tasks: JoinSet<Option<KeptHead>>,
    /// Which run each task carries on.
    run_of_task: BTreeMap<Id, RunId>,
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

    /// Carries a run on in a task of its own, which gives its head at the end.
    pub(super) fn carry_on(
        &mut self,
        id: RunId,
        carried: Carried,
        task: impl Future<Output = Option<KeptHead>> + Send + 'static,
    ) {
        self.run_of_task.insert(self.tasks.spawn(task).id(), id.clone());
        let former = self.carried.insert(id, carried);
        debug_assert!(former.is_none(), "one task for a run");
    }

    /// Takes in what tasks that ended have to say.
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

    /// Where each run is that a task carries on.
    pub(super) fn progress(&self) -> BTreeMap<RunId, Progress> {
        let read = |carried: &Carried| lock(&carried.progress).clone();
        self.carried.iter().map(|(id, carried)| (id.clone(), read(carried))).collect()
    }
}
