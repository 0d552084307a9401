//! Containers, read back from their labels and from Docker's details.

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
    /// Health by its probes; `None` without probes or before the first result.
    pub health: Option<ProbeHealth>,
    /// Failure message of its startup or readiness probe, while that fails.
    pub failing: Option<String>,
    /// Digests of the files mounted in the pod (pause containers).
    pub files: Vec<String>,
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
    Exited(Exited),
    Removing,
    /// Removal failed and is not being retried at the moment.
    Dead,
}

/// Exit status of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    pub code: i64,
    pub oom_killed: bool,
    /// Docker's error if it could not be started; else empty.
    pub error: String,
    /// Last lines of its output, joined into one, if it failed on its own.
    pub wrote: String,
    /// Time of the start; `None` if it never started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

impl Exited {
    /// Builds the exit status from Docker's details.
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
    /// Reads a container back, with the uid and name of its pod.
    pub fn read(row: &ListedContainer, details: &ContainerDetails) -> (Uid, Option<NamespacedName>, Self) {
        let label = |key: &str| row.labels.get(key).map(String::as_str).unwrap_or_default();
        // A container of ours without a uid belongs to no pod: its own id stands in.
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
        // A failed start leaves the container in the `created` state, with an error and an exit code.
        EngineState::Created if details.exit_code != 0 || !details.error.is_empty() => exited(),
        EngineState::Created => State::Created,
    }
}

/// Exit statuses of containers by Docker id.
pub type Ends = BTreeMap<String, Exited>;
