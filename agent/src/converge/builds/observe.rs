//! Observes ordered builds, and existing images of functions.

use std::collections::BTreeSet;

use schema::control::{LoopError, Observation};
use schema::kinds::function::image_hash;
use schema::records::{FunctionImage, RegistryCopy};

use super::BuildsLoop;
use super::plan::{Observed, select_base_images, select_function_images};
use crate::desired::StateOrigin;

impl BuildsLoop {
    pub(super) async fn gather(&mut self) -> Result<Observation<Observed>, LoopError> {
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
            logs: self.logs(),
            bases: select_base_images(&images),
            images: select_function_images(images),
            failed: self.failed.clone(),
            needed,
            unneeded_since: self.unneeded_since.clone(),
        }))
    }
}
