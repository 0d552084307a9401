//! The functions controller on snapshots: build orders, published records and scaling.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::condition::ConditionStatus;
use schema::content_refs::{BlobKind, BlobRef};
use schema::keys::Key;
use schema::kinds::Resource;
use schema::kinds::cluster::ClusterSpec;
use schema::kinds::function::{FunctionSpec, ImageState, built_image, image_hash};
use schema::kinds::replica_set::ReplicaSetStatus;
use schema::object::Object;
use schema::records::{
    BuildOrder, FunctionDemand, FunctionRecord, NodeConditions, NodeDemand, NodeImage, NodeImageState,
    RegistryCopy, Rollout, RolloutProgress, ScaleRecord, SettledRecord,
};
use schema::snapshot::Snapshot;
use schema::testing::{SnapshotBuilder, object_of};

use crate::controllers::functions::{Functions, ReportTimes};
use crate::controllers::testing::{ApplyPlan as _, seen};
use crate::controllers::{Change, Controller as _, LastKnown, Writes};

fn plan(snapshot: &Snapshot, now: Timestamp) -> Writes {
    super::plan::plan(snapshot, &LastKnown::default(), &BTreeMap::new(), now)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_900_000_000 + seconds)
}

/// A function whose folder content is `content`.
fn function(content: char) -> Object {
    let spec = FunctionSpec {
        source: Some("functions/hello".to_owned()),
        scale_to_zero_after_seconds: Some(30),
        ..FunctionSpec::default()
    };
    let mut object = object_of("hello", spec);
    let blob = BlobRef {
        digest: content.to_string().repeat(64),
        size: 1,
        kind: BlobKind::Folder,
        texts: Vec::new(),
        source: String::new(),
    };
    object.files.insert("functions/hello".to_owned(), blob);
    object.hash = Object::hash_of(&object.metadata, &object.resource, &object.files);
    object
}

fn reference(object: &Object) -> String {
    let Resource::Function(spec) = &object.resource else { panic!("a function") };
    built_image(spec, &object.files, &Default::default()).unwrap().0
}

fn hash(object: &Object) -> String {
    image_hash(&reference(object)).unwrap().to_owned()
}

fn ready(object: &Object) -> NodeImage {
    let state = NodeImageState::Ready { id: "sha256:1".to_owned(), size: 7 };
    NodeImage { reference: reference(object), state, registry: None }
}

/// Decodes the value that a plan puts at `key`.
fn written<T: serde::de::DeserializeOwned>(plan: &Writes, key: &Key) -> Option<T> {
    let write = plan.writes.iter().find(|write| write.key == *key)?;
    match &write.change {
        Change::Put(value) => Some(decode(value).unwrap()),
        Change::Delete => panic!("{plan}"),
    }
}

fn record_key(object: &Object) -> Key {
    Key::Function(schema::meta::NamespacedName::new("default", &object.metadata.name))
}

fn orders(plan: &Writes) -> Vec<(String, bool)> {
    let of_key = |write: &crate::controllers::Write| match &write.key {
        Key::Build(node, _) => Some((node.clone(), write.change != Change::Delete)),
        _ => None,
    };
    plan.writes.iter().filter_map(of_key).collect()
}

fn demand(functions: &[(&str, FunctionDemand)]) -> NodeDemand {
    let functions = functions.iter().map(|(name, demand)| ((*name).to_owned(), *demand));
    NodeDemand {
        at: Some(at(0)),
        since: at(-1000),
        functions: functions.collect(),
        beats: BTreeMap::new(),
        failures: BTreeMap::new(),
    }
}

// Seen red without `take_back`, and with an order for each node.
#[test]
fn one_node_builds_and_what_is_built_is_ordered_no_more() {
    let object = function('a');
    let builder = SnapshotBuilder::new().nodes(2).object(&object);
    let first = plan(&builder.snapshot, at(0));
    assert_eq!(orders(&first), [("n1".to_owned(), true)], "{first}");
    let record: FunctionRecord = written(&first, &record_key(&object)).unwrap();
    let building = ImageState::Building { node: "n1".to_owned() };
    assert_eq!((&record.images[0].state, record.image_ready_at), (&building, None));
    let builder = builder.after(&first);
    assert!(orders(&plan(&builder.snapshot, at(1))).is_empty());
    let builder = builder.put(&Key::NodeImage("n1".to_owned(), hash(&object)), &ready(&object));
    let built = plan(&builder.snapshot, at(2));
    assert_eq!(orders(&built), [("n1".to_owned(), false)], "{built}");
    let record: FunctionRecord = written(&built, &record_key(&object)).unwrap();
    assert_eq!(
        (record.images[0].state.clone(), record.images[0].nodes.clone()),
        (ImageState::Ready, vec!["n1".to_owned()])
    );
    assert_eq!(record.image_ready_at, Some(at(2)));
    let builder = builder.after(&built);
    assert!(plan(&builder.snapshot, at(3)).writes.is_empty());
    // A time in the future, from a leader with a wrong clock, is corrected; an image that is lost and rebuilt gets
    // a new time.
    let ahead = FunctionRecord { image_ready_at: Some(at(900)), ..record };
    let builder = builder.put(&record_key(&object), &ahead);
    let ready_at =
        |plan: &Writes| written(plan, &record_key(&object)).map(|it: FunctionRecord| it.image_ready_at);
    let corrected = plan(&builder.snapshot, at(4));
    assert_eq!(ready_at(&corrected), Some(Some(at(4))));
    let node_image = Key::NodeImage("n1".to_owned(), hash(&object));
    let lost = builder.after(&corrected).delete(&node_image);
    let again = plan(&lost.snapshot, at(5));
    assert_eq!(ready_at(&again), Some(None));
    let rebuilt = plan(&lost.after(&again).put(&node_image, &ready(&object)).snapshot, at(6));
    assert_eq!(ready_at(&rebuilt), Some(Some(at(6))));
}

// Seen red with an order that names no base.
#[test]
fn the_base_that_the_cluster_names_is_what_another_image_is_ordered_on() {
    let object = function('a');
    let mut cluster = ClusterSpec::default();
    cluster.functions.python_base = Some("base:1".to_owned());
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let plan = plan(&builder.cluster(cluster).snapshot, at(0));
    let record: FunctionRecord = written(&plan, &record_key(&object)).unwrap();
    let image = &record.images[0].reference;
    let key = Key::Build("n1".to_owned(), image_hash(image).unwrap().to_owned());
    let order: BuildOrder = written(&plan, &key).unwrap();
    assert_eq!((order.base.as_deref(), &order.reference), (Some("base:1"), image));
    assert_ne!(order.reference, reference(&object), "what was built on another base is not it");
}

// Seen red with a `builder` that does not check that the node is alive.
#[test]
fn a_lost_builder_is_replaced_and_a_labelled_node_is_preferred() {
    let object = function('a');
    let builder = SnapshotBuilder::new().nodes(3).object(&object);
    let builder = builder.put(&Key::Build("n1".to_owned(), hash(&object)), &order_of(&object));
    let (ready, since) = (ConditionStatus::Unknown, at(-100));
    let gone = NodeConditions { evicted_at: Some(at(-10)), ..NodeConditions::new(ready, since) };
    let builder = builder.delete(&Key::Heartbeat("n1".to_owned()));
    let builder = builder.put(&Key::NodeConditions("n1".to_owned()), &gone);
    let plan = plan(&builder.snapshot, at(0));
    assert_eq!(orders(&plan), [("n2".to_owned(), true), ("n1".to_owned(), false)], "{plan}");
}

#[test]
fn a_build_that_fails_again_and_again_is_tried_at_other_nodes_and_is_said_at_once() {
    let object = function('a');
    let failed = |attempts| {
        let state = NodeImageState::Failed { why: "no space".to_owned(), at: at(0), attempts };
        NodeImage { reference: reference(&object), state, registry: None }
    };
    let state = |plan: &Writes| {
        let record: FunctionRecord = written(plan, &record_key(&object)).unwrap();
        record.images[0].state.clone()
    };
    let mut builder = SnapshotBuilder::new().nodes(5).object(&object);
    for node in ["n1", "n2", "n3"] {
        let assigned = plan(&builder.snapshot, at(0));
        assert_eq!(orders(&assigned), [(node.to_owned(), true)], "{assigned}");
        assert_eq!(state(&assigned), ImageState::Building { node: node.to_owned() }, "{assigned}");
        builder = builder.put(&Key::Build(node.to_owned(), hash(&object)), &order_of(&object));
        let image = Key::NodeImage(node.to_owned(), hash(&object));
        builder = builder.put(&image, &failed(2));
        let early = plan(&builder.snapshot, at(1));
        assert!(orders(&early).is_empty(), "{early}");
        assert_eq!(state(&early), ImageState::Failed { why: "no space".to_owned() }, "{early}");
        builder = builder.put(&image, &failed(3));
    }
    let last = plan(&builder.snapshot, at(2));
    assert!(orders(&last).is_empty(), "{last}");
    let built = builder.put(&Key::NodeImage("n2".to_owned(), hash(&object)), &ready(&object));
    let taken_back = ["n1", "n2", "n3"].map(|node| (node.to_owned(), false));
    assert_eq!(orders(&plan(&built.snapshot, at(3))), taken_back);
}

#[test]
fn the_record_says_whether_the_registry_has_the_image() {
    let object = function('a');
    let pushed = RegistryCopy::Pushed { digest: "r:1/function@sha256:1".to_owned() };
    let refused = RegistryCopy::Failed { why: "no login".to_owned() };
    let says = |copies: [Option<&RegistryCopy>; 2]| {
        let mut builder = SnapshotBuilder::new().nodes(2).object(&object);
        for (node, copy) in ["n1", "n2"].into_iter().zip(copies) {
            let image = NodeImage { registry: copy.cloned(), ..ready(&object) };
            builder = builder.put(&Key::NodeImage(node.to_owned(), hash(&object)), &image);
        }
        let record: FunctionRecord = written(&plan(&builder.snapshot, at(0)), &record_key(&object)).unwrap();
        record.images[0].registry.clone()
    };
    assert_eq!(says([None, None]), None);
    assert_eq!(says([Some(&refused), None]), Some(refused.clone()));
    assert_eq!(says([Some(&refused), Some(&pushed)]), Some(pushed));
}

/// Rollout of a version that has run with one replica.
fn rollout(object: &Object, since: Timestamp) -> Rollout {
    Rollout {
        object_hash: object.hash.clone(),
        commit: String::new(),
        wanted: "t".to_owned(),
        good: Some("t".to_owned()),
        complete: true,
        failure: None,
        started_at: since,
        progressed_at: since,
        best: RolloutProgress::default(),
        status: ReplicaSetStatus::default(),
        steps: Vec::new(),
    }
}

fn order_of(object: &Object) -> BuildOrder {
    let builder = SnapshotBuilder::new().nodes(1).object(object);
    let key = Key::Build("n1".to_owned(), hash(object));
    written(&plan(&builder.snapshot, at(0)), &key).unwrap()
}

// Seen red without `mend_index`: the build was tried with the old index until its source changed.
#[test]
fn a_build_that_stands_finds_the_index_that_the_cluster_names_by_now() {
    let object = function('a');
    let order = Key::Build("n1".to_owned(), hash(&object));
    let old = BuildOrder { package_index: Some("http://192.0.2.1/simple".to_owned()), ..order_of(&object) };
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let builder = builder.put(&order, &old);
    let mended = plan(&builder.snapshot, at(0));
    assert_eq!(written::<BuildOrder>(&mended, &order), Some(order_of(&object)), "{mended}");
    let again = plan(&builder.after(&mended).snapshot, at(1));
    assert_eq!(written::<BuildOrder>(&again, &order), None, "{again}");
}

// Seen red with a desired scale of 0 for a function never tried, and without `is_partly_unknown`.
#[test]
fn a_new_function_is_tried_then_sleeps_and_a_call_wakes_it() {
    let object = function('a');
    let scale = Key::Scale(object.reference());
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let builder = builder.put(&Key::NodeImage("n1".to_owned(), hash(&object)), &ready(&object));
    let replicas = |builder: &SnapshotBuilder, now| {
        written::<ScaleRecord>(&plan(&builder.snapshot, now), &scale).map(|scale| scale.replicas)
    };
    assert_eq!(replicas(&builder, at(0)), Some(1), "it is tried");
    let builder = builder.put(&scale, &ScaleRecord { replicas: 1, scaler: object.reference().to_string() });
    let builder = builder.put(&Key::Rollout(object.reference()), &rollout(&object, at(0)));
    assert_eq!(replicas(&builder, at(100)), None, "the node has not said what goes through its gateway");
    let builder = builder.put(&Key::Demand("n1".to_owned()), &demand(&[]));
    assert_eq!(replicas(&builder, at(29)), None);
    assert_eq!(replicas(&builder, at(30)), Some(0));
    let builder = builder.put(&scale, &ScaleRecord { replicas: 0, scaler: object.reference().to_string() });
    let waiting = FunctionDemand { waiting: 1, ..FunctionDemand::default() };
    let woken = builder.put(&Key::Demand("n1".to_owned()), &demand(&[("default/hello", waiting)]));
    assert_eq!(replicas(&woken, at(60)), Some(1));
    let one = ScaleRecord { replicas: 1, scaler: object.reference().to_string() };
    let many = FunctionDemand { in_flight: 7, stable_milli: 7000, panic_milli: 7000, ..waiting };
    let busy =
        woken.put(&scale, &one).put(&Key::Demand("n1".to_owned()), &demand(&[("default/hello", many)]));
    assert_eq!(replicas(&busy, at(61)), Some(10), "7 calls at 0.7 a replica");
}

// Seen red without `assigned`: the second function's order went to the other node.
#[test]
fn two_functions_of_one_folder_have_one_build() {
    let (object, mut other) = (function('a'), function('a'));
    other.metadata.name = "other".to_owned();
    let builder = SnapshotBuilder::new().nodes(2).object(&object);
    let builder = builder.object(&other);
    assert_eq!(orders(&plan(&builder.snapshot, at(0))), [("n1".to_owned(), true)]);
}

// Seen red without `is_same_surge`: each write woke the next one.
#[test]
fn a_surge_that_goes_on_is_written_once_in_a_tick() {
    let object = function('a');
    let many =
        FunctionDemand { in_flight: 90, stable_milli: 90_000, panic_milli: 90_000, ..Default::default() };
    let one = ScaleRecord { replicas: 1, scaler: object.reference().to_string() };
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let builder = builder.put(&Key::NodeImage("n1".to_owned(), hash(&object)), &ready(&object));
    let builder = builder.put(&Key::Rollout(object.reference()), &rollout(&object, at(-100)));
    let builder = builder.put(&Key::Scale(object.reference()), &one);
    let builder = builder.put(&Key::Demand("n1".to_owned()), &demand(&[("default/hello", many)]));
    let first = plan(&builder.snapshot, at(0));
    assert!(!first.writes.is_empty());
    let builder = builder.after(&first);
    let settled = plan(&builder.snapshot, at(1));
    let builder = builder.after(&settled);
    let again = plan(&builder.snapshot, at(1));
    assert!(again.writes.is_empty(), "{again}");
}

// Seen red with briefly silent nodes left out.
#[test]
fn a_node_that_is_silent_for_a_moment_takes_no_replica_away() {
    let object = function('a');
    let five = ScaleRecord { replicas: 5, scaler: object.reference().to_string() };
    let builder = SnapshotBuilder::new().nodes(2).object(&object);
    let builder = builder.put(&Key::NodeImage("n1".to_owned(), hash(&object)), &ready(&object));
    let builder = builder.put(&Key::Rollout(object.reference()), &rollout(&object, at(-100)));
    let builder = builder.put(&Key::Scale(object.reference()), &five);
    let calls = FunctionDemand { in_flight: 3, stable_milli: 3000, panic_milli: 3000, ..Default::default() };
    let builder = builder.put(&Key::Demand("n1".to_owned()), &demand(&[("default/hello", calls)]));
    let builder = builder.put(&Key::Demand("n2".to_owned()), &demand(&[]));
    let silent = builder.delete(&Key::Heartbeat("n1".to_owned()));
    let conditions = NodeConditions::new(ConditionStatus::Unknown, at(-5));
    let silent = silent.put(&Key::NodeConditions("n1".to_owned()), &conditions);
    let planned = plan(&silent.snapshot, at(0));
    assert!(written::<ScaleRecord>(&planned, &Key::Scale(object.reference())).is_none(), "{planned}");
}

// Seen red with the 59-second report of a gateway taken for the whole window.
#[test]
fn a_gateway_that_has_just_begun_takes_no_replica_away() {
    let object = function('a');
    let scale = Key::Scale(object.reference());
    let five = ScaleRecord { replicas: 5, scaler: object.reference().to_string() };
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let builder = builder.put(&Key::NodeImage("n1".to_owned(), hash(&object)), &ready(&object));
    let builder = builder.put(&Key::Rollout(object.reference()), &rollout(&object, at(-100)));
    let builder = builder.put(&scale, &five);
    let one = FunctionDemand { in_flight: 1, stable_milli: 1000, panic_milli: 1000, ..Default::default() };
    for (calls, replicas) in [(&[][..], 0), (&[("default/hello", one)], 2)] {
        let scaled = |seconds: i64| {
            let reported = NodeDemand { since: at(-seconds), ..demand(calls) };
            let planned =
                plan(&builder.clone().put(&Key::Demand("n1".to_owned()), &reported).snapshot, at(0));
            written::<ScaleRecord>(&planned, &scale).map(|scale| scale.replicas)
        };
        assert_eq!((scaled(1), scaled(59), scaled(60)), (None, None, Some(replicas)), "{calls:?}");
    }
}

// Would fail with the times of the report taken as they are: a clock ahead keeps the replica for good, and one behind
// takes it away at once.
#[test]
fn a_gateway_whose_clock_is_wrong_keeps_a_replica_as_long_as_any_other() {
    let object = function('a');
    let scale = Key::Scale(object.reference());
    let one = ScaleRecord { replicas: 1, scaler: object.reference().to_string() };
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let builder = builder.put(&Key::NodeImage("n1".to_owned(), hash(&object)), &ready(&object));
    let builder = builder.put(&Key::Rollout(object.reference()), &rollout(&object, at(-100)));
    let builder = builder.put(&scale, &one);
    for ahead in [0, 3600, -3600] {
        // The last call ended a second before the report, which was read at 0.
        let idle = FunctionDemand { idle_since: Some(at(ahead - 1)), ..Default::default() };
        let reported =
            NodeDemand { at: Some(at(ahead)), since: at(ahead - 1000), ..demand(&[("default/hello", idle)]) };
        let snapshot = builder.clone().put(&Key::Demand("n1".to_owned()), &reported).snapshot;
        let mut times = ReportTimes::default();
        times.observe(&snapshot, at(0));
        let scaled = |now: i64, times: &mut ReportTimes| {
            let mut seen = seen(&snapshot);
            seen.demand_read_at = times.observe(&snapshot, at(now));
            let planned = Functions::plan(&seen, at(now));
            written::<ScaleRecord>(&planned, &scale).map(|scale| scale.replicas)
        };
        assert_eq!(scaled(10, &mut times), None, "{ahead}");
        assert_eq!(scaled(1000, &mut times), Some(0), "{ahead}");
    }
}

// Seen red with the pods that run alone counted: the scale written was one.
#[test]
fn an_etcd_that_was_lost_gets_the_scale_that_was_last_known() {
    let object = function('a');
    let scale = Key::Scale(object.reference());
    let of = |replicas| ScaleRecord { replicas, scaler: object.reference().to_string() };
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let whole =
        builder.clone().put(&scale, &of(5)).put(&Key::Settled("n1".to_owned()), &SettledRecord::default());
    let known = LastKnown::from_snapshot(&whole.snapshot, at(0)).unwrap();
    let known = LastKnown::from_disk(&known.to_disk());
    let scaled = |snapshot: &Snapshot| {
        let planned = super::plan::plan(snapshot, &known, &BTreeMap::new(), at(500));
        written::<ScaleRecord>(&planned, &scale).map(|scale| scale.replicas)
    };
    assert_eq!(scaled(&builder.snapshot), Some(5));
    assert_eq!(scaled(&builder.put(&scale, &of(2)).snapshot), None, "what etcd has comes first");
}

#[test]
fn what_is_gone_leaves_nothing_behind() {
    let object = function('a');
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let builder = {
        let first = plan(&builder.snapshot, at(0));
        builder.after(&first)
    };
    let builder = builder.delete(&Key::Object(object.reference()));
    let last = plan(&builder.snapshot, at(1));
    let builder = builder.after(&last);
    assert!(builder.snapshot.functions.is_empty() && builder.snapshot.builds.is_empty(), "{last}");
    assert!(builder.snapshot.scales.is_empty(), "{last}");
}
