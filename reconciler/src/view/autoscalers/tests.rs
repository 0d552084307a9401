//! Rows and pages of autoscalers.

use schema::codec::encode;
use schema::snapshot::Change;
use serde_json::{Value, json};

use super::*;

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
