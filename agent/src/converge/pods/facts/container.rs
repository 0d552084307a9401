//! Containers, read back from their labels and from what Docker says of them.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::kinds::pod::HostPortStatus;
use schema::meta::NamespacedName;

use super::ids::Uid;
use crate::converge::names;
use crate::converge::pods::probe::machine::{ProbeHealth, ProbeKind};
use crate::converge::pods::probe::target::Action;
use crate::worlds::docker::{ContainerDetails, EngineState, ListedContainer};

/// The containers of one pod uid.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodFacts {
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
    pub id: String,
    /// Docker's name.
    pub name: String,
    /// Name in the pod.
    pub container: String,
    /// How often it was made before.
    pub attempt: u32,
    pub backoff: u32,
    /// Docker id of the pause container that it joined.
    pub sandbox: String,
    pub hash: String,
    /// Image as asked for.
    pub image: String,
    /// The image by the digest of its registry, `name@sha256:…`; its content id if no registry has it.
    pub image_id: String,
    pub created_at: Timestamp,
    /// Its last start, which distinguishes its lives: one that is started again by hand keeps its id. None if it
    /// never started, or Docker does not say.
    pub started_at: Option<Timestamp>,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: u32,
    /// Its first process on the node; 0 while it does not run.
    pub pid: i32,
    /// Address of the pod (pause containers).
    pub address: Option<Ipv4Net>,
    /// The object that asked for the pod is a function.
    pub is_function: bool,
    /// Host ports of the pod (pause containers).
    pub ports: Vec<HostPortStatus>,
    /// What is done before it is stopped, or why its label can't be read.
    pub hook: Option<Result<Action, String>>,
    /// What its probes said, if it has any and they said anything.
    pub health: Option<ProbeHealth>,
    /// What its startup or readiness probe said last, while it fails.
    pub failing: Option<String>,
    /// Digests of the files that the pod has mounted (pause containers).
    pub files: Vec<String>,
    pub state: State,
}

/// What a container does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Created,
    Running {
        started_at: Timestamp,
    },
    /// Ended, or could not be started.
    Exited(Exited),
    Removing,
    /// Its removal failed, and is not tried at this moment.
    Dead,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    pub code: i64,
    pub oom_killed: bool,
    /// Why it could not be started, in Docker's words; empty when it was.
    pub error: String,
    /// The last lines that it wrote, in one, if it failed by itself.
    pub wrote: String,
    /// When it started; none if it never did.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

impl Exited {
    /// The end of a container with these details.
    pub fn of(details: &ContainerDetails, finished_at: Timestamp) -> Self {
        Self {
            code: details.exit_code,
            oom_killed: details.oom_killed,
            error: details.error.clone(),
            wrote: String::new(),
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
            is_function: label(names::OWNER).starts_with("Function/"),
            hash: label(names::HASH).to_owned(),
            image: row.image.clone(),
            image_id: row.image_id.clone(),
            created_at: row.created_at,
            started_at: details.started_at,
            grace: label(names::GRACE).parse().unwrap_or(schema::kinds::pod::DEFAULT_GRACE_SECONDS),
            pid: details.pid,
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

/// Ends of containers by Docker's id.
pub type Ends = BTreeMap<String, Exited>;
