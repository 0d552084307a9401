//! Why a pod has no node, in the scheduler's own words on the same snapshot.

use std::cell::OnceCell;

use schema::meta::PodRef;
use schema::world::World;

use crate::controllers::scheduler::Explainer;

/// Counts what is taken of every node at the first question only: most worlds ask none.
pub(super) struct Unbound<'a> {
    world: &'a World,
    explainer: OnceCell<Explainer<'a>>,
}

impl<'a> Unbound<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        Self { world, explainer: OnceCell::new() }
    }

    /// Why the pod that is wanted now is not bound, in a sentence.
    pub(super) fn reason(&self, pod: &PodRef) -> String {
        let explainer = self.explainer.get_or_init(|| Explainer::new(self.world));
        explainer.explain(pod).unwrap_or_else(|| "waiting for the scheduler".to_owned())
    }
}
