//! Detects that most nodes are away at once: then more likely this reconciler is cut off, or etcd was.

use schema::snapshot::Snapshot;

/// Percentage of nodes away from which on no conclusion is drawn: Kubernetes' own number for a zone
/// (`--unhealthy-zone-threshold`).
const MOST_AWAY_PERCENT: usize = 55;

/// Number of nodes that are away, and of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AwayNodes {
    pub(super) away: usize,
    pub(super) nodes: usize,
}

/// Returns the numbers if most registered nodes have no heartbeat.
pub(super) fn most_nodes_away(snapshot: &Snapshot) -> Option<AwayNodes> {
    let nodes = snapshot.nodes.len();
    let away = snapshot.nodes.keys().filter(|node| !snapshot.node_is_ready(node)).count();
    is_most_away(away, nodes).then_some(AwayNodes { away, nodes })
}

/// True if `away` of `nodes` nodes are too many to draw a conclusion.
pub(super) fn is_most_away(away: usize, nodes: usize) -> bool {
    away * 100 >= nodes * MOST_AWAY_PERCENT
}
