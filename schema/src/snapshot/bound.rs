//! Joins bindings with the reported statuses of the same pods, in one walk through both tables: for plans that
//! would otherwise look up each of 30,000 pods.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Snapshot, Versioned};
use crate::kinds::pod::PodStatus;
use crate::meta::NamespacedName;
use crate::records::Binding;

/// A pod on its node.
#[derive(Debug, Clone, Copy)]
pub struct BoundPod<'a> {
    /// Node and pod.
    pub place: &'a (String, NamespacedName),
    /// Binding of the pod.
    pub binding: &'a Arc<Versioned<Binding>>,
    /// Status that the node reports under the pod's name, of whichever incarnation.
    pub reported: Option<&'a PodStatus>,
}

impl<'a> BoundPod<'a> {
    /// Returns the name of the node.
    pub fn node(&self) -> &'a str {
        &self.place.0
    }

    /// Returns the reported status of this incarnation.
    pub fn status_of(&self, uid: &str) -> Option<&'a PodStatus> {
        self.reported.filter(|status| status.uid == uid)
    }
}

impl Snapshot {
    /// Iterates over the bindings, ordered by node and pod.
    pub fn bound_pods(&self) -> impl Iterator<Item = BoundPod<'_>> {
        let mut reported = self.pod_status.iter().peekable();
        self.bindings.iter().map(move |(place, binding)| {
            let found = loop {
                // A single comparison for each of 30,000 pods.
                match reported.peek().map(|(at, _)| (*at).cmp(place)) {
                    Some(Ordering::Less) => reported.next(),
                    Some(Ordering::Equal) => break reported.next(),
                    Some(Ordering::Greater) | None => break None,
                };
            };
            BoundPod { place, binding, reported: found.map(|(_, status)| &status.value) }
        })
    }

    /// Returns the bindings by pod; the first by node name if a pod is bound twice.
    pub fn bound_by_pod(&self) -> HashMap<&NamespacedName, BoundPod<'_>> {
        let mut found = HashMap::with_capacity(self.bindings.len());
        for bound in self.bound_pods() {
            found.entry(&bound.place.1).or_insert(bound);
        }
        found
    }
}
