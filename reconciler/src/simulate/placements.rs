//! Where new pods would go if these changes of objects were applied now: the controllers' own plans on a copy of the
//! snapshot, on which every pod that has a node becomes ready. Pure.

use std::collections::BTreeSet;

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

use crate::controllers::scheduler::{self, explain};
use crate::controllers::{Change, LastKnown, Write, workloads};

/// Most steps of a rollout that are gone through; further pods are not named.
const ROUNDS_MAX: usize = 200;

/// What becomes of objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectChanges {
    /// New and changed ones.
    pub put: Vec<Object>,
    /// Removed ones.
    pub delete: Vec<ObjectRef>,
}

/// Where a new pod would go.
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

/// One for each pod that would be new or move to another node, in order of namespace and name.
pub fn placements(snapshot: &Snapshot, changes: &ObjectChanges, now: Timestamp) -> Vec<Placement> {
    let mut world = World(snapshot.clone());
    for object in &changes.delete {
        world.delete(&Key::Object(object.clone()));
    }
    for object in &changes.put {
        world.put(&Key::Object(object.reference()), object);
    }
    let nothing = LastKnown::default();
    for _ in 0..ROUNDS_MAX {
        let pods = workloads::plan(&world.0, &nothing, now);
        let is_done = !world.carry_out(&pods.writes);
        let bindings = scheduler::bind(&world.0, &nothing, None);
        if !world.carry_out(&bindings.writes) && is_done {
            break;
        }
        world.report();
    }
    let is_as_before = |pod: &PodInstance| {
        let node = |of: &Snapshot| {
            let bound = of.binding_of(&pod.reference()).map(|bound| &bound.value);
            bound.filter(|bound| bound.pod.uid == pod.uid).map(|bound| bound.node.clone())
        };
        let was = snapshot.pods.get(&pod.reference()).is_some_and(|was| was.value.uid == pod.uid);
        was && node(snapshot) == node(&world.0)
    };
    let all = world.0.pods.values().map(|pod| &pod.value);
    all.filter(|pod| !is_as_before(pod)).map(|pod| world.placement(pod)).collect()
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

    /// Nodes end what is not bound to them any more, and what is becomes ready.
    fn report(&mut self) {
        let reported: BTreeSet<_> = self.0.pod_status.keys().cloned().collect();
        let bound: Vec<_> = self.0.bindings.iter().map(|(place, b)| (place.clone(), b.clone())).collect();
        let is_bound: BTreeSet<_> = bound.iter().map(|(place, _)| place).collect();
        for (node, pod) in reported.iter().filter(|place| !is_bound.contains(place)) {
            self.delete(&Key::PodStatus(node.clone(), pod.clone()));
        }
        for ((node, pod), binding) in &bound {
            let uid = &binding.value.pod.uid;
            let status = self.0.pod_status.get(&(node.clone(), pod.clone()));
            if status.is_none_or(|status| status.value.uid != *uid) {
                self.put(&Key::PodStatus(node.clone(), pod.clone()), &ready(uid));
            }
        }
    }

    fn placement(&self, pod: &PodInstance) -> Placement {
        let id = pod.reference();
        let bound = self.0.binding_of(&id).filter(|binding| binding.value.pod.uid == pod.uid);
        let (node, why) = match bound {
            Some(binding) => (Some(binding.value.node.clone()), binding.value.reason.clone()),
            None => (None, explain(&self.0, &id).unwrap_or_default()),
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

    fn nodes_of(snapshot: &Snapshot, changes: ObjectChanges) -> Vec<String> {
        let all = placements(snapshot, &changes, NOW.parse().unwrap());
        all.into_iter().map(|one| one.node.unwrap_or(one.why)).collect()
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
        assert_eq!(nodes_of(&snapshot, put(&[replica_set(3, 100)])).len(), 3);
        let mut nodes = nodes_of(&snapshot, put(&[replica_set(3, 100), object("big", spec(100_000, 1))]));
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
        assert!(nodes_of(&snapshot, ObjectChanges::default()).is_empty());
        assert_eq!(nodes_of(&snapshot, put(&[replica_set(4, 200)])).len(), 4);
        // More of the same: only the further ones are new.
        assert_eq!(nodes_of(&snapshot, put(&[replica_set(6, 100)])).len(), 2);
        let gone = ObjectChanges { put: Vec::new(), delete: vec![replica_set(4, 100).reference()] };
        assert!(nodes_of(&snapshot, gone).is_empty());
    }

    #[test]
    fn pods_that_a_drain_moves_are_named() {
        let empty = SnapshotBuilder::new().nodes(2).snapshot;
        let snapshot = applied(&empty, &[replica_set(2, 100)]);
        let drain = NodeSpec { drain: true, ..NodeSpec::default() };
        let node = object_of("n1", Resource::Node(Arc::new(drain)));
        assert_eq!(nodes_of(&snapshot, put(&[node])), ["n2"]);
    }
}
