//! Carries out a plan: first the name files of all pods, which the loop waits for, then one task per pod and per
//! pull, none of which it waits for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use schema::records::EventType;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::facts::{Observed, RunningTask, Uid};
use super::sandbox::name_files::NameFiles;
use super::steps::{Decision, DecisionReason, PodTask, PodsPlan};
use super::supervisor::{Retry, Supervisor, TaskReport};
use super::worker::{PodFailure, PodId, Worker};
use crate::desired::DesiredState;

/// Failures of pods that can't be created because their name files could not be written.
pub type Unwritten = BTreeMap<Uid, PodFailure>;

/// Writes the name files of all pods whose containers are about to be created, together: one disk task per pod
/// would spread the starts of many pods, and with them the writes of their statuses.
pub async fn write_name_files(plan: &mut PodsPlan) -> Unwritten {
    let name_files = |(uid, decision): (&Uid, &mut Decision)| match &mut decision.task {
        Some(PodTask::Up(up)) => Some((uid.clone(), up.name_files.take()?)),
        _ => None,
    };
    let wanted: Vec<(Uid, NameFiles)> = plan.pods.iter_mut().filter_map(name_files).collect();
    if wanted.is_empty() {
        return Unwritten::new();
    }
    let write = move || {
        let failed = |(uid, files): (Uid, NameFiles)| {
            let error = files.write(Path::new("/etc/hosts")).err()?;
            let folder = files.folder().display();
            let message = format!("cannot write the pod's hosts and resolv.conf in {folder}: {error}");
            Some((uid, PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", message)))
        };
        wanted.into_iter().filter_map(failed).collect()
    };
    // There is no result only when the runtime shuts down. The engine rejects a container without its files.
    tokio::task::spawn_blocking(write).await.unwrap_or_default()
}

/// Starts everything in the plan.
pub fn begin(
    worker: &Worker,
    supervisor: &mut Supervisor,
    plan: &mut PodsPlan,
    observed: &Observed,
    mut unwritten: Unwritten,
) {
    let work = &observed.work;
    for slot in &plan.cancel_pulls {
        if let Some(pulling) = work.pulling.get(slot) {
            tracing::debug!(uid = slot.0, container = slot.1, "pull no longer wanted");
            pulling.cancel.cancel();
        }
    }
    supervisor.set_last_address(plan.last_address.or(work.last_address));
    for (uid, decision) in &mut plan.pods {
        let id = PodId { pod: decision.pod.clone(), uid: uid.clone() };
        if decision.cancel
            && let Some(busy) = work.busy.get(uid)
        {
            busy.cancel.cancel();
        }
        record_why_it_waits(worker, &id, decision);
        pulls(worker, supervisor, &id, (decision, &observed.desired));
        kills(worker, supervisor, &id, decision);
        if let Some(task) = decision.task.take() {
            tracing::debug!(pod = %id.pod, uid, why = %decision.why, ?task, "pod task begins");
            let unwritten = unwritten.remove(uid);
            spawn(worker.clone(), supervisor, id, (task, unwritten));
        }
    }
    for link in std::mem::take(&mut plan.remove_links) {
        let netlink = Arc::clone(&worker.netlink);
        supervisor.spawn(async move {
            if let Err(error) = netlink.remove_link(&link).await {
                tracing::warn!(link, %error, "link without a pod not removed");
            }
        });
    }
}

/// Records an event for everything that waits longer than a moment; the recorder suppresses repetitions.
fn record_why_it_waits(worker: &Worker, id: &PodId, decision: &Decision) {
    for waiting in decision.waiting.values() {
        let reason = match waiting.reason.as_str() {
            "CrashLoopBackOff" | "ImagePullBackOff" => "BackOff",
            "CreateContainerConfigError" => "Failed",
            "HostPortConflict" => "HostPortConflict",
            _ => continue,
        };
        worker.record_event(id, EventType::Warning, reason, waiting.message.clone());
    }
    if matches!(
        decision.why,
        DecisionReason::NoSubnet | DecisionReason::NoFreeAddress | DecisionReason::PauseEndedEarly
    ) {
        worker.record_event(id, EventType::Warning, "FailedCreatePodSandBox", decision.why.to_string());
    }
}

fn spawn(
    worker: Worker,
    supervisor: &mut Supervisor,
    id: PodId,
    (task, unwritten): (PodTask, Option<PodFailure>),
) {
    let (down, address, ports) = match &task {
        PodTask::Up(up) => (&up.down, up.address.map(|a| a.addr()), up.ports.clone()),
        PodTask::Down(down) => (down, None, Vec::new()),
    };
    let (stops, cancel) = (down.stops().map(|target| target.id.clone()).collect(), CancellationToken::new());
    let up = matches!(task, PodTask::Up(_));
    let busy = RunningTask { pod: id.pod.clone(), up, address, ports, stops, cancel: cancel.clone() };
    // Blocking calls keep it too: they continue after the task is canceled.
    let in_flight = Arc::new(supervisor.begin_task(id.uid.clone(), busy));
    let span = id.span();
    let work = async move {
        // Any call of a task may be its last: the next plan starts from the resulting state.
        let work = async {
            let done = match (unwritten, task) {
                (Some(failure), _) => Err(failure),
                (None, PodTask::Up(up)) => worker.up(&id, *up, &in_flight).await,
                (None, PodTask::Down(down)) => worker.down(&id, &down, &in_flight).await,
            };
            let slot = (id.uid.clone(), String::new());
            match done {
                Ok(()) => worker.reporter.send(TaskReport::Clear(slot)),
                Err(failure) => {
                    tracing::warn!(reason = failure.event, error = %failure, "pod task failed; it is tried again");
                    worker.record_event(&id, EventType::Warning, failure.event, failure.to_string());
                    let (reason, message) = (failure.reason.to_owned(), failure.to_string());
                    worker.reporter.send(TaskReport::Failed(slot, reason, message, Retry::Soon));
                }
            }
        };
        cancel.run_until_cancelled(work).await;
    };
    supervisor.spawn(work.instrument(span));
}

fn kills(worker: &Worker, supervisor: &mut Supervisor, id: &PodId, decision: &mut Decision) {
    for kill in std::mem::take(&mut decision.kills) {
        // Registered immediately: the next plan may come before the task gets its turn.
        let Some(in_flight) = supervisor.begin_kill(&kill.target.id) else { continue };
        let (worker, id) = (worker.clone(), id.clone());
        let span = id.span();
        supervisor.spawn(async move { worker.kill(&id, &kill, in_flight).await }.instrument(span));
    }
}

fn pulls(worker: &Worker, supervisor: &mut Supervisor, id: &PodId, wanted: (&Decision, &DesiredState)) {
    let (decision, desired) = wanted;
    // Only wanted pods get pulls.
    let Some(binding) = desired.pods.get(&id.pod) else { return };
    for pull in &decision.pulls {
        let cancel = CancellationToken::new();
        let in_flight = supervisor.begin_pull(id.slot(&pull.container), cancel.clone());
        let (worker, id, pull, pod) = (worker.clone(), id.clone(), pull.clone(), binding.pod.clone());
        let span = id.span();
        let work = async move {
            let _in_flight = in_flight;
            cancel.run_until_cancelled(worker.pull(&id, &pod, &pull)).await;
        };
        supervisor.spawn(work.instrument(span));
    }
}
