//! How nodes fare: ready or not and since when, given up or not, and how far their drains are.
//!
//! The times lie in etcd, so that a new leader goes on counting.

use jiff::{SignedDuration, Timestamp};
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::records::{Drain, NodeConditions};
use schema::snapshot::Snapshot;

use super::gone::has_left;
use crate::controllers::away::{Away, are_most_away, is_most};
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::{Observed, Writes};

/// One lease of a heartbeat. So long after the start of a term no node is given up: after an outage of etcd, which
/// ends the term, agents need this time to beat again. The same holds when most nodes were away: they do not come back at
/// the same moment.
const LEASE: SignedDuration = SignedDuration::from_secs(15);

/// What should be written below `nodestate/`.
pub(super) fn plan(seen: &Observed, now: Timestamp, out: &mut Writes) {
    let snapshot = &seen.snapshot;
    let patience = SignedDuration::from_secs(snapshot.cluster().nodes.evict_after_seconds.into());
    let mut fare = Vec::new();
    for node in snapshot.nodes.keys().filter(|node| !has_left(snapshot, node)) {
        let key = Key::NodeConditions(node.clone());
        if snapshot.malformed.contains_key(&key.to_string()) {
            out.note(Note::about_node(node, NoteKind::Unreadable { key: key.to_string() }));
            continue;
        }
        let before = snapshot.node_conditions.get(node).map(|present| &present.value);
        // It has registered a moment ago, and its first heartbeat follows.
        let age = now.duration_since(snapshot.nodes[node].value.registered_at);
        if before.is_none() && !snapshot.node_is_ready(node) && (SignedDuration::ZERO..LEASE).contains(&age) {
            out.again_by(now + (LEASE - age));
            continue;
        }
        fare.push((node, next(snapshot, node, before, now)));
    }
    let most_away = are_most_away(snapshot);
    let returns = returns_until(snapshot, fare.iter().map(|(_, conditions)| conditions), now);
    for (node, mut wanted) in fare {
        let present = snapshot.node_conditions.get(node);
        if wanted.ready == ConditionStatus::Unknown && wanted.evicted_at.is_none() {
            let due = (wanted.since + patience).max(seen.term_began + LEASE);
            let due = returns.map_or(due, |returns| returns.max(due));
            match &most_away {
                _ if due > now => out.again_by(due),
                Some(away) => out.note(held(node, away)),
                None => wanted.evicted_at = Some(now),
            }
        }
        let reason = reason(present.map(|present| &present.value), &wanted, now);
        out.put_if_other(Key::NodeConditions(node.clone()), present, &wanted, reason);
    }
}

/// Most nodes were away within the last lease and some are back: until when the others may take to follow them.
fn returns_until<'a>(
    snapshot: &Snapshot,
    nodes: impl Iterator<Item = &'a NodeConditions>,
    now: Timestamp,
) -> Option<Timestamp> {
    let away = snapshot.nodes.keys().filter(|node| !snapshot.node_is_ready(node)).count();
    let back = nodes.filter(|conditions| conditions.ready != ConditionStatus::Unknown);
    let back: Vec<Timestamp> =
        back.map(|conditions| conditions.since + LEASE).filter(|until| *until > now).collect();
    is_most(away + back.len(), snapshot.nodes.len()).then(|| back.into_iter().min()).flatten()
}

/// What is to be seen of a node; whether it is given up is decided elsewhere.
fn next(snapshot: &Snapshot, node: &str, before: Option<&NodeConditions>, now: Timestamp) -> NodeConditions {
    let ready = match (snapshot.node_is_ready(node), snapshot.subnets.contains_key(node)) {
        (false, _) => ConditionStatus::Unknown,
        (true, has_range) => has_range.into(),
    };
    let same = before.filter(|before| before.ready == ready);
    NodeConditions {
        ready,
        // A time to come is of a leader whose clock was wrong.
        since: same.map_or(now, |before| before.since.min(now)),
        evicted_at: same.and_then(|before| before.evicted_at).filter(|_| ready == ConditionStatus::Unknown),
        drain: snapshot.is_draining(node).then(|| drain(snapshot, node)),
    }
}

fn drain(snapshot: &Snapshot, node: &str) -> Drain {
    let stays = |named: Option<&str>| named == Some(node);
    let bound = snapshot.bindings_of(node).filter(|(_, binding)| {
        let pod = &binding.value.pod;
        !stays(pod.spec.node_name.as_deref())
    });
    // Of a node that is away no pod can be seen to end.
    let ending = snapshot
        .pod_status_of(node)
        .filter(|(pod, _)| snapshot.node_is_ready(node) && !is_bound(snapshot, node, pod));
    match u32::try_from(bound.count() + ending.count()).unwrap_or(u32::MAX) {
        0 => Drain::Drained,
        left => Drain::Draining { left },
    }
}

fn is_bound(snapshot: &Snapshot, node: &str, pod: &schema::meta::NamespacedName) -> bool {
    snapshot.bindings.contains_key(&(node.to_owned(), pod.clone()))
}

fn held(node: &str, away: &Away) -> Note {
    Note::about_node(node, NoteKind::EvictionHeld { away: away.away, nodes: away.nodes })
}

/// The change that matters most.
fn reason(before: Option<&NodeConditions>, wanted: &NodeConditions, now: Timestamp) -> Reason {
    let evicted = |conditions: &NodeConditions| conditions.evicted_at.is_some();
    if evicted(wanted) && !before.is_some_and(evicted) {
        return Reason::NodeEvicted { silent_seconds: now.duration_since(wanted.since).as_secs() };
    }
    if before.is_none_or(|before| before.ready != wanted.ready) {
        return match wanted.ready {
            ConditionStatus::True => Reason::NodeReady,
            ConditionStatus::False => Reason::NodeWithoutRange,
            ConditionStatus::Unknown => Reason::NodeSilent,
        };
    }
    Reason::DrainProgress { drain: wanted.drain }
}
