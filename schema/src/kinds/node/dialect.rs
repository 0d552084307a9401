//! Older Node manifests, which have an address at the top level and no spec.

use crate::manifest::dialects::tree::{entry, mapping, put, take};
use crate::manifest::dialects::{Node, Notes};

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    if let Some(ip) = take(node, "ip") {
        notes.dropped(ip.mark, "ip", "the node's agent says where it is reached");
    }
    // A node may have only labels, as in Kubernetes.
    if node.entry("spec").is_none_or(|spec| spec.value.is_null()) {
        let mark = take(node, "spec").map_or(node.first_mark(), |spec| spec.mark);
        put(node, entry("spec", mark, mapping(mark, [])));
    }
}
