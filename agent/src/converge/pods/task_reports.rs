//! Reports from the tasks on pods to the supervisor, which owns everything known about their work.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use schema::control::Nudge;
use tokio::sync::{mpsc, watch};

use super::facts::{Exited, Slot, Uid};

/// Retry schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// 1, 2, 4, … 60 s: for a bridge that does not exist yet, or an engine that restarts.
    Soon,
    /// 10, 20, 40, … 300 s, the back-off of Kubernetes for image pulls.
    Image,
    /// 5, 10, 20, 40, 60 s: for a process that can't be killed, and an engine that waits for it each time.
    Kill,
}

impl Retry {
    /// Returns the delay after this many consecutive failures, the first being 1.
    pub fn delay(self, failures: u32) -> SignedDuration {
        let (first, max) = match self {
            Retry::Soon => (1, 60),
            Retry::Image => (10, 300),
            Retry::Kill => (5, 60),
        };
        let doubled = first << failures.saturating_sub(1).min(10);
        SignedDuration::from_secs(doubled.min(max))
    }
}

/// An event in a task.
#[derive(Debug)]
pub enum TaskReport {
    /// The link of a pod is complete at both ends (true), or may not be and must be checked.
    Link(Uid, bool),
    Progress(Slot, String),
    Hooked(String),
    /// A container that failed a probe was stopped (no message), or could not be and is retried later.
    Kill(String, Option<String>),
    /// A dead container was removed (no message), or could not be and is retried later.
    Removal(String, Option<String>),
    /// Exit status of a container whose pod is being removed: the container is gone before the next observation.
    End(Uid, String, Exited),
    /// The image was missing at the start of this number.
    Missing(Slot, u32),
    /// The image is present for the start of this number. Earlier failures count until the start succeeds.
    Pulled(Slot, u32),
    Clear(Slot),
    Failed(Slot, String, String, Retry),
    Ended(WorkId),
}

/// Work in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkId {
    Task(Uid),
    Pull(Slot),
    /// The stop of a container that failed a probe.
    Kill(String),
}

/// Sends a task's reports to the supervisor.
///
/// The channel needs no bound: a task sends a few reports for each container of its pod, and there is one task per
/// pod; a task must be able to report from `drop`, where nothing can be awaited.
#[derive(Debug, Clone)]
pub struct Reporter {
    sender: mpsc::UnboundedSender<TaskReport>,
    nudge: Nudge,
}

impl Reporter {
    /// Creates a reporter and the supervisor's receiver; `nudge` wakes the loop that owns it.
    pub fn new(nudge: Nudge) -> (Self, mpsc::UnboundedReceiver<TaskReport>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender, nudge }, receiver)
    }

    /// Sends a report. The loop is woken at the end of the task, or immediately for the progress of a pull.
    pub fn send(&self, report: TaskReport) {
        let wakes = matches!(report, TaskReport::Progress(..) | TaskReport::Ended(_));
        // Without a receiver the loop is gone, and this task ends in a moment.
        let _ = self.sender.send(report);
        if wakes {
            self.nudge.nudge();
        }
    }
}

/// Work in progress, held by its task. Dropping it, even on cancellation or a panic, ends it and wakes the loop.
#[derive(Debug)]
pub struct InFlight {
    reporter: Reporter,
    id: WorkId,
    /// Containers to stop whose preStop hook is done already.
    hooked: BTreeSet<String>,
    /// Containers to stop that are already being stopped for a failed probe: true once the hook is done, closed
    /// when that stop is over.
    kills: BTreeMap<String, watch::Receiver<bool>>,
    /// Notifies tasks that wait for the end of this stop.
    hook_done: watch::Sender<bool>,
}

impl InFlight {
    /// Begins the work; the supervisor passes on its knowledge of the containers to stop.
    pub(super) fn new(
        reporter: Reporter,
        id: WorkId,
        hooked: BTreeSet<String>,
        kills: BTreeMap<String, watch::Receiver<bool>>,
    ) -> Self {
        Self { reporter, id, hooked, kills, hook_done: watch::Sender::new(false) }
    }

    /// Returns a receiver that changes while this stop is in progress, and closes with its end.
    pub(super) fn hook_done(&self) -> watch::Receiver<bool> {
        self.hook_done.subscribe()
    }

    /// Waits until no other task stops this container. Returns true if its preStop hook is done.
    pub async fn wait_for_kill(&self, id: &str) -> bool {
        let mut is_hooked = self.hooked.contains(id);
        if let Some(mut kill) = self.kills.get(id).cloned() {
            while kill.changed().await.is_ok() {}
            is_hooked |= *kill.borrow();
        }
        is_hooked
    }

    /// Reports that the preStop hook of this container is done.
    pub fn note_hooked(&self, id: &str) {
        self.hook_done.send_replace(true);
        self.reporter.send(TaskReport::Hooked(id.to_owned()));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.reporter.send(TaskReport::Ended(self.id.clone()));
    }
}
