//! Measures running containers: Docker's listing, the kernel's counters, the files in volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::LoopError;
use schema::meta::NamespacedName;
use tokio::time::Instant;

use super::plan::{Counted, Former, Observed, Volumes};
use super::{UsageLoop, walk};
use crate::converge::names;
use crate::worlds::cgroups::{Cgroups, CgroupsError, Place, Sample};
use crate::worlds::docker::{DockerError, EngineState, ListedContainer};

/// Interval between walks through the volumes of a pod.
const WALK_INTERVAL: Duration = Duration::from_secs(60);

/// Delay before a failed inspect is retried: a container on which Docker hangs costs time.
const OPAQUE_INTERVAL: Duration = Duration::from_secs(300);

/// Counters of one sample: all blocking reads together.
struct Counts {
    machine: Result<Sample, CgroupsError>,
    containers: BTreeMap<String, Result<Sample, CgroupsError>>,
}

impl UsageLoop {
    pub(super) async fn look(&mut self) -> Result<Observed, LoopError> {
        let rows = self.deps.docker.list(&self.deps.instance).await;
        let rows = rows.map_err(|error| LoopError::new("cannot list the containers", error))?;
        let rows: Vec<ListedContainer> = rows.into_iter().filter(is_app_and_runs).collect();
        self.learn(&rows).await?;
        self.walk(&rows).await;
        let at = Instant::now();
        let counts = self.count().await?;
        let machine =
            counts.machine.map_err(|error| LoopError::new("cannot see what the machine uses", error))?;
        let mut containers = BTreeMap::new();
        for row in &rows {
            let (Some((_, started_at)), Some(counted)) =
                (self.known.get(&row.id), counts.containers.get(&row.id))
            else {
                continue;
            };
            match counted {
                Ok(sample) => {
                    containers.insert(row.id.clone(), counted_of(row, *started_at, *sample));
                }
                // Ended since the listing.
                Err(error) => {
                    tracing::debug!(container = row.id, %error, "not counted");
                    self.known.remove(&row.id);
                }
            }
        }
        let cpu = containers.iter().map(|(id, counted)| (id.clone(), counted.sample.cpu_ns)).collect();
        let now = Former { machine: machine.cpu_ns, containers: cpu };
        let former = self.former.replace((now, at)).map(|(former, then)| (former, at.duration_since(then)));
        let volumes = self.walked.iter().map(|(uid, (_, volumes))| (uid.clone(), volumes.clone())).collect();
        Ok(Observed { machine, containers, volumes, former })
    }

    /// Finds the cgroup of each container, once for each.
    async fn learn(&mut self, rows: &[ListedContainer]) -> Result<(), LoopError> {
        let here: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        self.known.retain(|id, _| here.contains(id.as_str()));
        let now = Instant::now();
        self.opaque.retain(|id, until| here.contains(id.as_str()) && *until > now);
        for row in rows {
            if self.known.contains_key(&row.id) || self.opaque.contains_key(&row.id) {
                continue;
            }
            let details = match self.deps.docker.inspect(&row.id).await {
                Ok(details) => details,
                Err(DockerError::NotFound { .. }) => continue,
                Err(error @ DockerError::Unreachable { .. }) => {
                    return Err(LoopError::new("cannot inspect a container", error));
                }
                // A container that can't be inspected hides no other.
                Err(error) => {
                    tracing::warn!(container = row.id, %error, "cannot measure what a container uses");
                    self.opaque.insert(row.id.clone(), Instant::now() + OPAQUE_INTERVAL);
                    continue;
                }
            };
            // Reads three small files of /proc, once in a container's life.
            match self.deps.cgroups.place(details.pid, &row.id) {
                Ok(place) => {
                    self.known.insert(row.id.clone(), (place, details.started_at));
                    self.blind = false;
                }
                // One warning, not one for each container every 15 s.
                Err(error @ CgroupsError::NoPlace { .. }) if !self.blind => {
                    self.blind = true;
                    tracing::warn!(container = row.id, %error, "what containers use is not seen");
                }
                Err(error) => tracing::debug!(container = row.id, %error, "not counted yet"),
            }
        }
        Ok(())
    }

    async fn count(&self) -> Result<Counts, LoopError> {
        let cgroups: Arc<dyn Cgroups> = Arc::clone(&self.deps.cgroups);
        let places: Vec<(String, Place)> =
            self.known.iter().map(|(id, (place, _))| (id.clone(), place.clone())).collect();
        let count = move || Counts {
            machine: cgroups.machine(),
            containers: places.into_iter().map(|(id, place)| (id, cgroups.read(&place))).collect(),
        };
        let counted = tokio::task::spawn_blocking(count).await;
        counted.map_err(|error| LoopError::new("cannot read the kernel's counters", error))
    }

    /// Walks through the volumes of the pods that are due.
    async fn walk(&mut self, rows: &[ListedContainer]) {
        let uids: BTreeSet<String> = rows.iter().map(|row| label(row, names::UID)).collect();
        self.walked.retain(|uid, _| uids.contains(uid));
        let now = Instant::now();
        let fresh = |(at, _): &(Instant, Volumes)| now.duration_since(*at) < WALK_INTERVAL;
        let due: Vec<(String, PathBuf)> = uids
            .into_iter()
            .filter(|uid| !self.walked.get(uid).is_some_and(fresh))
            .map(|uid| (uid.clone(), names::volume_dir(&self.deps.state_dir, &uid, "")))
            .collect();
        if due.is_empty() {
            return;
        }
        let walk = move || -> Vec<(String, Volumes)> {
            due.into_iter().map(|(uid, folder)| (uid, walk::volumes(&folder))).collect()
        };
        // Fails only when the runtime shuts down.
        for (uid, volumes) in tokio::task::spawn_blocking(walk).await.unwrap_or_default() {
            self.walked.insert(uid, (now, volumes));
        }
    }
}

/// True for a running container of a user; the pause container is ours.
fn is_app_and_runs(row: &ListedContainer) -> bool {
    let container = label(row, names::CONTAINER);
    row.state == EngineState::Running && !container.is_empty() && container != names::PAUSE
}

fn label(row: &ListedContainer, key: &str) -> String {
    row.labels.get(key).cloned().unwrap_or_default()
}

fn counted_of(row: &ListedContainer, started_at: Option<Timestamp>, sample: Sample) -> Counted {
    Counted {
        pod: NamespacedName::new(label(row, names::NAMESPACE), label(row, names::POD)),
        uid: label(row, names::UID),
        container: label(row, names::CONTAINER),
        started_at,
        sample,
    }
}
