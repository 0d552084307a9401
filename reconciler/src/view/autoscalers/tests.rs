//! Rows and pages of autoscalers.

use schema::codec::encode;
use schema::snapshot::Change;
use serde_json::{Value, json};

use super::*;
use crate::view::testing::at;

fn put(snapshot: &mut Snapshot, key: &str, value: &Value) {
    snapshot.revision += 1;
    let (create_revision, mod_revision) = (1, snapshot.revision);
    let value = encode(value).unwrap().into();
    snapshot.apply(&Change::Put { key: format!("/minik8s/{key}"), value, create_revision, mod_revision });
}

fn now() -> Timestamp {
    "2026-01-01T00:02:00Z".parse().unwrap()
}

/// An autoscaler on both resources, and the two pods of its target.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let object = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"}, "hash": "00", "generation": 3,
        "provenance": {"source": "main", "commit": "c0ffee", "author": "Ada", "file": "a.yaml", "line": 3},
        "spec": {
            "scaleTargetRef": {"kind": "ReplicaSet", "name": "web"}, "minReplicas": 1, "maxReplicas": 4,
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "100Mi"}}},
            ],
        },
    });
    put(&mut snapshot, "objects/HorizontalPodAutoscaler/default/web", &object);
    for (name, owner) in [("web-0a1b2c3d-1", "web"), ("web-0a1b2c3d-0", "web"), ("db-0a1b2c3d-0", "db")] {
        let pod = json!({
            "namespace": "default", "name": name, "uid": name, "hash": "h", "commit": "c0ffee",
            "spec": {"containers": []}, "owner": {"kind": "ReplicaSet", "name": owner},
        });
        put(&mut snapshot, &format!("pods/default/{name}"), &pod);
    }
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    snapshot
}

fn with_record(generation: u64) -> Snapshot {
    let mut snapshot = snapshot();
    let record = json!({
        "observedGeneration": generation, "decidedAt": "2026-01-01T00:00:00Z",
        "target": {"kind": "ReplicaSet", "namespace": "default", "name": "web"},
        "status": {
            "currentReplicas": 2, "desiredReplicas": 3, "lastScaleTime": "2026-01-01T00:00:00Z",
            "lastScaleReason": "2 to 3: cpu resource utilization (percentage of request) above target",
            "currentMetrics": [{"name": "cpu", "averageUtilization": 63, "averageValue": "63m"}],
            "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    });
    put(&mut snapshot, "autoscalers/default/web", &record);
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    snapshot
}

#[test]
fn a_row_says_what_is_and_what_should_be() {
    let row = |snapshot: &Snapshot| autoscalers(snapshot, &Selection::default(), now()).remove(0);
    let before = row(&snapshot());
    assert_eq!(before.targets, ["cpu: <unknown>/50%", "memory: <unknown>/100Mi"]);
    assert_eq!((before.replicas, before.desired_replicas, before.health.as_str()), (2, None, "Progressing"));
    let after = row(&with_record(3));
    assert_eq!(after.reference, "ReplicaSet/web");
    assert_eq!(after.targets, ["cpu: 63%/50%", "memory: <unknown>/100Mi"]);
    assert_eq!((after.min_replicas, after.max_replicas, after.replicas), (1, 4, 2));
    assert_eq!((after.desired_replicas, after.health.as_str()), (Some(3), "Healthy"));
    // A status for the former generation does not apply to this one yet.
    assert_eq!(row(&with_record(2)).health, "Progressing");
}

#[test]
fn a_page_has_the_last_change_with_its_reason() {
    let id = NamespacedName::new("default", "web");
    let page = autoscaler(&with_record(3), &id, Vec::new(), now()).unwrap();
    assert_eq!((page.last_scale_age.as_str(), page.conditions.len()), ("2m", 1));
    assert_eq!(
        page.last_scale_reason,
        "2 to 3: cpu resource utilization (percentage of request) above target"
    );
    assert_eq!(page.set_by, "a.yaml:3 of source main");
    assert!(autoscaler(&snapshot(), &NamespacedName::new("default", "db"), Vec::new(), now()).is_none());
}

// Samples of autoscalers.

fn web() -> NamespacedName {
    NamespacedName::new("default", "web")
}

/// Samples the snapshot at these seconds, each time as after a change of etcd.
fn sample(samples: &mut AutoscalerSamples, snapshot: &mut Snapshot, seconds: &[i64]) {
    for second in seconds {
        snapshot.revision += 1;
        samples.record(snapshot, at(*second));
    }
}

fn lengths(line: &SampleLine) -> Vec<usize> {
    line.pieces.iter().map(Vec::len).collect()
}

#[test]
fn a_line_ends_where_samples_or_values_are_missing() {
    let (mut samples, mut without) = (AutoscalerSamples::default(), snapshot());
    let mut with = with_record(3);
    with.revision = without.revision + 100;
    sample(&mut samples, &mut with, &[0, 15, 75]);
    // 61 s without a sample.
    sample(&mut samples, &mut with, &[136, 151]);
    sample(&mut samples, &mut without, &[166]);
    with.revision += 100;
    sample(&mut samples, &mut with, &[181]);
    let history = samples.history(&web(), at(190)).unwrap();
    assert_eq!((history.first, history.to), (at(0), at(181)));
    assert_eq!(history.gaps, [(at(75), at(136))]);
    let [pods, cpu, memory] = history.charts.as_slice() else { panic!("{history:?}") };
    assert_eq!(lengths(&pods.actual), [3, 4]);
    assert_eq!(lengths(&pods.wanted), [3, 2, 1], "unknown at 166 s");
    assert_eq!((pods.actual.newest, pods.wanted.newest), (Some(2), Some(3)));
    assert_eq!(
        (cpu.name.as_str(), cpu.actual.highest(), cpu.wanted.newest),
        ("cpu utilization", Some(63), Some(50))
    );
    assert_eq!((memory.name.as_str(), memory.unit), ("memory per pod", Unit::Memory));
    assert_eq!((lengths(&memory.actual), memory.wanted.lowest()), (vec![], Some(100 << 20)));
    assert_eq!([Unit::Percent.format(63), memory.unit.format(100 << 20)], ["63%", "100Mi"]);
}

#[test]
fn an_overdue_sample_leaves_a_gap_at_the_end() {
    let (mut samples, mut snapshot) = (AutoscalerSamples::default(), with_record(3));
    sample(&mut samples, &mut snapshot, &[0, 15]);
    // As while etcd does not answer.
    samples.record(&snapshot, at(30));
    let current = samples.history(&web(), at(75)).unwrap();
    assert_eq!((current.to, current.charts[0].actual.newest, current.gaps.len()), (at(15), Some(2), 0));
    let late = samples.history(&web(), at(76)).unwrap();
    assert_eq!((late.to, late.charts[0].actual.newest, late.gaps), (at(76), None, vec![(at(15), at(76))]));
    assert!(samples.history(&web(), at(4000)).is_none(), "all samples are older than an hour");
}

#[test]
fn samples_are_bounded_and_go_with_their_autoscaler() {
    let (mut samples, mut snapshot) = (AutoscalerSamples::default(), with_record(3));
    let seconds: Vec<i64> = (0..300).collect();
    sample(&mut samples, &mut snapshot, &seconds);
    let points = |samples: &AutoscalerSamples, now: i64| -> usize {
        lengths(&samples.history(&web(), at(now)).unwrap().charts[0].actual).iter().sum()
    };
    assert_eq!(points(&samples, 300), 240);
    // A clock that was set back by 100 s: what it passed twice is there once.
    sample(&mut samples, &mut snapshot, &[200]);
    assert_eq!(points(&samples, 200), 141);
    sample(&mut samples, &mut snapshot, &[3700]);
    assert_eq!(points(&samples, 3700), 102, "those before 100 s are older than an hour");
    snapshot.objects = Default::default();
    sample(&mut samples, &mut snapshot, &[3715]);
    assert!(samples.history(&web(), at(3715)).is_none());
}
