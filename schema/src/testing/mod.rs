//! Builders of the values that the real writers would store, for tests of all crates.
//!
//! A builder takes what most tests vary. For the rest, a test updates a field or a struct.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod metrics_page;
mod snapshot;
mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

pub use self::metrics_page::{check_metrics_page, is_common_family};
pub use self::snapshot::SnapshotBuilder;
pub use self::trust::{authority, enroll};
use crate::condition::{Condition, ConditionStatus};
use crate::keys::Key;
use crate::kinds::pod::{
    Container, ContainerState, ContainerStatus, PodPhase, PodSpec, PodStatus, RunningState, WaitingState,
};
use crate::kinds::{Kind, Resource};
use crate::meta::{DEFAULT_NAMESPACE, NamespacedName, ObjectMeta, ObjectRef};
use crate::object::{Object, Provenance};
use crate::quantity::{Cpu, Memory};
use crate::records::{
    Binding, ChangeCounts, Heartbeat, NodeRecord, NodeVersions, OwnerRef, PodInstance, Revision, SourceState,
    SourceStatus, Subnet, Verdict,
};
use crate::snapshot::VersionedValue;
use crate::store::election::Fence;
use crate::store::{Op, Store, TxnOutcome};

/// Finds a folder of data that nobody here wrote, in `../shared/corpora` next to the workspace or one of its parents, so
/// that worktrees find it too. Prints that a test is skipped where it is missing.
pub fn corpora(folder: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = workspace.ancestors().map(|above| above.join("shared/corpora").join(folder));
    let found = all.find(|path| path.is_dir());
    if found.is_none() {
        eprintln!("skipped: no ../shared/corpora/{folder} beside the workspace");
    }
    found
}

/// Range of all pods.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";
/// Commit that set every object.
pub const COMMIT: &str = "1111111111111111111111111111111111111111";

/// Returns the time `seconds` after the start of 2026, when all nodes registered.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + seconds).unwrap()
}

/// Returns a value as if written at revision 1.
pub fn versioned<T>(value: T) -> Arc<VersionedValue<T>> {
    Arc::new(VersionedValue { value, create_revision: 1, mod_revision: 1 })
}

/// Makes another process lead: there is a new leader key, as after the end of the old one's lease.
pub async fn take_lead(store: &dyn Store) -> Fence {
    let _ = store.txn(vec![], vec![Op::delete(Key::Leader)]).await.unwrap();
    match store.txn(vec![], vec![Op::put(Key::Leader, "{}")]).await.unwrap() {
        TxnOutcome::Committed(create_revision) => Fence { create_revision },
        TxnOutcome::Conflict => unreachable!("there are no guards"),
    }
}

/// A pod of one container with these requests.
pub fn spec(cpu_millis: u64, memory_mib: u64) -> PodSpec {
    let mut container = Container { name: "main".into(), image: "busybox:1".into(), ..Container::default() };
    container.resources.requests.cpu = Some(Cpu { millis: cpu_millis });
    container.resources.requests.memory = Some(Memory { bytes: memory_mib << 20 });
    PodSpec { containers: vec![container], ..PodSpec::default() }
}

/// A pod of these containers.
pub fn pod_spec(containers: &[&str]) -> PodSpec {
    let container =
        |name: &&str| Container { name: (*name).into(), image: "app:1".into(), ..Container::default() };
    PodSpec { containers: containers.iter().map(container).collect(), ..PodSpec::default() }
}

/// An object of any kind in the default namespace, as gitops writes it.
pub fn object_of(name: &str, resource: impl Into<Resource>) -> Object {
    let resource = resource.into();
    let metadata =
        ObjectMeta { name: name.into(), namespace: DEFAULT_NAMESPACE.into(), ..ObjectMeta::default() };
    Object {
        api_version: resource.kind().descriptor().api_version.into(),
        hash: Object::hash_of(&metadata, &resource, &Default::default()),
        metadata,
        files: Default::default(),
        resource,
        provenance: Provenance {
            source: "main".into(),
            commit: COMMIT.into(),
            author: "Ada <ada@example.org>".into(),
            file: format!("apps/{name}.yaml"),
            line: 3,
        },
        generation: 1,
        created_at: None,
    }
}

/// A Pod object.
pub fn object(name: &str, spec: PodSpec) -> Object {
    object_of(name, spec)
}

/// Name of a pod in the default namespace.
pub fn pod_ref(name: &str) -> NamespacedName {
    NamespacedName::new(DEFAULT_NAMESPACE, name)
}

/// Key of a Pod object.
pub fn object_key(name: &str) -> Key {
    Key::Object(ObjectRef { kind: Kind::Pod, namespace: DEFAULT_NAMESPACE.into(), name: name.into() })
}

/// The pod of a Pod object, as the workloads controller writes it.
pub fn instance_of(object: &Object) -> PodInstance {
    let Resource::Pod(spec) = &object.resource else { panic!("{} is no pod", object.reference()) };
    let ObjectMeta { name, namespace, labels, annotations, .. } = object.metadata.clone();
    let owner = OwnerRef { kind: Kind::Pod, name: name.clone() };
    PodInstance {
        uid: PodInstance::uid_of(&owner, &NamespacedName::new(&*namespace, &*name), &object.hash),
        namespace,
        name,
        hash: object.hash.clone(),
        labels,
        annotations,
        owner,
        commit: object.provenance.commit.clone(),
        spec: Arc::clone(spec),
        files: object.files.clone(),
    }
}

/// The pod of [`object`].
pub fn instance(name: &str, spec: PodSpec) -> PodInstance {
    instance_of(&object(name, spec))
}

/// A pod that a ReplicaSet made.
pub fn replica(set: &str, name: &str, spec: PodSpec) -> PodInstance {
    let pod = instance(name, spec);
    let owner = OwnerRef { kind: Kind::ReplicaSet, name: set.into() };
    PodInstance { uid: PodInstance::uid_of(&owner, &pod_ref(name), &pod.hash), owner, ..pod }
}

/// The assignment of a pod to a node.
pub fn binding(node: &str, pod: &PodInstance) -> Binding {
    Binding { node: node.into(), pod: pod.clone(), reason: "a test".into() }
}

/// A condition without reason and message.
pub fn condition(kind: &str, status: impl Into<ConditionStatus>, since: Timestamp) -> Condition {
    Condition {
        kind: kind.into(),
        status: status.into(),
        reason: String::new(),
        message: String::new(),
        last_transition_time: since,
    }
}

/// Status of a container; it is ready if it runs.
pub fn container(name: &str, state: ContainerState) -> ContainerStatus {
    let runs = matches!(state, ContainerState::Running(_));
    ContainerStatus {
        started: runs,
        name: name.into(),
        image: format!("{name}:1"),
        image_id: "sha256:aa".into(),
        container_id: "c0ffee".into(),
        ready: runs,
        restart_count: 0,
        state,
        last_state: None,
    }
}

/// Status of a pod whose only container runs and is ready.
pub fn running() -> PodStatus {
    let state = ContainerState::Running(RunningState { started_at: at(62) });
    PodStatus {
        phase: PodPhase::Running,
        conditions: vec![condition("Ready", true, at(62))],
        pod_ip: Some("10.244.0.5".into()),
        host_ip: Some("192.0.2.7".into()),
        start_time: Some(at(61)),
        container_statuses: vec![container("app", state)],
        ..PodStatus::default()
    }
}

/// Status of a pod whose only container waits.
pub fn pod_waiting(reason: &str, message: &str) -> PodStatus {
    let state = ContainerState::Waiting(WaitingState { reason: reason.into(), message: message.into() });
    PodStatus {
        start_time: Some(at(61)),
        container_statuses: vec![container("app", state)],
        ..PodStatus::default()
    }
}

/// A node of 4 cores and 4 GiB that takes 10 pods.
pub fn node_record(name: &str) -> NodeRecord {
    NodeRecord {
        age_recipient: None,
        cluster_recipient: None,
        name: name.into(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        cpu: "4".parse().unwrap(),
        memory: "4Gi".parse().unwrap(),
        gpus: 0,
        max_pods: 10,
        labels: [("kubernetes.io/hostname".to_owned(), name.to_owned())].into(),
        versions: NodeVersions::default(),
        api: "http://192.0.2.1:7071".into(),
        calls: String::new(),
        registered_at: at(0),
        pod_cidr: None,
        vtep: None,
        authorities: Vec::new(),
    }
}

/// The heartbeat of a node since it registered.
pub fn heartbeat() -> Heartbeat {
    Heartbeat { since: at(0) }
}

/// A node's range in [`CLUSTER_CIDR`].
pub fn subnet(range: &str) -> Subnet {
    Subnet::new(range.parse().unwrap(), CLUSTER_CIDR.parse().unwrap())
}

/// The status of source `main`, applied up to [`COMMIT`] unless it is pending.
pub fn source_status(state: SourceState) -> SourceStatus {
    SourceStatus {
        name: "main".into(),
        url: "/srv/repo.git".into(),
        reference: "branch `main`".into(),
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
        replaced_pod_security: Vec::new(),
        allow: Default::default(),
        error: None,
    }
}

/// A revision of source `main` that created one object; they are half a minute apart.
pub fn revision(sequence: u64, commit: &str) -> Revision {
    let second = 30 * i64::try_from(sequence).unwrap();
    Revision {
        source: "main".into(),
        sequence,
        commit: commit.into(),
        author: "Ada <ada@example.org>".into(),
        subject: format!("Change {sequence}"),
        committed_at: at(second - 5),
        applied_at: at(second),
        duration_ms: 120,
        counts: ChangeCounts { create: 1, ..ChangeCounts::default() },
        removed: Vec::new(),
        verdict: Verdict::Applied,
        decided_at: None,
        plan: None,
        timeline: None,
    }
}
