//! Observes the containers of the node: one Docker listing, and inspect only where it adds to what is known.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use schema::control::{LoopError, Nudge, Row, lock};
use schema::kinds::Kind;
use schema::kinds::pod::{ContainerState, ContainerStatus, OOM_KILLED};
use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::events::EventDraft;
use tokio::time::{Instant, sleep};

use super::facts::{Container, PodFacts, State, Uid};
use super::probe::health_store::{FailuresById, HealthById};
use super::probe::machine::ProbeHealth;
use crate::desired::ETCD_GRACE;
use crate::metrics::{METRICS, Workload};
use crate::names;
use crate::worlds::docker::{
    ContainerDetails, ContainerEvent, Docker, DockerError, EngineState, ListedContainer, LogOptions,
    repo_digest,
};

/// Maximum number of concurrent inspects.
const INSPECTS: usize = 8;

/// Pause after a listing, as a multiple of its duration. A listing may take at most a fifth of the time: with many
/// containers, many nudges become one.
const LISTING_SHARE: u32 = 4;

/// Maximum pause between two listings for that reason.
const LISTING_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Time for which a container that can't be inspected is left alone; doubles with each failure, up to the maximum.
/// An inspect that hangs costs its timeout, and the whole node waits for it.
const INSPECT_AGAIN: Duration = Duration::from_secs(10);

const INSPECT_AGAIN_MAX: Duration = Duration::from_secs(300);

/// Number of lines kept of a failed container's output, of characters in them, and the maximum wait for them.
const LINES: u64 = 5;
const CHARS_MAX: usize = 500;
const LINES_TIMEOUT: Duration = Duration::from_secs(1);

/// Lists containers, and remembers everything that can't change without an event.
pub struct ContainerObserver {
    docker: Arc<dyn Docker>,
    instance: String,
    pub(super) stale: Stale,
    known: BTreeMap<String, (EngineState, ContainerDetails)>,
    /// Last output of containers that failed.
    last_outputs: BTreeMap<String, String>,
    /// Containers that could not be inspected: number of consecutive failures, and time of the next attempt.
    failing: BTreeMap<String, (u32, Instant)>,
    digests: BTreeMap<(String, String), String>,
    next_listing: Option<Instant>,
}

impl ContainerObserver {
    /// Creates an observer with nothing remembered.
    pub fn new(docker: Arc<dyn Docker>, instance: String) -> Self {
        let (stale, known, last_outputs) = (Stale::default(), BTreeMap::new(), BTreeMap::new());
        let (failing, digests) = (BTreeMap::new(), BTreeMap::new());
        Self { docker, instance, stale, known, last_outputs, failing, digests, next_listing: None }
    }

    /// Adds the wake-up source to a row: events of these containers, which are inspected again afterwards. `tell` gets
    /// what users should learn of them.
    pub(super) fn wake(&self, row: Row, tell: impl Fn(EventDraft) + Send + 'static) -> Row {
        let (docker, instance, stale) = (Arc::clone(&self.docker), self.instance.clone(), self.stale.clone());
        row.wake_by(|nudge| on_docker(docker, instance, (stale, tell), nudge))
    }

    /// Returns all containers of the instance, by pod uid.
    pub async fn observe(&mut self) -> Result<BTreeMap<Uid, PodFacts>, LoopError> {
        if let Some(at) = self.next_listing.take() {
            tokio::time::sleep_until(at).await;
        }
        // Before the listing: an event after it makes the next run inspect again.
        let stale = std::mem::take(&mut *lock(&self.stale));
        let ran = |id: &&String| matches!(self.known.get(*id), Some((EngineState::Running, _)));
        let may_have_ended = stale.ids.iter().filter(ran).cloned().collect();
        if stale.all {
            self.known.clear();
        }
        self.known.retain(|id, _| !stale.ids.contains(id));
        self.failing.retain(|id, _| !stale.ids.contains(id));
        let began = Instant::now();
        let listing = async { (self.docker.list(&self.instance).await, began.elapsed()) };
        // At the same time: the restart of a container waits for both.
        let inspecting = inspect_all(self.docker.as_ref(), may_have_ended);
        let ((rows, took), inspected) = futures::join!(listing, inspecting);
        let rows = rows.map_err(|e| LoopError::new("cannot list the containers", e))?;
        METRICS.oom_kills.follow(rows.iter().map(|row| workload_of(&row.labels)).collect());
        let pause = (took * LISTING_SHARE).min(LISTING_PAUSE_MAX);
        self.next_listing = Some(began + took + pause);
        let done = self.inspect(&rows, inspected).await;
        done.map_err(|e| LoopError::new("cannot inspect a container", e))?;
        self.name_images(&rows).await;
        Ok(self.group(&rows))
    }

    /// Finds the repo digests of new images. An image unknown to Docker keeps its content id.
    async fn name_images(&mut self, rows: &[ListedContainer]) {
        let key = |row: &ListedContainer| (row.image_id.clone(), row.image.clone());
        let here: BTreeSet<_> = rows.iter().map(key).collect();
        self.digests.retain(|key, _| here.contains(key));
        for (id, reference) in here {
            let known = self.digests.contains_key(&(id.clone(), reference.clone()));
            if known || id.is_empty() {
                continue;
            }
            // An image deleted from under its container has no digests; an unavailable engine is asked again later.
            let Ok(facts) = self.docker.image(&id).await else { continue };
            let digests = facts.map(|facts| facts.repo_digests).unwrap_or_default();
            // The listing shows the content id when the name has moved to another image.
            let moved = || digests.first().map(String::as_str).filter(|_| reference.starts_with("sha256:"));
            let name = repo_digest(&reference, &digests).or_else(moved).unwrap_or(&id).to_owned();
            self.digests.insert((id, reference), name);
        }
    }

    /// Inspects containers about which the listing says something new. `inspected` are answers from before its end.
    async fn inspect(
        &mut self,
        rows: &[ListedContainer],
        inspected: Vec<Inspected>,
    ) -> Result<(), DockerError> {
        let here: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        self.known.retain(|id, _| here.contains(id.as_str()));
        self.failing.retain(|id, _| here.contains(id.as_str()));
        self.last_outputs.retain(|id, _| here.contains(id.as_str()));
        let now = Instant::now();
        let unknown = rows.iter().filter(|row| {
            let waits = self.failing.get(&row.id).is_some_and(|(_, again)| *again > now);
            !waits
                && !matches!(row.state, EngineState::Removing | EngineState::Dead)
                && self.known.get(&row.id).is_none_or(|(state, _)| *state != row.state)
        });
        let mut states: BTreeMap<String, EngineState> =
            unknown.map(|row| (row.id.clone(), row.state)).collect();
        // Only an end that both report is sure: any other container may have changed in between.
        let is_sure = |(id, details, _): &Inspected| match details {
            Ok(details) => states.get(id) == Some(&EngineState::Exited) && has_ended(details),
            Err(_) => true,
        };
        let mut answers: Vec<Inspected> = inspected.into_iter().filter(is_sure).collect();
        let is_missing = |id: &&String| !answers.iter().any(|(answered, ..)| answered == *id);
        let missing = states.keys().filter(is_missing).cloned().collect();
        let others = inspect_all(self.docker.as_ref(), missing).await;
        answers.extend(others);
        for (id, details, wrote) in answers {
            let Some(state) = states.remove(&id) else { continue };
            if wrote.is_empty() {
                self.last_outputs.remove(&id);
            } else {
                self.last_outputs.insert(id.clone(), wrote);
            }
            let failures = self.failing.remove(&id).map_or(0, |(failures, _)| failures);
            match details {
                // Created containers are inspected again each time: a failed start shows only there.
                Ok(details) if state == EngineState::Created => {
                    self.known.insert(id, (EngineState::Removing, details));
                }
                Ok(details) => {
                    self.known.insert(id, (state, details));
                }
                // Removed since the listing: its event nudges.
                Err(DockerError::NotFound { .. }) => {}
                Err(error @ DockerError::Unreachable { .. }) => return Err(error),
                // A container that can't be inspected holds up no other.
                Err(error) => {
                    tracing::warn!(container_id = id, %error, "container not inspected");
                    let wait = (INSPECT_AGAIN * 2_u32.pow(failures.min(5))).min(INSPECT_AGAIN_MAX);
                    self.failing.insert(id, (failures + 1, Instant::now() + wait));
                }
            }
        }
        Ok(())
    }

    fn group(&self, rows: &[ListedContainer]) -> BTreeMap<Uid, PodFacts> {
        let mut pods: BTreeMap<Uid, PodFacts> = BTreeMap::new();
        let nothing = ContainerDetails::default();
        for row in rows {
            let details = self.known.get(&row.id).map(|(_, details)| details);
            let (uid, pod, mut container) =
                Container::read(&with_known_exit(row, details), details.unwrap_or(&nothing));
            if let Some(name) = self.digests.get(&(row.image_id.clone(), row.image.clone())) {
                container.image_id.clone_from(name);
            }
            if let (State::Exited(end), Some(wrote)) = (&mut container.state, self.last_outputs.get(&row.id))
            {
                end.last_output.clone_from(wrote);
            }
            // Its outcome, and whether it ever started, is unknown: it must not pass for a success.
            if details.is_none() && !container.is_running() && container.state != State::Dead {
                container.state = State::Removing;
            }
            let facts = pods.entry(uid).or_default();
            facts.pod = facts.pod.take().or(pod);
            if container.container == names::PAUSE {
                facts.pauses.push(container);
            } else {
                facts.containers.entry(container.container.clone()).or_default().push(container);
            }
        }
        for facts in pods.values_mut() {
            facts.pauses.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
            for starts in facts.containers.values_mut() {
                starts
                    .sort_by(|a, b| (a.attempt, a.created_at, &a.id).cmp(&(b.attempt, b.created_at, &b.id)));
            }
        }
        pods
    }
}

/// A container's id, its details, and the last lines of its output if it failed.
type Inspected = (String, Result<ContainerDetails, DockerError>, String);

async fn inspect_all(docker: &dyn Docker, ids: Vec<String>) -> Vec<Inspected> {
    stream::iter(ids)
        .map(|id| async move {
            let details = docker.inspect(&id).await;
            let wrote = match &details {
                Ok(details) if failed_by_itself(details) => last_lines(docker, &id).await,
                _ => String::new(),
            };
            (id, details, wrote)
        })
        .buffer_unordered(INSPECTS)
        .collect()
        .await
}

/// True if it has run and runs no more.
fn has_ended(details: &ContainerDetails) -> bool {
    details.pid == 0 && details.finished_at.is_some() && details.finished_at >= details.started_at
}

/// True if it ended with an error, and not by a signal to stop it.
fn failed_by_itself(details: &ContainerDetails) -> bool {
    const STOPPED: [i64; 2] = [128 + 9, 128 + 15];
    let has_run = details.pid == 0 && details.started_at.is_some() && details.finished_at.is_some();
    has_run && details.exit_code != 0 && !STOPPED.contains(&details.exit_code)
}

/// Returns the last lines of a container's output, joined into one; empty if they can't be read.
async fn last_lines(docker: &dyn Docker, id: &str) -> String {
    let mut bytes = Vec::new();
    let read = async {
        let options = LogOptions { tail: Some(LINES), ..LogOptions::default() };
        let Ok(mut pieces) = docker.logs(id, &options).await else { return };
        while let Some(Ok(piece)) = pieces.next().await {
            bytes.extend_from_slice(&piece);
        }
    };
    let _ = tokio::time::timeout(LINES_TIMEOUT, read).await;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(|line| line.replace(char::is_control, " ").trim().to_owned());
    let mut all = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ");
    if let Some((cut, _)) = all.char_indices().rev().nth(CHARS_MAX) {
        all = format!("…{}", &all[cut..]);
    }
    all
}

/// Returns the row, with an end that the details know first: Docker reports an end before its listing shows it
/// (seen with 20.10), and the next run may be long after.
fn with_known_exit<'a>(
    row: &'a ListedContainer,
    details: Option<&ContainerDetails>,
) -> Cow<'a, ListedContainer> {
    match row.state {
        EngineState::Running if details.is_some_and(has_ended) => {
            Cow::Owned(ListedContainer { state: EngineState::Exited, ..row.clone() })
        }
        _ => Cow::Borrowed(row),
    }
}

/// Sets each container's health to its last probe results: those `kept` by this agent or the former one, or else
/// those `reported` for its pod, the status in etcd.
pub fn fill_health(
    pods: &mut BTreeMap<Uid, PodFacts>,
    kept: &HealthById,
    reported: impl Fn(&NamespacedName) -> Option<Vec<ContainerStatus>>,
) {
    for facts in pods.values_mut() {
        let mut reported = facts.pod.as_ref().map(|pod| || reported(pod).unwrap_or_default());
        let mut statuses: Option<Vec<ContainerStatus>> = None;
        for container in facts.containers.values_mut().flatten() {
            container.health = kept.get(&container.id).and_then(|known| known.for_run(container.started_at));
            if container.health.is_none()
                && container.is_running()
                && let Some(reported) = &mut reported
            {
                let known = statuses.get_or_insert_with(&mut *reported);
                // Only for this very run: a report from before it, such as between creation and start, says nothing.
                let this_run = |status: &&ContainerStatus| match (&status.state, &container.state) {
                    (ContainerState::Running(reported), State::Running { started_at }) => {
                        status.container_id == container.id && reported.started_at == *started_at
                    }
                    _ => false,
                };
                let status = known.iter().find(this_run);
                container.health = status.map(|status| ProbeHealth {
                    hook_done: status.started || status.ready,
                    started: status.started || status.ready,
                    ready: status.ready,
                    failed: None,
                });
            }
        }
    }
}

/// Sets the last message of the failing probe for each running container.
pub fn fill_failing(pods: &mut BTreeMap<Uid, PodFacts>, failing: &FailuresById) {
    for container in pods.values_mut().flat_map(|facts| facts.containers.values_mut()).flatten() {
        container.failing = failing.get(&container.id).filter(|_| container.is_running()).cloned();
    }
}

// Wake-up sources of the pods loop in addition to changes in etcd: the moment from which it acts without etcd, and
// the start, end or removal of one of its containers. The interval of its row covers the rest.

/// Delay before events are requested again.
const EVENTS_RETRY: Duration = Duration::from_secs(1);

/// Containers whose cached details can no longer be trusted.
pub(super) type Stale = Arc<Mutex<StaleSet>>;

#[derive(Debug, Default)]
pub(super) struct StaleSet {
    pub(super) ids: BTreeSet<String>,
    pub(super) all: bool,
}

/// Returns the event of a pod in which the kernel killed a process. Where that was a child of the container's first
/// process, nothing else shows it: the container goes on.
pub(super) fn memory_event(event: &ContainerEvent) -> Option<EventDraft> {
    let label = |key: &str| event.labels.get(key).map(String::as_str);
    let (namespace, pod) = (label(names::NAMESPACE)?, label(names::POD)?);
    let container = label(names::CONTAINER).filter(|_| event.action == "oom")?;
    let message = format!(
        "the kernel killed a process of container {container}, because the container used more memory than its limit"
    );
    Some(EventDraft::about(
        EventType::Warning,
        Kind::Pod,
        &NamespacedName::new(namespace, pod),
        "OOMKilling",
        message,
    ))
}

/// Returns the workload of a container; a bare pod is its own.
fn workload_of(labels: &BTreeMap<String, String>) -> Workload {
    let label = |key: &str| labels.get(key).map_or("", String::as_str);
    let (kind, name) = label(names::OWNER).split_once('/').unwrap_or(("Pod", label(names::POD)));
    [kind, label(names::NAMESPACE), name].map(str::to_owned)
}

/// Event of a pod's container that is counted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventCount {
    /// The kernel killed a process for its use of memory.
    OomKill(Workload),
    /// The container ended, with this reason.
    Exit(&'static str),
}

impl EventCount {
    fn add(self) {
        match self {
            Self::OomKill(workload) => METRICS.oom_kills.inc(workload),
            Self::Exit(reason) => METRICS.exits.inc(&[reason]),
        }
    }
}

/// Returns the count to which an event belongs, if any. `killed`: containers of which the kernel has killed a process
/// since their start.
pub(super) fn event_count(event: &ContainerEvent, killed: &mut BTreeSet<String>) -> Option<EventCount> {
    let label = |key: &str| event.labels.get(key).map_or("", String::as_str);
    if !names::is_own(label("name"), &event.labels) || label(names::CONTAINER) == names::PAUSE {
        return None;
    }
    match event.action.as_str() {
        "oom" => {
            killed.insert(event.id.clone());
            Some(EventCount::OomKill(workload_of(&event.labels)))
        }
        "die" => match (killed.remove(&event.id), label("exitCode")) {
            // It did not run: its start failed.
            (_, "") => None,
            (true, _) => Some(EventCount::Exit(OOM_KILLED)),
            (false, "0") => Some(EventCount::Exit("Completed")),
            (false, _) => Some(EventCount::Exit("Error")),
        },
        _ => None,
    }
}

/// Nudges at the moment from which an agent without etcd acts from its disk.
pub(super) async fn at_grace(nudge: Nudge) -> Infallible {
    sleep(ETCD_GRACE).await;
    nudge.nudge();
    pending().await
}

/// Nudges on every event of a container of this instance except a start; subscribes again when the stream ends.
pub(super) async fn on_docker(
    docker: Arc<dyn Docker>,
    instance: String,
    (stale, tell): (Stale, impl Fn(EventDraft)),
    nudge: Nudge,
) -> Infallible {
    loop {
        if let Ok(mut events) = docker.events(&instance).await {
            // Events before this stream began are not reported.
            lock(&stale).all = true;
            nudge.nudge();
            let mut killed = BTreeSet::new();
            while let Some(Ok(event)) = events.next().await {
                event_count(&event, &mut killed).into_iter().for_each(EventCount::add);
                memory_event(&event).into_iter().for_each(&tell);
                lock(&stale).ids.insert(event.id);
                // The task that starts a container reports it.
                if event.action != "start" {
                    nudge.nudge();
                }
            }
        }
        sleep(EVENTS_RETRY).await;
    }
}
