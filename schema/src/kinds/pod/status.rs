//! Status of a pod, as its node reports it.

use std::fmt;
use std::net::Ipv4Addr;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::container::{Container, Protocol};
use super::{HostPort, PodSpec};
use crate::codec::is_default;
use crate::condition::Condition;

/// Lifecycle phase of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Accepted, but some containers have not started yet.
    #[default]
    Pending,
    /// Every container has started, and at least one runs or restarts.
    Running,
    /// Every container ended with code 0 and is not restarted.
    Succeeded,
    /// Every container ended, at least one with another code.
    Failed,
    /// The node does not report.
    Unknown,
}

/// Status of a pod: the value of `status/<node>/pods/<ns>/<name>`, written only by that node's agent.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// UID of the pod incarnation that the status describes.
    pub uid: String,
    /// Template hash of the running containers.
    pub hash: String,
    /// Lifecycle phase.
    pub phase: PodPhase,
    /// `PodScheduled`, `Initialized`, `ContainersReady`, `Ready`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Address of the pod.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Address of the node.
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    /// Start time of the first pause container.
    pub start_time: Option<Timestamp>,
    /// CamelCase reason if the pod as a whole has a problem.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for people, with advice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Init containers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Containers, in the order of the spec.
    #[serde(default)]
    pub container_statuses: Vec<ContainerStatus>,
    /// Ports of the node that lead to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortStatus>,
    /// Times of the steps until it was first ready.
    #[serde(default, skip_serializing_if = "is_default")]
    pub milestones: PodMilestones,
}

/// Times of the steps until a pod was first ready, by the clock of its node: elsewhere, only differences between them
/// mean anything. `None` for a step that is not reached, or that was missed because the agent did not run.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMilestones {
    /// Arrival of the pod's binding at the node.
    pub received: Option<Timestamp>,
    /// Presence of all its images on the node.
    pub image: Option<Timestamp>,
    /// Creation of its last container.
    pub created: Option<Timestamp>,
    /// Start of its last container.
    pub started: Option<Timestamp>,
    /// First readiness.
    pub ready: Option<Timestamp>,
}

impl PodStatus {
    /// True if the condition `Ready` holds.
    pub fn is_ready(&self) -> bool {
        use crate::condition::ConditionStatus;
        self.conditions.iter().any(|c| c.kind == "Ready" && c.status == ConditionStatus::True)
    }

    /// True if the node is removing the pod. The phase then reflects how its containers were ended, not the outcome
    /// of the pod: if it is wanted again, it runs again.
    pub fn is_terminating(&self) -> bool {
        self.reason == Self::TERMINATING
    }

    /// True if the pod ended for good by itself and is not restarted.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed) && !self.is_terminating()
    }

    /// Reason of a pod that its node is removing.
    pub const TERMINATING: &str = "Terminating";
}

/// Time that a container without a readiness probe must have run to count as healthy: a container that is broken
/// from the start mostly ends sooner.
const STEADY_AFTER_START: SignedDuration = SignedDuration::from_secs(1);

/// The same after a restart: as long as the shortest delay of a crash loop.
const STEADY_AFTER_RESTART: SignedDuration = SignedDuration::from_secs(10);

/// A container that has not run long enough to count as healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsteadyContainer<'a> {
    /// Name of the container.
    pub container: &'a str,
    /// Required running time.
    pub needs: SignedDuration,
    /// Time from which the container counts as healthy.
    pub steady_at: Timestamp,
}

impl fmt::Display for UnsteadyContainer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, needs, .. } = self;
        let seconds = needs.as_secs();
        write!(
            f,
            "container {container} has no readinessProbe and has run for less than {seconds} s since its start"
        )
    }
}

impl PodStatus {
    /// Returns the first container that reports ready but may end a moment later. A container without a readiness
    /// probe is ready as soon as it runs, so it counts only after some time.
    pub fn unsteady_container(&self, spec: &PodSpec, now: Timestamp) -> Option<UnsteadyContainer<'_>> {
        self.unprobed_container(spec, now, |container| {
            if container.restart_count == 0 { STEADY_AFTER_START } else { STEADY_AFTER_RESTART }
        })
    }

    /// Returns the first container without a readiness probe that has not run for a second since its last start.
    pub fn starting_container(&self, spec: &PodSpec, now: Timestamp) -> Option<UnsteadyContainer<'_>> {
        self.unprobed_container(spec, now, |_| STEADY_AFTER_START)
    }

    /// True if a container ended within a second of its last start, or of the one before if it runs again.
    pub fn has_ended_at_start(&self) -> bool {
        self.container_statuses.iter().any(|container| {
            let end = match &container.state {
                ContainerState::Terminated(end) => Some(end),
                ContainerState::Waiting(_) | ContainerState::Running(_) => container.last_state.as_ref(),
            };
            let times = end.and_then(|end| Some((end.started_at?, end.finished_at?)));
            times.is_some_and(|(began, ended)| ended.duration_since(began) < STEADY_AFTER_START)
        })
    }

    /// Returns the first container without a readiness probe that has run for less time than it needs.
    fn unprobed_container(
        &self,
        spec: &PodSpec,
        now: Timestamp,
        needs: impl Fn(&ContainerStatus) -> SignedDuration,
    ) -> Option<UnsteadyContainer<'_>> {
        // Of the init containers, only sidecars run in a pod that is ready.
        self.container_statuses.iter().chain(&self.init_container_statuses).find_map(|container| {
            let is_probed = |c: &Container| c.name == container.name && c.readiness_probe.is_some();
            let ContainerState::Running(running) = &container.state else { return None };
            if spec.side_by_side().any(is_probed) {
                return None;
            }
            let needs = needs(container);
            let ran = now.duration_since(running.started_at);
            // A start in the future comes from another machine's clock and means nothing.
            let is_unsteady = !ran.is_negative() && ran < needs;
            let steady_at = running.started_at.checked_add(needs).ok().filter(|_| is_unsteady)?;
            Some(UnsteadyContainer { container: &container.name, needs, steady_at })
        })
    }
}

/// Status of a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container in the pod.
    pub name: String,
    /// Image, as the manifest names it.
    pub image: String,
    /// Content id of the image.
    #[serde(default, rename = "imageID", skip_serializing_if = "String::is_empty")]
    pub image_id: String,
    /// Docker's container id.
    #[serde(default, rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// True if the container runs and its startup probe, if any, has succeeded.
    #[serde(default)]
    pub started: bool,
    /// True if the container has started and its readiness probe, if any, succeeds.
    pub ready: bool,
    /// Number of restarts.
    pub restart_count: u32,
    /// Current state.
    pub state: ContainerState,
    /// Previous end of the container, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_state: Option<TerminatedState>,
}

/// Current state of a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerState {
    /// Not started yet.
    Waiting(WaitingState),
    /// Running.
    Running(RunningState),
    /// Ended.
    Terminated(TerminatedState),
}

impl ContainerState {
    /// True if the container has ended.
    pub fn is_terminated(&self) -> bool {
        matches!(self, Self::Terminated(_))
    }
}

/// Details of a container that has not started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingState {
    /// ContainerCreating, PodInitializing, ErrImagePull, ImagePullBackOff, CrashLoopBackOff, …
    pub reason: String,
    /// Message for people, with advice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Details of a running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningState {
    /// Start time.
    pub started_at: Timestamp,
}

/// Details of a container that has ended.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminatedState {
    /// Exit code.
    pub exit_code: i64,
    /// Completed, Error or OOMKilled.
    pub reason: String,
    /// Docker's error message, if any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Start time.
    pub started_at: Option<Timestamp>,
    /// End time.
    pub finished_at: Option<Timestamp>,
}

/// Reason of a container that the kernel ended for its use of memory, itself or a child of it.
pub const OOM_KILLED: &str = "OOMKilled";

impl TerminatedState {
    /// True if an init container that ended this way is done; see [`completes_init`].
    pub fn completes_init(&self) -> bool {
        completes_init(self.exit_code, self.reason == OOM_KILLED)
    }
}

/// True if an init container that ended this way is done, as in Kubernetes: with code 0, and without a process that
/// the kernel killed for its use of memory, because a shell may return 0 for half of the work.
pub fn completes_init(exit_code: i64, oom_killed: bool) -> bool {
    exit_code == 0 && !oom_killed
}

/// A port of the node that leads to the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortStatus {
    /// Port of the node.
    pub host_port: u16,
    /// The only address of the node at which it answers.
    #[serde(default, rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<Ipv4Addr>,
    /// Port of the container.
    pub container_port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl HostPortStatus {
    /// Returns the port of the node.
    pub fn port(&self) -> HostPort {
        HostPort { protocol: self.protocol, port: self.host_port, address: self.host_ip }
    }
}
