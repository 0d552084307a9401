//! Selects the nodes that have a pod of a daemon set, as Kubernetes' DaemonSet controller does. Pure.
//!
//! Ignores room and host ports: such a pod waits for its node, and the scheduler reports why.

use std::collections::BTreeSet;

use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::node::Taint;
use schema::kinds::pod::{PodSpec, TaintEffect, Toleration, TolerationOperator};
use schema::meta::{DEFAULT_NAMESPACE, ObjectRef, matches_node_selector};
use schema::snapshot::{Snapshot, elapsed_seconds};

/// Taints that pods of a daemon set always tolerate, as in Kubernetes: a node that is cordoned, not ready or short
/// of something keeps its pod.
const TOLERATED: [(&str, TaintEffect); 6] = [
    ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
];

/// Returns the pod's own tolerations, and those of every pod of a daemon set.
pub(super) fn tolerations(pod: &PodSpec) -> Vec<Toleration> {
    let always = TOLERATED.iter().map(|(key, effect)| Toleration {
        key: Some((*key).to_owned()),
        operator: TolerationOperator::Exists,
        value: None,
        effect: Some(*effect),
        toleration_seconds: None,
    });
    pod.tolerations.iter().cloned().chain(always).collect()
}

/// Nodes grouped by the fate of the daemon set's pod there.
#[derive(Debug, Default)]
pub(super) struct DaemonNodes<'a> {
    /// Nodes that should have a pod.
    pub(super) wanted: BTreeSet<&'a str>,
    /// Nodes whose pods stay as they are and are not counted: evicted nodes, until they beat again, and nodes with
    /// an unreadable object.
    pub(super) untouched: BTreeSet<&'a str>,
}

impl<'a> DaemonNodes<'a> {
    /// Groups the nodes for the template `pod`. `has_one` returns true if the node already has a pod of the daemon
    /// set.
    pub(super) fn of(snapshot: &'a Snapshot, pod: &PodSpec, has_one: impl Fn(&str) -> bool) -> Self {
        let tolerations = tolerations(pod);
        let mut nodes = Self::default();
        for node in snapshot.nodes.keys() {
            if is_unreadable(snapshot, node) {
                nodes.untouched.insert(node);
            } else if unfit_reason(snapshot, node, pod, &tolerations, has_one(node)).is_none() {
                let given_up = snapshot.is_evicted(node);
                if given_up {
                    nodes.untouched.insert(node)
                } else {
                    nodes.wanted.insert(node)
                };
            }
        }
        nodes
    }
}

/// Returns why the pod on `node` must go; `None` if it stays.
pub(super) fn removal_reason(snapshot: &Snapshot, node: &str, pod: &PodSpec) -> Option<String> {
    if !snapshot.nodes.contains_key(node) {
        // A node that only lost its record still beats, and registers again.
        return snapshot.is_evicted(node).then(|| format!("node {node} is gone"));
    }
    if is_unreadable(snapshot, node) {
        return None;
    }
    unfit_reason(snapshot, node, pod, &tolerations(pod), true)
}

/// Returns why a registered node has no pod of this template; `None` if it should have one. As in Kubernetes, a
/// `NoSchedule` taint keeps new pods away and lets existing ones stay.
fn unfit_reason(
    snapshot: &Snapshot,
    node: &str,
    pod: &PodSpec,
    tolerations: &[Toleration],
    has_one: bool,
) -> Option<String> {
    if let Some(named) = pod.node_name.as_ref().filter(|named| *named != node) {
        return Some(format!("the template names node {named}, not {node}"));
    }
    if !matches_node_selector(&pod.node_selector, &snapshot.node_labels(node)) {
        return Some(format!("node {node} lacks labels that nodeSelector asks for"));
    }
    if pod.required_nodes().is_some_and(|nodes| !nodes.matches(node, &snapshot.node_labels(node))) {
        return Some(format!("node {node} does not match the node affinity of the template"));
    }
    let keeps_away = |effect: TaintEffect| match effect {
        TaintEffect::NoSchedule => !has_one,
        TaintEffect::PreferNoSchedule => false,
        TaintEffect::NoExecute => true,
    };
    let mut taints = snapshot.node_spec(node)?.taints.iter().filter(|taint| keeps_away(taint.effect));
    let elapsed = |taint: &Taint| elapsed_seconds(snapshot.conditions_of(node), taint);
    let taint = taints.find(|taint| !taint.is_tolerated_by(tolerations, elapsed(taint)))?;
    Some(format!("node {node} has the taint {taint} that the template does not tolerate"))
}

/// True if the node's object from Git is unreadable.
fn is_unreadable(snapshot: &Snapshot, node: &str) -> bool {
    let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), node.to_owned());
    let key = Key::Object(ObjectRef { kind: Kind::Node, namespace, name });
    !snapshot.malformed.is_empty() && snapshot.malformed.contains_key(&key.to_string())
}
