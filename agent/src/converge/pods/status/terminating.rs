//! Status of a pod that is being removed: not ready from the first moment, and once its containers have ended with
//! their exit statuses, as in Kubernetes. Pure.

use jiff::Timestamp;
use schema::condition::set_condition;
use schema::kinds::pod::{
    ContainerState, ContainerStatus, PodPhase, PodStatus, RunningState, TerminatedState,
};

use super::wanted::{condition, redact, succeeded, terminated_state};
use crate::converge::pods::facts::{
    Container, ExitStatuses, NodeFacts, Observed, PodFacts, RecentFailure, State,
};

/// Kubernetes' code, reason and message for a container whose end was not observed.
const UNKNOWN_CODE: i64 = 137;

const UNKNOWN_REASON: &str = "ContainerStatusUnknown";

const UNKNOWN_MESSAGE: &str = "The container could not be located when the pod was terminated";

/// State of a pod that is being removed.
#[derive(Debug, Clone, Copy)]
pub struct Termination<'a> {
    pub node: &'a NodeFacts,
    pub uid: &'a str,
    pub facts: &'a PodFacts,
    /// Exit statuses of containers that may be gone.
    pub ends: Option<&'a ExitStatuses>,
    /// True while a canceled task that brings the pod up has not ended: a container may start at any moment.
    pub is_being_brought_up: bool,
    pub trouble: Option<&'a RecentFailure>,
}

impl<'a> Termination<'a> {
    /// Collects the state of this pod.
    pub fn new(observed: &'a Observed, uid: &'a str, facts: &'a PodFacts) -> Self {
        let work = &observed.work;
        Self {
            node: &observed.node,
            uid,
            facts,
            ends: work.exit_statuses.get(uid),
            is_being_brought_up: work.busy.get(uid).is_some_and(|busy| busy.up),
            trouble: work.removal_failure(uid),
        }
    }
}

/// Returns the status of a pod that is being removed.
pub fn terminating_status(left: Termination<'_>, former: Option<&PodStatus>, now: Timestamp) -> PodStatus {
    let Termination { node, uid, facts, trouble, is_being_brought_up: is_made, .. } = left;
    let pause = facts.live_pause().filter(|p| p.is_running());
    let mut status = former.cloned().unwrap_or_else(|| PodStatus {
        uid: uid.to_owned(),
        hash: facts.all().next().map(|c| c.hash.clone()).unwrap_or_default(),
        phase: PodPhase::Running,
        host_ip: Some(node.node_ip.to_string()),
        pod_ip: pause.and_then(|p| p.address).map(|a| a.addr().to_string()),
        host_ports: pause.map(|p| p.ports.clone()).unwrap_or_default(),
        ..PodStatus::default()
    });
    for container in status.init_container_statuses.iter_mut().chain(&mut status.container_statuses) {
        refresh(container, left);
    }
    let runs = facts.containers.values().flatten().any(Container::is_running);
    let has_ended = !runs && !is_made;
    let is_open = !matches!(status.phase, PodPhase::Succeeded | PodPhase::Failed);
    if has_ended && (is_open || corrects_guessed_phase(&status, former)) {
        status.phase = final_phase(&status, facts);
    }
    PodStatus::TERMINATING.clone_into(&mut status.reason);
    status.message = match trouble {
        None if has_ended => "no longer wanted on this node; its containers have ended".to_owned(),
        None => "no longer wanted on this node; its containers are being stopped".to_owned(),
        Some(trouble) => {
            format!("no longer wanted on this node, but it can't be removed: {}", trouble.message)
        }
    };
    let (reason, message) =
        trouble.map_or((PodStatus::TERMINATING, ""), |trouble| ("FailedKillPod", trouble.message.as_str()));
    for kind in ["ContainersReady", "Ready"] {
        set_condition(&mut status.conditions, condition(kind, false, reason, message.to_owned(), now));
    }
    status
}

/// True if the exit of a container became known that was unknown in a former report on the terminating pod: the
/// phase reported then was a guess. A phase from before the termination stands.
fn corrects_guessed_phase(status: &PodStatus, former: Option<&PodStatus>) -> bool {
    let is_known = |state: &ContainerState| match state {
        ContainerState::Terminated(end) => end.reason != UNKNOWN_REASON,
        ContainerState::Running(_) | ContainerState::Waiting(_) => false,
    };
    let Some(former) = former.filter(|former| former.is_terminating()) else { return false };
    let mut both = former.container_statuses.iter().zip(&status.container_statuses);
    both.any(|(was, is)| !is_known(&was.state) && is_known(&is.state))
}

/// Updates a container's status since its last report.
fn refresh(status: &mut ContainerStatus, left: Termination<'_>) {
    // An init container is ready if it succeeded.
    status.ready &= matches!(status.state, ContainerState::Terminated(_));
    let current = left.facts.containers.get(&status.name).and_then(|starts| starts.last());
    if let Some(current) = current.filter(|current| current.id != status.container_id) {
        status.container_id.clone_from(&current.id);
        status.image_id.clone_from(&current.image_id);
        status.restart_count = current.attempt;
    }
    let known =
        || left.ends.and_then(|ends| ends.get(&status.container_id)).map(|end| terminated_state(end, None));
    match (current.map(|current| &current.state), &status.state) {
        (Some(State::Running { started_at }), _) => {
            status.state = ContainerState::Running(RunningState { started_at: *started_at });
        }
        (Some(State::Exited(end)), _) => {
            let failed_probe = current.and_then(Container::failed_probe);
            set_end(status, terminated_state(end, failed_probe));
        }
        // Has not run in this start; the exit of the start before, if any, is its last state.
        (Some(State::Created), _) => {}
        (Some(State::Removing | State::Dead) | None, ContainerState::Running(running)) => {
            let started_at = Some(running.started_at);
            let unknown = || TerminatedState {
                exit_code: UNKNOWN_CODE,
                reason: UNKNOWN_REASON.to_owned(),
                message: UNKNOWN_MESSAGE.to_owned(),
                started_at,
                finished_at: None,
            };
            // While the pod is being built again, the container may be about to run.
            if !left.is_being_brought_up {
                let end = known().unwrap_or_else(unknown);
                set_end(status, end);
            }
        }
        (Some(State::Removing | State::Dead) | None, _) => {
            if let Some(end) = known() {
                set_end(status, end);
            }
        }
    }
    status.started &= matches!(status.state, ContainerState::Running(_));
}

/// Sets the exit status. An earlier report of the same exit stands: it was made with the manifest, which says
/// whether the engine's error may be shown.
fn set_end(status: &mut ContainerStatus, mut end: TerminatedState) {
    let same = |known: &TerminatedState| known.finished_at.is_some() && known.finished_at == end.finished_at;
    match (&status.state, &status.last_state) {
        (ContainerState::Terminated(known), _) if same(known) => return,
        (_, Some(known)) if same(known) => end = known.clone(),
        _ => redact(&mut end),
    }
    status.state = ContainerState::Terminated(end);
}

/// Returns the final phase: success only if every container ended with code 0; one that never started did not.
fn final_phase(status: &PodStatus, facts: &PodFacts) -> PodPhase {
    let well = if status.container_statuses.is_empty() {
        // Nothing was reported: use the existing containers. How a sidecar ended does not matter.
        let lasts = facts.containers.values().filter_map(|starts| starts.last());
        let mut lasts = lasts.filter(|last| last.sidecar.is_none()).peekable();
        lasts.peek().is_some() && lasts.all(|last| matches!(&last.state, State::Exited(end) if end.code == 0))
    } else {
        status.container_statuses.iter().all(|container| match (&container.state, &container.last_state) {
            (ContainerState::Waiting(_), Some(last)) => last.exit_code == 0,
            (state, _) => succeeded(state),
        })
    };
    if well { PodPhase::Succeeded } else { PodPhase::Failed }
}
