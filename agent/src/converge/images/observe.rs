//! Observes Docker's disk, its images and the containers that use them.

use schema::control::LoopError;

use super::ImagesLoop;
use super::plan::Observed;

impl ImagesLoop {
    pub(super) async fn look(&mut self) -> Result<Observed, LoopError> {
        let root = match &self.data_root {
            Some(root) => root.clone(),
            None => {
                let root = self.deps.docker.data_root().await;
                let root = root.map_err(|e| LoopError::new("cannot find out where Docker's data lies", e))?;
                self.data_root.insert(root).clone()
            }
        };
        let disk = self.deps.disk.usage(&root).await;
        let disk = disk.map_err(|e| {
            LoopError::new(format!("cannot find out how full the disk of {} is", root.display()), e)
        })?;
        let list = |e| LoopError::new("cannot list the images", e);
        // Before the images: those of these pulls are then in the listing.
        let cut_off = self.deps.book.cut_off();
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
            cut_off,
        })
    }
}
