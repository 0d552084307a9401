//! What a pod is, as its node reports it.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::PodSpec;
use super::container::{Container, Protocol};
use crate::condition::Condition;

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Accepted, not all containers started yet.
    #[default]
    Pending,
    /// All containers were started, at least one runs or restarts.
    Running,
    /// All containers ended with code 0 and stay ended.
    Succeeded,
    /// All containers ended, at least one with another code.
    Failed,
    /// The node has not been heard of.
    Unknown,
}

/// What a pod is: the value of `status/<node>/pods/<ns>/<name>`, written only by that node's agent.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Which incarnation of the pod this speaks of.
    pub uid: String,
    /// Template hash of the containers that run.
    pub hash: String,
    /// Where the pod is in its life.
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
    /// When its first pause container started.
    pub start_time: Option<Timestamp>,
    /// One CamelCase word, when the pod as a whole has a problem.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for a person, with what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Init containers in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Containers in the order of the spec.
    #[serde(default)]
    pub container_statuses: Vec<ContainerStatus>,
    /// Ports of the node that lead to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortStatus>,
}

impl PodStatus {
    /// The condition `Ready` holds.
    pub fn is_ready(&self) -> bool {
        use crate::condition::ConditionStatus;
        self.conditions.iter().any(|c| c.kind == "Ready" && c.status == ConditionStatus::True)
    }

    /// Its node takes it away. The phase then says how its containers were ended, not what became of it:
    /// wanted again, it runs again.
    pub fn is_terminating(&self) -> bool {
        self.reason == Self::TERMINATING
    }

    /// It ended for good by itself, and is not started again.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed) && !self.is_terminating()
    }

    /// The reason of a pod that its node takes away.
    pub const TERMINATING: &str = "Terminating";
}

/// How long a container without a readiness probe must have run to count as healthy: what is broken
/// from the start mostly ends within this.
const STEADY_AFTER_START: SignedDuration = SignedDuration::from_secs(1);

/// The same after a restart: as long as the shortest wait of a crash loop.
const STEADY_AFTER_RESTART: SignedDuration = SignedDuration::from_secs(10);

/// A container that runs for too short a time to count as healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsteady<'a> {
    /// Its name.
    pub container: &'a str,
    /// How long it must have run.
    pub needs: SignedDuration,
    /// When it will have.
    pub steady_at: Timestamp,
}

impl fmt::Display for Unsteady<'_> {
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
    /// The first container that is called ready and may end a moment later: one without a readiness
    /// probe is ready as soon as it runs, so it counts when it has run for a while.
    pub fn unsteady(&self, spec: &PodSpec, now: Timestamp) -> Option<Unsteady<'_>> {
        self.container_statuses.iter().find_map(|container| {
            let is_probed = |c: &Container| c.name == container.name && c.readiness_probe.is_some();
            let ContainerState::Running(running) = &container.state else { return None };
            if spec.containers.iter().any(is_probed) {
                return None;
            }
            let needs = if container.restart_count == 0 { STEADY_AFTER_START } else { STEADY_AFTER_RESTART };
            let ran = now.duration_since(running.started_at);
            // A start in the future is another machine's clock: it says nothing.
            let is_unsteady = !ran.is_negative() && ran < needs;
            let steady_at = running.started_at.checked_add(needs).ok().filter(|_| is_unsteady)?;
            Some(Unsteady { container: &container.name, needs, steady_at })
        })
    }
}

/// What one container is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Its name in the pod.
    pub name: String,
    /// The image as the manifest names it.
    pub image: String,
    /// The image's content id.
    #[serde(default, rename = "imageID", skip_serializing_if = "String::is_empty")]
    pub image_id: String,
    /// Docker's container id.
    #[serde(default, rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Runs, and its startup probe, if any, has succeeded.
    #[serde(default)]
    pub started: bool,
    /// Started, and its readiness probe, if any, succeeds.
    pub ready: bool,
    /// How often it was started again.
    pub restart_count: u32,
    /// What it does now.
    pub state: ContainerState,
    /// How it ended the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_state: Option<TerminatedState>,
}

/// What a container does now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerState {
    /// Not started, and why.
    Waiting(WaitingState),
    /// Runs.
    Running(RunningState),
    /// Ended.
    Terminated(TerminatedState),
}

/// Why a container is not started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingState {
    /// ContainerCreating, PodInitializing, ErrImagePull, ImagePullBackOff, CrashLoopBackOff, …
    pub reason: String,
    /// A sentence for a person, with what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Since when a container runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningState {
    /// When it started.
    pub started_at: Timestamp,
}

/// How a container ended.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminatedState {
    /// Its exit code.
    pub exit_code: i64,
    /// Completed, Error or OOMKilled.
    pub reason: String,
    /// What Docker said of it, if anything.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// A port of the node that leads to the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortStatus {
    /// The node's port.
    pub host_port: u16,
    /// The container's port.
    pub container_port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
}
