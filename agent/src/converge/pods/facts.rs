//! What the pods loop sees: containers read back from their labels, and what tasks are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::kinds::pod::{HostPortStatus, PodStatus};
use schema::meta::NamespacedName;

use super::drain::Drain;
use super::finished::Finished;
use super::leaving::Ends;
use super::names;
use super::probes::render::Action;
use super::probes::{Health, ProbeKind};
use super::report::LastReported;
use crate::converge::dns::NodeDns;
use crate::desired::Desired;
use crate::worlds::docker::{ContainerDetails, EngineState, ListedContainer, LogLimits};
use crate::worlds::netlink::{HostEnd, Listener, Port};

/// A pod's uid.
pub type Uid = String;
/// A container of a pod: uid and container name; an empty name is the pod as a whole.
pub type Slot = (Uid, String);

/// What does not change while the agent runs, and what is as it was at the last look: address and name servers.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node.
    pub node: String,
    /// Its address, for `status.hostIP`, and of pods on its own network.
    pub node_ip: IpAddr,
    /// The instance.
    pub instance: String,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Reference of the pause image.
    pub pause_image: String,
    /// MTU of the pods' links.
    pub mtu: u32,
    /// What every container gets, whatever its manifest says.
    pub container_limits: ContainerLimits,
    /// What pods are told of name servers.
    pub dns: NodeDns,
}

/// What every container gets, whatever its manifest says. A change is for new containers: none is
/// replaced because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Processes and threads; 0 is no limit.
    pub pids: i64,
    /// How much of what it writes is kept.
    pub log: LogLimits,
}

/// Most processes and threads of a container: a fork bomb stays in it, and no server comes near.
pub const DEFAULT_PIDS: i64 = 4096;

impl Default for ContainerLimits {
    fn default() -> Self {
        Self { pids: DEFAULT_PIDS, log: LogLimits::default() }
    }
}

/// The whole world of the pods loop.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The node.
    pub node: NodeFacts,
    /// What should run.
    pub desired: Desired,
    /// What is there, by pod uid.
    pub pods: BTreeMap<Uid, PodFacts>,
    /// Host ends of pod links; none when the kernel could not be asked.
    pub links: Option<BTreeMap<String, HostEnd>>,
    /// Ports of the node that something listens on, with its process; read only when a pod is about to
    /// get host ports.
    pub listeners: BTreeMap<Port, Listener>,
    /// How pods ended that ended for good, whatever is left of their containers.
    pub finished: Finished,
    /// Pods that are not wanted any more and that clients may still be led to.
    pub draining: BTreeMap<Uid, Drain>,
    /// What was said last of the pods of this node.
    pub last_reported: LastReported,
    /// Pod uids with a folder on disk.
    pub folders: BTreeSet<Uid>,
    /// What tasks have under way and remember.
    pub memory: Memory,
}

/// The containers of one pod uid.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodFacts {
    /// Namespace and name.
    pub pod: Option<NamespacedName>,
    /// Pause containers, newest last.
    pub pauses: Vec<Container>,
    /// The others, by name, each by attempt.
    pub containers: BTreeMap<String, Vec<Container>>,
}

impl PodFacts {
    /// The pause container that holds the pod's namespaces, if one runs or was just made.
    pub fn live_pause(&self) -> Option<&Container> {
        self.pauses
            .iter()
            .find(|p| matches!(p.state, State::Running { .. }))
            .or_else(|| self.pauses.iter().find(|p| p.state == State::Created))
    }

    /// All containers, pause containers last.
    pub fn all(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().flatten().chain(&self.pauses)
    }
}

/// One container, read back from its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Docker's id.
    pub id: String,
    /// Docker's name.
    pub name: String,
    /// Name in the pod.
    pub container: String,
    /// How often it was made before.
    pub attempt: u32,
    /// Its crash level.
    pub backoff: u32,
    /// Docker id of the pause container that it joined.
    pub sandbox: String,
    /// Template hash.
    pub hash: String,
    /// Image as asked for.
    pub image: String,
    /// The image by the digest of its registry, `name@sha256:…`; its content id if no registry has it.
    pub image_id: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When Docker says that it started last, which tells its lives apart: one that somebody starts again
    /// keeps its id. None if it never did, or Docker can't tell.
    pub started_at: Option<Timestamp>,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: u32,
    /// Address of the pod (pause containers).
    pub address: Option<Ipv4Net>,
    /// Host ports of the pod (pause containers).
    pub ports: Vec<HostPortStatus>,
    /// What is done before it is stopped, or why its label can't be read.
    pub hook: Option<Result<Action, String>>,
    /// What its probes said, if it has any and they said anything.
    pub health: Option<Health>,
    /// What its startup or readiness probe said last, while it fails.
    pub failing: Option<String>,
    /// Digests of the files that the pod has mounted (pause containers).
    pub files: Vec<String>,
    /// What it does.
    pub state: State,
}

/// What a container does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Made, not started.
    Created,
    /// Runs.
    Running {
        /// Since when.
        started_at: Timestamp,
    },
    /// Ended, or could not be started.
    Exited(Exited),
    /// Is being removed.
    Removing,
    /// Its removal failed, and nobody is at it.
    Dead,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    /// Its code.
    pub code: i64,
    /// Killed for its memory.
    pub oom_killed: bool,
    /// Why it could not be started, in Docker's words; empty when it was.
    pub error: String,
    /// When it started; none if it never did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl Exited {
    /// The end of a container with these details.
    pub fn of(details: &ContainerDetails, finished_at: Timestamp) -> Self {
        Self {
            code: details.exit_code,
            oom_killed: details.oom_killed,
            error: details.error.clone(),
            started_at: details.started_at,
            finished_at,
        }
    }
}

impl Container {
    /// Reads a container back; also the pod and uid that it belongs to.
    pub fn read(row: &ListedContainer, details: &ContainerDetails) -> (Uid, Option<NamespacedName>, Self) {
        let label = |key: &str| row.labels.get(key).map(String::as_str).unwrap_or_default();
        // A container of ours without a uid belongs to no pod at all: it is one by itself.
        let uid = if label(names::UID).is_empty() { row.id.clone() } else { label(names::UID).to_owned() };
        let pod = (!label(names::POD).is_empty())
            .then(|| NamespacedName::new(label(names::NAMESPACE), label(names::POD)));
        let container = Self {
            id: row.id.clone(),
            name: row.name.clone(),
            container: label(names::CONTAINER).to_owned(),
            attempt: label(names::ATTEMPT).parse().unwrap_or_default(),
            backoff: label(names::BACKOFF).parse().unwrap_or_default(),
            sandbox: label(names::SANDBOX).to_owned(),
            hash: label(names::HASH).to_owned(),
            image: row.image.clone(),
            image_id: row.image_id.clone(),
            created_at: row.created_at,
            started_at: details.started_at,
            grace: label(names::GRACE).parse().unwrap_or(schema::kinds::pod::DEFAULT_GRACE_SECONDS),
            address: label(names::IP).parse().ok(),
            ports: serde_json::from_str(label(names::PORTS)).unwrap_or_default(),
            hook: row
                .labels
                .get(names::PRE_STOP)
                .map(|hook| serde_json::from_str(hook).map_err(|error| error.to_string())),
            health: None,
            failing: None,
            files: label(names::FILES).split(',').filter(|d| !d.is_empty()).map(str::to_owned).collect(),
            state: state(row, details),
        };
        (uid, pod, container)
    }

    /// The probe whose failure ends, or ended, this start.
    pub fn failed_probe(&self) -> Option<ProbeKind> {
        self.health?.failed
    }

    /// It runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }
}

fn state(row: &ListedContainer, details: &ContainerDetails) -> State {
    let exited = || State::Exited(Exited::of(details, details.finished_at.unwrap_or(row.created_at)));
    match row.state {
        EngineState::Removing => State::Removing,
        EngineState::Dead => State::Dead,
        EngineState::Running => State::Running { started_at: details.started_at.unwrap_or(row.created_at) },
        EngineState::Exited => exited(),
        // A start that failed leaves the container as made, with an error and a code.
        EngineState::Created if details.exit_code != 0 || !details.error.is_empty() => exited(),
        EngineState::Created => State::Created,
    }
}

/// What tasks have under way, and what went wrong lately.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Pods with a task under way.
    pub busy: BTreeMap<Uid, Busy>,
    /// Containers whose image is being pulled.
    pub pulling: BTreeMap<Slot, Pulling>,
    /// Containers whose image was pulled for the start of this number.
    pub pulled: BTreeMap<Slot, u32>,
    /// Containers whose image was found missing at their start.
    pub missing: BTreeSet<Slot>,
    /// Docker ids of containers that are being stopped.
    pub stopping: BTreeSet<String>,
    /// What went wrong and when it is tried again.
    pub trouble: BTreeMap<Slot, Trouble>,
    /// Pods whose link this agent made or found whole, both ends of it; no try since has failed.
    pub linked: BTreeSet<Uid>,
    /// Containers that failed a probe and could not be stopped so far, by Docker id.
    pub unkilled: BTreeMap<String, Trouble>,
    /// Dead containers that could not be removed so far, by Docker id.
    pub unremoved: BTreeMap<String, Trouble>,
    /// How containers ended of pods that are taken away, by pod and Docker id.
    pub ends: BTreeMap<Uid, Ends>,
    /// The address given out last.
    pub last_address: Option<Ipv4Addr>,
}

/// A pull that a container waits for.
#[derive(Debug, Clone, Default)]
pub struct Pulling {
    /// How far it is, in words; empty at the beginning.
    pub progress: String,
    /// Ends the wait; the pull ends with its last waiter.
    pub cancel: tokio_util::sync::CancellationToken,
}

/// A task under way.
#[derive(Debug, Clone)]
pub struct Busy {
    /// Namespace and name.
    pub pod: NamespacedName,
    /// It brings the pod up (and may be cut off), or takes it down.
    pub up: bool,
    /// Address that it uses.
    pub address: Option<Ipv4Addr>,
    /// Host ports that it uses.
    pub ports: Vec<HostPortStatus>,
    /// Cuts it off.
    pub cancel: tokio_util::sync::CancellationToken,
}

impl Memory {
    /// Why a pod could not be taken away so far. That it could not be made is no word on that.
    pub fn removal_trouble(&self, uid: &str) -> Option<&Trouble> {
        self.trouble.get(&(uid.to_owned(), String::new())).filter(|trouble| trouble.is_of_removal())
    }
}

/// Something that did not work and is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Kubernetes' word for it.
    pub reason: String,
    /// What happened and what to do.
    pub message: String,
    /// How often in a row.
    pub failures: u32,
    /// When it happened last.
    pub at: Timestamp,
    /// When it is tried again.
    pub retry_at: Timestamp,
}

impl Trouble {
    /// Something could not be taken away.
    pub fn is_of_removal(&self) -> bool {
        self.reason == PodStatus::TERMINATING
    }
}
