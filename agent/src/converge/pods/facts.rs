//! Data shared by the modules of the pods loop: no decisions, no actions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};
use schema::codec::content_hash;
use schema::kinds::Kind;
use schema::kinds::cluster::PodSecurity;
use schema::kinds::pod::{HostPortStatus, PodStatus, SeccompProfile, SeccompProfileType};
use schema::meta::NamespacedName;
use schema::quantity::Cpu;
use schema::records::{Binding, PodInstance};
use schema::violation::Path;

use super::probe::machine::{Action, ProbeHealth, ProbeKind};
use crate::converge::shared::node_network::NodeDns;
use crate::desired::DesiredState;
use crate::names;
use crate::worlds::docker::{ContainerDetails, EngineState, ListedContainer, LogLimits};
use crate::worlds::netlink::{HostEnd, Listener, Port};

// Identifiers of pods and containers on a node, and maps keyed by them.

/// A pod's uid.
pub type Uid = String;

/// A container of a pod: uid and container name; an empty name stands for the pod as a whole.
pub type ContainerKey = (Uid, String);

/// Final statuses by pod uid.
pub type FinalStatuses = BTreeMap<Uid, Arc<PodStatus>>;

/// Last reported statuses by pod.
pub type LastReported = BTreeMap<NamespacedName, Arc<PodStatus>>;

// Containers, read back from their labels and from Docker's details.

/// The containers of one pod uid.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodFacts {
    pub pod: Option<NamespacedName>,
    /// Pause containers, newest last.
    pub pauses: Vec<Container>,
    /// Other containers, by name, each list by attempt.
    pub containers: BTreeMap<String, Vec<Container>>,
}

impl PodFacts {
    /// Returns the pause container that holds the pod's namespaces, if one runs or was just created.
    pub fn live_pause(&self) -> Option<&Container> {
        self.pauses
            .iter()
            .find(|p| matches!(p.state, State::Running { .. }))
            .or_else(|| self.pauses.iter().find(|p| p.state == State::Created))
    }

    /// Returns all containers, pause containers last.
    pub fn all(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().flatten().chain(&self.pauses)
    }
}

/// A container, read back from its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    pub id: String,
    /// Name in Docker.
    pub name: String,
    /// Name in the pod.
    pub container: String,
    /// Number of times it was created before.
    pub attempt: u32,
    pub backoff: u32,
    /// Docker id of the pause container whose namespaces it joined.
    pub sandbox: String,
    pub hash: String,
    /// Image as requested.
    pub image: String,
    /// Image by its registry digest, `name@sha256:…`; its content id if no registry has it.
    pub image_id: String,
    pub created_at: Timestamp,
    /// Time of the last start. It tells runs apart: a container that is started again by hand keeps its id. `None`
    /// if it never started, or Docker does not report it.
    pub started_at: Option<Timestamp>,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: u32,
    /// Pid of the first process on the node; 0 while it does not run.
    pub pid: i32,
    /// Address of the pod (pause containers).
    pub address: Option<Ipv4Net>,
    /// True if the pod belongs to a function.
    pub is_function: bool,
    /// Host ports of the pod (pause containers).
    pub ports: Vec<HostPortStatus>,
    /// The preStop hook, or the reason why its label can't be read.
    pub hook: Option<Result<Action, String>>,
    /// Place among the init containers, if it is a sidecar.
    pub sidecar: Option<u32>,
    /// Health by its probes; `None` without probes or before the first result.
    pub health: Option<ProbeHealth>,
    /// Failure message of its startup or readiness probe, while that fails.
    pub failing: Option<String>,
    /// Digests of the files mounted in the pod (pause containers).
    pub files: Vec<String>,
    /// Hash of the spec with which the pod was created (pause containers).
    pub spec_hash: String,
    pub state: State,
}

/// State of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Created,
    Running {
        started_at: Timestamp,
    },
    /// Ended, or could not be started.
    Exited(ExitStatus),
    Removing,
    /// Removal failed and is not being retried at the moment.
    Dead,
}

/// Exit status of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitStatus {
    pub code: i64,
    pub oom_killed: bool,
    /// Docker's error if it could not be started; else empty.
    pub error: String,
    /// Last lines of its output, joined into one, if it failed on its own.
    pub last_output: String,
    /// Time of the start; `None` if it never started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

impl ExitStatus {
    /// Builds the exit status from Docker's details.
    pub fn from_details(details: &ContainerDetails, finished_at: Timestamp) -> Self {
        Self {
            code: details.exit_code,
            oom_killed: details.oom_killed,
            error: details.error.clone(),
            last_output: String::new(),
            started_at: details.started_at,
            finished_at,
        }
    }
}

impl Container {
    /// Reads a container back, with the uid and name of its pod.
    pub fn read(row: &ListedContainer, details: &ContainerDetails) -> (Uid, Option<NamespacedName>, Self) {
        let label = |key: &str| row.labels.get(key).map(String::as_str).unwrap_or_default();
        let hook = label(names::PRE_STOP);
        let uid = label(names::UID).to_owned();
        let pod = (!label(names::POD).is_empty())
            .then(|| NamespacedName::new(label(names::NAMESPACE), label(names::POD)));
        let container = Self {
            id: row.id.clone(),
            name: row.name.clone(),
            container: label(names::CONTAINER).to_owned(),
            attempt: label(names::ATTEMPT).parse().unwrap_or_default(),
            backoff: label(names::BACKOFF).parse().unwrap_or_default(),
            sandbox: label(names::SANDBOX).to_owned(),
            is_function: label(names::OWNER).starts_with("Function/"),
            hash: label(names::HASH).to_owned(),
            image: row.image.clone(),
            image_id: row.image_id.clone(),
            created_at: details.created_at.unwrap_or(row.created_at),
            started_at: details.started_at,
            grace: label(names::GRACE).parse().unwrap_or(schema::kinds::pod::DEFAULT_GRACE_SECONDS),
            pid: details.pid,
            address: label(names::IP).parse().ok(),
            ports: serde_json::from_str(label(names::PORTS)).unwrap_or_default(),
            hook: (!hook.is_empty()).then(|| serde_json::from_str(hook).map_err(|error| error.to_string())),
            sidecar: label(names::SIDECAR).parse().ok(),
            health: None,
            failing: None,
            files: label(names::FILES).split(',').filter(|d| !d.is_empty()).map(str::to_owned).collect(),
            spec_hash: label(names::SPEC).to_owned(),
            state: state(row, details),
        };
        (uid, pod, container)
    }

    /// The probe whose failure ends, or ended, this start.
    pub fn failed_probe(&self) -> Option<ProbeKind> {
        self.health?.failed
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }
}

fn state(row: &ListedContainer, details: &ContainerDetails) -> State {
    let exited =
        || State::Exited(ExitStatus::from_details(details, details.finished_at.unwrap_or(row.created_at)));
    match row.state {
        EngineState::Removing => State::Removing,
        EngineState::Dead => State::Dead,
        EngineState::Running => State::Running { started_at: details.started_at.unwrap_or(row.created_at) },
        EngineState::Exited => exited(),
        // A failed start leaves the container in the `created` state, with an error and an exit code.
        EngineState::Created if details.exit_code != 0 || !details.error.is_empty() => exited(),
        EngineState::Created => State::Created,
    }
}

/// Exit statuses of containers by Docker id.
pub type ExitStatuses = BTreeMap<String, ExitStatus>;

// Facts about the node that its pods depend on.

/// Node facts: constant while the agent runs, except address, name servers and policy, which are as last observed.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    pub node: String,
    /// Node address, for `status.hostIP` and for pods on the host's network.
    pub node_ip: IpAddr,
    pub instance: String,
    pub state_dir: PathBuf,
    pub pause_image: String,
    pub mtu: u32,
    pub container_limits: ContainerLimits,
    /// Processors for pods.
    pub cpu: Cpu,
    pub memory: NodeMemory,
    /// Policy of the Cluster object.
    pub pod_security: PodSecurity,
    /// The node's own restrictions on the pods that it creates.
    pub pod_security_floor: Arc<PodSecurity>,
    pub dns: NodeDns,
}

impl NodeFacts {
    /// Returns why this node's own restrictions forbid containers of the pod, if they do. They don't forbid the spec with
    /// which `pause`, its live pause container, was created: that one was admitted. Any other spec may come from
    /// whoever writes etcd.
    pub fn forbids(&self, pod: &PodInstance, pause: Option<&Container>) -> Option<String> {
        if *self.pod_security_floor == PodSecurity::default() {
            return None;
        }
        let mut spec = Cow::Borrowed(&*pod.spec);
        if pod.owner.kind == Kind::Function {
            // Its manifest can't name the profile that Docker gives it.
            let profile = SeccompProfile { kind: SeccompProfileType::RuntimeDefault };
            let context = spec.to_mut().security_context.get_or_insert_default();
            context.seccomp_profile.get_or_insert(profile);
        }
        let (floor, at) = (&self.pod_security_floor, Path::ROOT.field("spec"));
        let found = floor.check("this node (--pod-security)", &pod.namespace, &spec, &at);
        let found: Vec<String> = found.into_iter().map(|finding| finding.message).collect();
        let is_admitted = || pause.is_some_and(|pause| pause.spec_hash == content_hash(&*pod.spec));
        (!found.is_empty() && !is_admitted()).then(|| found.join("; "))
    }
}

/// The machine's memory, for the precedence of containers when it is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// All of it; 0 if unknown.
    pub bytes: u64,
    /// Least `oom_score_adj` that may be set: Docker starts no container with a lower one than it may set.
    pub oom_score_min: i64,
}

/// Limits of every container, regardless of its manifest. Changes apply to new containers only: none is replaced
/// because of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Maximum number of processes and threads; 0 means no limit.
    pub pids: i64,
    pub log: LogLimits,
}

/// Default maximum number of processes and threads of a container: contains a fork bomb, and no server comes near.
pub const DEFAULT_PIDS: i64 = 4096;

impl Default for ContainerLimits {
    fn default() -> Self {
        Self { pids: DEFAULT_PIDS, log: LogLimits::default() }
    }
}

// Input of the pods plan.

/// Observed state of the whole pods loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub node: NodeFacts,
    pub desired: DesiredState,
    pub pods: BTreeMap<Uid, PodFacts>,
    /// Host ends of pod links; `None` if the kernel could not be queried.
    pub links: Option<BTreeMap<String, HostEnd>>,
    /// Node ports with a listener, and its process; read only when a pod is about to get host ports.
    pub listeners: BTreeMap<Port, Listener>,
    pub finished: FinalStatuses,
    pub draining: BTreeMap<Uid, Drain>,
    pub last_reported: LastReported,
    pub folders: BTreeSet<Uid>,
    /// True if the last removal of unused content is long enough ago.
    pub sweep_is_due: bool,
    pub work: Work,
}

// A pod on its node with its allocations: the input for rendering its containers.

/// A bound pod, its node and its allocations.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    pub node: &'a NodeFacts,
    pub binding: &'a Binding,
    /// Pod address; `None` on the host's network.
    pub address: Option<Ipv4Net>,
    pub ports: &'a [HostPortStatus],
}

impl Placement<'_> {
    /// Returns the labels of one of the pod's containers: all of ours, so that none of the image's passes for one.
    pub fn labels(self, container: &str, attempt: u32, backoff: u32) -> BTreeMap<String, String> {
        let at = self;
        let pod = &at.binding.pod;
        let grace = pod.spec.termination_grace_period_seconds;
        let set = [
            (names::INSTANCE, at.node.instance.clone()),
            (names::NODE, at.node.node.clone()),
            (names::NAMESPACE, pod.namespace.clone()),
            (names::POD, pod.name.clone()),
            (names::UID, pod.uid.clone()),
            (names::HASH, pod.hash.clone()),
            (names::CONTAINER, container.to_owned()),
            (names::ATTEMPT, attempt.to_string()),
            (names::BACKOFF, backoff.to_string()),
            (names::COMMIT, pod.commit.clone()),
            (names::OWNER, format!("{}/{}", pod.owner.kind, pod.owner.name)),
            (names::GRACE, grace.to_string()),
        ];
        let empty = names::LABELS.map(|key| (key, String::new()));
        empty.into_iter().chain(set).map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

// Tasks in progress and recent failures.

/// Tasks in progress and recent failures.
#[derive(Debug, Clone, Default)]
pub struct Work {
    pub busy: BTreeMap<Uid, RunningTask>,
    pub pulling: BTreeMap<ContainerKey, PullInProgress>,
    /// Containers whose image was pulled, with the attempt that it was pulled for.
    pub pulled: BTreeMap<ContainerKey, u32>,
    /// Containers whose image was found missing at their start.
    pub missing: BTreeSet<ContainerKey>,
    /// Docker ids of containers being stopped because they failed a probe.
    pub killing: BTreeSet<String>,
    pub recent_failures: BTreeMap<ContainerKey, RecentFailure>,
    /// Pods whose link this agent created or found complete at both ends; no attempt since has failed.
    pub linked: BTreeSet<Uid>,
    /// Containers that failed a probe and could not be stopped yet, by Docker id.
    pub stop_failures: BTreeMap<String, RecentFailure>,
    /// Dead containers that could not be removed yet, by Docker id.
    pub removal_failures: BTreeMap<String, RecentFailure>,
    /// Exit statuses of containers whose pods are being removed, by pod and Docker id.
    pub exit_statuses: BTreeMap<Uid, ExitStatuses>,
    pub last_address: Option<Ipv4Addr>,
}

/// A pull that a container waits for.
#[derive(Debug, Clone, Default)]
pub struct PullInProgress {
    /// Human-readable progress; empty at first.
    pub progress: String,
    /// Ends the wait; the pull ends with its last waiter.
    pub cancel: tokio_util::sync::CancellationToken,
}

/// A task in progress.
#[derive(Debug, Clone)]
pub struct RunningTask {
    pub pod: NamespacedName,
    /// True if the task brings the pod up (and may be canceled), false if it takes the pod down.
    pub up: bool,
    pub address: Option<Ipv4Addr>,
    pub ports: Vec<HostPortStatus>,
    /// Docker ids of containers that the task stops.
    pub stops: Vec<String>,
    pub cancel: tokio_util::sync::CancellationToken,
}

impl Work {
    /// True if this container, given by Docker id, is being stopped.
    pub fn is_stopping(&self, id: &str) -> bool {
        self.killing.contains(id) || self.busy.values().any(|busy| busy.stops.iter().any(|stop| stop == id))
    }

    /// True if the image was pulled for this very start of the container.
    pub fn is_pulled(&self, slot: &ContainerKey, attempt: u32) -> bool {
        self.pulled.get(slot) == Some(&attempt)
    }

    /// Returns the reason why a pod could not be removed so far. Failures to create it do not count.
    pub fn removal_failure(&self, uid: &str) -> Option<&RecentFailure> {
        self.recent_failures
            .get(&(uid.to_owned(), String::new()))
            .filter(|trouble| trouble.is_removal_failure())
    }
}

/// A failure that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentFailure {
    /// Reason as Kubernetes names it.
    pub reason: String,
    pub message: String,
    /// Number of consecutive failures.
    pub failures: u32,
    pub at: Timestamp,
    pub retry_at: Timestamp,
}

impl RecentFailure {
    /// True if a removal failed.
    pub fn is_removal_failure(&self) -> bool {
        self.reason == PodStatus::TERMINATING
    }
}

// The drain of a pod that is no longer wanted but may still receive connections.

/// Maximum time that a pod waits for the nodes' rules: enough for etcd, the reconciler and an agent on a busy
/// machine, and no more than a person who removes a pod will tolerate.
pub const DRAIN_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Minimum time that a function replica waits, so that the gateways of other nodes learn that it is leaving.
pub const REPLICA_DRAIN_MIN: SignedDuration = SignedDuration::from_secs(1);

/// Interval between checks of a drain.
pub const DRAIN_CHECK: SignedDuration = SignedDuration::from_millis(100);

/// The drain of a pod that is no longer wanted but may still receive connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    pub since: Timestamp,
    pub reason: DrainReason,
}

/// Reason why a pod may still receive connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainReason {
    Services,
    /// The rules of this node or another live one are older, or their age is unknown.
    Nodes,
    /// Function calls may be in progress, for at most this long; no gateway starts new ones.
    Calls(SignedDuration),
}

impl Drain {
    /// Returns the time at which the wait ends at the latest.
    pub fn until(&self) -> Timestamp {
        let longest = match &self.reason {
            DrainReason::Services | DrainReason::Nodes => DRAIN_MAX,
            DrainReason::Calls(longest) => *longest,
        };
        self.since.checked_add(longest).unwrap_or(Timestamp::MAX)
    }
}
