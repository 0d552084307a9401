//! Predicts the nodes of new pods if a change of objects were applied now: runs the controllers' own plans on a
//! copy of the snapshot in which every pod that has a node becomes ready. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::codec::encode;
use schema::condition::{Condition, ConditionStatus};
use schema::keys::Key;
use schema::kinds::pod::{PodPhase, PodStatus};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::PodInstance;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use crate::controllers::scheduler::{self, Explainer};
use crate::controllers::{Change, LastKnown, Precondition, Reason, Write, autoscaler, workloads};

/// Maximum number of simulated pods.
pub const PODS_MAX: usize = 50_000;

/// A change of objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectChanges {
    /// New and changed objects.
    pub put: Vec<Object>,
    /// Removed objects.
    pub delete: Vec<ObjectRef>,
}

/// Predicted node of a new or moved pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub namespace: String,
    pub pod: String,
    /// The node; `None` if the pod fits nowhere.
    pub node: Option<String>,
    /// Reason for the node, or for fitting nowhere.
    pub why: String,
}

/// Predicted nodes of all new and moved pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placements {
    /// Placements in order of namespace and name.
    pub items: Vec<Placement>,
    /// Set if every rollout was simulated to its last step; otherwise later pods are missing.
    pub complete: bool,
}

/// Predicts a placement for each pod that would be new or move to another node. Before each step of a rollout,
/// `goes_on` can stop the simulation.
///
/// # Errors
/// The changes ask for more than [`PODS_MAX`] pods.
pub fn placements(
    snapshot: &Snapshot,
    changes: &ObjectChanges,
    now: Timestamp,
    goes_on: impl Fn() -> bool,
) -> Result<Placements, String> {
    let asked = changes.put.iter().filter_map(|object| object.resource.pod(&object.metadata));
    let pods = asked.fold(0, |sum: usize, pod| sum.saturating_add(pod.count as usize));
    if pods > PODS_MAX {
        return Err(format!("the change asks for {pods} pods, more than {PODS_MAX}"));
    }
    let mut rehearsal = Rehearsal(snapshot.clone());
    for object in &changes.delete {
        rehearsal.delete(Key::Object(object.clone()));
    }
    for object in &changes.put {
        rehearsal.put(Key::Object(object.reference()), object);
    }
    let nothing = LastKnown::default();
    rehearsal.carry_out(&autoscaler::plan(&rehearsal.0, &nothing, &BTreeSet::new(), now).writes);
    let mut complete = false;
    while !complete && goes_on() && rehearsal.0.pods.len() <= PODS_MAX {
        let pods = workloads::plan(&rehearsal.0, &nothing, None, now);
        complete = !rehearsal.carry_out(&pods.writes);
        let bindings = scheduler::bind(&rehearsal.0, &nothing, None);
        complete &= !rehearsal.carry_out(&bindings.writes);
        complete &= !rehearsal.report();
    }
    let is_as_before = |pod: &PodInstance| {
        let node = |of: &Snapshot| {
            let bound = of.binding_of(&pod.reference()).map(|bound| &bound.value);
            bound.filter(|bound| bound.pod.uid == pod.uid).map(|bound| bound.node.clone())
        };
        let was = snapshot.pods.get(&pod.reference()).is_some_and(|was| was.value.uid == pod.uid);
        was && node(snapshot) == node(&rehearsal.0)
    };
    let explainer = Explainer::new(&rehearsal.0);
    let all = rehearsal.0.pods.values().map(|pod| &pod.value);
    let changed = all.filter(|pod| !is_as_before(pod));
    Ok(Placements { items: changed.map(|pod| rehearsal.placement(pod, &explainer)).collect(), complete })
}

/// A snapshot that changes as the cluster would.
struct Rehearsal(Snapshot);

impl Rehearsal {
    /// Writes a value, unless it is too large for etcd and could not be written there either.
    fn put<T: Serialize>(&mut self, key: Key, value: &T) {
        if let Ok(value) = encode(value) {
            self.write(key, Change::Put(value.into()));
        }
    }

    fn delete(&mut self, key: Key) {
        self.write(key, Change::Delete);
    }

    fn write(&mut self, key: Key, change: Change) {
        let (expect, reason) = (Precondition::Absent, Reason::Published);
        Write { key, change, expect, reason, joined: false }.apply_to(&mut self.0);
    }

    /// Applies the writes. Returns true if any is about pods: records of a rollout alone move none.
    fn carry_out(&mut self, writes: &[Write]) -> bool {
        writes.iter().for_each(|write| write.apply_to(&mut self.0));
        writes.iter().any(|write| matches!(write.key, Key::Pod(_) | Key::Binding(..)))
    }

    /// Simulates the nodes: pods that are no longer bound end, bound pods become ready. Returns true if anything
    /// changed.
    fn report(&mut self) -> bool {
        let is_gone = |place: &&(String, NamespacedName)| !self.0.bindings.contains_key(*place);
        let gone: Vec<_> = self.0.pod_status.keys().filter(is_gone).cloned().collect();
        let is_to_come = |place: &(String, NamespacedName), uid: &str| {
            let status = self.0.pod_status.get(place).map(|status| &status.value);
            status.is_none_or(|status| status.uid != uid || !status.is_ready() && !status.has_ended())
        };
        let bound = self.0.bindings.iter().map(|(place, binding)| (place, &binding.value.pod.uid));
        let new = bound.filter(|(place, uid)| self.0.node_is_ready(&place.0) && is_to_come(place, uid));
        let new: Vec<_> = new.map(|(place, uid)| (place.clone(), uid.clone())).collect();
        let changes = !(gone.is_empty() && new.is_empty());
        for (node, pod) in gone {
            self.delete(Key::PodStatus(node, pod));
        }
        for ((node, pod), uid) in new {
            self.put(Key::PodStatus(node, pod), &ready(&uid));
        }
        changes
    }

    fn placement(&self, pod: &PodInstance, explainer: &Explainer<'_>) -> Placement {
        let id = pod.reference();
        let bound = self.0.binding_of(&id).filter(|binding| binding.value.pod.uid == pod.uid);
        let (node, why) = match bound {
            Some(binding) => (Some(binding.value.node.clone()), binding.value.reason.clone()),
            None => (None, explainer.explain(&id).unwrap_or_default()),
        };
        let NamespacedName { namespace, name: pod } = id;
        Placement { namespace, pod, node, why }
    }
}

fn ready(uid: &str) -> PodStatus {
    let condition = Condition {
        kind: "Ready".to_owned(),
        status: ConditionStatus::True,
        reason: String::new(),
        message: String::new(),
        last_transition_time: Timestamp::UNIX_EPOCH,
    };
    PodStatus {
        uid: uid.to_owned(),
        phase: PodPhase::Running,
        conditions: vec![condition],
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use schema::kinds::Resource;
    use schema::kinds::node::NodeSpec;
    use schema::kinds::replica_set::ReplicaSetSpec;
    use schema::testing::{SnapshotBuilder, object, object_of, spec};

    use super::*;

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn replica_set(replicas: u32, cpu: u64) -> Object {
        let mut set =
            ReplicaSetSpec { replicas, progress_deadline_seconds: Some(60), ..ReplicaSetSpec::default() };
        set.template.spec = spec(cpu, 1);
        object_of("web", set)
    }

    fn nodes_of(snapshot: &Snapshot, changes: &ObjectChanges) -> Vec<String> {
        let all = placements(snapshot, changes, now(), || true).unwrap();
        assert!(all.complete);
        all.items.into_iter().map(|one| one.node.unwrap_or(one.why)).collect()
    }

    fn put(objects: &[Object]) -> ObjectChanges {
        ObjectChanges { put: objects.to_vec(), delete: Vec::new() }
    }

    /// The snapshot after these objects were applied.
    fn applied(snapshot: &Snapshot, objects: &[Object]) -> Snapshot {
        let mut rehearsal = Rehearsal(snapshot.clone());
        for object in objects {
            rehearsal.put(Key::Object(object.reference()), object);
        }
        for _ in 0..10 {
            rehearsal.carry_out(&workloads::plan(&rehearsal.0, &LastKnown::default(), None, now()).writes);
            rehearsal.carry_out(&scheduler::bind(&rehearsal.0, &LastKnown::default(), None).writes);
            rehearsal.report();
        }
        rehearsal.0
    }

    #[test]
    fn new_pods_are_spread_and_one_that_fits_nowhere_says_why() {
        let snapshot = SnapshotBuilder::new().nodes(3).snapshot;
        assert_eq!(nodes_of(&snapshot, &put(&[replica_set(3, 100)])).len(), 3);
        let mut nodes = nodes_of(&snapshot, &put(&[replica_set(3, 100), object("big", spec(100_000, 1))]));
        let why = nodes.remove(0);
        assert!(why.contains("0/3 nodes"), "{why}");
        nodes.sort();
        assert_eq!(nodes, ["n1", "n2", "n3"]);
    }

    #[test]
    fn all_pods_of_a_new_template_are_named_and_those_that_stay_are_not() {
        let empty = SnapshotBuilder::new().nodes(3).snapshot;
        let snapshot = applied(&empty, &[replica_set(4, 100), object("db", spec(1, 1))]);
        assert_eq!(snapshot.pods.len(), 5);
        assert!(nodes_of(&snapshot, &ObjectChanges::default()).is_empty());
        assert_eq!(nodes_of(&snapshot, &put(&[replica_set(4, 200)])).len(), 4);
        // The same template with more replicas: only the additional ones are new.
        assert_eq!(nodes_of(&snapshot, &put(&[replica_set(6, 100)])).len(), 2);
        let gone = ObjectChanges { put: Vec::new(), delete: vec![replica_set(4, 100).reference()] };
        assert!(nodes_of(&snapshot, &gone).is_empty());
    }

    #[test]
    fn copies_that_an_autoscaler_asks_for_at_once_are_named() {
        let empty = SnapshotBuilder::new().nodes(2).snapshot;
        let snapshot = applied(&empty, &[object("web", spec(1, 1))]);
        let scaler = serde_json::json!({"scaleTargetRef": {"kind": "Pod", "name": "web"},
            "minReplicas": 3, "maxReplicas": 9});
        let scaler = Resource::HorizontalPodAutoscaler(serde_json::from_value(scaler).unwrap());
        assert_eq!(nodes_of(&snapshot, &put(&[object_of("web", scaler)])).len(), 2);
    }

    #[test]
    fn what_is_cut_short_says_so() {
        let snapshot = SnapshotBuilder::new().nodes(1).snapshot;
        let cut = placements(&snapshot, &put(&[replica_set(1, 1)]), now(), || false).unwrap();
        assert_eq!(cut, Placements::default());
    }

    #[test]
    fn a_change_that_asks_for_too_many_pods_is_refused() {
        let snapshot = SnapshotBuilder::new().nodes(1).snapshot;
        let changes = put(&[replica_set(u32::MAX, 1)]);
        let refused = placements(&snapshot, &changes, now(), || true);
        assert!(refused.unwrap_err().contains("4294967295 pods"));
    }

    #[test]
    fn pods_that_a_drain_moves_are_named() {
        let empty = SnapshotBuilder::new().nodes(2).snapshot;
        let snapshot = applied(&empty, &[replica_set(2, 100)]);
        let drain = NodeSpec { drain: true, ..NodeSpec::default() };
        let node = object_of("n1", drain);
        assert_eq!(nodes_of(&snapshot, &put(&[node])), ["n2"]);
    }
}
