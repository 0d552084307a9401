//! The builds loop: images of functions on this node.
//!
//! Reads `work/<node>/builds/`, Docker's images and the catalog; decides in `plan.rs`; builds one image at a time,
//! pushes it to the cluster's registry if there is one, and removes those that no function needs, there too, with
//! the logs of their builds, the intermediate images that only these builds made, and bases of earlier versions.
//! Reports existing images at `status/<node>/images/`; nodes that lack an image pull it from the registry or from a
//! node that has it (`agent/src/worlds/peers.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::records::NodeImage;
use schema::store::StoreError;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::store::status_writer::{Report, StoredValues};
use tokio::sync::watch;

mod act;
mod observe;
pub mod plan;
pub mod python;

pub use python::BaseImages;
#[cfg(test)]
mod tests;

use plan::{BuildsPlan, Failure, ImageReports, Observed};

use super::shared::node_network::BuildRequests;
use crate::catalog::Catalog;
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
    pub files: Arc<PodFiles>,
    pub snapshot: SnapshotReader,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub events: EventRecorder,
}

pub struct BuildsLoop {
    deps: BuildsDeps,
    reports: watch::Sender<Option<ImageReports>>,
    failed: BTreeMap<String, Failure>,
    push_failed: BTreeMap<String, Failure>,
    removal_failed: BTreeMap<String, Failure>,
    unneeded_since: BTreeMap<String, Timestamp>,
}

impl BuildsLoop {
    /// Creates a loop that has observed nothing yet; its reports go to `reports`.
    pub fn new(deps: BuildsDeps, reports: watch::Sender<Option<ImageReports>>) -> Self {
        Self {
            deps,
            reports,
            failed: BTreeMap::new(),
            push_failed: BTreeMap::new(),
            removal_failed: BTreeMap::new(),
            unneeded_since: BTreeMap::new(),
        }
    }

    fn log_path(&self, hash: &str) -> PathBuf {
        log_path(&self.deps.state_dir, hash)
    }
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
