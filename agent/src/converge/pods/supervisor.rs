//! Owns the tasks on pods, their reports and their recent failures. None of it outlives the agent: the next plan
//! follows from Docker's state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use jiff::{SignedDuration, Timestamp};
use schema::control::Nudge;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::facts::{ContainerKey, ExitStatus, PullInProgress, RecentFailure, RunningTask, Uid, Work};

/// Owns the tasks; dropping it aborts them.
pub struct Supervisor {
    work: Work,
    /// Docker ids of containers whose preStop hook is done.
    hooks_done: BTreeSet<String>,
    /// Stops in progress after failed probes, by Docker id; true once the preStop hook is done.
    kills: BTreeMap<String, watch::Receiver<bool>>,
    /// At most one task per pod, pull and stop in progress, plus removals of links and unused files.
    tasks: JoinSet<()>,
    reports: mpsc::UnboundedReceiver<TaskReport>,
    reporter: Reporter,
    /// Wall clock and monotonic clock when the times of failures were last set or moved.
    clocks: (Timestamp, Instant),
}

impl Supervisor {
    /// Creates a supervisor without tasks; their reports wake the loop.
    pub fn new(nudge: Nudge) -> Self {
        let (reporter, reports) = Reporter::new(nudge);
        let (work, tasks) = (Work::default(), JoinSet::new());
        let clocks = (Timestamp::now(), Instant::now());
        Self { work, hooks_done: BTreeSet::new(), kills: BTreeMap::new(), tasks, reports, reporter, clocks }
    }

    /// Returns a reporter for a task.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Applies the reports that tasks have sent so far.
    pub fn take_reports(&mut self) -> &Work {
        self.follow_wall_clock();
        while let Ok(report) = self.reports.try_recv() {
            self.apply(report);
        }
        while self.tasks.try_join_next().is_some() {}
        &self.work
    }

    /// Moves the times of failures by as much as the wall clock was set: plans compare them with it, but retries wait
    /// by the monotonic clock.
    fn follow_wall_clock(&mut self) {
        let now = (Timestamp::now(), Instant::now());
        let (wall, monotonic) = std::mem::replace(&mut self.clocks, now);
        let elapsed = SignedDuration::try_from(now.1 - monotonic).unwrap_or_default();
        let set_by = now.0.duration_since(wall).saturating_sub(elapsed);
        let Work { recent_failures, stop_failures, removal_failures, .. } = &mut self.work;
        let of_containers = stop_failures.values_mut().chain(removal_failures.values_mut());
        for failure in recent_failures.values_mut().chain(of_containers) {
            for at in [&mut failure.at, &mut failure.retry_at] {
                *at = at.checked_add(set_by).unwrap_or(*at);
            }
        }
    }

    /// Registers the task of a pod, with the containers that it stops.
    pub fn begin_task(&mut self, uid: Uid, busy: RunningTask) -> WorkGuard {
        let hooked = busy.stops.iter().filter(|id| self.hooks_done.contains(*id)).cloned().collect();
        let kill = |id: &String| Some((id.clone(), self.kills.get(id)?.clone()));
        let kills = busy.stops.iter().filter_map(kill).collect();
        self.work.busy.insert(uid.clone(), busy);
        WorkGuard::new(self.reporter(), WorkId::Task(uid), hooked, kills)
    }

    /// Registers a pull.
    pub fn begin_pull(&mut self, slot: ContainerKey, cancel: CancellationToken) -> WorkGuard {
        self.work.pulling.insert(slot.clone(), PullInProgress { progress: String::new(), cancel });
        WorkGuard::new(self.reporter(), WorkId::Pull(slot), BTreeSet::new(), BTreeMap::new())
    }

    /// Registers the stop of a container that failed a probe; `None` if it is being stopped already.
    pub fn begin_kill(&mut self, id: &str) -> Option<WorkGuard> {
        if self.work.is_stopping(id) {
            return None;
        }
        let hooked = self.hooks_done.get(id).cloned().into_iter().collect();
        let kill = WorkGuard::new(self.reporter(), WorkId::Kill(id.to_owned()), hooked, BTreeMap::new());
        self.work.killing.insert(id.to_owned());
        self.kills.insert(id.to_owned(), kill.hook_done());
        Some(kill)
    }

    /// Spawns a task, aborted when the supervisor is dropped.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Remembers the address allocated last.
    pub fn set_last_address(&mut self, address: Option<Ipv4Addr>) {
        self.work.last_address = address;
    }

    /// Forgets all containers except those in `keep`.
    pub fn forget_containers_but(&mut self, keep: &BTreeSet<&str>) {
        self.work.stop_failures.retain(|id, _| keep.contains(id.as_str()));
        self.work.removal_failures.retain(|id, _| keep.contains(id.as_str()));
        self.hooks_done.retain(|id| keep.contains(id.as_str()));
    }

    /// Forgets all pods except those for which `keep` returns true.
    pub fn forget_all_but(&mut self, keep: impl Fn(&str) -> bool) {
        let work = &mut self.work;
        work.recent_failures.retain(|(uid, _), _| keep(uid));
        work.pulled.retain(|(uid, _), _| keep(uid));
        work.missing.retain(|(uid, _)| keep(uid));
        work.linked.retain(|uid| keep(uid));
        work.exit_statuses.retain(|uid, _| keep(uid));
    }

    fn apply(&mut self, report: TaskReport) {
        let work = &mut self.work;
        match report {
            TaskReport::Link(uid, true) => drop(work.linked.insert(uid)),
            TaskReport::Link(uid, false) => drop(work.linked.remove(&uid)),
            TaskReport::Progress(slot, progress) => {
                if let Some(pulling) = work.pulling.get_mut(&slot) {
                    pulling.progress = progress;
                }
            }
            TaskReport::HookDone(id) => drop(self.hooks_done.insert(id)),
            TaskReport::Kill(id, failed) => note(&mut work.stop_failures, id, failed, Retry::Kill),
            TaskReport::Removal(id, failed) => note(&mut work.removal_failures, id, failed, Retry::Soon),
            TaskReport::End(uid, id, end) => drop(work.exit_statuses.entry(uid).or_default().insert(id, end)),
            TaskReport::Missing(slot, attempt) => {
                // Pulled for this very start: with `imagePullPolicy: Always` it must be pulled again.
                if work.pulled.get(&slot) == Some(&attempt) {
                    work.pulled.remove(&slot);
                }
                work.missing.insert(slot);
            }
            TaskReport::Pulled(slot, attempt) => {
                work.missing.remove(&slot);
                work.pulled.insert(slot, attempt);
            }
            TaskReport::Clear(slot) => {
                work.recent_failures.remove(&slot);
                work.missing.remove(&slot);
            }
            TaskReport::Failed(slot, reason, message, retry) => {
                fail(&mut work.recent_failures, slot, reason, message, retry);
            }
            TaskReport::WorkEnded(WorkId::Task(uid)) => drop(work.busy.remove(&uid)),
            TaskReport::WorkEnded(WorkId::Pull(slot)) => drop(work.pulling.remove(&slot)),
            TaskReport::WorkEnded(WorkId::Kill(id)) => {
                work.killing.remove(&id);
                self.kills.remove(&id);
            }
        }
    }
}

fn fail<K: Ord>(
    list: &mut BTreeMap<K, RecentFailure>,
    key: K,
    reason: String,
    message: String,
    retry: Retry,
) {
    let now = Timestamp::now();
    let mut trouble = RecentFailure { reason, message, failures: 1, at: now, retry_at: now };
    // Failures to create and failures to remove are counted separately.
    let in_a_row = |former: &&RecentFailure| former.is_removal_failure() == trouble.is_removal_failure();
    if let Some(former) = list.get(&key).filter(in_a_row) {
        trouble.failures = former.failures.saturating_add(1);
    }
    trouble.retry_at = now.checked_add(retry.delay(trouble.failures)).unwrap_or(now);
    list.insert(key, trouble);
}

/// Records the outcome of stopping or removing a container.
fn note(list: &mut BTreeMap<String, RecentFailure>, id: String, failed: Option<String>, retry: Retry) {
    match failed {
        Some(message) => fail(list, id, "FailedKillPod".to_owned(), message, retry),
        None => drop(list.remove(&id)),
    }
}

// Reports from the tasks on pods to the supervisor, which owns everything known about their work.

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
    Progress(ContainerKey, String),
    HookDone(String),
    /// A container that failed a probe was stopped (no message), or could not be and is retried later.
    Kill(String, Option<String>),
    /// A dead container was removed (no message), or could not be and is retried later.
    Removal(String, Option<String>),
    /// Exit status of a container whose pod is being removed: the container is gone before the next observation.
    End(Uid, String, ExitStatus),
    /// The image was missing at the start of this number.
    Missing(ContainerKey, u32),
    /// The image is present for the start of this number. Earlier failures count until the start succeeds.
    Pulled(ContainerKey, u32),
    Clear(ContainerKey),
    Failed(ContainerKey, String, String, Retry),
    WorkEnded(WorkId),
}

/// Work in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkId {
    Task(Uid),
    Pull(ContainerKey),
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

    /// Wakes the loop before the end of the task.
    pub fn wake(&self) {
        self.nudge.nudge();
    }

    /// Sends a report. The loop is woken at the end of the task, or immediately for the progress of a pull.
    pub fn send(&self, report: TaskReport) {
        let wakes = matches!(report, TaskReport::Progress(..) | TaskReport::WorkEnded(_));
        // Without a receiver the loop is gone, and this task ends in a moment.
        let _ = self.sender.send(report);
        if wakes {
            self.nudge.nudge();
        }
    }
}

/// Work in progress, held by its task. Dropping it, even on cancellation or a panic, ends it and wakes the loop.
#[derive(Debug)]
pub struct WorkGuard {
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

impl WorkGuard {
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
    pub fn report_hook_done(&self, id: &str) {
        self.hook_done.send_replace(true);
        self.reporter.send(TaskReport::HookDone(id.to_owned()));
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.reporter.send(TaskReport::WorkEnded(self.id.clone()));
    }
}

#[cfg(test)]
mod tests {
    use schema::meta::NamespacedName;

    use super::*;

    fn supervisor() -> Supervisor {
        Supervisor::new(Nudge::new().0)
    }

    fn busy(stops: &[&str]) -> RunningTask {
        RunningTask {
            pod: NamespacedName::new("default", "web"),
            up: false,
            address: None,
            ports: Vec::new(),
            stops: stops.iter().map(|id| (*id).to_owned()).collect(),
            cancel: CancellationToken::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_that_fails_is_tried_ever_later_and_nobody_stops_twice_at_once() {
        let mut supervisor = supervisor();
        let reporter = supervisor.reporter();
        let kill = supervisor.begin_kill("c").expect("no other kill");
        assert!(supervisor.begin_kill("c").is_none());
        for seconds in [5, 10, 20, 40, 60, 60] {
            reporter.send(TaskReport::Kill("c".into(), Some("no exit event".into())));
            let trouble = supervisor.take_reports().stop_failures["c"].clone();
            assert_eq!(trouble.retry_at.duration_since(trouble.at).as_secs(), seconds);
        }
        // A task that must stop the container too waits, and learns that the hook is done.
        let task = supervisor.begin_task("uid".into(), busy(&["c", "d"]));
        let waiting = tokio::time::timeout(std::time::Duration::from_secs(60), task.wait_for_kill("c"));
        assert!(waiting.await.is_err(), "the kill is under way");
        kill.report_hook_done("c");
        drop(kill);
        assert!(task.wait_for_kill("c").await && !task.wait_for_kill("d").await);
        supervisor.take_reports();
        assert!(supervisor.begin_kill("c").is_none(), "the task stops it");
        drop(task);
        assert!(supervisor.take_reports().busy.is_empty());
        supervisor.forget_containers_but(&["c"].into());
        let again = supervisor.begin_kill("c").expect("no other kill");
        assert!(again.wait_for_kill("c").await && supervisor.work.stop_failures.contains_key("c"));
        supervisor.forget_containers_but(&BTreeSet::new());
        assert!(supervisor.hooks_done.is_empty() && supervisor.work.stop_failures.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_is_due_by_the_monotonic_clock_whatever_the_wall_clock_says() {
        let mut supervisor = supervisor();
        supervisor.reporter().send(TaskReport::Kill("c".into(), Some("no exit event".into())));
        let mut is_due = || {
            let retry_at = supervisor.take_reports().stop_failures["c"].retry_at;
            retry_at <= supervisor.clocks.0
        };
        assert!(!is_due());
        tokio::time::advance(std::time::Duration::from_secs(4)).await;
        assert!(!is_due(), "after 4 s of 5");
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert!(is_due(), "the wall clock has hardly advanced");
    }

    // Seen red with a count that carries over.
    #[test]
    fn a_removal_that_fails_is_tried_again_soon_however_often_the_creation_failed() {
        let mut supervisor = supervisor();
        let slot: ContainerKey = ("uid".into(), String::new());
        for (reason, failures) in [
            ("ContainerCreating", 1),
            ("CreateContainerConfigError", 2),
            ("Terminating", 1),
            ("Terminating", 2),
        ] {
            let failed = TaskReport::Failed(slot.clone(), reason.into(), "so".into(), Retry::Soon);
            supervisor.reporter().send(failed);
            assert_eq!(supervisor.take_reports().recent_failures[&slot].failures, failures, "{reason}");
        }
    }

    #[test]
    fn an_image_that_is_fetched_and_still_missing_is_fetched_again_ever_later() {
        let mut supervisor = supervisor();
        let reporter = supervisor.reporter();
        let slot: ContainerKey = ("uid".into(), "web".into());
        let is_pulled =
            |supervisor: &mut Supervisor, attempt| supervisor.take_reports().is_pulled(&slot, attempt);
        assert!(!is_pulled(&mut supervisor, 0), "its pull has not ended yet");
        reporter.send(TaskReport::Missing(slot.clone(), 0));
        for failures in 1..=3 {
            reporter.send(TaskReport::Pulled(slot.clone(), 0));
            assert!(is_pulled(&mut supervisor, 0));
            reporter.send(TaskReport::Missing(slot.clone(), 0));
            let (reason, message) = ("ErrImagePull".to_owned(), "of another name".to_owned());
            reporter.send(TaskReport::Failed(slot.clone(), reason, message, Retry::Image));
            let work = supervisor.take_reports();
            assert_eq!(work.recent_failures[&slot].failures, failures);
            assert!(work.pulled.is_empty(), "with imagePullPolicy Always it is fetched again");
        }
        reporter.send(TaskReport::Pulled(slot.clone(), 0));
        assert!(!is_pulled(&mut supervisor, 1), "a later start may find it removed");
        reporter.send(TaskReport::Clear(slot.clone()));
        assert!(supervisor.take_reports().recent_failures.is_empty());
    }
}
