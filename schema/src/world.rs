//! The world: an immutable snapshot of etcd, decoded. Controllers and views read nothing else.

use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use serde::de::DeserializeOwned;

use crate::codec::decode;
use crate::keys::Key;
use crate::kinds::pod::PodStatus;
use crate::meta::{ObjectRef, PodRef};
use crate::object::Object;
use crate::records::{Binding, Heartbeat, NodeRecord, PodInstance, Revision, SourceStatus, Subnet};

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
#[derive(Debug, Clone, Default)]
pub struct World {
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
    pub pods: Table<PodRef, PodInstance>,
    /// `bindings/`, by node and pod.
    pub bindings: Table<(String, PodRef), Binding>,
    /// `nodes/`.
    pub nodes: Table<String, NodeRecord>,
    /// `subnets/`.
    pub subnets: Table<String, Subnet>,
    /// `heartbeats/`.
    pub heartbeats: Table<String, Heartbeat>,
    /// `status/<node>/pods/`, by node and pod.
    pub pod_status: Table<(String, PodRef), PodStatus>,
    /// Keys whose value could not be decoded, and why: one bad value blinds nobody.
    pub malformed: OrdMap<String, Arc<str>>,
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

impl World {
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
            Key::Object(id) => set(&mut self.objects, id, change),
            Key::Pod(id) => set(&mut self.pods, id, change),
            Key::Binding(node, pod) => set(&mut self.bindings, (node, pod), change),
            Key::Node(id) => set(&mut self.nodes, id, change),
            Key::Subnet(id) => set(&mut self.subnets, id, change),
            Key::Heartbeat(id) => set(&mut self.heartbeats, id, change),
            Key::PodStatus(node, pod) => set(&mut self.pod_status, (node, pod), change),
            Key::Leader
            | Key::Scale(_)
            | Key::Service(_)
            | Key::Route(_)
            | Key::Usage(_)
            | Key::Event(..) => Ok(()),
        };
        if let Err(why) = outcome {
            self.malformed.insert(text.clone(), why.into());
        }
    }

    /// Forgets everything below `prefix`, before a fresh list of it.
    pub fn forget(&mut self, prefix: &str) {
        fn drop_below<K: Ord + Clone, V>(table: &mut Table<K, V>, prefix: &str, key: impl Fn(&K) -> Key) {
            let gone: Vec<K> =
                table.keys().filter(|k| key(k).to_string().starts_with(prefix)).cloned().collect();
            for k in gone {
                table.remove(&k);
            }
        }
        drop_below(&mut self.sources, prefix, |k| Key::Source(k.clone()));
        drop_below(&mut self.revisions, prefix, |(s, n)| Key::Revision(s.clone(), *n));
        drop_below(&mut self.objects, prefix, |k| Key::Object(k.clone()));
        drop_below(&mut self.pods, prefix, |k| Key::Pod(k.clone()));
        drop_below(&mut self.bindings, prefix, |(n, p)| Key::Binding(n.clone(), p.clone()));
        drop_below(&mut self.nodes, prefix, |k| Key::Node(k.clone()));
        drop_below(&mut self.subnets, prefix, |k| Key::Subnet(k.clone()));
        drop_below(&mut self.heartbeats, prefix, |k| Key::Heartbeat(k.clone()));
        drop_below(&mut self.pod_status, prefix, |(n, p)| Key::PodStatus(n.clone(), p.clone()));
        let gone: Vec<String> = self.malformed.keys().filter(|k| k.starts_with(prefix)).cloned().collect();
        for k in gone {
            self.malformed.remove(&k);
        }
    }

    /// A heartbeat of the node is there: its lease has not expired.
    pub fn node_is_ready(&self, node: &str) -> bool {
        self.heartbeats.contains_key(node)
    }

    /// The binding of a pod, wherever it is.
    pub fn binding_of(&self, pod: &PodRef) -> Option<&Arc<Versioned<Binding>>> {
        self.nodes
            .keys()
            .chain(self.subnets.keys())
            .find_map(|node| self.bindings.get(&(node.clone(), pod.clone())))
            .or_else(|| self.bindings.iter().find(|((_, p), _)| p == pod).map(|(_, b)| b))
    }
}

fn set<K, V>(table: &mut Table<K, V>, id: K, change: &Change) -> Result<(), String>
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
                let versioned =
                    Versioned { value, create_revision: *create_revision, mod_revision: *mod_revision };
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
