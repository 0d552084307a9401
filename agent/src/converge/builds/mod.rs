//! The builds loop: images of functions on this node.
//!
//! Reads `work/<node>/builds/`, Docker's images and the catalog; decides in `plan.rs`; builds two images at a time,
//! pushes them to the cluster's registry if there is one, and removes those that no function needs, there too, with
//! the logs of their builds, the intermediate images that only these builds made, and bases of earlier versions.
//! Reports existing images at `status/<node>/images/`; nodes that lack an image pull it from the registry or from a
//! node that has it (`agent/src/worlds/peers.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::content_refs::Files;
use schema::control::{Loop, LoopError, Next, Nudge, Observation, lock};
use schema::keys::Key;
use schema::kinds::cluster::Registry;
use schema::kinds::function::image_hash;
use schema::records::{BuildOrder, FunctionImage, NodeImage, RegistryCopy};
use schema::store::StoreError;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::store::status_writer::{Report, StoredValues};
use tokio::sync::watch;
use tokio::task::JoinSet;

mod act;
mod pin;
pub mod plan;
pub mod python;

pub use python::BaseImages;
#[cfg(test)]
mod tests;

use plan::{BuildsPlan, Failure, ImageReports, Observed, select_base_images, select_function_images};

use super::shared::node_network::BuildRequests;
use super::shared::pulls::Pulls;
use crate::catalog::Catalog;
use crate::desired::StateOrigin;
use crate::files::PodFiles;
use crate::worlds::docker::Docker;
use crate::worlds::host::Disk;
use crate::worlds::registry::ClusterRegistry;

/// Limits of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildLimits {
    pub time: Duration,
    /// Memory of one step, swap included.
    pub memory_bytes: u64,
    /// Bytes by which Docker's disk may fill during a build: several times the largest Python packages by default.
    pub disk_bytes: u64,
}

/// Dependencies of the loop.
pub struct BuildsDeps {
    pub node: String,
    pub state_dir: PathBuf,
    /// Name of this Minik8s instance on the machine.
    pub instance: String,
    /// Time for which images that no function needs stay.
    pub retention: SignedDuration,
    pub limits: BuildLimits,
    /// MTU of links beyond this node.
    pub mtu: u32,
    /// Requests the rules for builds.
    pub network: BuildRequests,
    pub docker: Arc<dyn Docker>,
    pub disk: Arc<dyn Disk>,
    pub registry: Arc<ClusterRegistry>,
    /// Pulls of the images that builds begin from; not those of pods, whose turns a slow registry must not take.
    pub pulls: Pulls,
    /// Wakes the loop at the end of a build.
    pub nudge: Nudge,
    pub files: Arc<PodFiles>,
    pub snapshot: SnapshotReader,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub events: EventRecorder,
}

/// The loop. Dropping it ends its builds.
pub struct BuildsLoop {
    deps: Arc<BuildsDeps>,
    reports: watch::Sender<Option<ImageReports>>,
    tasks: JoinSet<()>,
    /// Hashes of the builds in progress.
    building: BTreeSet<String>,
    finished: FinishedBuilds,
    failed: BTreeMap<String, Failure>,
    push_failed: BTreeMap<String, Failure>,
    removal_failed: BTreeMap<String, Failure>,
    /// The registry and login with which these failed.
    registry_access: (Option<Registry>, Files),
    unneeded_since: BTreeMap<String, Timestamp>,
}

/// Builds that ended since the last run, by hash.
type FinishedBuilds = Arc<Mutex<BTreeMap<String, BuildOutcome>>>;

/// Outcome of a build.
#[derive(Debug)]
enum BuildOutcome {
    Built,
    Failed {
        why: String,
        package_index: Option<String>,
    },
    /// No function needs the image any longer.
    Withdrawn,
}

/// A build in progress. Dropping it, even in a panic, reports the outcome and wakes the loop.
struct RunningBuild {
    hash: String,
    outcome: BuildOutcome,
    finished: FinishedBuilds,
    nudge: Nudge,
}

impl RunningBuild {
    fn end(mut self, outcome: BuildOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for RunningBuild {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, BuildOutcome::Withdrawn);
        lock(&self.finished).insert(self.hash.clone(), outcome);
        self.nudge.nudge();
    }
}

impl BuildsLoop {
    /// Creates a loop that has observed nothing yet; its reports go to `reports`.
    pub fn new(deps: BuildsDeps, reports: watch::Sender<Option<ImageReports>>) -> Self {
        Self {
            deps: Arc::new(deps),
            reports,
            tasks: JoinSet::new(),
            building: BTreeSet::new(),
            finished: FinishedBuilds::default(),
            failed: BTreeMap::new(),
            push_failed: BTreeMap::new(),
            removal_failed: BTreeMap::new(),
            registry_access: Default::default(),
            unneeded_since: BTreeMap::new(),
        }
    }

    /// Begins a build, which goes on beside the loop.
    fn begin_build(&mut self, hash: String, order: BuildOrder) {
        let why = "the build ended unexpectedly; the agent's log says why".to_owned();
        let outcome = BuildOutcome::Failed { why, package_index: order.package_index.clone() };
        let (finished, nudge) = (Arc::clone(&self.finished), self.deps.nudge.clone());
        let running = RunningBuild { hash: hash.clone(), outcome, finished, nudge };
        let deps = Arc::clone(&self.deps);
        self.building.insert(hash);
        self.tasks.spawn(async move {
            let outcome = deps.build(&running.hash, &order).await;
            running.end(outcome);
        });
    }

    /// Forgets what failed with another registry or login, so that it is tried again immediately with this one.
    fn note_registry(&mut self) {
        let access = self.deps.registry.access();
        if access != self.registry_access {
            self.push_failed.clear();
            self.removal_failed.clear();
            self.registry_access = access;
        }
    }

    /// Records the outcomes of the builds that ended.
    fn note_finished(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        for (hash, outcome) in std::mem::take(&mut *lock(&self.finished)) {
            self.building.remove(&hash);
            match outcome {
                BuildOutcome::Built => drop(self.failed.remove(&hash)),
                BuildOutcome::Failed { why, package_index } => {
                    let failure = Failure { package_index, ..failed_again(self.failed.get(&hash), why) };
                    self.failed.insert(hash, failure);
                }
                BuildOutcome::Withdrawn => {}
            }
        }
    }

    fn log_path(&self, hash: &str) -> PathBuf {
        log_path(&self.deps.state_dir, hash)
    }
}

/// Counts one more failure.
fn failed_again(before: Option<&Failure>, why: String) -> Failure {
    let attempts = before.map_or(0, |failed| failed.attempts) + 1;
    Failure { why, at: Timestamp::now(), attempts, package_index: None }
}

/// Returns the path of a build's log.
pub fn log_path(state_dir: &Path, hash: &str) -> PathBuf {
    log_dir(state_dir).join(format!("{hash}.log"))
}

fn log_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("agent/builds")
}

#[async_trait]
impl Loop for BuildsLoop {
    type Observed = Observed;
    type Plan = BuildsPlan;
    type Outcome = Next;

    fn name(&self) -> &'static str {
        "builds"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.gather().await
    }

    fn plan(observed: &Observed, now: Timestamp) -> BuildsPlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, observed: &Observed, plan: BuildsPlan) -> Next {
        self.carry_out(observed, plan).await
    }

    async fn report(&mut self, _: Observed, next: Next) -> Result<Next, LoopError> {
        Ok(next)
    }
}

// Observes ordered builds, and existing images of functions.

impl BuildsLoop {
    async fn gather(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.note_finished();
        self.note_registry();
        let snapshot = self.deps.snapshot.current();
        if !snapshot.synced {
            return Ok(Observation::NotReady("etcd has not been listed yet".to_owned()));
        }
        let images = self.deps.docker.images().await;
        let images = images.map_err(|error| LoopError::new("cannot list the images", error))?;
        let own = snapshot.builds.iter().filter(|((node, _), _)| *node == self.deps.node);
        let orders = own.map(|((_, hash), order)| (hash.clone(), order.value.clone())).collect();
        let catalog = self.deps.catalog.borrow().clone();
        let is_whole =
            catalog.known_from == StateOrigin::Etcd && snapshot.settled.contains_key(&self.deps.node);
        let needed = is_whole.then(|| {
            let of_functions = catalog.functions.values().flat_map(|function| &function.value.images);
            let of_functions = of_functions.map(|image| image.reference.as_str());
            let bound = snapshot.bindings.values().flat_map(|binding| &binding.value.pod.spec.containers);
            let all = of_functions.chain(bound.map(|container| container.image.as_str()));
            all.filter_map(image_hash).map(str::to_owned).collect::<BTreeSet<_>>()
        });
        let is_first = |image: &&FunctionImage| {
            let is_there = matches!(image.registry, Some(RegistryCopy::Pushed { .. }));
            !is_there && image.nodes.first() == Some(&self.deps.node)
        };
        let images_of = catalog.functions.values().flat_map(|function| &function.value.images);
        let to_push = images_of.filter(is_first).filter_map(|image| image_hash(&image.reference));
        Ok(Observation::Ready(Observed {
            instance: self.deps.instance.clone(),
            retention: self.deps.retention,
            registry: self.deps.registry.address(),
            to_push: to_push.map(str::to_owned).collect(),
            push_failed: self.push_failed.clone(),
            removal_failed: self.removal_failed.clone(),
            orders,
            running: self.building.clone(),
            logs: self.logs(),
            bases: select_base_images(&images),
            images: select_function_images(images),
            failed: self.failed.clone(),
            needed,
            unneeded_since: self.unneeded_since.clone(),
        }))
    }
}

/// Reports of this node on its images of functions.
pub struct NodeImages {
    pub node: String,
    pub snapshot: SnapshotReader,
}

#[async_trait]
impl Report for NodeImages {
    type Id = String;
    type Value = NodeImage;
    type Newest = Option<ImageReports>;

    fn key(&self, hash: &String) -> Key {
        Key::NodeImage(self.node.clone(), hash.clone())
    }

    fn values(newest: &Option<ImageReports>) -> ImageReports {
        newest.clone().unwrap_or_default()
    }

    fn is_complete(newest: &Option<ImageReports>) -> bool {
        newest.is_some()
    }

    fn is_urgent(_: Option<&NodeImage>, _: Option<&NodeImage>) -> bool {
        true
    }

    async fn stored(&self, _: bool) -> Result<Option<StoredValues<String, NodeImage>>, StoreError> {
        let snapshot = self.snapshot.current();
        Ok(StoredValues::from_snapshot(&snapshot, &snapshot.node_images, &self.node))
    }
}
