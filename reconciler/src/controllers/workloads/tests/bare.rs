//! Tables for the plan of bare pods.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::cluster::{CLUSTER_NAME, ClusterSpec};
use schema::kinds::pod::PodSpec;
use schema::kinds::{Kind, Resource};
use schema::quantity::Memory;
use schema::records::PodInstance;
use schema::snapshot::Snapshot;
use schema::testing::{SnapshotBuilder, instance, object, object_key, pod_ref, replica, spec};

use super::super::plan::plan;
use crate::controllers::LastKnown;

fn planned(snapshot: &Snapshot) -> String {
    plan(snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH).to_string()
}

#[test]
fn an_object_becomes_a_pod_of_its_name() {
    let builder = SnapshotBuilder::new().object(&object("web", spec(100, 64)));
    assert_eq!(planned(&builder.snapshot), "put pods/default/web if absent: wanted by commit 111111111111\n");
}

#[test]
fn the_pod_is_exactly_what_the_object_says() {
    let builder = SnapshotBuilder::new().object(&object("web", spec(100, 64)));
    let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    let crate::controllers::Change::Put(value) = &plan.writes[0].change else { panic!("{plan}") };
    let pod: PodInstance = schema::codec::decode(value).unwrap();
    assert_eq!(pod, instance("web", spec(100, 64)));
}

#[test]
fn an_unchanged_object_costs_no_write_even_if_its_file_moved() {
    let mut moved = object("web", spec(100, 64));
    moved.provenance.file = "elsewhere/web.yaml".into();
    moved.provenance.line = 40;
    moved.generation = 7;
    let builder = SnapshotBuilder::new().object(&moved).pod(&instance("web", spec(100, 64)));
    assert_eq!(planned(&builder.snapshot), "");
}

// Seen red with a cursor over the pods that never advances.
#[test]
fn pods_find_their_objects_among_those_of_others() {
    let own = || spec(100, 64);
    let mut builder = SnapshotBuilder::new();
    for kept in ["b", "d", "f"] {
        builder = builder.object(&object(kept, own())).pod(&instance(kept, own()));
    }
    for new in ["a", "e"] {
        builder = builder.object(&object(new, own()));
    }
    for gone in ["aa", "c", "z"] {
        builder = builder.pod(&instance(gone, own()));
    }
    let builder = builder.object(&object("ee", own())).pod(&replica("set", "ee", own()));
    let plan = planned(&builder.snapshot);
    let writes: Vec<&str> = plan.lines().map(|line| line.split(" if ").next().unwrap()).collect();
    let deleted = ["aa", "c", "ee", "z"].map(|name| format!("delete pods/default/{name}"));
    let put = ["a", "e"].map(|name| format!("put pods/default/{name}"));
    let notes = writes.iter().filter(|write| write.starts_with("note Pod/default/ee NameTaken")).count();
    let written: Vec<&str> = writes.iter().copied().filter(|write| !write.starts_with("note")).collect();
    assert_eq!(notes, 1, "{plan}");
    assert_eq!(
        BTreeSet::from_iter(written),
        deleted.iter().chain(&put).map(String::as_str).collect(),
        "{plan}"
    );
}

#[test]
fn a_label_is_changed_in_place_and_keeps_the_uid() {
    let mut labelled = object("web", spec(100, 64));
    labelled.metadata.labels.insert("tier".into(), "front".into());
    labelled.provenance.commit = "2".repeat(40);
    let builder = SnapshotBuilder::new().object(&labelled).pod(&instance("web", spec(100, 64)));
    let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    assert_eq!(
        plan.to_string(),
        "put pods/default/web if at 2: metadata changed by commit 222222222222, in place\n"
    );
    let crate::controllers::Change::Put(value) = &plan.writes[0].change else { panic!("{plan}") };
    let pod: PodInstance = schema::codec::decode(value).unwrap();
    assert_eq!(pod.uid, instance("web", spec(100, 64)).uid);
}

/// Seen red without `files` in `is_as_wanted`.
#[test]
fn another_login_of_the_same_hash_reaches_the_node_in_place() {
    use schema::content_refs::{BlobKind, BlobRef};
    let mut rotated = object("web", spec(100, 64));
    let blob = BlobRef {
        digest: "0a".repeat(32),
        size: 1,
        kind: BlobKind::Secret,
        texts: Vec::new(),
        source: String::new(),
    };
    rotated.files.insert("secrets/login.age".to_owned(), blob);
    let builder = SnapshotBuilder::new().object(&rotated).pod(&instance("web", spec(100, 64)));
    let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    let crate::controllers::Change::Put(value) = &plan.writes[0].change else { panic!("{plan}") };
    let pod: PodInstance = schema::codec::decode(value).unwrap();
    assert_eq!((pod.uid, &pod.files), (instance("web", spec(100, 64)).uid, &rotated.files));
}

/// Seen red with the defaults applied to an existing pod.
#[test]
fn a_new_pod_gets_default_resources_and_one_that_is_there_keeps_what_it_got() {
    let with_limit = |memory: u64| {
        let mut cluster = ClusterSpec::default();
        cluster.defaults.resources.limits.memory = Some(Memory { bytes: memory });
        let mut object = object(CLUSTER_NAME, spec(1, 1));
        object.resource = Resource::Cluster(cluster.into());
        (Key::Object(object.reference()), object)
    };
    let pod_of = |builder: &SnapshotBuilder| -> (String, PodInstance) {
        let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
        let crate::controllers::Change::Put(value) = &plan.writes[0].change else { panic!("{plan}") };
        (plan.to_string(), schema::codec::decode(value).unwrap())
    };
    let limit_of = |pod: &PodInstance| pod.spec.containers[0].resources.limits.memory.unwrap().bytes;
    let (key, cluster) = with_limit(64 << 20);
    let builder = SnapshotBuilder::new().put(&key, &cluster).object(&object("web", spec(100, 64)));
    let (_, made) = pod_of(&builder);
    assert_eq!((limit_of(&made), &made.uid), (64 << 20, &instance("web", spec(100, 64)).uid));

    let (key, cluster) = with_limit(96 << 20);
    let builder = builder.pod(&made).put(&key, &cluster);
    assert_eq!(planned(&builder.snapshot), "");
    let mut labelled = object("web", spec(100, 64));
    labelled.metadata.labels.insert("tier".into(), "front".into());
    let (text, updated) = pod_of(&builder.clone().object(&labelled));
    assert!(text.contains("in place"), "{text}");
    assert_eq!(limit_of(&updated), 64 << 20);
    let (text, replaced) = pod_of(&builder.object(&object("web", spec(200, 64))));
    assert!(text.contains("spec changed"), "{text}");
    assert_eq!(limit_of(&replaced), 96 << 20);
}

#[test]
fn another_spec_is_another_pod() {
    let builder =
        SnapshotBuilder::new().object(&object("web", spec(200, 64))).pod(&instance("web", spec(100, 64)));
    assert_eq!(
        planned(&builder.snapshot),
        "put pods/default/web if at 2: spec changed by commit 111111111111\n"
    );
}

#[test]
fn a_removed_object_takes_its_pod_along_before_anything_new_comes() {
    let builder = SnapshotBuilder::new().pod(&instance("zoo", spec(1, 1))).object(&object("ant", spec(1, 1)));
    assert_eq!(
        planned(&builder.snapshot),
        "delete pods/default/zoo if at 1: its object is gone\n\
         put pods/default/ant if absent: wanted by commit 111111111111\n"
    );
}

#[test]
fn a_name_that_a_workload_s_pod_has_is_left_to_it() {
    let mut other = instance("web-x1", PodSpec::default());
    other.owner.kind = Kind::ReplicaSet;
    other.owner.name = "web".into();
    let builder = SnapshotBuilder::new().pod(&other);
    assert_eq!(planned(&builder.snapshot), "delete pods/default/web-x1 if at 1: its object is gone\n");
    let builder = builder.object(&object("web-x1", spec(1, 1)));
    let plan = planned(&builder.snapshot);
    let note = "note Pod/default/web-x1 NameTaken: a pod of ReplicaSet/web has this name and is left alone; \
                rename one of the two\n";
    assert!(plan.ends_with(note), "{plan}");
}

#[test]
fn an_object_that_cannot_be_read_is_not_an_object_that_is_gone() {
    let builder = SnapshotBuilder::new().pod(&instance("web", spec(1, 1))).garbage(&object_key("web"));
    assert_eq!(
        planned(&builder.snapshot),
        "note Pod/default/web Unreadable: the value of /minik8s/objects/Pod/default/web can't be read; \
         everything that depends on it stays as it is\n"
    );
}

#[test]
fn a_pod_that_cannot_be_read_is_not_written_over() {
    let builder =
        SnapshotBuilder::new().object(&object("web", spec(1, 1))).garbage(&Key::Pod(pod_ref("web")));
    let plan = plan(&builder.snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    assert!(plan.writes.is_empty(), "{plan}");
    assert_eq!(plan.notes.len(), 1, "{plan}");
}

#[test]
fn a_pod_too_large_for_a_key_is_reported_and_not_written() {
    let mut big = spec(1, 1);
    big.containers[0].args = vec!["x".repeat(70_000)];
    let mut object = object("web", spec(1, 1));
    object.resource = Resource::Pod(big.into());
    let mut snapshot = Snapshot::default();
    let versioned = schema::snapshot::VersionedValue { value: object, create_revision: 1, mod_revision: 1 };
    snapshot.objects.insert(versioned.value.reference(), versioned.into());
    let plan = plan(&snapshot, &LastKnown::default(), None, Timestamp::UNIX_EPOCH);
    assert!(plan.writes.is_empty(), "{plan}");
    assert!(plan.to_string().contains("NotWritten: value of 7"), "{plan}");
}
