//! Traces in their two forms, and error messages for invalid ones.

use schema::kinds::Resource;
use schema::kinds::function::FunctionSpec;
use schema::manifest::load_file;
use serde_json::{Value, json};

use super::{LoadReport, ReplicaChange, Report, Trace, run};

mod closed_loop;
mod steps;

fn spec(fields: &str) -> FunctionSpec {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: hello}}\n\
         spec: {{source: functions/hello, {fields}}}\n"
    );
    let loaded = load_file("hello.yaml", text.as_bytes());
    assert!(!loaded.has_errors(), "{:?}", loaded.violations);
    let Resource::Function(spec) = &loaded.documents[0].object.resource else { panic!("{text}") };
    (**spec).clone()
}

fn report(fields: &str, trace: &Value) -> Report {
    run(&spec(fields), &Trace::read(&trace.to_string()).unwrap()).unwrap()
}

fn error(trace: &Value) -> String {
    let spec = spec("");
    Trace::read(&trace.to_string()).and_then(|trace| run(&spec, &trace)).unwrap_err().to_string()
}

#[test]
fn a_bad_trace_is_reported_with_its_place_and_what_to_do() {
    let step = json!({"at": 0, "ready": 1, "stableConcurrency": 1, "panicConcurrency": 1});
    let with = |config: Value| json!({"config": config, "steps": [step]});
    let load = |arrival: Value| json!({"coldStartSeconds": 1, "handlingSeconds": 1, "arrivals": [arrival]});
    let come = |at: f64, per_second: f64, seconds: f64| json!({"at": at, "perSecond": per_second, "forSeconds": seconds});
    for (trace, wanted) in [
        (json!({}), "the trace: it has neither steps nor arrivals; give one of the two"),
        (json!({"steps": []}), "steps: it is empty; give at least one step"),
        (json!({"arrivals": []}), "arrivals: it is empty; give at least one"),
        (json!({"steps": [step], "arrivals": []}), "arrivals: it can't be combined with steps; give steps"),
        (json!({"arrivals": [], "ready": 1}), "ready: it applies only to steps; leave it out"),
        (json!({"steps": [{"at": 1}, {"at": 0}]}), "steps[1].at: 0 is earlier than the previous step; put"),
        (json!({"steps": [{"at": 1e12}]}), "steps[0].at: 1000000000000 is out of range; write seconds from"),
        (
            json!({"steps": [{"at": 0, "panicConcurrency": -2}]}),
            "steps[0].panicConcurrency: -2 is not a number of calls; write one from 0 to 1000000000, or null",
        ),
        (json!({"steps": [{"at": 0, "redy": 1}]}), "column 24: unknown field `redy`, expected one of `at`"),
        (
            json!({"steps": [{"at": 0, "ready": -1}]}),
            "invalid value: integer `-1`, expected u32; see 'minik8s simulate function --help'",
        ),
        (
            json!({"steps": [{"at": 0, "config": {"target": 0}}]}),
            "steps[0].config.target: 0 is out of range; write a number above 0",
        ),
        (
            with(json!({"targetBurstCapacity": -2})),
            "config.targetBurstCapacity: -2 is out of range; write 0 or more, or -1",
        ),
        (
            with(json!({"maxScaleDownRate": 0.5})),
            "config.maxScaleDownRate: 0.5 is out of range; write 1 or more",
        ),
        (with(json!({"panicThreshold": 0})), "config.panicThreshold: 0 is out of range"),
        (
            with(json!({"totalPerPod": 1e10})),
            "config.totalPerPod: 10000000000 is out of range; write 0 or more, 1000000000 at most",
        ),
        (
            with(json!({"stableWindowSeconds": 86_401})),
            "config.stableWindowSeconds: 86401 is too long; write seconds from 0 to 86400",
        ),
        (with(json!({"scaleDownDelaySeconds": -1})), "config.scaleDownDelaySeconds: -1 is out of range"),
        (
            json!({"arrivals": [come(0.0, 1.0, 1.0)], "handlingSeconds": 1}),
            "coldStartSeconds: it is missing; write seconds from 0 to 3600",
        ),
        (
            json!({"arrivals": [come(0.0, 1.0, 1.0)], "coldStartSeconds": -1}),
            "coldStartSeconds: -1 is out of range",
        ),
        (
            json!({"arrivals": [come(0.0, 1.0, 1.0)], "coldStartSeconds": 1, "handlingSeconds": 61}),
            "handlingSeconds: 61 s is longer than the function's timeoutSeconds of 60; raise timeoutSeconds",
        ),
        (load(come(0.0, -1.0, 1.0)), "arrivals[0].perSecond: -1 is not a rate of calls; write a number"),
        (load(come(0.0, 1.0, -1.0)), "arrivals[0].forSeconds: -1 is out of range; write seconds from 0"),
        (
            load(come(5.0, 1.0, 90_000.0)),
            "arrivals[0].forSeconds: it ends 90000 s after the first call; end within 86400 s",
        ),
        (
            load(come(0.0, 1e6, 20.0)),
            "arrivals[0]: that would be 20000000 calls so far; use a lower perSecond",
        ),
        (load(json!({"at": 0, "perSecond": 1})), "missing field `forSeconds`"),
    ] {
        let found = error(&trace);
        assert!(found.contains(wanted), "{found}\nbut wanted {wanted}");
    }
}
