//! Node objects from Git, joined with the records of the agents of the same name.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Snapshot, VersionedValue};
use crate::keys::Key;
use crate::kinds::metadata::GONE_ANNOTATION;
use crate::kinds::node::{NodeSpec, Taint};
use crate::kinds::pod::{PodSpec, PodStatus};
use crate::kinds::{Kind, Resource};
use crate::meta::{DEFAULT_NAMESPACE, NamespacedName, ObjectRef, StringMap};
use crate::object::Object;
use crate::records::{Binding, NodeConditions};

impl Snapshot {
    /// Returns the Node object of this name, if Git has one.
    pub fn node_object(&self, node: &str) -> Option<&VersionedValue<Object>> {
        let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), node.to_owned());
        self.objects.get(&ObjectRef { kind: Kind::Node, namespace, name }).map(|object| &**object)
    }

    /// Returns the spec of a node's Node object, if Git has one.
    pub fn node_spec(&self, node: &str) -> Option<&NodeSpec> {
        match &self.node_object(node)?.value.resource {
            Resource::Node(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns the labels of a node: its agent's, overridden by those of the Node object.
    pub fn node_labels(&self, node: &str) -> Cow<'_, StringMap> {
        static NONE: StringMap = StringMap::new();
        let registered = self.nodes.get(node).map_or(&NONE, |record| &record.value.labels);
        let object = self.node_object(node).map(|object| &object.value.metadata.labels);
        match object.filter(|labels| !labels.is_empty()) {
            None => Cow::Borrowed(registered),
            Some(wanted) => {
                let all = registered.iter().chain(wanted);
                Cow::Owned(all.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
        }
    }

    /// True if the pods of the node are lost and must be replaced elsewhere: it has been silent for as long as the
    /// Cluster object says, or it is neither registered nor alive. False as soon as its heartbeats return.
    pub fn is_evicted(&self, node: &str) -> bool {
        let is_given_up =
            || self.conditions_of(node).is_some_and(|conditions| conditions.evicted_at.is_some());
        // An unreadable record still exists.
        let is_known = || {
            let key = Key::Node(node.to_owned()).to_string();
            self.nodes.contains_key(node) || self.malformed.contains_key(&key)
        };
        !self.node_is_ready(node) && (!is_known() || is_given_up())
    }

    /// True if pods must leave the node while it runs: its Node object says `drain`.
    pub fn is_draining(&self, node: &str) -> bool {
        self.node_spec(node).is_some_and(|node| node.drain)
    }

    /// True if a running pod must leave the node, see [`NodeSpec::evicts`].
    pub fn drives_out(&self, node: &str, pod: &PodSpec) -> bool {
        let elapsed = |taint: &Taint| elapsed_seconds(self.conditions_of(node), taint);
        self.node_spec(node).is_some_and(|spec| spec.evicts(pod, elapsed))
    }

    /// Returns the conditions of a node, once the nodes controller has written them.
    pub fn conditions_of(&self, node: &str) -> Option<&NodeConditions> {
        self.node_conditions.get(node).map(|conditions| &conditions.value)
    }

    /// True if Git says that the machine will not come back.
    pub fn is_gone(&self, node: &str) -> bool {
        let annotations = self.node_object(node).map(|object| &object.value.metadata.annotations);
        annotations
            .and_then(|annotations| annotations.get(GONE_ANNOTATION))
            .is_some_and(|value| value == "true")
    }
}

/// Returns the elapsed seconds of a taint, for pods that tolerate it for a limited time: see
/// [`Taint::is_tolerated_by`].
pub fn elapsed_seconds(conditions: Option<&NodeConditions>, taint: &Taint) -> i64 {
    let taints = conditions.map(|conditions| &conditions.taints).filter(|taints| !taints.is_empty());
    taints.and_then(|taints| taints.get(&taint.to_string())).map_or(0, |age| age.elapsed_seconds)
}

// Joins bindings with the reported statuses of the same pods, in one walk through both tables: for plans that
// would otherwise look up each of 30,000 pods.

/// A pod on its node.
#[derive(Debug, Clone, Copy)]
pub struct BoundPod<'a> {
    /// Node and pod.
    pub key: &'a (String, NamespacedName),
    /// Binding of the pod.
    pub binding: &'a Arc<VersionedValue<Binding>>,
    /// Status that the node reports under the pod's name, of whichever incarnation.
    pub reported: Option<&'a PodStatus>,
}

impl<'a> BoundPod<'a> {
    /// Returns the name of the node.
    pub fn node(&self) -> &'a str {
        &self.key.0
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
            BoundPod { key: place, binding, reported: found.map(|(_, status)| &status.value) }
        })
    }

    /// Returns the bindings by pod; the first by node name if a pod is bound twice.
    pub fn bound_by_pod(&self) -> HashMap<&NamespacedName, BoundPod<'_>> {
        let mut found = HashMap::with_capacity(self.bindings.len());
        for bound in self.bound_pods() {
            found.entry(&bound.key.1).or_insert(bound);
        }
        found
    }
}

// Detects that most nodes are away at once: then more likely this reconciler is cut off, or etcd was.

/// Percentage of nodes away from which on no conclusion is drawn: Kubernetes' own number for a zone
/// (`--unhealthy-zone-threshold`).
const MOST_AWAY_PERCENT: usize = 55;

/// Number of nodes that are away, and of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwayNodes {
    /// Number of nodes without a heartbeat.
    pub away: usize,
    /// Number of registered nodes.
    pub nodes: usize,
}

/// Returns the numbers if most registered nodes have no heartbeat.
pub fn most_nodes_away(snapshot: &Snapshot) -> Option<AwayNodes> {
    let nodes = snapshot.nodes.len();
    let away = snapshot.nodes.keys().filter(|node| !snapshot.node_is_ready(node)).count();
    is_most_away(away, nodes).then_some(AwayNodes { away, nodes })
}

/// True if `away` of `nodes` nodes are too many to draw a conclusion.
pub fn is_most_away(away: usize, nodes: usize) -> bool {
    away * 100 >= nodes * MOST_AWAY_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::ConditionStatus;
    use crate::testing::{at, heartbeat, node_record};

    #[test]
    fn a_node_is_evicted_once_it_was_given_up_and_until_it_beats_again() {
        let node = || "n1".to_owned();
        let mut snapshot = Snapshot::default();
        assert!(snapshot.is_evicted("n1"), "neither registered nor alive");
        snapshot.put(&Key::Node(node()), &node_record("n1"), 1);
        assert!(!snapshot.is_evicted("n1"), "{:?}", snapshot.malformed);
        let since = at(0);
        let conditions = NodeConditions {
            evicted_at: Some(since),
            ..NodeConditions::new(ConditionStatus::Unknown, since)
        };
        snapshot.put(&Key::NodeConditions(node()), &conditions, 2);
        assert!(snapshot.is_evicted("n1"));
        snapshot.put(&Key::Heartbeat(node()), &heartbeat(), 3);
        assert!(!snapshot.is_evicted("n1"));
    }
}
