//! Status of a wanted pod, from observations and its decision, in Kubernetes' words. Pure.

use jiff::Timestamp;
use schema::condition::{Condition, ConditionStatus, set_condition};
use schema::kinds::pod::{
    Container as ContainerSpec, ContainerState, ContainerStatus, OOM_KILLED, PodMilestones, PodPhase,
    PodSpec, PodStatus, RestartPolicy, RunningState, TerminatedState, WaitingState,
};
use schema::records::Binding;

use crate::converge::pods::container::machine::{self, Role, restarts};
use crate::converge::pods::container::rendered::{HIDDEN_MESSAGE, secrets_of};
use crate::converge::pods::facts::{Container, ExitStatus, NodeFacts, PodFacts, State};
use crate::converge::pods::probe;
use crate::converge::pods::probe::machine::{ProbeHealth, ProbeKind};
use crate::converge::pods::steps::{Decision, DecisionReason};

/// The kubelet's message for a pod that is not ready although all its containers run.
const SANDBOX_CHANGED: &str = "Pod sandbox changed, it will be killed and re-created";

/// A wanted pod, its containers and the decision on it.
#[derive(Debug, Clone, Copy)]
pub struct WantedPod<'a> {
    pub node: &'a NodeFacts,
    pub binding: &'a Binding,
    pub facts: &'a PodFacts,
    pub decision: &'a Decision,
    /// True if an image of the pod is known to be missing.
    pub lacks_image: bool,
}

/// Returns the status of a wanted pod. `former` is the last report on the same uid.
pub fn wanted_status(seen: WantedPod<'_>, former: Option<&PodStatus>, now: Timestamp) -> PodStatus {
    let WantedPod { node, binding, facts, decision, .. } = seen;
    let spec = &binding.pod.spec;
    // Containers share volumes, so any of them may output a secret that only one of them was given.
    let hides = spec.volumes.iter().any(|volume| volume.files().is_some_and(|files| files.has_secret()))
        || spec.init_containers.iter().chain(&spec.containers).any(|c| !secrets_of(c).is_empty());
    let pause = facts.live_pause().filter(|p| p.is_running());
    let mut init: Vec<ContainerStatus> = spec
        .init_containers
        .iter()
        .map(|c| container(c, facts, decision, "PodInitializing", (!c.is_sidecar(), hides)))
        .collect();
    let app_started = spec.containers.iter().any(|c| facts.containers.contains_key(&c.name));
    let initialized = app_started || init.iter().all(|c| is_done(spec, c));
    // As the kubelet does, even after the last init container has ended.
    let waiting_for = if init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut apps: Vec<ContainerStatus> =
        spec.containers.iter().map(|c| container(c, facts, decision, waiting_for, (false, hides))).collect();
    // Containers in namespaces that are gone are about to be stopped.
    let sandbox = pause.map(|p| p.id.as_str());
    let at_home = |c: &ContainerStatus| {
        let current = facts.containers.get(&c.name).and_then(|starts| starts.last());
        current.is_some_and(|current| sandbox == Some(current.sandbox.as_str()))
    };
    let sidecars = init.iter_mut().filter(|c| is_sidecar(spec, c));
    let mut homeless = false;
    for one in sidecars.chain(&mut apps).filter(|c| c.ready && !at_home(c)) {
        (one.ready, homeless) = (false, true);
    }
    let phase = phase(spec, &init, &apps, initialized, facts);
    let (reason, mut message) = pod_reason(decision);
    if homeless && message.is_empty() {
        SANDBOX_CHANGED.clone_into(&mut message);
    }
    // Held by the pod until it has ended: it gets them back with its next pause container.
    let has_ended = matches!(phase, PodPhase::Succeeded | PodPhase::Failed);
    let former_ports = former.filter(|_| !has_ended).map(|f| f.host_ports.clone());
    let mut status = PodStatus {
        uid: binding.pod.uid.clone(),
        hash: binding.pod.hash.clone(),
        phase,
        conditions: former.map(|f| f.conditions.clone()).unwrap_or_default(),
        pod_ip: pause.map(|p| p.address.map_or_else(|| node.node_ip.to_string(), |a| a.addr().to_string())),
        host_ip: Some(node.node_ip.to_string()),
        // Set once, as in Kubernetes, whatever happens to the pause container. A pod that was being removed and is
        // wanted again starts over.
        start_time: former
            .filter(|f| !f.is_terminating())
            .and_then(|f| f.start_time)
            .or_else(|| pause.map(|p| started_at(p).unwrap_or(p.created_at))),
        reason,
        message,
        init_container_statuses: init,
        container_statuses: apps,
        host_ports: pause.map(|p| p.ports.clone()).or(former_ports).unwrap_or_default(),
        milestones: PodMilestones::default(),
    };
    let failing = |c: &&ContainerStatus| {
        let current = facts.containers.get(&c.name).and_then(|starts| starts.last())?;
        current.failing.as_ref().map(|said| format!("; {}: {said}", c.name))
    };
    let failing: String =
        side_by_side(spec, &status).filter(|c| !c.ready).filter_map(|c| failing(&c)).collect();
    conditions(spec, &mut status, initialized, &failing, now);
    status.milestones = milestones(seen, former.map(|former| former.milestones), &status, now);
    status
}

/// Returns the times of the steps until the pod was first ready, each noted once. They stay unknown for a pod whose
/// start was not observed from its beginning.
fn milestones(
    seen: WantedPod<'_>,
    former: Option<PodMilestones>,
    status: &PodStatus,
    now: Timestamp,
) -> PodMilestones {
    let facts = seen.facts;
    let is_new = former.is_none() && facts.all().next().is_none();
    let former = former.unwrap_or_default();
    let Some(received) = former.received.or_else(|| is_new.then_some(now)) else { return former };
    let current = |c: &ContainerSpec| facts.containers.get(&c.name).and_then(|starts| starts.last());
    let containers: Option<Vec<&Container>> = seen.binding.pod.spec.containers.iter().map(current).collect();
    let last = |time: fn(&Container) -> Option<Timestamp>| {
        let times: Option<Vec<Timestamp>> = containers.as_ref()?.iter().map(|c| time(c)).collect();
        times?.into_iter().max()
    };
    let created = former.created.or_else(|| last(|c| Some(c.created_at)));
    // That an image is missing is known only after the first attempt to create its container. The end of a pull may be
    // observed only after the creation that follows it.
    let image = (!seen.lacks_image).then(|| former.image.unwrap_or(now).min(created.unwrap_or(now)));
    PodMilestones {
        received: Some(received),
        image: if former.created.is_some() { former.image } else { image },
        created,
        started: former.started.or_else(|| last(|c| c.started_at)),
        ready: former.ready.or_else(|| status.is_ready().then_some(now)),
    }
}

/// Returns reason and message of the pod as a whole; empty without a problem.
fn pod_reason(decision: &Decision) -> (String, String) {
    let reason = match &decision.why {
        DecisionReason::NoSubnet | DecisionReason::NoFreeAddress => "NoPodAddress",
        DecisionReason::PortTaken(_) => "HostPortConflict",
        DecisionReason::FormerPod => "WaitingForFormerPod",
        _ if decision.stuck.is_some() => {
            return ("FailedKillPod".to_owned(), decision.stuck.clone().unwrap_or_default());
        }
        _ => return (String::new(), String::new()),
    };
    (reason.to_owned(), decision.why.to_string())
}

fn container(
    spec: &ContainerSpec,
    facts: &PodFacts,
    decision: &Decision,
    waiting_for: &str,
    (init, hides): (bool, bool),
) -> ContainerStatus {
    let starts = facts.containers.get(&spec.name).map_or(&[][..], Vec::as_slice);
    let current = starts.last();
    let previous = starts.iter().rev().skip(1).find_map(terminated);
    let running = current.is_some_and(Container::is_running);
    let waiting = decision.waiting.get(&spec.name).cloned();
    let default = || WaitingState { reason: waiting_for.to_owned(), message: String::new() };
    let dead = || WaitingState {
        reason: "Terminating".to_owned(),
        message: "Docker could not remove its former container; retrying".to_owned(),
    };
    let (state, last_state) = match current {
        Some(current) => match (&current.state, waiting) {
            (State::Running { started_at }, _) => {
                (ContainerState::Running(RunningState { started_at: *started_at }), previous)
            }
            // Ended and about to be restarted: the exit is its last state.
            (State::Exited(end), Some(waiting)) => {
                (ContainerState::Waiting(waiting), Some(terminated_state(end, current.failed_probe())))
            }
            (State::Exited(end), None) => {
                (ContainerState::Terminated(terminated_state(end, current.failed_probe())), previous)
            }
            (State::Dead, waiting) => (ContainerState::Waiting(waiting.unwrap_or_else(dead)), previous),
            (State::Created | State::Removing, waiting) => {
                (ContainerState::Waiting(waiting.unwrap_or_else(default)), previous)
            }
        },
        None => (ContainerState::Waiting(waiting.unwrap_or_else(default)), None),
    };
    let redacted = |end: &mut TerminatedState| {
        if hides {
            redact(end);
        }
    };
    let (mut state, mut last_state) = (state, last_state);
    if let ContainerState::Terminated(end) = &mut state {
        redacted(end);
    }
    last_state.as_mut().map(redacted);
    let former = current.and_then(|c| c.health);
    let health = ProbeHealth::resumed(former, |kind| probe::render::has(spec, kind));
    ContainerStatus {
        name: spec.name.clone(),
        image: spec.image.clone(),
        image_id: current.map(|c| c.image_id.clone()).unwrap_or_default(),
        container_id: current.map(|c| c.id.clone()).unwrap_or_default(),
        started: running && (init || health.started),
        ready: if init { completed_init(&state) } else { running && health.ready },
        restart_count: current.map_or(0, |c| c.attempt),
        state,
        last_state,
    }
}

fn started_at(container: &Container) -> Option<Timestamp> {
    match container.state {
        State::Running { started_at } => Some(started_at),
        _ => None,
    }
}

fn terminated(container: &Container) -> Option<TerminatedState> {
    match &container.state {
        State::Exited(end) => Some(terminated_state(end, container.failed_probe())),
        _ => None,
    }
}

/// Hides the engine's error about a failed start, and the container's output: they may quote a secret.
pub(super) fn redact(end: &mut TerminatedState) {
    if end.reason == START_ERROR && !end.message.is_empty() {
        HIDDEN_MESSAGE.clone_into(&mut end.message);
    } else if end.message.starts_with(OUTPUT_PREFIX) {
        end.message.clear();
    }
}

/// Prefix of a container's last output.
const OUTPUT_PREFIX: &str = "it wrote: ";

/// Reason if the engine could not start the container.
const START_ERROR: &str = "StartError";

pub(super) fn terminated_state(end: &ExitStatus, failed_probe: Option<ProbeKind>) -> TerminatedState {
    let reason = if end.oom_killed {
        OOM_KILLED
    } else if end.started_at.is_none() {
        START_ERROR
    } else if end.code == 0 {
        "Completed"
    } else {
        "Error"
    };
    TerminatedState {
        exit_code: end.code,
        reason: reason.to_owned(),
        message: match failed_probe {
            Some(probe) if end.error.is_empty() => format!("stopped: it failed its {}", probe.title()),
            None if end.error.is_empty() && !end.last_output.is_empty() => {
                format!("{OUTPUT_PREFIX}{}", end.last_output)
            }
            _ => end.error.clone(),
        },
        started_at: end.started_at,
        finished_at: Some(end.finished_at),
    }
}

pub(super) fn succeeded(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Terminated(end) if end.exit_code == 0)
}

fn completed_init(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Terminated(end) if end.completes_init())
}

fn is_sidecar(spec: &PodSpec, status: &ContainerStatus) -> bool {
    spec.init_containers.iter().any(|init| init.is_sidecar() && init.name == status.name)
}

/// True for an init container after which the next container may start.
fn is_done(spec: &PodSpec, init: &ContainerStatus) -> bool {
    if is_sidecar(spec, init) { init.started } else { completed_init(&init.state) }
}

/// Returns the containers that must be ready for the pod to be ready, sidecars first, as in Kubernetes.
fn side_by_side<'a>(spec: &PodSpec, status: &'a PodStatus) -> impl Iterator<Item = &'a ContainerStatus> {
    let sidecars = status.init_container_statuses.iter().filter(|init| is_sidecar(spec, init));
    sidecars.chain(&status.container_statuses)
}

/// Returns the phase. A pod has ended once no sidecar of it runs; how these ended does not matter.
fn phase(
    spec: &PodSpec,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
    initialized: bool,
    facts: &PodFacts,
) -> PodPhase {
    // Outcome, if it ended.
    let success = |name: &str, role: Role| {
        let last = facts.containers.get(name)?.last()?;
        match &last.state {
            State::Exited(end) => Some(machine::succeeded(last, end, role)),
            _ => None,
        }
    };
    let policy = spec.restart_policy;
    let mut sidecars = init.iter().filter(|c| is_sidecar(spec, c));
    let is_served = sidecars.any(|c| matches!(c.state, ContainerState::Running(_)));
    if !initialized {
        let failed = |c: &ContainerStatus| {
            policy == RestartPolicy::Never
                && !is_sidecar(spec, c)
                && success(&c.name, Role::Init).is_some_and(|good| !good)
        };
        return if !is_served && init.iter().any(failed) { PodPhase::Failed } else { PodPhase::Pending };
    }
    let for_good =
        |c: &ContainerStatus| success(&c.name, Role::Main).is_some_and(|good| !restarts(policy, good));
    if !is_served && !apps.is_empty() && apps.iter().all(for_good) {
        // By the code alone, as the kubelet does: even if it failed a probe and handled its SIGTERM well.
        let good = apps.iter().all(|c| succeeded(&c.state));
        return if good { PodPhase::Succeeded } else { PodPhase::Failed };
    }
    // A container that was started once keeps the pod Running while it waits to be started again.
    let started = |c: &ContainerStatus| {
        c.last_state.is_some() || c.restart_count > 0 || !matches!(c.state, ContainerState::Waiting(_))
    };
    if apps.iter().all(started) { PodPhase::Running } else { PodPhase::Pending }
}

/// Sets the pod's conditions. `failing` holds the messages of failing probes, as the end of a sentence.
fn conditions(spec: &PodSpec, status: &mut PodStatus, initialized: bool, failing: &str, now: Timestamp) {
    let unready: Vec<&str> =
        side_by_side(spec, status).filter(|c| !c.ready).map(|c| c.name.as_str()).collect();
    let ready = unready.is_empty() && status.phase == PodPhase::Running;
    let (reason, message) = match status.phase {
        _ if ready => ("", String::new()),
        PodPhase::Succeeded => ("PodCompleted", String::new()),
        PodPhase::Failed => ("PodFailed", failed(spec, status)),
        _ => {
            let message = format!("containers with unready status: [{}]{failing}", unready.join(" "));
            ("ContainersNotReady", message)
        }
    };
    let incomplete: Vec<&str> = status
        .init_container_statuses
        .iter()
        .filter(|c| !is_done(spec, c))
        .map(|c| c.name.as_str())
        .collect();
    let (initial, left) = match initialized {
        true => ("", String::new()),
        false => {
            let left = format!("containers with incomplete status: [{}]", incomplete.join(" "));
            ("ContainersNotInitialized", left)
        }
    };
    let list = [
        condition("PodScheduled", true, "", String::new(), now),
        condition("Initialized", initialized, initial, left, now),
        condition("ContainersReady", ready, reason, message.clone(), now),
        condition("Ready", ready, reason, message, now),
    ];
    for one in list {
        set_condition(&mut status.conditions, one);
    }
}

/// Lists the containers that made the pod fail.
fn failed(spec: &PodSpec, status: &PodStatus) -> String {
    let init = status.init_container_statuses.iter();
    let init = init.filter(|c| !is_sidecar(spec, c) && !completed_init(&c.state));
    let main = status.container_statuses.iter().filter(|c| !succeeded(&c.state));
    let all = init.map(|c| ("init container", c)).chain(main.map(|c| ("container", c)));
    let ends = all.filter_map(|(kind, c)| match &c.state {
        ContainerState::Terminated(end) => {
            Some(format!("{kind} {} ended with code {} ({})", c.name, end.exit_code, end.reason))
        }
        _ => None,
    });
    ends.collect::<Vec<_>>().join("; ")
}

pub(super) fn condition(kind: &str, holds: bool, reason: &str, message: String, now: Timestamp) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: ConditionStatus::from(holds),
        reason: reason.to_owned(),
        message,
        last_transition_time: now,
    }
}
