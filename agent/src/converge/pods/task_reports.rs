//! What tasks on pods say of their work: messages to the supervisor, which owns all that is known of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use schema::control::Nudge;
use tokio::sync::{mpsc, watch};

use super::facts::{Exited, Slot, Uid};

/// How soon something is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// 1, 2, 4, … 60 s: a bridge that is not there yet, an engine that restarts.
    Soon,
    /// 10, 20, 40, … 300 s, as Kubernetes backs image pulls off.
    Image,
    /// 5, 10, 20, 40, 60 s: a process that can't be killed, and an engine that waits for it each time.
    Kill,
}

impl Retry {
    /// Delay after this many failures in a row, the first being 1.
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

/// Something that happened in a task.
#[derive(Debug)]
pub enum TaskReport {
    /// The link of a pod is whole, both ends of it; or it may not be, and has to be looked at.
    Link(Uid, bool),
    Progress(Slot, String),
    Hooked(String),
    /// A container that failed a probe was stopped (no message), or could not be and is tried again later.
    Kill(String, Option<String>),
    /// A dead container was removed (no message), or could not be and is tried again later.
    Removal(String, Option<String>),
    /// How a container ended whose pod is taken away: it is gone before the next look.
    End(Uid, String, Exited),
    /// The image was not there at the start of this number.
    Missing(Slot, u32),
    /// The image is there for the start of this number. Earlier failures count until the start succeeds.
    Pulled(Slot, u32),
    Clear(Slot),
    Failed(Slot, String, String, Retry),
    Ended(WorkId),
}

/// Work under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkId {
    Task(Uid),
    Pull(Slot),
    /// The stop of a container that failed a probe.
    Kill(String),
}

/// A task's way to the supervisor.
///
/// The channel needs no bound: a task sends a few reports for each container of its pod, and there
/// is one task for a pod; a task must be able to report from `drop`, where nothing can be awaited.
#[derive(Debug, Clone)]
pub struct Reporter {
    sender: mpsc::UnboundedSender<TaskReport>,
    nudge: Nudge,
}

impl Reporter {
    /// A way to the supervisor that has the other end; `nudge` wakes the loop that owns it.
    pub fn new(nudge: Nudge) -> (Self, mpsc::UnboundedReceiver<TaskReport>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender, nudge }, receiver)
    }

    /// Says it. The loop hears of it with the end of the task, or at once if it is how far a pull is.
    pub fn send(&self, report: TaskReport) {
        let wakes = matches!(report, TaskReport::Progress(..) | TaskReport::Ended(_));
        // Without a receiver the loop is gone, and this task is about to be.
        let _ = self.sender.send(report);
        if wakes {
            self.nudge.nudge();
        }
    }
}

/// Work under way, as its task knows it. Dropping it, also by a cut-off or a panic, ends it and wakes the loop.
#[derive(Debug)]
pub struct InFlight {
    reporter: Reporter,
    id: WorkId,
    /// Of the containers that are stopped in here, those whose preStop hook is done.
    hooked: BTreeSet<String>,
    /// Of the containers that are stopped in here, those that are being stopped for a failed probe: whether
    /// the hook is done, until that stop is over.
    kills: BTreeMap<String, watch::Receiver<bool>>,
    /// For those who wait for the end of this stop.
    hook_done: watch::Sender<bool>,
}

impl InFlight {
    /// Begins; the supervisor knows of the containers that are stopped in here.
    pub(super) fn new(
        reporter: Reporter,
        id: WorkId,
        hooked: BTreeSet<String>,
        kills: BTreeMap<String, watch::Receiver<bool>>,
    ) -> Self {
        Self { reporter, id, hooked, kills, hook_done: watch::Sender::new(false) }
    }

    /// Changes while this stop is under way, and ends with it.
    pub(super) fn hook_done(&self) -> watch::Receiver<bool> {
        self.hook_done.subscribe()
    }

    /// Waits until no other task stops this container. True if its preStop hook is done.
    pub async fn wait_for_kill(&self, id: &str) -> bool {
        let mut is_hooked = self.hooked.contains(id);
        if let Some(mut kill) = self.kills.get(id).cloned() {
            while kill.changed().await.is_ok() {}
            is_hooked |= *kill.borrow();
        }
        is_hooked
    }

    /// The preStop hook of this container is done.
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
