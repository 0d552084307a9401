//! Builder for snapshots to plan on, as etcd would hold them: every value goes through its JSON.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use schema::codec::encode;
use schema::keys::Key;
use schema::kinds::cluster::{CLUSTER_NAME, ClusterSpec, cluster_reference};
use schema::kinds::node::NodeSpec;
use schema::kinds::pod::{Container, ContainerPort, PodPhase, PodSpec, PodStatus};
use schema::kinds::{Kind, Resource};
use schema::meta::{DEFAULT_NAMESPACE, NamespacedName, ObjectMeta, ObjectRef};
use schema::object::{Object, Provenance};
use schema::records::{
    Binding, Heartbeat, NodeRecord, NodeVersions, OwnerRef, PodInstance, SourceState, SourceStatus, Subnet,
};
use schema::snapshot::{Change, Snapshot};
use serde::Serialize;

use super::{Observed, Settings, Writes};

pub(crate) const CLUSTER_CIDR: &str = "10.244.0.0/16";
pub(crate) const SERVICE_CIDR: &str = "10.96.0.0/16";
pub(crate) const COMMIT: &str = "1111111111111111111111111111111111111111";

pub(crate) fn settings() -> Settings {
    Settings {
        cluster_cidr: CLUSTER_CIDR.parse().unwrap(),
        service_cidr: SERVICE_CIDR.parse().unwrap(),
        sources: ["main".to_owned()].into(),
        first_source: "main".to_owned(),
    }
}

pub(crate) fn seen(snapshot: &Snapshot) -> Observed {
    Observed {
        snapshot: Arc::new(snapshot.clone()),
        last_known: Arc::default(),
        term_began: Timestamp::UNIX_EPOCH,
        settings: settings(),
    }
}

pub(crate) fn pod_ref(name: &str) -> NamespacedName {
    NamespacedName::new(DEFAULT_NAMESPACE, name)
}

/// A pod of one container with these requests.
pub(crate) fn spec(cpu_millis: u64, memory_mib: u64) -> PodSpec {
    let mut container = Container { name: "main".into(), image: "busybox:1".into(), ..Container::default() };
    container.resources.requests.cpu = Some(schema::quantity::Cpu { millis: cpu_millis });
    container.resources.requests.memory = Some(schema::quantity::Memory { bytes: memory_mib << 20 });
    PodSpec { containers: vec![container], ..PodSpec::default() }
}

pub(crate) fn with_host_port(mut spec: PodSpec, port: u16) -> PodSpec {
    let port = ContainerPort { container_port: 80, host_port: Some(port), ..ContainerPort::default() };
    spec.containers[0].ports.push(port);
    spec
}

/// A Pod object as gitops writes it.
pub(crate) fn object(name: &str, spec: PodSpec) -> Object {
    let resource = Resource::Pod(Arc::new(spec));
    Object {
        api_version: "v1".into(),
        metadata: ObjectMeta {
            name: name.into(),
            namespace: DEFAULT_NAMESPACE.into(),
            ..ObjectMeta::default()
        },
        files: Default::default(),
        hash: Object::hash_of(&resource, &Default::default()),
        resource,
        provenance: Provenance {
            source: "main".into(),
            commit: COMMIT.into(),
            author: "Ada <ada@example.org>".into(),
            file: "app.yaml".into(),
            line: 1,
        },
        generation: 1,
    }
}

pub(crate) fn object_key(name: &str) -> Key {
    let namespace = DEFAULT_NAMESPACE.to_owned();
    Key::Object(ObjectRef { kind: Kind::Pod, namespace, name: name.to_owned() })
}

/// The pod of [`object`] as the workloads controller writes it.
pub(crate) fn instance(name: &str, spec: PodSpec) -> PodInstance {
    let spec = Arc::new(spec);
    let hash = Object::hash_of(&Resource::Pod(Arc::clone(&spec)), &Default::default());
    let owner = OwnerRef { kind: Kind::Pod, name: name.into() };
    PodInstance {
        namespace: DEFAULT_NAMESPACE.into(),
        name: name.into(),
        uid: PodInstance::uid_of(&owner, &pod_ref(name), &hash),
        hash,
        labels: Default::default(),
        annotations: Default::default(),
        owner,
        commit: COMMIT.into(),
        spec,
        files: Default::default(),
    }
}

/// A pod that a ReplicaSet made.
pub(crate) fn replica(set: &str, name: &str, spec: PodSpec) -> PodInstance {
    let pod = instance(name, spec);
    let owner = OwnerRef { kind: Kind::ReplicaSet, name: set.into() };
    PodInstance { uid: PodInstance::uid_of(&owner, &pod_ref(name), &pod.hash), owner, ..pod }
}

/// An object of any kind in the default namespace.
pub(crate) fn object_of(name: &str, resource: impl Into<Resource>) -> Object {
    Object { resource: resource.into(), ..object(name, PodSpec::default()) }
}

/// A node of 4 cores and 4 GiB that takes 10 pods.
pub(crate) fn node_record(name: &str) -> NodeRecord {
    NodeRecord {
        age_recipient: None,
        cluster_recipient: None,
        name: name.into(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        cpu: "4".parse().unwrap(),
        memory: "4Gi".parse().unwrap(),
        max_pods: 10,
        labels: [("kubernetes.io/hostname".to_owned(), name.to_owned())].into(),
        versions: NodeVersions::default(),
        api: "http://192.0.2.1:7071".into(),
        calls: String::new(),
        registered_at: "2026-01-01T00:00:00Z".parse().unwrap(),
        pod_cidr: None,
        vtep: None,
    }
}

pub(crate) fn heartbeat() -> Heartbeat {
    Heartbeat { since: "2026-01-01T00:00:00Z".parse().unwrap() }
}

/// Builds a snapshot key by key; every key gets its own revision.
#[derive(Clone, Default)]
pub(crate) struct SnapshotBuilder {
    pub(crate) snapshot: Snapshot,
}

impl SnapshotBuilder {
    pub(crate) fn new() -> Self {
        Self { snapshot: Snapshot { synced: true, ..Snapshot::default() } }
    }

    pub(crate) fn put<T: Serialize>(mut self, key: &Key, value: &T) -> Self {
        self.snapshot.revision += 1;
        let revision = self.snapshot.revision;
        let value = Bytes::from(encode(value).unwrap());
        let key = key.to_string();
        self.snapshot.apply(&Change::Put { key, value, create_revision: revision, mod_revision: revision });
        self
    }

    /// A value that can't be decoded.
    pub(crate) fn garbage(mut self, key: &Key) -> Self {
        self.snapshot.revision += 1;
        let revision = self.snapshot.revision;
        let (key, value) = (key.to_string(), Bytes::from_static(b"{"));
        self.snapshot.apply(&Change::Put { key, value, create_revision: revision, mod_revision: revision });
        self
    }

    pub(crate) fn delete(mut self, key: &Key) -> Self {
        self.snapshot.revision += 1;
        self.snapshot.apply(&Change::Delete { key: key.to_string() });
        self
    }

    /// The snapshot after a plan was applied in one transaction.
    pub(crate) fn after(mut self, plan: &Writes) -> Self {
        self.snapshot.revision += 1;
        let revision = self.snapshot.revision;
        for write in &plan.writes {
            let key = write.key.to_string();
            self.snapshot.apply(&match &write.change {
                super::Change::Put(value) => {
                    let value = value.clone();
                    Change::Put { key, value, create_revision: revision, mod_revision: revision }
                }
                super::Change::Delete => Change::Delete { key },
            });
        }
        self
    }

    pub(crate) fn object(self, object: &Object) -> Self {
        self.put(&object_key(&object.metadata.name), object)
    }

    /// Puts the Cluster object.
    pub(crate) fn cluster(self, spec: ClusterSpec) -> Self {
        self.put(&Key::Object(cluster_reference()), &object_of(CLUSTER_NAME, spec))
    }

    /// Puts the Node object of a node.
    pub(crate) fn node_object(self, node: &str, spec: NodeSpec) -> Self {
        let object = object_of(node, spec);
        self.put(&Key::Object(object.reference()), &object)
    }

    pub(crate) fn pod(self, pod: &PodInstance) -> Self {
        self.put(&Key::Pod(pod.reference()), pod)
    }

    pub(crate) fn bound(self, node: &str, pod: &PodInstance) -> Self {
        let binding = Binding { node: node.into(), pod: pod.clone(), reason: "a test".into() };
        self.put(&Key::Binding(node.into(), pod.reference()), &binding)
    }

    pub(crate) fn status(self, node: &str, pod: &PodInstance, phase: PodPhase) -> Self {
        let status = PodStatus { uid: pod.uid.clone(), phase, ..PodStatus::default() };
        self.put(&Key::PodStatus(node.into(), pod.reference()), &status)
    }

    /// Adds a registered node with heartbeat and range.
    pub(crate) fn node(self, record: &NodeRecord, range: &str) -> Self {
        let name = record.name.clone();
        let subnet = Subnet::new(range.parse().unwrap(), CLUSTER_CIDR.parse().unwrap());
        self.put(&Key::Node(name.clone()), record)
            .put(&Key::Subnet(name.clone()), &subnet)
            .put(&Key::Heartbeat(name), &heartbeat())
    }

    /// Adds the ready nodes `n1`, `n2`, ….
    pub(crate) fn nodes(self, count: u8) -> Self {
        (1..=count).fold(self, |builder, i| {
            builder.node(&node_record(&format!("n{i}")), &format!("10.244.{}.0/24", i - 1))
        })
    }
}

/// The status of source `main`.
pub(crate) fn source(state: SourceState) -> SourceStatus {
    SourceStatus {
        name: "main".into(),
        url: "/srv/manifests.git".into(),
        reference: "main".into(),
        path: String::new(),
        strict: false,
        state,
        observed_commit: Some(COMMIT.into()),
        applied_commit: (state != SourceState::Pending).then(|| COMMIT.into()),
        applied_at: None,
        revision: 1,
        objects: 0,
        quarantined: Vec::new(),
        held_prune: None,
        waiting: Vec::new(),
        waiting_total: 0,
        released_at: None,
        error: None,
    }
}
