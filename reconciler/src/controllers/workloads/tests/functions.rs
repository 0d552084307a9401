//! Functions, including versions that wait for their image.

use std::sync::Arc;

use jiff::Timestamp;
use schema::codec::decode;
use schema::keys::Key;
use schema::kinds::function::{FunctionSpec, ImageState};
use schema::kinds::replica_set::ReplicaSetStatus;
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{
    FunctionImage, FunctionRecord, PodInstance, Rollout, RolloutProgress, ScaleRecord, Template,
};
use schema::testing::{SnapshotBuilder, object_of, spec};

use super::super::plan::plan;
use crate::controllers::{Change, LastKnown, Writes};

const TEMPLATE: &str = "0011223344556677";

fn function() -> Object {
    let spec = FunctionSpec { source: Some("functions/hello".to_owned()), ..FunctionSpec::default() };
    Object { hash: "new".to_owned(), generation: 2, ..object_of("hello", spec) }
}

/// A function whose previous version ran well and sleeps, while a call asks for one replica.
fn asleep(object: &Object, image: ImageState) -> SnapshotBuilder {
    let image = FunctionImage {
        reference: "minik8s.local/function:new".to_owned(),
        id: None,
        state: image,
        nodes: Vec::new(),
        registry: None,
    };
    let record =
        FunctionRecord { hash: object.hash.clone(), images: vec![image], ..FunctionRecord::default() };
    let rollout = Rollout {
        object_hash: "old".to_owned(),
        commit: String::new(),
        wanted: TEMPLATE.to_owned(),
        good: Some(TEMPLATE.to_owned()),
        complete: true,
        failure: None,
        started_at: Timestamp::UNIX_EPOCH,
        progressed_at: Timestamp::UNIX_EPOCH,
        best: RolloutProgress::default(),
        status: ReplicaSetStatus { observed_generation: 1, ..ReplicaSetStatus::default() },
        steps: Vec::new(),
    };
    let template = Template {
        commit: String::new(),
        labels: Default::default(),
        annotations: Default::default(),
        spec: Arc::new(spec(10, 1)),
        files: Default::default(),
    };
    let reference = object.reference();
    let scale = ScaleRecord { replicas: 1, scaler: reference.to_string() };
    SnapshotBuilder::new()
        .nodes(1)
        .put(&Key::Object(reference.clone()), object)
        .put(&Key::Function(NamespacedName::new("default", "hello")), &record)
        .put(&Key::Rollout(reference.clone()), &rollout)
        .put(&Key::Template(reference.clone(), TEMPLATE.to_owned()), &template)
        .put(&Key::Scale(reference), &scale)
}

fn made(plan: &Writes) -> Vec<(String, String)> {
    let pods = plan.writes.iter().filter(|write| matches!(write.key, Key::Pod(_)));
    pods.map(|write| match &write.change {
        Change::Put(value) => {
            let pod: PodInstance = decode(value).unwrap();
            (pod.hash, pod.spec.containers[0].image.clone())
        }
        Change::Delete => panic!("{plan}"),
    })
    .collect()
}

// Seen red with the template of the object, which a held version lacks: no pod was created.
#[test]
fn a_version_that_is_not_built_leaves_the_one_before_to_be_woken() {
    let object = function();
    for image in [
        ImageState::Waiting,
        ImageState::Building { node: "n1".to_owned() },
        ImageState::Failed { why: "no".to_owned() },
    ] {
        let builder = asleep(&object, image);
        let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
        assert_eq!(made(&plan), [(TEMPLATE.to_owned(), "busybox:1".to_owned())], "{plan}");
        let rollout = plan.writes.iter().find(|write| matches!(write.key, Key::Rollout(_)));
        assert!(rollout.is_none_or(|write| write.change != Change::Delete), "{plan}");
    }
}

#[test]
fn a_version_that_is_built_takes_over() {
    let object = function();
    let builder = asleep(&object, ImageState::Ready);
    let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    let made = made(&plan);
    assert!(
        matches!(&made[..], [(hash, image)] if hash != TEMPLATE && image == "minik8s.local/function:new"),
        "{plan}"
    );
}

// Seen red without functions in `workload_kinds`: another replica was created next to the unreadable one.
#[test]
fn a_replica_that_cannot_be_read_stops_its_function() {
    let object = function();
    let builder = asleep(&object, ImageState::Ready);
    let pod = Key::Pod(NamespacedName::new("default", "hello-00112233-0"));
    let plan = plan(&builder.garbage(&pod).snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    assert!(plan.writes.is_empty(), "{plan}");
}
