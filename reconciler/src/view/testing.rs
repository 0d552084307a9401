//! A small snapshot for tests, built from the values that the real writers would store.

use schema::kinds::Resource;
use schema::kinds::pod::PodStatus;
use schema::meta::StringMap;
use schema::object::Object;
use schema::records::{Binding, NodeRecord, NodeVersions, PodInstance, SourceState, SourceStatus};
use schema::snapshot::Snapshot;
pub(crate) use schema::testing::*;

/// Three commits, the oldest first.
pub(crate) const C1: &str = COMMIT;
pub(crate) const C2: &str = "2222222222222222222222222222222222222222";
pub(crate) const C3: &str = "3333333333333333333333333333333333333333";

/// A snapshot with source `main` at commit C2 (C1 before it) and the ready node `n1`.
pub(crate) fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { revision: 42, synced: true, ..Snapshot::default() };
    put_source(&mut snapshot, source(C2, C2, 2));
    for (sequence, commit) in [(1, C1), (2, C2)] {
        snapshot.revisions.insert(("main".to_owned(), sequence), versioned(revision(sequence, commit)));
    }
    put_node(&mut snapshot, "n1");
    snapshot
}

pub(crate) fn source(observed: &str, applied: &str, revision: u64) -> SourceStatus {
    SourceStatus {
        observed_commit: Some(observed.to_owned()),
        applied_commit: Some(applied.to_owned()),
        applied_at: Some(at(60)),
        revision,
        objects: 1,
        ..source_status(SourceState::Synced)
    }
}

pub(crate) fn put_source(snapshot: &mut Snapshot, source: SourceStatus) {
    snapshot.sources.insert(source.name.clone(), versioned(source));
}

pub(crate) fn put_node(snapshot: &mut Snapshot, name: &str) {
    let record = NodeRecord {
        addresses: vec!["192.0.2.7".parse().unwrap()],
        cpu: "2".parse().unwrap(),
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
        ..node_record(name)
    };
    snapshot.nodes.insert(name.to_owned(), versioned(record));
    snapshot.heartbeats.insert(name.to_owned(), versioned(heartbeat()));
    snapshot.subnets.insert(name.to_owned(), versioned(subnet("10.244.0.0/24")));
}

/// Puts an object that this commit set.
fn put_at(snapshot: &mut Snapshot, mut object: Object, commit: &str) -> Object {
    object.provenance.commit = commit.to_owned();
    snapshot.objects.insert(object.reference(), versioned(object.clone()));
    object
}

/// Puts the object of a bare pod.
pub(crate) fn put_object(snapshot: &mut Snapshot, name: &str, commit: &str) -> Object {
    put_at(snapshot, object(name, pod_spec(&["app"])), commit)
}

/// Puts a function.
pub(crate) fn put_function(snapshot: &mut Snapshot, name: &str) -> Object {
    let function = Resource::Function(serde_json::from_str(r#"{"source": "code"}"#).unwrap());
    put_at(snapshot, object_of(name, function), C2)
}

/// Adds the object's pod.
pub(crate) fn put_instance(snapshot: &mut Snapshot, object: &Object) -> PodInstance {
    let instance = instance_of(object);
    snapshot.pods.insert(instance.reference(), versioned(instance.clone()));
    instance
}

pub(crate) fn bind(snapshot: &mut Snapshot, instance: &PodInstance, node: &str) {
    let binding = Binding { reason: "fewest pods of 1 node".to_owned(), ..binding(node, instance) };
    snapshot.bindings.insert((node.to_owned(), instance.reference()), versioned(binding));
}

pub(crate) fn report(snapshot: &mut Snapshot, instance: &PodInstance, node: &str, status: PodStatus) {
    let status = PodStatus { uid: instance.uid.clone(), hash: instance.hash.clone(), ..status };
    snapshot.pod_status.insert((node.to_owned(), instance.reference()), versioned(status));
}

/// Adds a complete bare pod: object, instance, binding and this report.
pub(crate) fn put_pod(snapshot: &mut Snapshot, name: &str, status: PodStatus) -> PodInstance {
    let object = put_object(snapshot, name, C2);
    let instance = put_instance(snapshot, &object);
    bind(snapshot, &instance, "n1");
    report(snapshot, &instance, "n1", status);
    instance
}
