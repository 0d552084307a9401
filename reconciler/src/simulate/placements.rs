//! Where new pods would go if these changes of objects were applied now: the controllers' own plans on a copy of the
//! snapshot, on which every pod that has a node becomes ready. Pure.

use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use schema::codec::encode;
use schema::condition::{Condition, ConditionStatus};
use schema::keys::Key;
use schema::kinds::pod::{PodPhase, PodStatus};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::PodInstance;
use schema::snapshot::{Change as SnapshotChange, Snapshot};
use serde::{Deserialize, Serialize};

use crate::controllers::scheduler::{self, Explainer};
use crate::controllers::{Change, LastKnown, Write, autoscaler, workloads};

/// Most pods that are gone through.
pub const PODS_MAX: usize = 50_000;

/// What becomes of objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectChanges {
    /// New and changed ones.
    pub put: Vec<Object>,
    /// Removed ones.
    pub delete: Vec<ObjectRef>,
}

/// Where a new or moved pod would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The node; none: it fits nowhere.
    pub node: Option<String>,
    /// Why there, or why nowhere.
    pub why: String,
}

/// All that could be found out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placements {
    /// In order of namespace and name.
    pub items: Vec<Placement>,
    /// Nothing is left out: the last step of every rollout was gone through.
    pub complete: bool,
}

/// One for each pod that would be new or move to another node. Takes about `patience` at most.
///
/// # Errors
/// The changes ask for more than [`PODS_MAX`] pods.
pub fn placements(
    snapshot: &Snapshot,
    changes: &ObjectChanges,
    now: Timestamp,
    patience: Duration,
) -> Result<Placements, String> {
    let begun = Instant::now();
    let asked = changes.put.iter().filter_map(|object| object.resource.pod(&object.metadata));
    let pods = asked.fold(0, |sum: usize, pod| sum.saturating_add(pod.count as usize));
    if pods > PODS_MAX {
        return Err(format!("it asks for {pods} pods; up to {PODS_MAX} are gone through"));
    }
    let mut world = World(snapshot.clone());
    for object in &changes.delete {
        world.delete(&Key::Object(object.clone()));
    }
    for object in &changes.put {
        world.put(&Key::Object(object.reference()), object);
    }
    let nothing = LastKnown::default();
    world.carry_out(&autoscaler::plan(&world.0, &nothing, now).writes);
    let mut complete = false;
    while !complete && begun.elapsed() < patience && world.0.pods.len() <= PODS_MAX {
        let pods = workloads::plan(&world.0, &nothing, now);
        complete = !world.carry_out(&pods.writes);
        let bindings = scheduler::bind(&world.0, &nothing, None);
        complete &= !world.carry_out(&bindings.writes);
        complete &= !world.report();
    }
    let is_as_before = |pod: &PodInstance| {
        let node = |of: &Snapshot| {
            let bound = of.binding_of(&pod.reference()).map(|bound| &bound.value);
            bound.filter(|bound| bound.pod.uid == pod.uid).map(|bound| bound.node.clone())
        };
        let was = snapshot.pods.get(&pod.reference()).is_some_and(|was| was.value.uid == pod.uid);
        was && node(snapshot) == node(&world.0)
    };
    let explainer = Explainer::new(&world.0);
    let all = world.0.pods.values().map(|pod| &pod.value);
    let changed = all.filter(|pod| !is_as_before(pod));
    Ok(Placements { items: changed.map(|pod| world.placement(pod, &explainer)).collect(), complete })
}

/// A snapshot that moves on as the cluster would.
struct World(Snapshot);

impl World {
    fn put<T: Serialize>(&mut self, key: &Key, value: &T) {
        // What is too large for etcd would not get there either.
        if let Ok(value) = encode(value) {
            self.put_bytes(key, value.into());
        }
    }

    fn put_bytes(&mut self, key: &Key, value: Bytes) {
        self.0.revision += 1;
        let (key, revision) = (key.to_string(), self.0.revision);
        let change = SnapshotChange::Put { key, value, create_revision: revision, mod_revision: revision };
        self.0.apply(&change);
    }

    fn delete(&mut self, key: &Key) {
        self.0.revision += 1;
        self.0.apply(&SnapshotChange::Delete { key: key.to_string() });
    }

    /// Whether any of it is about pods: records of a rollout alone move none.
    fn carry_out(&mut self, writes: &[Write]) -> bool {
        for write in writes {
            match &write.change {
                Change::Put(value) => self.put_bytes(&write.key, value.clone()),
                Change::Delete => self.delete(&write.key),
            }
        }
        writes.iter().any(|write| matches!(write.key, Key::Pod(_) | Key::Binding(..)))
    }

    /// Nodes end what is not bound to them any more, and what is becomes ready. Whether that changes anything.
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
            self.delete(&Key::PodStatus(node, pod));
        }
        for ((node, pod), uid) in new {
            self.put(&Key::PodStatus(node, pod), &ready(&uid));
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
    use std::sync::Arc;

    use schema::kinds::Resource;
    use schema::kinds::node::NodeSpec;
    use schema::kinds::replica_set::ReplicaSetSpec;

    use super::*;
    use crate::controllers::testing::{SnapshotBuilder, object, object_of, spec};

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn replica_set(replicas: u32, cpu: u64) -> Object {
        let mut set = ReplicaSetSpec { replicas, progress_deadline_seconds: 60, ..ReplicaSetSpec::default() };
        set.template.spec = spec(cpu, 1);
        let resource = Resource::ReplicaSet(Arc::new(set));
        let hash = Object::hash_of(&resource, &Default::default());
        Object { hash, ..object_of("web", resource) }
    }

    fn nodes_of(snapshot: &Snapshot, changes: &ObjectChanges) -> Vec<String> {
        let all = placements(snapshot, changes, NOW.parse().unwrap(), Duration::from_secs(60)).unwrap();
        assert!(all.complete);
        all.items.into_iter().map(|one| one.node.unwrap_or(one.why)).collect()
    }

    fn put(objects: &[Object]) -> ObjectChanges {
        ObjectChanges { put: objects.to_vec(), delete: Vec::new() }
    }

    /// What is there once these objects were applied.
    fn applied(snapshot: &Snapshot, objects: &[Object]) -> Snapshot {
        let mut world = World(snapshot.clone());
        for object in objects {
            world.put(&Key::Object(object.reference()), object);
        }
        for _ in 0..10 {
            world.carry_out(&workloads::plan(&world.0, &LastKnown::default(), NOW.parse().unwrap()).writes);
            world.carry_out(&scheduler::bind(&world.0, &LastKnown::default(), None).writes);
            world.report();
        }
        world.0
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
        // More of the same: only the further ones are new.
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
    fn more_pods_than_it_goes_through_are_refused() {
        let snapshot = SnapshotBuilder::new().nodes(1).snapshot;
        let changes = put(&[replica_set(u32::MAX, 1)]);
        let refused = placements(&snapshot, &changes, NOW.parse().unwrap(), Duration::from_secs(60));
        assert!(refused.unwrap_err().contains("4294967295 pods"));
    }

    #[test]
    fn pods_that_a_drain_moves_are_named() {
        let empty = SnapshotBuilder::new().nodes(2).snapshot;
        let snapshot = applied(&empty, &[replica_set(2, 100)]);
        let drain = NodeSpec { drain: true, ..NodeSpec::default() };
        let node = object_of("n1", Resource::Node(Arc::new(drain)));
        assert_eq!(nodes_of(&snapshot, &put(&[node])), ["n2"]);
    }
}
