//! Removes images, never by force: an image that is needed after all stays.

use super::ImagesLoop;
use super::plan::{ImagesPlan, Removal};
use crate::converge::image_book::BegunPulls;
use crate::worlds::docker::DockerError;

/// Outcome of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of the removed images, and the bytes that they took.
    pub removed: Vec<(String, u64)>,
    pub failures: Vec<String>,
    /// True if the rest of the images is in use: a problem of the disk, not of Docker.
    pub too_little: bool,
}

impl ImagesLoop {
    pub(super) async fn carry_out(
        &self,
        mut plan: ImagesPlan,
        cut_off: &BegunPulls,
        now: jiff::Timestamp,
    ) -> Outcome {
        self.deps.book.note_cut_off(&plan.brought, cut_off).await;
        let mut outcome = Outcome { too_little: plan.too_little, ..Outcome::default() };
        for removal in &plan.remove {
            match self.remove(removal).await {
                Ok(()) => {
                    outcome.removed.push((removal.references.join(", "), removal.size_bytes));
                    plan.gone.insert(removal.id.clone());
                }
                Err(error) => {
                    tracing::debug!(image = removal.id, %error, "could not remove an image");
                    outcome.failures.push(error.to_string());
                }
            }
        }
        self.deps.book.note_seen(&plan.used, &plan.gone, now).await;
        outcome
    }

    async fn remove(&self, removal: &Removal) -> Result<(), DockerError> {
        for reference in &removal.references {
            self.deps.docker.remove_image(reference).await?;
        }
        Ok(())
    }
}
