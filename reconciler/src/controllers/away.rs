//! Whether most nodes are away at once: then it is rather this reconciler that is cut off, or etcd was.

use schema::snapshot::Snapshot;

/// If this share of the nodes is away, in percent, nothing is concluded from it: Kubernetes' own number for a zone
/// (`--unhealthy-zone-threshold`).
const MOST_AWAY_PERCENT: usize = 55;

/// How many nodes are away, and of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Away {
    pub(super) away: usize,
    pub(super) nodes: usize,
}

/// The numbers if most of the registered nodes do not beat.
pub(super) fn are_most_away(snapshot: &Snapshot) -> Option<Away> {
    let nodes = snapshot.nodes.len();
    let away = snapshot.nodes.keys().filter(|node| !snapshot.node_is_ready(node)).count();
    is_most(away, nodes).then_some(Away { away, nodes })
}

/// `away` of `nodes` nodes are too many for a conclusion.
pub(super) fn is_most(away: usize, nodes: usize) -> bool {
    away * 100 >= nodes * MOST_AWAY_PERCENT
}
