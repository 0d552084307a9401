//! `minik8s simulate` as a person or a CI job runs it.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn simulate(arguments: &[&str]) -> Output {
    run("hpa", arguments)
}

fn run(what: &str, arguments: &[&str]) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulate");
    let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s"));
    command.args(["simulate", what]).args(arguments).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_load_becomes_a_chart_of_load_and_replicas() {
    let output = simulate(&["hpa.yaml", "--trace", "day.json"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    insta::assert_snapshot!(text(&output.stdout), @r"
    AT     USE        LOAD                   ASKED   REPLICAS   PODS                   WHY
    0s     cpu 40%    =====                  1       1          #####                  the metrics ask for the current number
    15s    cpu 180%   ====================   4       1 -> 4     ####################   cpu resource utilization (percentage of request) above target
    30s    cpu 45%    ====================   4       4          ####################   the metrics ask for the current number
    45s    cpu 45%    ====================   4       4          ####################   the metrics ask for the current number
    60s    cpu 12%    ======                 1       4          ####################   the metrics ask for 1, but a higher recommendation is still within the window for removing pods
    75s    cpu 12%    ======                 1       4 -> 1     #####                  All metrics below target
    90s    cpu 48%    ======                 1       1          #####                  the metrics ask for the current number
    105s   cpu 48%    ======                 1       1          #####                  the metrics ask for the current number
    2m     cpu 48%    ======                 1       1          #####                  the metrics ask for the current number
    ");
}

#[test]
fn json_has_an_entry_per_look() {
    let output = simulate(&["hpa.yaml", "--trace", "day.json", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 9);
    let mut keys: Vec<&String> = steps[0].as_object().unwrap().keys().collect();
    keys.sort();
    let wanted = ["at", "conditions", "current", "desired", "limit", "metrics", "reason", "recommendation"];
    assert_eq!(keys, wanted);
    assert_eq!(steps[1]["conditions"]["AbleToScale"], "True/SucceededRescale");
}

#[test]
fn older_forms_are_read_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hpa.yaml");
    let older = "apiVersion: v1\nkind: Hpa\nmetadata: {name: busy}\nspec:\n  workload: {kind: Pod, metadata: {name: busy}}\n  \
                 minReplicas: 1\n  maxReplicas: 3\n  adjustInterval: 15s\n  metrics: {cpuPercent: 0.5}\n";
    fs::write(&file, older).unwrap();
    let output = simulate(&[file.to_str().unwrap(), "--trace", "day.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("`adjustInterval: 15s` is an older spelling"));
}

#[test]
fn what_cannot_be_used_ends_with_2_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n";
    let hpa =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulate/hpa.yaml")).unwrap();
    let two = write("two.yaml", &format!("{hpa}---\n{}", hpa.replace("name: web\nspec", "name: shop\nspec")));
    let broken = write("broken.yaml", &hpa.replace("maxReplicas: 6", "maxReplicas: 0"));
    let none = write("pod.yaml", pod);
    let bad = write("bad.json", "{\"steps\": [{\"at\": 0}]}");
    for (arguments, says) in [
        (vec!["hpa.yaml", "--trace", "gone.json"], "gone.json: No such file or directory"),
        (vec!["gone.yaml", "--trace", "day.json"], "gone.yaml: No such file or directory"),
        (vec![".", "--trace", "day.json"], "it is a folder; name a file"),
        (vec![&none, "--trace", "day.json"], "contains no HorizontalPodAutoscaler"),
        (
            vec![&two, "--trace", "day.json"],
            "contains several autoscalers: HorizontalPodAutoscaler/default/web, ",
        ),
        (vec![&broken, "--trace", "day.json"], "broken.yaml:10:16: error[out-of-range]"),
        (vec!["hpa.yaml", "--trace", &bad], "bad.json: steps[0]: a step needs exactly one of"),
        (vec!["hpa.yaml", "--trace", "hpa.yaml"], "hpa.yaml: line 1, column 1: expected value"),
        (vec!["hpa.yaml"], "--trace <TRACE>"),
        (vec!["hpa.yaml", "--trace", "day.json", "-o", "xml"], "invalid value 'xml'"),
    ] {
        let output = simulate(&arguments);
        let errors = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(2), ""),
            "{arguments:?}: {errors}"
        );
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

#[test]
fn calls_become_replicas_over_time_and_what_they_cost() {
    let output = run("function", &["function.yaml", "--trace", "calls.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout), @r"
    AT       IN-FLIGHT   WAITING   MODE     WANTED   READY   REPLICAS
    0s       0           1         stable   1        0       -
    0.7s     2           0         stable   1        1       ##
    12s      10          100       panic    5        1       ##
    12.7s    50          61        panic    5        5       #########
    14s      50          90        panic    11       5       #########
    14.7s    110         1         panic    11       11      ###################
    16s      61          0         panic    12       11      ###################
    16.7s    60          0         panic    12       12      ####################
    59.7s    0           0         stable   0        0       -
    120s     0           1         stable   1        0       -
    120.7s   1           0         stable   1        1       ##
    150.9s   0           0         stable   0        0       -

    2381 of 3061 calls answered, 680 refused because the queue was full
    794 waited for a replica: half of them up to 0.363s, 95 % up to 1.833s, the longest 2s
    599.3 replica-seconds until 150.9s, 12 replicas at most
    ");
}

#[test]
fn what_the_decider_sees_becomes_what_it_says() {
    let output = run("function", &["function.yaml", "--trace", "seen.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout), @r"
    AT      READY   STABLE   PANIC   MODE     EXCESS   DESIRED   REPLICAS
    0s      1       30       15      panic    -95      3         ######
    2s      1       100      880.5   panic    -961     10        ####################
    4s      10      100      ?       panic    ?        ?         -
    60s     10      1.25     0       panic    40       10        ####################
    62.5s   10      1.25     0       stable   40       5         ##########
    ");
}

#[test]
fn the_json_of_a_function_is_as_a_program_wants_it() {
    let answer = |trace: &str| -> Value {
        let output = run("function", &["function.yaml", "--trace", trace, "-o", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let steps = answer("seen.json");
    let known = json!({"at": 2, "desired": 10, "valid": true, "panic": true, "excessBurstCapacity": -961});
    let unknown = json!({"at": 4, "desired": 0, "valid": false, "panic": true, "excessBurstCapacity": 0});
    assert_eq!((&steps["steps"][1], &steps["steps"][2]), (&known, &unknown));
    let load = answer("calls.json");
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&load), "calls endsAt mostReplicas replicaSeconds replicas waitSeconds");
    assert_eq!(keys(&load["calls"]), "answered arrived refused timedOut waited");
    assert_eq!(keys(&load["replicas"][0]), "at inFlight panic ready waiting wanted");
    assert_eq!(keys(&load["waitSeconds"]), "max p50 p95");
}

#[test]
fn a_function_that_cannot_be_used_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let function =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulate/function.yaml"))
            .unwrap();
    let two =
        write("two.yaml", &format!("{function}---\n{}", function.replace("name: hello", "name: price")));
    let broken = write("broken.yaml", &function.replace("concurrency: 10", "concurrency: 0"));
    let bad = write("bad.json", "{\"arivals\": []}");
    for (arguments, says) in [
        (
            vec!["hpa.yaml", "--trace", "calls.json"],
            "contains no Function; name a file that does, see 'minik8s explain",
        ),
        (
            vec![&two, "--trace", "calls.json"],
            "several functions: Function/default/hello, Function/default/price; keep",
        ),
        (vec![&broken, "--trace", "calls.json"], "broken.yaml:7:16: error[out-of-range]"),
        (
            vec!["function.yaml", "--trace", &bad],
            "bad.json: line 1, column 10: unknown field `arivals`, expected one of",
        ),
        (
            vec!["function.yaml", "--trace", "day.json"],
            "day.json: line 2, column 12: unknown field `replicas`",
        ),
        (vec!["function.yaml"], "--trace <TRACE>"),
    ] {
        let output = run("function", &arguments);
        let errors = text(&output.stderr);
        let ended = (output.status.code(), text(&output.stdout));
        assert_eq!(ended, (Some(2), String::new()), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

const ORDER: &str = "../../../sample-repo/workflows/order.yaml";

#[test]
fn a_run_of_a_workflow_becomes_a_line_per_event() {
    let output = run("workflow", &[ORDER, "--mocks", "mocks.json"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    insta::assert_snapshot!(text(&output.stdout), @r#"
    AFTER   STATE      EVENT                DETAIL
    0s      -          ExecutionStarted     {"items":[{"count":3,"name":"tea","price":4},{"name":"kettle","price":95}]}
    0s      price      TaskStateEntered     {"items":[{"count":3,"name":"tea","price":4},{"name":"kettle","price":95}]}
    0s      price      TaskScheduled        price {"items":[{"count":3,"name":"tea","price":4},{"name":"kettle","price":95}]}
    0s      price      TaskStarted          -
    0s      price      TaskTimedOut         States.Timeout no answer
    1s      price      TaskScheduled        price attempt 2 {"items":[{"count":3,"name":"tea","price":4},{"name":"kettle","price":95}]}
    1s      price      TaskStarted          -
    1s      price      TaskSucceeded        {"total":107}
    1s      price      TaskStateExited      {"total":107}
    1s      large?     ChoiceStateEntered   {"total":107}
    1s      large?     ChoiceStateExited    {"total":107}
    1s      discount   TaskStateEntered     {"total":107}
    1s      discount   TaskScheduled        discount {"total":107}
    1s      discount   TaskStarted          -
    1s      discount   TaskSucceeded        {"total":96.3}
    1s      discount   TaskStateExited      {"total":96.3}
    1s      receipt    TaskStateEntered     {"total":96.3}
    1s      receipt    TaskScheduled        receipt {"total":96.3}
    1s      receipt    TaskStarted          -
    1s      receipt    TaskSucceeded        {"receipt":"r-7"}
    1s      receipt    TaskStateExited      {"receipt":"r-7"}
    1s      -          ExecutionSucceeded   {"receipt":"r-7"}

    SUCCEEDED {"receipt":"r-7"}
    "#);
}

#[test]
fn a_workflow_is_simulated_without_the_word() {
    let output = run("circle.asl.json", &["--input", r#"{"done": false}"#, "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["status"], &report["error"]), (&json!("TIMED_OUT"), &json!("States.Timeout")));
    let last = report["history"].as_array().unwrap().last().unwrap();
    assert_eq!(last["type"], "ExecutionTimedOut");
    assert_eq!(last["timestamp"], "2026-01-02T00:00:00Z", "24 hours of virtual time");
    let done = run("circle.asl.json", &["--input", r#"{"done": true}"#, "-o", "json"]);
    assert_eq!(done.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&report["status"], &report["output"]), (&json!("SUCCEEDED"), &json!({"done": true})));
}

#[test]
fn a_workflow_that_cannot_be_used_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let jsonata = write(
        "a.asl",
        r#"{"QueryLanguage": "JSONata", "StartAt": "a", "States": {"a": {"Type": "Succeed"}}}"#,
    );
    let bad = write("bad.json", "{\"price\": 1}");
    let cases = write("order.tests.yaml", "cases: [{output: {}}]");
    for (arguments, says) in [
        (vec![ORDER], "state price: function price has no mock; add a mock"),
        (vec![ORDER, "--input", "{"], "--input: EOF while parsing"),
        (vec!["hpa.yaml"], "contains no Workflow"),
        (vec![&jsonata], "a.asl:1:2: error[workflow-unsupported]"),
        (
            vec![ORDER, "--mocks", &bad],
            "bad.json: line 1, column 11: mock price: an answer is an object, found 1; write",
        ),
        (
            vec![ORDER, "--mocks", &jsonata],
            "a.asl: line 1, column 19: mock QueryLanguage: an answer is an object, found \"JSONata\"",
        ),
        (
            vec![&cases],
            "order.tests.yaml holds test cases of the workflow `order`, not a workflow; 'minik8s validate ",
        ),
        (vec!["gone.yaml"], "gone.yaml: No such file"),
    ] {
        let output = run("workflow", &arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_bare_definition_is_validated_as_a_workflow() {
    let validate = |file: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulate");
        let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s"));
        let command = command.args(["validate", "--kind", "workflow-definition", file]);
        command.current_dir(folder).output().unwrap()
    };
    let output = validate("circle.asl.json");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.asl.json");
    let circle =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulate/circle.asl.json"));
    fs::write(&file, circle.unwrap().replace("\"Next\": \"Done\"", "\"Next\": \"Dome\"")).unwrap();
    let output = validate(file.to_str().unwrap());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("older-spelling"), "the language's own spelling is none: {said}");
    assert!(said.contains("a.asl.json:7:73") && said.contains("did you mean `Done`?"), "{said}");
    assert_eq!(validate("gone.json").status.code(), Some(2));
}

/// A repository with a workflow, two functions and the machine of another workflow.
fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let function = |name: &str| {
        format!(
            "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec: {{source: f, timeoutSeconds: 5}}\n"
        )
    };
    let flow = |name: &str, spec: &str| {
        format!("apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
    };
    let machine = r#"{"StartAt": "a", "States": {"a": {"Type": "Task", "Resource": "function:default/price", "End": true}}}"#;
    for (path, text) in [
        ("functions/price.yaml", function("price")),
        ("flows/order.asl.json", machine.to_owned()),
        ("flows/order.yaml", flow("order", "definitionPath: flows/order.asl.json")),
        ("flows/gone.yaml", flow("gone", "definitionPath: flows/gone.asl.json")),
        (
            "one.yaml",
            flow("one", "startAt: a, states: {a: {type: Task, function: pay, end: true}}")
                + "---\n"
                + &function("pay"),
        ),
    ] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir(dir.path().join(".git")).unwrap();
    dir
}

fn simulated(dir: &Path, file: &str, mocks: &str) -> (Option<i32>, String, String) {
    fs::write(dir.join("mocks.json"), mocks).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s"));
    let command = command.args(["simulate", "workflow", file, "--mocks", "mocks.json"]);
    let output = command.current_dir(dir).output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_definition_in_a_file_of_its_own_is_followed() {
    let dir = repository();
    let (code, said, errors) =
        simulated(dir.path(), "flows/order.yaml", r#"{"price": {"return": {"total": 7}}}"#);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("SUCCEEDED {\"total\":7}"), "{said}");
    let (code, _, errors) = simulated(dir.path(), "flows/gone.yaml", "{}");
    assert_eq!(code, Some(2));
    assert!(errors.contains("there is no flows/gone.asl.json in the repository"), "{errors}");
}

#[test]
fn the_time_limit_of_a_function_counts_where_its_manifest_is_at_hand() {
    let dir = repository();
    let late = r#"{"price": {"return": {}, "afterSeconds": 6}, "pay": {"return": {}, "afterSeconds": 6}}"#;
    // In the repository, next to the workflow in its file.
    for file in ["flows/order.yaml", "flows/order.asl.json", "one.yaml"] {
        let (code, said, errors) = simulated(dir.path(), file, late);
        assert_eq!(code, Some(1), "{file}: {errors}");
        let cause = "FAILED States.Timeout: the call was ended after 5 s, the function's timeoutSeconds";
        assert!(said.contains(cause), "{file}: {said}");
    }
    fs::remove_file(dir.path().join("functions/price.yaml")).unwrap();
    assert_eq!(simulated(dir.path(), "flows/order.yaml", late).0, Some(0), "nothing is known of it");
}

#[test]
fn mocks_that_are_not_used_are_said_beside_the_run() {
    let dir = repository();
    let mocks = r#"{"price": {"return": {}}, "prices": {"return": {}}}"#;
    let (code, _, errors) = simulated(dir.path(), "flows/order.yaml", mocks);
    assert_eq!(code, Some(0));
    let wanted = "mock `prices`: no Task of the workflow calls this function; did you mean `price`?\n";
    assert_eq!(errors, wanted);
}
