//! Which pods that are bound as they should be must leave their node all the same.
//!
//! Only bare pods: the pods of a workload are replaced under new names by its controller, which asks
//! [`Snapshot::is_evicted`] and [`Snapshot::drives_out`] itself. A pod that names its node leaves it only with the node.

use schema::meta::NamespacedName;
use schema::records::Binding;
use schema::snapshot::{Snapshot, Versioned};

/// How a pod leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// At once: its node is lost, or has a taint that drives it out.
    AtOnce,
    /// In its turn: its node is drained, and ends one such pod after the other.
    InTurn,
}

/// How the pod of this binding must leave its node, if it must.
pub(super) fn must_leave(
    snapshot: &Snapshot,
    place: &(String, NamespacedName),
    binding: &Versioned<Binding>,
) -> Option<Leave> {
    let (node, pod) = (&place.0, &binding.value.pod);
    if !pod.is_bare() {
        return None;
    }
    if has_left(snapshot, node) {
        return Some(Leave::AtOnce);
    }
    let status = snapshot.pod_status.get(place).map(|status| &status.value);
    let has_ended = status.is_some_and(|status| status.uid == pod.uid && status.has_ended());
    // One that has ended is not to run again.
    if pod.spec.node_name.is_some() || has_ended {
        return None;
    }
    if snapshot.is_evicted(node) {
        return Some(Leave::AtOnce);
    }
    // Of a silent node it is not known yet whether it is lost.
    if !snapshot.node_is_ready(node) || !snapshot.drives_out(node, &pod.spec) {
        return None;
    }
    Some(if snapshot.is_draining(node) { Leave::InTurn } else { Leave::AtOnce })
}

/// The node is neither registered nor alive: it left, or Git said that it is gone.
pub(super) fn has_left(snapshot: &Snapshot, node: &str) -> bool {
    !snapshot.nodes.contains_key(node) && !snapshot.node_is_ready(node)
}

/// The node still ends a pod that is not bound to it any more.
pub(super) fn is_ending_a_pod(snapshot: &Snapshot, node: &str) -> bool {
    let is_bound = |pod: &NamespacedName| snapshot.bindings.contains_key(&(node.to_owned(), pod.clone()));
    snapshot.pod_status_of(node).any(|(pod, _)| !is_bound(pod))
}
