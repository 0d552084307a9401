//! The images loop: removes unused images when Docker's disk is full.
//!
//! Reads the disk, Docker's images and containers, and the [`ImageBook`]; decides in `plan.rs`;
//! removes images and records it as events of the node.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::events::{EventDraft, EventRecorder};

use crate::converge::image_book::ImageBook;
use crate::worlds::disk::Disk;
use crate::worlds::docker::Docker;

mod act;
mod observe;
pub mod plan;
#[cfg(test)]
mod tests;

pub use act::Outcome;
pub use plan::Thresholds;

use plan::{ImagesPlan, Observed};

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
        self.deps.events.record(EventDraft::of(kind, Kind::Node, &node, reason, message));
    }
}

#[async_trait]
impl Loop for ImagesLoop {
    type Observed = Observed;
    type Plan = ImagesPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "images"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.look().await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, now: Timestamp) -> ImagesPlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, observed: &Observed, plan: ImagesPlan) -> Outcome {
        tracing::debug!(why = %plan.why, remove = plan.remove.len(), keep = ?plan.keep, "images");
        self.carry_out(plan, &observed.cut_off, Timestamp::now()).await
    }

    async fn report(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        let percent = observed.disk.percent();
        if !outcome.removed.is_empty() {
            let names: Vec<&str> = outcome.removed.iter().map(|(name, _)| name.as_str()).collect();
            let mib = outcome.removed.iter().map(|(_, bytes)| bytes).sum::<u64>().div_ceil(1 << 20);
            let message = format!(
                "removed {} images of {mib} MiB, as Docker's disk was {percent} % full: {}",
                names.len(),
                names.join(", ")
            );
            tracing::info!("{message}");
            self.record_event(EventType::Normal, "FreedImages", message);
        }
        if outcome.too_little || !outcome.failures.is_empty() {
            let why = match outcome.failures.first() {
                Some(failure) => failure.clone(),
                None => "every other image that Minik8s pulled is in use; remove images of others or files, or give Docker more room".to_owned(),
            };
            let message = format!(
                "Docker's disk is {percent} % full and removing images does not bring it below {} %: {why}",
                observed.thresholds.low_percent
            );
            tracing::warn!("{message}");
            self.record_event(EventType::Warning, "ImageGCFailed", message);
        }
        Ok(Next::Interval)
    }
}
