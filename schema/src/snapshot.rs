//! The snapshot: an immutable copy of etcd, decoded. Controllers and views read nothing else.

use std::sync::Arc;

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{decode, encode};
use crate::keys::Key;
use crate::kinds::pod::PodStatus;
use crate::meta::{NamespacedName, ObjectRef};
use crate::object::Object;
use crate::pool;
use crate::records::{
    Binding, Delivery, Heartbeat, NodeRecord, NodeUsage, PodInstance, Revision, RouteRecord, RulesStatus,
    ServiceRecord, Settled, SourceStatus, Subnet,
};

/// A decoded value with the revisions that guards refer to.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// Revision at which the key appeared.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
}

/// A map that clones in constant time.
pub type Table<K, V> = OrdMap<K, Arc<Versioned<V>>>;

/// A snapshot. Cloning is cheap; maps share what did not change.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Newest revision of etcd that is in here.
    pub revision: i64,
    /// Every watched prefix has been listed once. Nobody plans before.
    pub synced: bool,
    /// `sources/`.
    pub sources: Table<String, SourceStatus>,
    /// `revisions/`, by source and sequence.
    pub revisions: Table<(String, u64), Revision>,
    /// `objects/`.
    pub objects: Table<ObjectRef, Object>,
    /// `pods/`.
    pub pods: Table<NamespacedName, PodInstance>,
    /// `bindings/`, by node and pod.
    pub bindings: Table<(String, NamespacedName), Binding>,
    /// `bindings/<node>/settled`.
    pub settled: Table<String, Settled>,
    /// `services/`.
    pub services: Table<NamespacedName, ServiceRecord>,
    /// `routes/`.
    pub routes: Table<NamespacedName, RouteRecord>,
    /// `status/<node>/rules`.
    pub rules: Table<String, RulesStatus>,
    /// `nodes/`.
    pub nodes: Table<String, NodeRecord>,
    /// `subnets/`.
    pub subnets: Table<String, Subnet>,
    /// `heartbeats/`.
    pub heartbeats: Table<String, Heartbeat>,
    /// `status/<node>/pods/`, by node and pod.
    pub pod_status: Table<(String, NamespacedName), PodStatus>,
    /// `status/<node>/usage`.
    pub usage: Table<String, NodeUsage>,
    /// `deliveries/`, by id.
    pub deliveries: Table<String, Delivery>,
    /// Keys whose value could not be decoded, and why: one bad value blinds nobody.
    pub malformed: OrdMap<String, Arc<str>>,
    /// Where each pod is bound; follows from `bindings`, see [`Snapshot::binding_of`].
    pub bound: BoundIndex,
}

/// On which nodes each pod is bound: [`Snapshot::bindings`] the other way round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BoundIndex {
    by_pod: OrdSet<(NamespacedName, String)>,
}

/// One change to a snapshot.
#[derive(Debug, Clone)]
pub enum Change {
    /// The key has this value now.
    Put {
        /// Full key.
        key: String,
        /// Value.
        value: Bytes,
        /// Revision at which the key appeared.
        create_revision: i64,
        /// Revision of this write.
        mod_revision: i64,
    },
    /// The key is gone.
    Delete {
        /// Full key.
        key: String,
    },
}

impl Snapshot {
    /// Takes one change in. Keys of others, or not held here, are passed over.
    pub fn apply(&mut self, change: &Change) {
        let text = match change {
            Change::Put { key, .. } | Change::Delete { key } => key,
        };
        self.malformed.remove(text);
        let Ok(key) = text.parse::<Key>() else { return };
        let outcome = match key {
            Key::Source(id) => set(&mut self.sources, id, change),
            Key::Revision(source, sequence) => set(&mut self.revisions, (source, sequence), change),
            Key::Object(id) => set_as(&mut self.objects, id, change, |mut object: Object| {
                object.resource = pool::share(&object.hash, object.resource);
                object
            }),
            Key::Pod(id) => set_as(&mut self.pods, id, change, shared),
            Key::Binding(node, pod) => {
                let id = (node, pod);
                let outcome = set_as(&mut self.bindings, id.clone(), change, |mut binding: Binding| {
                    binding.pod = shared(binding.pod);
                    binding
                });
                self.bound.follow(&self.bindings, id);
                outcome
            }
            Key::Settled(id) => set(&mut self.settled, id, change),
            Key::Service(id) => set(&mut self.services, id, change),
            Key::Route(id) => set(&mut self.routes, id, change),
            Key::Rules(id) => set(&mut self.rules, id, change),
            Key::Node(id) => set(&mut self.nodes, id, change),
            Key::Subnet(id) => set(&mut self.subnets, id, change),
            Key::Heartbeat(id) => set(&mut self.heartbeats, id, change),
            Key::PodStatus(node, pod) => set(&mut self.pod_status, (node, pod), change),
            Key::Delivery(id) => set(&mut self.deliveries, id, change),
            Key::Usage(id) => set(&mut self.usage, id, change),
            Key::Leader | Key::Scale(_) | Key::Event(..) => Ok(()),
        };
        if let Err(why) = outcome {
            self.malformed.insert(text.clone(), why.into());
        }
    }

    /// Puts a value at a key, as if it had been written at `revision`: snapshots for tests.
    ///
    /// # Panics
    /// If the value has no JSON form or is too large for a key.
    pub fn put<T: Serialize>(&mut self, key: &Key, value: &T, revision: i64) {
        let value = encode(value).expect("a record of this crate fits under its key").into();
        let key = key.to_string();
        self.apply(&Change::Put { key, value, create_revision: revision, mod_revision: revision });
        self.revision = self.revision.max(revision);
    }

    /// A plan made of `other` holds for this snapshot too: they differ in nothing but what changes all the
    /// time and decides nothing by itself (usage, events). May say no although they are equal.
    pub fn plans_as(&self, other: &Self) -> bool {
        // Taken apart, so that a new table can't be forgotten here. `bound` follows from `bindings`.
        #[rustfmt::skip]
        let Self {
            revision: _, usage: _, rules: _, bound: _, synced, malformed, sources, revisions, objects, pods,
            bindings, settled, services, routes, nodes, subnets, heartbeats, pod_status, deliveries,
        } = self;
        *synced == other.synced
            && *malformed == other.malformed
            && sources.ptr_eq(&other.sources)
            && revisions.ptr_eq(&other.revisions)
            && objects.ptr_eq(&other.objects)
            && pods.ptr_eq(&other.pods)
            && bindings.ptr_eq(&other.bindings)
            && settled.ptr_eq(&other.settled)
            && services.ptr_eq(&other.services)
            && routes.ptr_eq(&other.routes)
            && nodes.ptr_eq(&other.nodes)
            && subnets.ptr_eq(&other.subnets)
            && heartbeats.ptr_eq(&other.heartbeats)
            && pod_status.ptr_eq(&other.pod_status)
            && deliveries.ptr_eq(&other.deliveries)
    }

    /// A heartbeat of the node is there: its lease has not expired.
    pub fn node_is_ready(&self, node: &str) -> bool {
        self.heartbeats.contains_key(node)
    }

    /// The binding of a pod, wherever it is; the first by node name should it be bound twice.
    pub fn binding_of(&self, pod: &NamespacedName) -> Option<&Arc<Versioned<Binding>>> {
        if self.bound.by_pod.len() != self.bindings.len() {
            // A test has put bindings into the table by hand.
            return self.bindings.iter().find(|((_, bound), _)| bound == pod).map(|(_, binding)| binding);
        }
        // The first entry not before the pod's own. If it is another pod's, there is none of this
        // one, and the table says so.
        let first = (pod.clone(), String::new());
        let (_, node) = self.bound.by_pod.range(first..).next()?;
        self.bindings.get(&(node.clone(), pod.clone()))
    }

    /// All bindings of one node, by pod.
    pub fn bindings_of<'a>(
        &'a self,
        node: &'a str,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a Arc<Versioned<Binding>>)> {
        below(&self.bindings, node)
    }

    /// What one node reports of its pods, by pod.
    pub fn pod_status_of<'a>(
        &'a self,
        node: &'a str,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a Arc<Versioned<PodStatus>>)> {
        below(&self.pod_status, node)
    }
}

impl BoundIndex {
    /// Takes over whether the binding is there.
    fn follow(
        &mut self,
        bindings: &Table<(String, NamespacedName), Binding>,
        (node, pod): (String, NamespacedName),
    ) {
        let id = (node, pod);
        let there = bindings.contains_key(&id);
        let entry = (id.1, id.0);
        if there {
            self.by_pod.insert(entry);
        } else {
            self.by_pod.remove(&entry);
        }
    }
}

/// The part of a table whose keys begin with `node`.
fn below<'a, V>(
    table: &'a Table<(String, NamespacedName), V>,
    node: &'a str,
) -> impl Iterator<Item = (&'a NamespacedName, &'a Arc<Versioned<V>>)> {
    table
        .range((node.to_owned(), NamespacedName::new("", ""))..)
        .take_while(move |((at, _), _)| at == node)
        .map(|((_, pod), value)| (pod, value))
}

fn shared(mut pod: PodInstance) -> PodInstance {
    pod.spec = pool::share_pod(&pod.hash, pod.spec);
    pod
}

fn set<K, V>(table: &mut Table<K, V>, id: K, change: &Change) -> Result<(), String>
where
    K: Ord + Clone,
    V: DeserializeOwned,
{
    set_as(table, id, change, |value| value)
}

fn set_as<K, V>(
    table: &mut Table<K, V>,
    id: K,
    change: &Change,
    kept: impl FnOnce(V) -> V,
) -> Result<(), String>
where
    K: Ord + Clone,
    V: DeserializeOwned,
{
    match change {
        Change::Delete { .. } => {
            table.remove(&id);
        }
        Change::Put { value, create_revision, mod_revision, .. } => match decode(value) {
            Ok(value) => {
                let (create_revision, mod_revision) = (*create_revision, *mod_revision);
                let versioned = Versioned { value: kept(value), create_revision, mod_revision };
                table.insert(id, Arc::new(versioned));
            }
            Err(error) => {
                table.remove(&id);
                return Err(error.to_string());
            }
        },
    }
    Ok(())
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
