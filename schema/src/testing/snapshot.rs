//! Builder of snapshots, as etcd would hold them: every value goes through its JSON.

use bytes::Bytes;
use serde::Serialize;

use super::{binding, heartbeat, node_record, object_of, subnet};
use crate::codec::encode;
use crate::keys::Key;
use crate::kinds::cluster::{CLUSTER_NAME, ClusterSpec};
use crate::kinds::node::NodeSpec;
use crate::kinds::pod::{PodPhase, PodStatus};
use crate::object::Object;
use crate::records::{NodeRecord, PodInstance};
use crate::snapshot::{Change, Snapshot};

/// Builds a snapshot key by key; every key gets its own revision.
#[derive(Clone, Default)]
pub struct SnapshotBuilder {
    /// Everything put so far.
    pub snapshot: Snapshot,
}

impl SnapshotBuilder {
    /// Begins with an empty snapshot of an etcd that was listed.
    pub fn new() -> Self {
        Self { snapshot: Snapshot { synced: true, ..Snapshot::default() } }
    }

    /// Puts a value.
    pub fn put<T: Serialize>(self, key: &Key, value: &T) -> Self {
        self.commit([(key.to_string(), Some(encode(value).unwrap().into()))])
    }

    /// Puts a value that can't be decoded.
    pub fn garbage(self, key: &Key) -> Self {
        self.commit([(key.to_string(), Some(Bytes::from_static(b"{")))])
    }

    /// Deletes a key.
    pub fn delete(self, key: &Key) -> Self {
        self.commit([(key.to_string(), None)])
    }

    /// Puts values, and deletes keys without one, in one transaction.
    pub fn commit(mut self, writes: impl IntoIterator<Item = (String, Option<Bytes>)>) -> Self {
        self.snapshot.revision += 1;
        let revision = self.snapshot.revision;
        for (key, value) in writes {
            self.snapshot.apply(&match value {
                Some(value) => Change::Put { key, value, create_revision: revision, mod_revision: revision },
                None => Change::Delete { key },
            });
        }
        self
    }

    /// Puts an object.
    pub fn object(self, object: &Object) -> Self {
        self.put(&Key::Object(object.reference()), object)
    }

    /// Puts the Cluster object.
    pub fn cluster(self, spec: ClusterSpec) -> Self {
        self.object(&object_of(CLUSTER_NAME, spec))
    }

    /// Puts the Node object of a node.
    pub fn node_object(self, node: &str, spec: NodeSpec) -> Self {
        self.object(&object_of(node, spec))
    }

    /// Puts a pod.
    pub fn pod(self, pod: &PodInstance) -> Self {
        self.put(&Key::Pod(pod.reference()), pod)
    }

    /// Binds a pod to a node.
    pub fn bound(self, node: &str, pod: &PodInstance) -> Self {
        self.put(&Key::Binding(node.into(), pod.reference()), &binding(node, pod))
    }

    /// Puts a node's report on a pod.
    pub fn status(self, node: &str, pod: &PodInstance, phase: PodPhase) -> Self {
        let status = PodStatus { uid: pod.uid.clone(), phase, ..PodStatus::default() };
        self.put(&Key::PodStatus(node.into(), pod.reference()), &status)
    }

    /// Adds a registered node with heartbeat and range.
    pub fn node(self, record: &NodeRecord, range: &str) -> Self {
        let name = record.name.clone();
        self.put(&Key::Node(name.clone()), record)
            .put(&Key::Subnet(name.clone()), &subnet(range))
            .put(&Key::Heartbeat(name), &heartbeat())
    }

    /// Adds the ready nodes `n1`, `n2`, ….
    pub fn nodes(self, count: u8) -> Self {
        (1..=count).fold(self, |builder, i| {
            builder.node(&node_record(&format!("n{i}")), &format!("10.244.{}.0/24", i - 1))
        })
    }
}
