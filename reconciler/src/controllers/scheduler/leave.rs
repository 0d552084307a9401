//! Pods that must leave their node although their binding is correct.
//!
//! Only bare pods: the controller of a workload replaces its pods under new names, and calls
//! [`Snapshot::is_evicted`] and [`Snapshot::drives_out`] itself. A pod that names its node leaves it only with the
//! node.

use schema::meta::NamespacedName;
use schema::records::Binding;
use schema::snapshot::{Snapshot, Versioned};

/// Manner in which a pod leaves its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// Immediately: the node is lost, or has a taint that drives the pod out.
    AtOnce,
    /// In turn: the node is drained, and ends one such pod after the other.
    InTurn,
}

/// Returns how the pod of this binding must leave its node; `None` if it stays.
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
    // A pod that has ended must not run again.
    if pod.spec.node_name.is_some() || has_ended {
        return None;
    }
    if snapshot.is_evicted(node) {
        return Some(Leave::AtOnce);
    }
    // A silent node may not be lost.
    if !snapshot.node_is_ready(node) || !snapshot.drives_out(node, &pod.spec) {
        return None;
    }
    Some(if snapshot.is_draining(node) { Leave::InTurn } else { Leave::AtOnce })
}

/// True if the node is neither registered nor alive: it left, or Git declared it gone.
pub(super) fn has_left(snapshot: &Snapshot, node: &str) -> bool {
    !snapshot.nodes.contains_key(node) && !snapshot.node_is_ready(node)
}

/// True while the node ends a pod that is no longer bound to it.
pub(super) fn is_ending_a_pod(snapshot: &Snapshot, node: &str) -> bool {
    let is_bound = |pod: &NamespacedName| snapshot.bindings.contains_key(&(node.to_owned(), pod.clone()));
    snapshot.pod_status_of(node).any(|(pod, _)| !is_bound(pod))
}
