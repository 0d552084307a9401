//! The decider alone, step by step.

use super::*;

/// The config of upstream's `newTestAutoscaler`.
fn fixture(target: f64, burst: f64) -> Value {
    json!({
        "target": target, "totalPerPod": target / 0.75, "panicThreshold": 2, "maxScaleUpRate": 10,
        "maxScaleDownRate": 10, "targetBurstCapacity": burst, "stableWindowSeconds": 60,
        "scaleDownDelaySeconds": 0, "activationScale": 0,
    })
}

#[test]
fn a_surge_and_its_end() {
    let trace = json!({"config": fixture(10.0, 93.0), "ready": 1, "steps": [
        {"at": 0, "stableConcurrency": 100, "panicConcurrency": 100},
        {"at": 0, "ready": 10, "stableConcurrency": 100, "panicConcurrency": 1000},
        {"at": 30, "stableConcurrency": 1, "panicConcurrency": 1},
        {"at": 60.5, "ready": 10, "stableConcurrency": 1, "panicConcurrency": 1},
    ]});
    let report = serde_json::to_value(report("", &trace)).unwrap();
    assert_eq!(
        report,
        json!({"steps": [
            {"at": 0, "desired": 10, "valid": true, "panic": true, "excessBurstCapacity": -180},
            {"at": 0, "desired": 100, "valid": true, "panic": true, "excessBurstCapacity": -960},
            {"at": 30, "desired": 100, "valid": true, "panic": true, "excessBurstCapacity": 39},
            {"at": 60.5, "desired": 1, "valid": true, "panic": false, "excessBurstCapacity": 39},
        ]})
    );
}

/// Desired replicas of each step; `None` if the step is not valid.
fn desired(fields: &str, trace: &Value) -> Vec<Option<u32>> {
    let Report::Steps { steps } = report(fields, trace) else { panic!("{trace}") };
    for step in steps.iter().filter(|step| !step.valid) {
        assert_eq!((step.desired, step.excess_burst_capacity), (0, 0));
    }
    steps.iter().map(|step| step.valid.then_some(step.desired)).collect()
}

#[test]
fn what_is_null_or_left_out() {
    let trace = json!({"config": fixture(10.0, 100.0), "ready": 3, "steps": [
        {"at": 0, "stableConcurrency": null, "panicConcurrency": null},
        {"at": 1, "stableConcurrency": 90},
        {"at": 2, "ready": null, "stableConcurrency": 90, "panicConcurrency": 90},
        // Without its own number of ready replicas, a step uses the last known one: 30 at most.
        {"at": 3, "stableConcurrency": 900, "panicConcurrency": 90},
        {"at": 4, "ready": 4, "stableConcurrency": 900, "panicConcurrency": 90},
        {"at": 5, "stableConcurrency": 900, "panicConcurrency": 90},
    ]});
    assert_eq!(desired("", &trace), [None, None, None, Some(30), Some(40), Some(40)]);
    // No step gives the number of ready replicas.
    let trace = json!({"config": null, "ready": null, "steps": [{"at": 0, "stableConcurrency": 9, "panicConcurrency": 9}]});
    assert_eq!(desired("", &trace), [None]);
}

#[test]
fn the_decider_is_made_at_the_first_step() {
    let step = |at: f64| json!({"at": at, "ready": 1, "stableConcurrency": 0, "panicConcurrency": 0});
    let steps = json!([step(9.0), step(69.0), step(69.5)]);
    let with = |ready: u32| json!({"config": fixture(10.0, 0.0), "ready": ready, "steps": steps});
    assert_eq!(desired("", &with(2)), [Some(2), Some(2), Some(0)]);
    assert_eq!(desired("", &with(1)), [Some(0), Some(0), Some(0)]);
}

#[test]
fn a_step_changes_the_config_from_then_on() {
    let step = |config: Value| json!({"at": 0, "ready": 10, "config": config, "stableConcurrency": 30, "panicConcurrency": 0});
    let trace = json!({"ready": 1, "steps": [
        step(Value::Null),
        step(json!({"target": 1})),
        step(json!({"maxScaleDownRate": 10})),
        step(json!({"target": 10, "activationScale": 4})),
        step(json!({"target": 100, "activationScale": 1, "reachable": false})),
    ]});
    // 30 / 7 rounded up; Knative's own limits before that are one half and a thousandfold.
    assert_eq!(desired("concurrency: 10", &trace), [5, 30, 30, 4, 1].map(Some));
}

#[test]
fn the_manifest_says_the_target_and_knative_the_rest() {
    let trace = |stable: f64, panic: f64| json!({"ready": 1, "steps": [{"at": 0, "stableConcurrency": stable, "panicConcurrency": panic}]});
    assert_eq!(desired("", &trace(2.0, 0.0)), [Some(3)], "2 / 0.7");
    assert_eq!(desired("concurrency: 20, targetUtilizationPercentage: 50", &trace(101.0, 0.0)), [Some(11)]);
    let Report::Steps { steps } = report("concurrency: 400", &trace(2.0, 5.5)) else { panic!() };
    assert_eq!(steps[0].excess_burst_capacity, 183, "400 - 211 - 5.5");
}
