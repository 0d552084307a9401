//! Traces in their three forms, and error messages for invalid ones.

use schema::kinds::Resource;
use schema::kinds::autoscaler::HorizontalPodAutoscalerSpec;
use schema::manifest::load_file;
use serde_json::{Value, json};

use super::{Report, Trace, run};

fn spec(fields: &str) -> HorizontalPodAutoscalerSpec {
    let text = format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: web}}\nspec:\n  \
         scaleTargetRef: {{kind: ReplicaSet, name: web}}\n{fields}"
    );
    let loaded = load_file("hpa.yaml", text.as_bytes());
    assert!(!loaded.has_errors(), "{:?}", loaded.violations);
    let Resource::HorizontalPodAutoscaler(spec) = &loaded.documents[0].object.resource else {
        panic!("{text}")
    };
    (**spec).clone()
}

const HALF: &str = "  maxReplicas: 10\n  metrics:\n  - type: Resource\n    resource: {name: cpu, target: {type: \
                    Utilization, averageUtilization: 50}}\n";

fn report(fields: &str, trace: &Value) -> Report {
    run(&spec(fields), &Trace::read(&trace.to_string()).unwrap()).unwrap()
}

fn desired(report: &Report) -> Vec<u32> {
    report.steps.iter().map(|entry| entry.desired).collect()
}

fn error(trace: &Value) -> String {
    let spec = spec(HALF);
    Trace::read(&trace.to_string()).and_then(|trace| run(&spec, &trace)).unwrap_err().to_string()
}

#[test]
fn pods_as_they_were() {
    let pod = |used: Value| json!({"name": "web-1", "requests": {"cpu": "1"}, "usage": used});
    let trace = json!({"steps": [
        {"at": 0, "current": 2, "pods": [pod(json!({"cpu": "1"})), pod(json!({"cpu": 1}))], "strayUsage": {"old": {"cpu": "9"}}},
        {"at": 15.5, "current": 4, "pods": [pod(Value::Null)]},
    ]});
    let report = serde_json::to_value(report(HALF, &trace)).unwrap();
    assert_eq!(
        report,
        json!({"steps": [
            {
                "at": 0, "current": 2, "recommendation": 4, "desired": 4, "limit": "DesiredWithinRange",
                "metrics": [{"name": "cpu", "utilization": 100, "averageValue": "1", "desired": 4, "error": null}],
                "conditions": {
                    "AbleToScale": "True/SucceededRescale", "ScalingActive": "True/ValidMetricFound",
                    "ScalingLimited": "False/DesiredWithinRange",
                },
                "reason": "cpu resource utilization (percentage of request) above target",
            },
            {
                "at": 15.5, "current": 4, "recommendation": null, "desired": 4, "limit": "DesiredWithinRange",
                "metrics": [{
                    "name": "cpu", "utilization": null, "averageValue": null, "desired": null,
                    "error": "no usable cpu sample of a pod yet: 0 not ready, 1 without a sample",
                }],
                "conditions": {
                    "AbleToScale": "True/SucceededGetScale", "ScalingActive": "False/FailedGetResourceMetric",
                    "ScalingLimited": "False/DesiredWithinRange",
                },
                "reason": "cpu: no usable cpu sample of a pod yet: 0 not ready, 1 without a sample",
            },
        ]})
    );
}

#[test]
fn each_field_of_a_pod_and_of_the_controller_counts() {
    let with = |fields: Value, controller: Value| {
        let mut young = json!({"name": "b", "requests": {"cpu": "1"}, "usage": {"cpu": "1"}});
        young.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let other = json!({"name": "a", "requests": {"cpu": "1"}, "usage": {"cpu": "1"}});
        let steps = json!([{"at": 0, "current": 2, "pods": [other, young]}]);
        desired(&report(HALF, &json!({"controller": controller, "steps": steps})))[0]
    };
    // Two pods at twice the target; with one of them not counted, a single pod at the target.
    for (fields, controller, wanted) in [
        (json!({}), json!({}), 4),
        (json!({"phase": "Pending"}), json!({}), 2),
        (json!({"phase": "Failed"}), json!({}), 2),
        (json!({"deletion": true}), json!({}), 2),
        (json!({"usage": null}), json!({}), 2),
        (json!({"ready": null}), json!({}), 2),
        (json!({"startedSecondsAgo": null}), json!({}), 2),
        (json!({"ready": false}), json!({}), 2),
        (json!({"ready": false, "readySinceSecondsAgo": 5}), json!({}), 4),
        (json!({"ready": false, "startedSecondsAgo": 400, "readySinceSecondsAgo": 350}), json!({}), 4),
        (
            json!({"ready": false, "startedSecondsAgo": 400, "readySinceSecondsAgo": 350}),
            json!({"initialReadinessDelaySeconds": 60}),
            2,
        ),
        (json!({"startedSecondsAgo": 100, "readySinceSecondsAgo": 10}), json!({}), 2),
        (
            json!({"startedSecondsAgo": 100, "readySinceSecondsAgo": 10, "usageWindowSeconds": 10}),
            json!({}),
            4,
        ),
        (
            json!({"startedSecondsAgo": 100, "readySinceSecondsAgo": 10, "usageWindowSeconds": 10, "usageAgeSeconds": 1}),
            json!({}),
            2,
        ),
        (
            json!({"startedSecondsAgo": 100, "readySinceSecondsAgo": 10}),
            json!({"cpuInitializationPeriodSeconds": 60}),
            4,
        ),
        (json!({}), json!({"tolerance": 0.999}), 4),
    ] {
        assert_eq!(with(fields.clone(), controller.clone()), wanted, "{fields} {controller}");
    }
}

#[test]
fn history_and_recommendations_show_windows_and_policies_alone() {
    let steps = |asked: u32| json!([{"at": 0, "current": 5, "recommendation": asked}]);
    let one = |trace: Value| {
        let entry = report("  maxReplicas: 10\n", &trace).steps.remove(0);
        (entry.desired, entry.limit)
    };
    let stabilized = (5, "ScaleDownStabilized".to_owned());
    assert_eq!(one(json!({"steps": steps(2)})), stabilized, "never seen: its size counts");
    assert_eq!(one(json!({"history": {"recommendations": null}, "steps": steps(2)})), stabilized);
    assert_eq!(one(json!({"history": {"recommendations": []}, "steps": steps(2)})).0, 2);
    let past = json!({"recommendations": [{"at": -200, "replicas": 4}]});
    assert_eq!(one(json!({"history": past, "steps": steps(2)})).0, 4);
    let short = json!({"downscaleStabilizationSeconds": 200});
    assert_eq!(one(json!({"controller": short, "history": past, "steps": steps(2)})).0, 2);
    let rate = "  maxReplicas: 20\n  behavior:\n    scaleUp: {policies: [{type: Pods, value: 4, periodSeconds: 60}]}\n";
    let events = json!({"recommendations": [], "scaleUps": [{"at": -59, "change": 3}], "scaleDowns": [{"at": -60, "change": 9}]});
    let entry = report(rate, &json!({"history": events, "steps": steps(19)})).steps.remove(0);
    assert_eq!((entry.desired, entry.limit.as_str()), (6, "ScaleUpLimit"));
}

/// Steps start from the number decided before, unless they give the number of replicas.
#[test]
fn older_forms_go_one_replica_per_interval() {
    let older = "  minReplicas: 1\n  maxReplicas: 5\n  metrics: {cpuPercent: 0.5}\n  adjustInterval: 15s\n";
    let asked = |all: &[u32]| -> Value {
        let steps = all.iter().enumerate().map(|(n, asked)| json!({"at": 15 * n, "recommendation": asked}));
        json!({"replicas": 1, "steps": steps.collect::<Vec<_>>()})
    };
    assert_eq!(
        desired(&report(older, &asked(&[9, 9, 9, 9, 9, 1, 1, 1, 1, 1]))),
        [2, 3, 4, 5, 5, 4, 3, 2, 1, 1]
    );
    // Seen red without a window: a change of direction within a longer interval took two steps at once.
    let slow = older.replace("15s", "60s");
    let turns: Vec<u32> = (0..200).map(|n| if n / 7 % 2 == 0 { 9 } else { 1 }).collect();
    let report = report(&slow, &asked(&turns));
    let mut changes: Vec<(f64, u32)> = Vec::new();
    for entry in &report.steps {
        let change = entry.desired.abs_diff(entry.current);
        if change > 0 {
            changes.push((entry.at.as_f64().unwrap(), change));
        }
    }
    assert!(changes.len() > 20, "{changes:?}");
    assert!(changes.iter().all(|(_, change)| *change == 1), "{changes:?}");
    assert!(changes.windows(2).all(|two| two[1].0 - two[0].0 >= 60.0), "{changes:?}");
}

#[test]
fn a_load_is_shared_by_whatever_pods_there_are() {
    let trace = json!({
        "replicas": 1, "readyAfterSeconds": 10, "requests": {"cpu": "500m"},
        "steps": [
            {"at": 0, "load": {"cpu": "200m"}}, {"at": 60, "load": {"cpu": "2300m"}},
            {"at": 300, "load": {"cpu": "200m"}}, {"at": 900, "load": {"cpu": "200m"}},
        ],
    });
    let report = report(HALF, &trace);
    assert_eq!(report.steps.len(), 61, "every 15 s, the last included");
    let at = |seconds: i64| report.steps.iter().find(|entry| entry.at.as_i64() == Some(seconds)).unwrap();
    assert_eq!(at(45).desired, 1);
    assert_eq!((at(60).desired, at(60).limit.as_str(), at(60).load), (4, "ScaleUpLimit", Some(2300)));
    assert_eq!(at(150).desired, 10);
    // The last recommendation of more was at 285 s.
    assert_eq!((at(570).desired, at(585).desired), (10, 1));
    assert!(report.steps.windows(2).all(|two| two[0].desired == two[1].current));
}

#[test]
fn a_bad_trace_is_reported_with_its_place_and_what_to_do() {
    let step = json!({"at": 0, "current": 1, "recommendation": 1});
    for (trace, wanted) in [
        (json!({"steps": []}), "steps: it is empty; give at least one step"),
        (json!({"steps": [{"at": 5, "recommendation": 1}]}), "steps[0].current: it is missing; give the"),
        (
            json!({"steps": [step, {"at": -1, "current": 1, "recommendation": 1}]}),
            "steps[1].at: -1 is earlier than the previous step",
        ),
        (
            json!({"steps": [{"at": 0, "current": 1}]}),
            "steps[0]: a step needs exactly one of pods, recommendation and load",
        ),
        (
            json!({"replicas": 1, "steps": [step, {"at": 1, "load": {}}]}),
            "steps: some steps have a load and some",
        ),
        (
            json!({"steps": [{"at": 0, "current": 1, "load": {"cpu": 1}}]}),
            "steps[0].current: a step with a load can't set the number",
        ),
        (
            json!({"controller": {"tolerance": 2.0}, "steps": [step]}),
            "controller.tolerance: 2 is out of range; write",
        ),
        (
            json!({"history": {"scaleUps": [{"at": 4, "change": 1}]}, "steps": [step]}),
            "history.scaleUps[0].at: 4 is not before the first step; history is before 0",
        ),
        (
            json!({"steps": [{"at": 0, "current": 1, "pods": [{"name": "a", "usageWindowSeconds": -1.0}]}]}),
            "steps[0].pods[0].usageWindowSeconds: -1 is out of range; write seconds from 0",
        ),
        (json!({"step": []}), "line 1, column 7: unknown field `step`"),
        (json!({"steps": [{"at": 0, "load": {"cpu": "many"}}]}), "`many` is not a quantity"),
        (
            json!({"steps": [{"at": 0, "load": {"cpu": "1"}}, {"at": 99_999_999, "load": {"cpu": "1"}}]}),
            "steps[1].at: that would be 6666666 evaluations",
        ),
    ] {
        let found = error(&trace);
        assert!(found.contains(wanted), "{found}\nbut wanted {wanted}");
    }
}
