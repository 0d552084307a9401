//! The images loop: removes unused images when Docker's disk is full.
//!
//! Reads the disk, Docker's images and containers, and the [`ImageBook`]; decides in `plan.rs`;
//! removes images and records it as events of the node.

pub mod plan;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::events::{EventDraft, EventRecorder};

use super::shared::image_store::{ImageBook, PendingPulls};
use crate::worlds::docker::{Docker, DockerError};
use crate::worlds::host::Disk;
use plan::{ImagesPlan, Observed, Removal};

pub use plan::Thresholds;

/// Dependencies of the loop.
pub struct ImagesDeps {
    pub node: String,
    pub docker: Arc<dyn Docker>,
    pub disk: Arc<dyn Disk>,
    pub book: Arc<ImageBook>,
    pub thresholds: Thresholds,
    pub events: EventRecorder,
}

pub struct ImagesLoop {
    deps: ImagesDeps,
    data_root: Option<PathBuf>,
}

impl ImagesLoop {
    /// Creates a loop that has observed nothing yet.
    pub fn new(deps: ImagesDeps) -> Self {
        Self { deps, data_root: None }
    }

    fn record_event(&self, kind: EventType, reason: &str, message: String) {
        let node = NamespacedName::new("", &self.deps.node);
        self.deps.events.record(EventDraft::about(kind, Kind::Node, &node, reason, message));
    }
}

#[async_trait]
impl Loop for ImagesLoop {
    type Observed = Observed;
    type Plan = ImagesPlan;
    type Outcome = ImagesOutcome;

    fn name(&self) -> &'static str {
        "images"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.gather().await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, now: Timestamp) -> ImagesPlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, observed: &Observed, plan: ImagesPlan) -> ImagesOutcome {
        tracing::debug!(why = %plan.why, remove = plan.remove.len(), keep = ?plan.keep, "removal of images planned");
        self.carry_out(plan, &observed.interrupted, Timestamp::now()).await
    }

    async fn report(&mut self, observed: Observed, outcome: ImagesOutcome) -> Result<Next, LoopError> {
        let percent = observed.disk.percent();
        if !outcome.removed.is_empty() {
            let names: Vec<&str> = outcome.removed.iter().map(|(name, _)| name.as_str()).collect();
            let mib = outcome.removed.iter().map(|(_, bytes)| bytes).sum::<u64>().div_ceil(1 << 20);
            let message = format!(
                "removed {} images ({mib} MiB) because Docker's disk was {percent} % full: {}",
                names.len(),
                names.join(", ")
            );
            tracing::info!(images = ?names, mib, disk_percent = percent, "images removed");
            self.record_event(EventType::Normal, "FreedImages", message);
        }
        if outcome.is_insufficient || !outcome.failures.is_empty() {
            let why = match outcome.failures.first() {
                Some(failure) => failure.clone(),
                None => "all other images that Minik8s pulled are in use; remove images of others or files, or give Docker more disk space".to_owned(),
            };
            let message = format!(
                "Docker's disk is {percent} % full and removing images does not bring it below {} %: {why}",
                observed.thresholds.low_percent
            );
            tracing::warn!(
                disk_percent = percent,
                error = why,
                "disk stays full; remove images or files, or give Docker more room"
            );
            self.record_event(EventType::Warning, "ImageGCFailed", message);
        }
        Ok(Next::Interval)
    }
}

// Removes images, never by force: an image that is needed after all stays.

/// Outcome of a plan.
#[derive(Debug, Default)]
pub struct ImagesOutcome {
    /// Names of the removed images, and the bytes that they took.
    pub removed: Vec<(String, u64)>,
    pub failures: Vec<String>,
    /// True if the rest of the images is in use: a problem of the disk, not of Docker.
    pub is_insufficient: bool,
}

impl ImagesLoop {
    async fn carry_out(&self, mut plan: ImagesPlan, cut_off: &PendingPulls, now: Timestamp) -> ImagesOutcome {
        self.deps.book.resolve_interrupted(&plan.brought, cut_off).await;
        let mut outcome = ImagesOutcome { is_insufficient: plan.is_insufficient, ..ImagesOutcome::default() };
        for removal in &plan.remove {
            match self.remove(removal).await {
                Ok(()) => {
                    outcome.removed.push((removal.references.join(", "), removal.size_bytes));
                    plan.gone.insert(removal.id.clone());
                }
                Err(error) => {
                    tracing::debug!(image = removal.id, %error, "image not removed");
                    outcome.failures.push(error.to_string());
                }
            }
        }
        self.deps.book.note_usage(&plan.used, &plan.gone, now).await;
        outcome
    }

    async fn remove(&self, removal: &Removal) -> Result<(), DockerError> {
        for reference in &removal.references {
            self.deps.docker.remove_image(reference).await?;
        }
        Ok(())
    }
}

// Observes Docker's disk, its images and the containers that use them.

impl ImagesLoop {
    async fn gather(&mut self) -> Result<Observed, LoopError> {
        let root = match &self.data_root {
            Some(root) => root.clone(),
            None => {
                let root = self.deps.docker.data_root().await;
                let root = root.map_err(|e| LoopError::new("cannot find Docker's data directory", e))?;
                self.data_root.insert(root).clone()
            }
        };
        let disk = self.deps.disk.usage(&root).await;
        let disk = disk.map_err(|e| {
            LoopError::new(format!("cannot read how full the disk of {} is", root.display()), e)
        })?;
        let list = |e| LoopError::new("cannot list the images", e);
        // Before the images: those of these pulls are then in the listing.
        let cut_off = self.deps.book.interrupted_pulls();
        let images = self.deps.docker.images().await.map_err(list)?;
        // After the images: a container created in between counts.
        let in_use = self.deps.docker.images_in_use().await.map_err(list)?;
        Ok(Observed {
            thresholds: self.deps.thresholds,
            disk,
            images,
            in_use,
            wanted: self.deps.book.wanted(),
            pulled: self.deps.book.images(),
            interrupted: cut_off,
        })
    }
}
