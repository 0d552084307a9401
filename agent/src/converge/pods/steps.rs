//! The plan of the pods loop: at most one task per pod, and a reason, even for doing nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::kinds::pod::{HostPort, HostPortStatus, PodStatus, Protocol, PullPolicy, WaitingState};
use schema::meta::NamespacedName;
use schema::records::PodInstance;

use super::container::rendered::RenderedContainer;
use super::facts::{Container, ContainerKey, Uid};
use super::probe::machine::{Action, Targets};
use super::sandbox::name_files::NameFiles;
use super::volume::spec::VolumePrep;
use crate::worlds::docker::NewContainer;

/// Plan of the pods loop.
#[derive(Debug, Clone, Default)]
pub struct PodsPlan {
    pub pods: BTreeMap<Uid, Decision>,
    /// Final statuses of pods that ended for good and are not saved yet: on disk before their task begins.
    pub final_statuses: BTreeMap<Uid, PodStatus>,
    /// Containers of the whole node to probe from now on.
    pub probes: Targets,
    pub remove_links: Vec<String>,
    pub last_address: Option<Ipv4Addr>,
    /// Pulls for containers that are no longer wanted.
    pub cancel_pulls: Vec<ContainerKey>,
    /// Set if unused content must be removed: the digests to keep, because pods name them.
    pub sweep: Option<BTreeSet<String>>,
}

impl schema::control::Plan for PodsPlan {
    fn is_empty(&self) -> bool {
        self.remove_links.is_empty()
            && self.cancel_pulls.is_empty()
            && self.sweep.is_none()
            && self.final_statuses.is_empty()
            && self
                .pods
                .values()
                .all(|d| d.task.is_none() && d.pulls.is_empty() && d.kills.is_empty() && !d.cancel)
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.pods.values().filter_map(|decision| decision.next_at).min()
    }
}

/// Decision on one pod, and its reason.
#[derive(Debug, Clone)]
pub struct Decision {
    pub pod: NamespacedName,
    pub why: DecisionReason,
    pub task: Option<PodTask>,
    /// Containers that failed a probe, each stopped separately: none holds up the task.
    pub kills: Vec<Kill>,
    pub pulls: Vec<Pull>,
    pub waiting: BTreeMap<String, WaitingState>,
    pub next_at: Option<Timestamp>,
    pub cancel: bool,
    /// Description of something that should have ended and has not.
    pub stuck: Option<String>,
}

impl Decision {
    /// Creates a decision to do nothing.
    pub fn idle(pod: NamespacedName, why: DecisionReason) -> Self {
        Self {
            pod,
            why,
            task: None,
            kills: Vec::new(),
            pulls: Vec::new(),
            waiting: BTreeMap::new(),
            next_at: None,
            cancel: false,
            stuck: None,
        }
    }
}

/// Reason for a decision on a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionReason {
    UpToDate,
    New,
    Containers,
    PauseGone,
    PauseEndedEarly,
    /// The link is missing, incomplete, or not checked yet by this agent.
    LinkIncomplete,
    Unhealthy,
    Waits,
    Finished,
    NotDesired,
    Draining,
    FormerPod,
    DesiredUnknown,
    /// etcd may not hold everything that the node should run; nothing is taken down for being absent.
    Unsettled,
    /// The binding can't be read; its running containers stay as they are.
    Unreadable,
    InFlight,
    NoSubnet,
    NoFreeAddress,
    PortTaken(PortTaken),
    /// The node's own restrictions forbid the pod.
    Forbidden(String),
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecisionReason::UpToDate => f.write_str("up to date"),
            DecisionReason::New => f.write_str("new on this node"),
            DecisionReason::Containers => f.write_str("containers need to start"),
            DecisionReason::PauseGone => f.write_str("its pause container is gone"),
            DecisionReason::PauseEndedEarly => f.write_str(
                "its pause container ended within seconds of its start and is recreated in a moment; if this persists, see docker logs and the node's memory",
            ),
            DecisionReason::LinkIncomplete => f.write_str("its link is checked and repaired"),
            DecisionReason::Unhealthy => f.write_str("containers that failed a probe are being stopped"),
            DecisionReason::Waits => f.write_str("containers wait"),
            DecisionReason::Finished => f.write_str("all containers have ended"),
            DecisionReason::NotDesired => f.write_str("no longer wanted on this node"),
            DecisionReason::Draining => {
                f.write_str("no longer wanted; it ends once no node sends clients to it")
            }
            DecisionReason::FormerPod => f.write_str("waiting for the former pod of this name to end"),
            DecisionReason::DesiredUnknown => f.write_str("etcd has not been listed yet"),
            DecisionReason::Unsettled => f.write_str("etcd has not been filled from Git yet"),
            DecisionReason::Unreadable => f.write_str("its binding cannot be read"),
            DecisionReason::InFlight => f.write_str("work is under way"),
            DecisionReason::NoSubnet => {
                f.write_str("the node has no range of pod addresses yet; the reconciler assigns one")
            }
            DecisionReason::NoFreeAddress => f.write_str("all addresses of the node are in use; remove pods from it"),
            DecisionReason::PortTaken(taken) => write!(f, "{taken}"),
            DecisionReason::Forbidden(why) => f.write_str(why),
        }
    }
}

/// Work on one pod; one task at a time per pod.
#[derive(Debug, Clone)]
pub enum PodTask {
    Up(Box<BringUp>),
    Down(TakeDown),
}

/// Creates and starts everything that is missing: first `down`, then the pause container and volumes, the link, the
/// containers, and last the removal of `obsolete`.
#[derive(Debug, Clone)]
pub struct BringUp {
    pub down: TakeDown,
    pub pause: PauseStep,
    /// Pod address; `None` on the host's network.
    pub address: Option<Ipv4Net>,
    pub ports: Vec<HostPortStatus>,
    /// Link of the pod; the process id is filled in when the pause container runs.
    pub link: Option<LinkStep>,
    pub pod: Arc<PodInstance>,
    /// Written before the task begins; `None` where the engine creates them, or without containers to start.
    pub name_files: Option<NameFiles>,
    pub volumes: Vec<VolumePrep>,
    pub containers: Vec<ContainerStep>,
    pub obsolete: Vec<Target>,
}

/// Step for the pause container.
#[derive(Debug, Clone)]
pub enum PauseStep {
    Create(Box<NewContainer>),
    /// Created already: start it.
    Start(String),
    Runs(String),
}

/// The pod's link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStep {
    pub host_name: String,
    pub bridge: String,
    pub address: Ipv4Net,
    pub gateway: Ipv4Addr,
    pub mtu: u32,
}

/// A container to create or start.
#[derive(Debug, Clone)]
pub struct ContainerStep {
    pub container: String,
    pub attempt: u32,
    /// True if the image was pulled for this very start.
    pub image_pulled: bool,
    pub act: ContainerAct,
}

/// Create and start, or only start.
#[derive(Debug, Clone)]
pub enum ContainerAct {
    Create(Box<RenderedContainer>),
    Start(String),
}

/// A pull of an image for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    pub container: String,
    /// Number of the start that needs the image.
    pub attempt: u32,
    pub image: String,
    pub policy: PullPolicy,
}

/// A stop of a container that failed a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub target: Target,
    /// Time from SIGTERM to SIGKILL, including the hook.
    pub grace: Duration,
    pub message: String,
}

/// Takes containers down: stops all of `stop` concurrently, then those of `stop_last` one after another, then removes
/// all of `remove`, then the rest, `obsolete` last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TakeDown {
    pub stop: Vec<Target>,
    /// Sidecars, in the order in which they end.
    pub stop_last: Vec<Target>,
    /// Time from SIGTERM to SIGKILL, for all of them together.
    pub grace: Duration,
    /// Containers to remove, pause containers last.
    pub remove: Vec<Target>,
    /// Host end of the link.
    pub link: Option<String>,
    /// True to unmount everything in the pod's folder, including secrets; files on disk stay.
    pub unmount: bool,
    /// True to remove the pod's folder: volumes, mounts.
    pub folder: bool,
    /// Dead starts: one that can't be removed holds up nothing, and is retried separately.
    pub obsolete: Vec<Target>,
}

impl TakeDown {
    /// Returns all containers to stop, in order.
    pub fn stops(&self) -> impl Iterator<Item = &Target> {
        self.stop.iter().chain(&self.stop_last)
    }
}

/// A container to stop or remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub id: String,
    pub name: String,
    /// Name in the pod.
    pub container: String,
    pub attempt: u32,
    /// The preStop hook, or the reason why its label can't be read.
    pub hook: Option<Result<Action, String>>,
}

impl From<&Container> for Target {
    fn from(container: &Container) -> Self {
        Self {
            id: container.id.clone(),
            name: container.name.clone(),
            container: container.container.clone(),
            attempt: container.attempt,
            hook: container.hook.clone(),
        }
    }
}

// The error for a host port that can't be allocated.

/// Range of ports allocated for `hostPort: 0`; below Linux's own ephemeral range (from 32768).
pub const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 20_000..=32_000;

/// A host port that can't be allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortTaken {
    pub port: HostPort,
    pub holder: Holder,
}

/// Holder of a host port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Pod(String),
    /// A process of the node itself, with its name if that was found.
    Process(Option<String>),
    AllInUse,
}

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        let protocol = match port.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        let process = match &self.holder {
            Holder::AllInUse => {
                return write!(
                    f,
                    "no {protocol} port from {} to {} is free",
                    DYNAMIC_PORTS.start(),
                    DYNAMIC_PORTS.end()
                );
            }
            Holder::Pod(pod) => {
                return write!(f, "host port {port} is used by pod {pod} on this node");
            }
            Holder::Process(process) => process.as_deref().unwrap_or("a process"),
        };
        write!(
            f,
            "host port {port} is used on this node by {process}, which is not a pod; stop it, or choose another hostPort or node"
        )
    }
}
