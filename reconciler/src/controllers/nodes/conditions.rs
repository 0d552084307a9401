//! Conditions of nodes: readiness and its time, eviction, and progress of drains with the pods that may leave.
//!
//! The times are in etcd, so that a new leader continues to count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::pod::TaintEffect;
use schema::records::{Drain, NodeConditions, TaintAge};
use schema::snapshot::{Evictions, Snapshot, VersionedValue};

use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::{Observed, Writes};
use schema::snapshot::{AwayNodes, is_most_away, most_nodes_away};

/// Lease of a heartbeat. No node is evicted this soon after the start of a term: after an outage of etcd, which
/// ends the term, agents need this time to beat again. The same holds after most nodes were away: they do not come
/// back at the same moment.
const LEASE: SignedDuration = SignedDuration::from_secs(15);

/// Plans the writes below `nodestate/`.
pub(super) fn plan(seen: &Observed, now: Timestamp, out: &mut Writes) {
    let snapshot = &seen.snapshot;
    let patience = SignedDuration::from_secs(snapshot.cluster().nodes.evict_after_seconds.into());
    let mut fare = Vec::new();
    let evictions = Evictions::of(snapshot);
    note_refused(&evictions, out);
    for node in snapshot.nodes.keys().filter(|node| !is_gone_and_silent(snapshot, node)) {
        let key = Key::NodeConditions(node.clone());
        if snapshot.malformed.contains_key(&key.to_string()) {
            out.note(Note::about_node(node, NoteKind::Unreadable { key: key.to_string() }));
            continue;
        }
        let before = snapshot.node_conditions.get(node).map(|present| &present.value);
        // The node registered a moment ago, and its first heartbeat follows.
        let age = now.duration_since(snapshot.nodes[node].value.registered_at);
        if before.is_none() && !snapshot.node_is_ready(node) && (SignedDuration::ZERO..LEASE).contains(&age) {
            out.plan_again_by(now + (LEASE - age));
            continue;
        }
        let taints = taints(snapshot, node, before, now, out);
        let drain = snapshot.is_draining(node).then(|| drain(snapshot, node, &evictions));
        fare.push((
            node,
            NodeConditions { taints, drain, ..observed_conditions(snapshot, node, before, now) },
        ));
    }
    let most_away = most_nodes_away(snapshot);
    let returns: Vec<ReturnedNode> =
        fare.iter().filter_map(|(_, conditions)| ReturnedNode::of(conditions, now)).collect();
    for (node, mut wanted) in fare {
        let present = snapshot.node_conditions.get(node);
        if wanted.ready == ConditionStatus::Unknown && wanted.evicted_at.is_none() {
            let due = (wanted.since + patience).max(seen.term_began + LEASE);
            let latest = wanted.since + patience.max(LEASE);
            let due = returns_until(snapshot, &returns, latest).map_or(due, |returns| returns.max(due));
            match &most_away {
                _ if due > now => out.plan_again_by(due),
                Some(away) => out.note(eviction_held_note(node, away)),
                None => wanted.evicted_at = Some(now),
            }
        }
        let reason = reason(present.map(|present| &present.value), &wanted, now);
        out.put_if_changed(Key::NodeConditions(node.clone()), present, &wanted, reason);
    }
}

/// A node that came back less than a lease ago.
struct ReturnedNode {
    /// Time at which the node fell silent.
    silent_since: Timestamp,
    /// End of one lease after the node came back.
    until: Timestamp,
}

impl ReturnedNode {
    fn of(conditions: &NodeConditions, now: Timestamp) -> Option<Self> {
        let until = conditions.since + LEASE;
        let is_back = conditions.ready != ConditionStatus::Unknown && until > now;
        let silent_since = conditions.last_silence.filter(|_| is_back)?;
        Some(Self { silent_since, until })
    }
}

/// Returns the time that the other nodes have to come back, if most nodes were away within the last lease and some
/// are back. Only nodes that fell silent by `latest`, when a silent node was due for eviction, count: a node that
/// keeps coming and going delays nothing.
fn returns_until(snapshot: &Snapshot, returns: &[ReturnedNode], latest: Timestamp) -> Option<Timestamp> {
    let away = snapshot.nodes.keys().filter(|node| !snapshot.node_is_ready(node)).count();
    let with_it = |back: &&ReturnedNode| back.silent_since <= latest;
    let back: Vec<Timestamp> = returns.iter().filter(with_it).map(|back| back.until).collect();
    is_most_away(away + back.len(), snapshot.nodes.len()).then(|| back.into_iter().min()).flatten()
}

/// Returns the observed conditions of a node; eviction and drain are decided elsewhere.
fn observed_conditions(
    snapshot: &Snapshot,
    node: &str,
    before: Option<&NodeConditions>,
    now: Timestamp,
) -> NodeConditions {
    let ready = match (snapshot.node_is_ready(node), snapshot.subnets.contains_key(node)) {
        (false, _) => ConditionStatus::Unknown,
        (true, has_range) => has_range.into(),
    };
    let same = before.filter(|before| before.ready == ready);
    // Older versions kept the node's own time only.
    let registered = || snapshot.nodes.get(node).map(|record| record.value.registered_at.min(now));
    let first_seen_at = before.and_then(|before| before.first_seen_at.or_else(registered));
    let returned = before.filter(|before| before.ready == ConditionStatus::Unknown && ready != before.ready);
    NodeConditions {
        ready,
        first_seen_at: first_seen_at.or(Some(now)),
        last_silence: returned.map(|before| before.since).or_else(|| before?.last_silence),
        taints: BTreeMap::new(),
        // A time in the future comes from a leader whose clock was wrong.
        since: same.map_or(now, |before| before.since.min(now)),
        evicted_at: same.and_then(|before| before.evicted_at).filter(|_| ready == ConditionStatus::Unknown),
        drain: None,
    }
}

/// Returns the age of the node's `NoExecute` taints, and for how long its pods with a limited toleration have
/// tolerated them.
fn taints(
    snapshot: &Snapshot,
    node: &str,
    before: Option<&NodeConditions>,
    now: Timestamp,
    out: &mut Writes,
) -> BTreeMap<String, TaintAge> {
    let taints = snapshot.node_spec(node).map_or(&[][..], |spec| &spec.taints);
    let mut ages = BTreeMap::new();
    for taint in taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute) {
        let known = before.and_then(|before| before.taints.get(&taint.to_string()));
        let mut age = known.cloned().unwrap_or(TaintAge { since: now, elapsed_seconds: 0 });
        // A time in the future comes from a leader whose clock was wrong.
        age.since = age.since.min(now);
        for (_, binding) in snapshot.bindings_of(node) {
            let toleration = taint.matching_toleration(&binding.value.pod.spec.tolerations);
            let Some(seconds) = toleration.and_then(|toleration| toleration.toleration_seconds) else {
                continue;
            };
            let over = age.since.checked_add(SignedDuration::from_secs(seconds.max(0)));
            match over.unwrap_or(Timestamp::MAX) {
                over if over > now => out.plan_again_by(over),
                _ => age.elapsed_seconds = age.elapsed_seconds.max(seconds),
            }
        }
        ages.insert(taint.to_string(), age);
    }
    ages
}

fn drain(snapshot: &Snapshot, node: &str, evictions: &Evictions) -> Drain {
    let stays = |named: Option<&str>| named == Some(node);
    let bound = snapshot.bindings_of(node).filter(|(_, binding)| {
        let pod = &binding.value.pod;
        !stays(pod.spec.node_name.as_deref())
    });
    // While a node is away, the end of a pod can't be observed.
    let ending = snapshot
        .pod_status_of(node)
        .filter(|(pod, _)| snapshot.node_is_ready(node) && !is_bound(snapshot, node, pod));
    match u32::try_from(bound.count() + ending.count()).unwrap_or(u32::MAX) {
        0 => Drain::Drained,
        left => Drain::Draining { left, evicting: evictions.allowed.get(node).cloned().unwrap_or_default() },
    }
}

/// Notes on each node the budgets that it waits for, each with the first pod that it holds.
fn note_refused(evictions: &Evictions, out: &mut Writes) {
    let mut noted = BTreeSet::new();
    for refused in &evictions.refused {
        if noted.insert((&refused.node, &refused.pod.namespace, &refused.budget)) {
            out.note(Note::about_node(&refused.node, NoteKind::EvictionRefused { refused: refused.clone() }));
        }
    }
}

fn is_bound(snapshot: &Snapshot, node: &str, pod: &schema::meta::NamespacedName) -> bool {
    snapshot.bindings.contains_key(&(node.to_owned(), pod.clone()))
}

fn eviction_held_note(node: &str, away: &AwayNodes) -> Note {
    Note::about_node(node, NoteKind::EvictionHeld { away: away.away, nodes: away.nodes })
}

/// Returns the most important change.
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
    if before.is_none_or(|before| before.taints != wanted.taints) {
        return Reason::TaintsAge;
    }
    Reason::DrainProgress { drain: wanted.drain.clone() }
}

// Deletes the keys of nodes that Git declares gone, with the annotation `minik8s.io/gone: "true"`. Never writes
// them, and deletes them only while no agent of that name beats. The scheduler deletes their bindings.

/// True if Git declares the node gone and it has no heartbeat.
pub(super) fn is_gone_and_silent(snapshot: &Snapshot, node: &str) -> bool {
    snapshot.is_gone(node) && !snapshot.node_is_ready(node)
}

/// Plans the deletions for nodes that are gone, and for nodes that left by themselves.
pub(super) fn remove_gone(snapshot: &Snapshot, out: &mut Writes) {
    let named = snapshot.objects.keys().filter(|object| object.kind == Kind::Node);
    for node in named.map(|object| &object.name).filter(|node| snapshot.is_gone(node)) {
        if snapshot.node_is_ready(node) {
            out.note(Note::about_node(node, NoteKind::GoneButAlive));
        } else {
            delete(snapshot, node, out);
        }
    }
    for (node, conditions) in &snapshot.node_conditions {
        if !snapshot.nodes.contains_key(node) && !snapshot.is_gone(node) && !snapshot.node_is_ready(node) {
            out.delete(Key::NodeConditions(node.clone()), conditions.mod_revision, Reason::NodeLeft);
        }
    }
}

fn delete(snapshot: &Snapshot, node: &String, out: &mut Writes) {
    let mut delete = |key: Key, at: Option<i64>| {
        if let Some(revision) = at {
            out.delete(key, revision, Reason::NodeGone);
        }
    };
    // The record first, so that nothing more is placed on the node.
    delete(Key::Node(node.clone()), revision(snapshot.nodes.get(node)));
    delete(Key::NodeConditions(node.clone()), revision(snapshot.node_conditions.get(node)));
    delete(Key::Usage(node.clone()), revision(snapshot.usage.get(node)));
    delete(Key::Demand(node.clone()), revision(snapshot.demand.get(node)));
    let images = snapshot.node_images.range((node.clone(), String::new())..);
    for ((_, image), status) in images.take_while(|((on, _), _)| on == node) {
        delete(Key::NodeImage(node.clone(), image.clone()), Some(status.mod_revision));
    }
    delete(Key::Rules(node.clone()), revision(snapshot.rules.get(node)));
    let jobs = snapshot.job_reports.iter().filter(|((at, _), _)| at == node);
    for ((_, job), report) in jobs {
        let key = Key::JobReport(node.clone(), job.clone());
        delete(key, Some(report.mod_revision));
    }
    for (pod, status) in snapshot.pod_status_of(node) {
        delete(Key::PodStatus(node.clone(), pod.clone()), Some(status.mod_revision));
    }
    // The range last: it stays while a pod is bound to the node.
    if snapshot.bindings_of(node).next().is_none() {
        delete(Key::Subnet(node.clone()), revision(snapshot.subnets.get(node)));
    }
}

fn revision<T>(present: Option<&Arc<VersionedValue<T>>>) -> Option<i64> {
    present.map(|present| present.mod_revision)
}
