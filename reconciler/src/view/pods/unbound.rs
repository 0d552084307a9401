//! Reason that a pod has no node, computed by the scheduler on the same snapshot.

use std::cell::OnceCell;

use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;

use crate::controllers::scheduler::Explainer;

/// Computes the resources taken on every node lazily, because most snapshots need no explanation.
pub(in crate::view) struct Unbound<'a> {
    snapshot: &'a Snapshot,
    explainer: OnceCell<Explainer<'a>>,
}

impl<'a> Unbound<'a> {
    pub(in crate::view) fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, explainer: OnceCell::new() }
    }

    /// Reason that the desired pod is not bound, in a sentence.
    pub(in crate::view) fn reason(&self, pod: &NamespacedName) -> String {
        let explainer = self.explainer.get_or_init(|| Explainer::new(self.snapshot));
        explainer.explain(pod).unwrap_or_else(|| "waiting for the scheduler".to_owned())
    }
}
