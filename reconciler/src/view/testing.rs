//! A small snapshot for tests, built from the values that the real writers would store.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use schema::condition::{Condition, ConditionStatus};
use schema::kinds::pod::{
    Container, ContainerState, ContainerStatus, PodPhase, PodSpec, PodStatus, RunningState, WaitingState,
};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectMeta, StringMap};
use schema::object::{Object, Provenance};
use schema::records::{
    Binding, ChangeCounts, Heartbeat, NodeRecord, NodeVersions, OwnerRef, PodInstance, Revision, SourceState,
    SourceStatus, Subnet, Verdict,
};
use schema::snapshot::{Snapshot, VersionedValue};

/// Three commits, the oldest first.
pub(crate) const C1: &str = "1111111111111111111111111111111111111111";
pub(crate) const C2: &str = "2222222222222222222222222222222222222222";
pub(crate) const C3: &str = "3333333333333333333333333333333333333333";

/// Time `seconds` after the start of all fixtures.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + seconds).unwrap()
}

pub(crate) fn stored<T>(value: T) -> Arc<VersionedValue<T>> {
    Arc::new(VersionedValue { value, create_revision: 1, mod_revision: 1 })
}

/// A snapshot with source `main` at commit C2 (C1 before it) and the ready node `n1`.
pub(crate) fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { revision: 42, synced: true, ..Snapshot::default() };
    put_source(&mut snapshot, source(C2, C2, 2));
    for (sequence, commit) in [(1, C1), (2, C2)] {
        let revision = revision(sequence, commit);
        snapshot.revisions.insert(("main".to_owned(), sequence), stored(revision));
    }
    put_node(&mut snapshot, "n1");
    snapshot
}

pub(crate) fn source(observed: &str, applied: &str, revision: u64) -> SourceStatus {
    SourceStatus {
        name: "main".to_owned(),
        url: "/srv/repo.git".to_owned(),
        reference: "branch `main`".to_owned(),
        path: String::new(),
        strict: false,
        state: SourceState::Synced,
        observed_commit: Some(observed.to_owned()),
        applied_commit: Some(applied.to_owned()),
        applied_at: Some(at(60)),
        revision,
        objects: 1,
        quarantined: Vec::new(),
        held_prune: None,
        waiting: Vec::new(),
        waiting_total: 0,
        released_at: None,
        error: None,
    }
}

pub(crate) fn put_source(snapshot: &mut Snapshot, source: SourceStatus) {
    snapshot.sources.insert(source.name.clone(), stored(source));
}

pub(crate) fn revision(sequence: u64, commit: &str) -> Revision {
    let second = 30 * i64::try_from(sequence).unwrap();
    Revision {
        source: "main".to_owned(),
        sequence,
        commit: commit.to_owned(),
        author: "Ada <ada@example.org>".to_owned(),
        subject: format!("Change {sequence}"),
        committed_at: at(second - 5),
        applied_at: at(second),
        duration_ms: 120,
        counts: ChangeCounts { create: 1, ..ChangeCounts::default() },
        removed: Vec::new(),
        verdict: Verdict::Applied,
        decided_at: None,
        plan: None,
    }
}

pub(crate) fn put_node(snapshot: &mut Snapshot, name: &str) {
    let address: IpAddr = "192.0.2.7".parse().unwrap();
    let record = NodeRecord {
        age_recipient: None,
        cluster_recipient: None,
        name: name.to_owned(),
        addresses: vec![address],
        cpu: "2".parse().unwrap(),
        memory: "4Gi".parse().unwrap(),
        max_pods: 110,
        labels: StringMap::from([("kubernetes.io/arch".to_owned(), "amd64".to_owned())]),
        versions: NodeVersions {
            agent: "0.1.0".to_owned(),
            docker: "20.10.24".to_owned(),
            kernel: "6.1.0".to_owned(),
            os: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            arch: "amd64".to_owned(),
        },
        api: "http://127.0.0.1:7071".to_owned(),
        calls: String::new(),
        registered_at: at(0),
        pod_cidr: None,
        vtep: None,
    };
    snapshot.nodes.insert(name.to_owned(), stored(record));
    snapshot.heartbeats.insert(name.to_owned(), stored(Heartbeat { since: at(0) }));
    let subnet = Subnet::new("10.244.0.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
    snapshot.subnets.insert(name.to_owned(), stored(subnet));
}

pub(crate) fn spec(containers: &[&str]) -> PodSpec {
    let container = |name: &&str| Container {
        name: (*name).to_owned(),
        image: format!("{name}:1"),
        ..Container::default()
    };
    PodSpec { containers: containers.iter().map(container).collect(), ..PodSpec::default() }
}

/// Puts the object of a bare pod, as gitops writes it.
pub(crate) fn put_object(snapshot: &mut Snapshot, name: &str, commit: &str) -> Object {
    let resource = Resource::Pod(Arc::new(spec(&["app"])));
    let object = Object {
        api_version: "v1".to_owned(),
        metadata: ObjectMeta {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            ..ObjectMeta::default()
        },
        files: Default::default(),
        hash: Object::hash_of(&resource, &Default::default()),
        resource,
        provenance: Provenance {
            source: "main".to_owned(),
            commit: commit.to_owned(),
            author: "Ada <ada@example.org>".to_owned(),
            file: format!("apps/{name}.yaml"),
            line: 3,
        },
        generation: 1,
    };
    snapshot.objects.insert(object.reference(), stored(object.clone()));
    object
}

/// Adds the object's pod, as the workloads controller writes it.
pub(crate) fn put_instance(snapshot: &mut Snapshot, object: &Object) -> PodInstance {
    let Resource::Pod(spec) = &object.resource else { panic!("a pod") };
    let owner = OwnerRef { kind: Kind::Pod, name: object.metadata.name.clone() };
    let pod = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let instance = PodInstance {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: PodInstance::uid_of(&owner, &pod, &object.hash),
        hash: object.hash.clone(),
        labels: object.metadata.labels.clone(),
        annotations: StringMap::new(),
        owner,
        commit: object.provenance.commit.clone(),
        spec: Arc::clone(spec),
        files: object.files.clone(),
    };
    snapshot.pods.insert(pod, stored(instance.clone()));
    instance
}

pub(crate) fn bind(snapshot: &mut Snapshot, instance: &PodInstance, node: &str) {
    let binding =
        Binding { node: node.to_owned(), pod: instance.clone(), reason: "fewest pods of 1 node".to_owned() };
    snapshot.bindings.insert((node.to_owned(), instance.reference()), stored(binding));
}

pub(crate) fn report(snapshot: &mut Snapshot, instance: &PodInstance, node: &str, status: PodStatus) {
    let status = PodStatus { uid: instance.uid.clone(), hash: instance.hash.clone(), ..status };
    snapshot.pod_status.insert((node.to_owned(), instance.reference()), stored(status));
}

pub(crate) fn running() -> PodStatus {
    PodStatus {
        phase: PodPhase::Running,
        conditions: vec![Condition {
            kind: "Ready".to_owned(),
            status: ConditionStatus::True,
            reason: String::new(),
            message: String::new(),
            last_transition_time: at(62),
        }],
        pod_ip: Some("10.244.0.5".to_owned()),
        host_ip: Some("192.0.2.7".to_owned()),
        start_time: Some(at(61)),
        container_statuses: vec![container(
            "app",
            ContainerState::Running(RunningState { started_at: at(62) }),
        )],
        ..PodStatus::default()
    }
}

pub(crate) fn container(name: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        started: matches!(state, ContainerState::Running(_)),
        name: name.to_owned(),
        image: format!("{name}:1"),
        image_id: "sha256:aa".to_owned(),
        container_id: "c0ffee".to_owned(),
        ready: matches!(state, ContainerState::Running(_)),
        restart_count: 0,
        state,
        last_state: None,
    }
}

/// A pod whose only container waits.
pub(crate) fn pod_waiting(reason: &str, message: &str) -> PodStatus {
    let state = WaitingState { reason: reason.to_owned(), message: message.to_owned() };
    PodStatus {
        start_time: Some(at(61)),
        container_statuses: vec![container("app", ContainerState::Waiting(state))],
        ..PodStatus::default()
    }
}

/// Adds a complete bare pod: object, instance, binding and this report.
pub(crate) fn put_pod(snapshot: &mut Snapshot, name: &str, status: PodStatus) -> PodInstance {
    let object = put_object(snapshot, name, C2);
    let instance = put_instance(snapshot, &object);
    bind(snapshot, &instance, "n1");
    report(snapshot, &instance, "n1", status);
    instance
}
