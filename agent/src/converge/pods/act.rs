//! Carries a plan out: one task per pod and per pull, none of which the loop waits for.

use std::sync::Arc;

use schema::records::EventType;
use tokio_util::sync::CancellationToken;

use super::facts::{Busy, Observed};
use super::ledger::Retry;
use super::steps::{Decision, PodsPlan, Task, Why};
use super::worker::{PodId, Worker};
use crate::desired::Desired;

/// Begins everything in the plan.
pub fn begin(worker: &Worker, plan: &mut PodsPlan, observed: &Observed, shutdown: &CancellationToken) {
    let memory = &observed.memory;
    for slot in &plan.cancel_pulls {
        if let Some(pulling) = memory.pulling.get(slot) {
            tracing::debug!(uid = slot.0, container = slot.1, "nobody wants the image that is pulled");
            pulling.cancel.cancel();
        }
    }
    worker.ledger.set_last_address(plan.last_address.or(memory.last_address));
    for (uid, decision) in &mut plan.pods {
        let id = PodId { pod: decision.pod.clone(), uid: uid.clone() };
        if decision.cancel
            && let Some(busy) = memory.busy.get(uid)
        {
            busy.cancel.cancel();
        }
        tell_why_it_waits(worker, &id, decision);
        pulls(worker, &id, (decision, &observed.desired), shutdown);
        kills(worker, &id, decision, shutdown);
        if let Some(task) = decision.task.take() {
            tracing::debug!(pod = %id.pod, uid, why = %decision.why, ?task, "pod task");
            spawn(worker.clone(), id, task, shutdown.child_token());
        }
    }
    for link in std::mem::take(&mut plan.remove_links) {
        let netlink = Arc::clone(&worker.netlink);
        tokio::spawn(async move {
            if let Err(error) = netlink.remove_link(&link).await {
                tracing::warn!(link, %error, "could not remove a link without a pod");
            }
        });
    }
}

/// What waits longer than a moment is told; the recorder holds repetitions back.
fn tell_why_it_waits(worker: &Worker, id: &PodId, decision: &Decision) {
    for waiting in decision.waiting.values() {
        let reason = match waiting.reason.as_str() {
            "CrashLoopBackOff" | "ImagePullBackOff" => "BackOff",
            "CreateContainerConfigError" => "Failed",
            "HostPortConflict" => "HostPortConflict",
            _ => continue,
        };
        worker.tell(id, EventType::Warning, reason, waiting.message.clone());
    }
    if matches!(decision.why, Why::NoSubnet | Why::NoFreeAddress | Why::PauseEndedEarly) {
        worker.tell(id, EventType::Warning, "FailedCreatePodSandBox", decision.why.to_string());
    }
}

fn spawn(worker: Worker, id: PodId, task: Task, cancel: CancellationToken) {
    let (up, address, ports) = match &task {
        Task::Up(up) => (true, up.address.map(|a| a.addr()), up.ports.clone()),
        Task::Down(_) => (false, None, Vec::new()),
    };
    let busy = Busy { pod: id.pod.clone(), up, address, ports, cancel: cancel.clone() };
    // Calls that block keep it too: they go on when the task is cut off.
    let in_flight = Arc::new(worker.ledger.begin(id.uid.clone(), busy));
    tokio::spawn(async move {
        // Every call of a task may be its last: the next plan finds out what is there.
        let work = async {
            let done = match task {
                Task::Up(up) => worker.up(&id, *up, &in_flight).await,
                Task::Down(down) => worker.down(&id, &down, &in_flight).await,
            };
            let slot = (id.uid.clone(), String::new());
            match done {
                Ok(()) => worker.ledger.clear(&slot),
                Err(failure) => {
                    tracing::warn!(pod = %id.pod, reason = failure.event, message = %failure, "a pod task failed");
                    worker.tell(&id, EventType::Warning, failure.event, failure.to_string());
                    let message = failure.to_string();
                    worker.ledger.fail(slot, failure.reason, message, Retry::Soon);
                }
            }
        };
        cancel.run_until_cancelled(work).await;
    });
}

fn kills(worker: &Worker, id: &PodId, decision: &mut Decision, shutdown: &CancellationToken) {
    for kill in std::mem::take(&mut decision.kills) {
        // At once: the next plan may come before the task has its turn.
        let Some(stopping) = worker.ledger.try_begin_stop(&kill.target.id) else { continue };
        let (worker, id, cancel) = (worker.clone(), id.clone(), shutdown.child_token());
        tokio::spawn(async move {
            cancel.run_until_cancelled(worker.kill(&id, &kill, stopping)).await;
        });
    }
}

fn pulls(worker: &Worker, id: &PodId, wanted: (&Decision, &Desired), shutdown: &CancellationToken) {
    let (decision, desired) = wanted;
    // Only pods that are wanted get pulls.
    let Some(binding) = desired.pods.get(&id.pod) else { return };
    for pull in &decision.pulls {
        let cancel = shutdown.child_token();
        let in_flight = worker.ledger.begin_pull((id.uid.clone(), pull.container.clone()), cancel.clone());
        let (worker, id, pull, pod) = (worker.clone(), id.clone(), pull.clone(), binding.pod.clone());
        tokio::spawn(async move {
            let _in_flight = in_flight;
            cancel.run_until_cancelled(worker.pull(&id, &pod, &pull)).await;
        });
    }
}
