//! Simulated runs, and corpora of other projects.

use schema::kinds::Resource;
use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::load_definition;
use schema::testing::corpora;
use serde_json::{Value as Json, json};

use super::{BEGIN, FunctionLimits, Mocks, Report, RunContext, Status, run};

fn spec(text: &str) -> WorkflowSpec {
    let loaded = load_definition("flow.asl", text.as_bytes());
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.violations);
    match loaded.documents.first().map(|document| &document.object.resource) {
        Some(Resource::Workflow(spec)) => WorkflowSpec::clone(spec),
        other => panic!("{other:?}"),
    }
}

fn simulate(definition: &str, input: Json, mocks: &str) -> Result<Report, String> {
    simulate_with(definition, input, mocks, &FunctionLimits::default())
}

fn simulate_with(
    definition: &str,
    input: Json,
    mocks: &str,
    limits: &FunctionLimits,
) -> Result<Report, String> {
    let context = RunContext {
        namespace: "shop".to_owned(),
        workflow: "flow".to_owned(),
        id: "simulated".to_owned(),
        input,
        started_at: BEGIN,
    };
    run(context, &spec(definition), &Mocks::read(mocks)?, limits).map_err(|error| error.to_string())
}

const RETRIED: &str = r#"{"StartAt": "Charge", "States": {
  "Charge": {"Type": "Task", "Resource": "function:shop/charge", "Retry": [{"ErrorEquals": ["Busy"]}],
             "TimeoutSeconds": 30, "Next": "Tell"},
  "Tell": {"Type": "Task", "Resource": "arn:aws:lambda:eu-west-1:123456789012:function:tell", "End": true}}}"#;

#[test]
fn mocks_are_found_by_function_and_resource_and_lists_are_answered_in_order() {
    for (charge, tell) in [
        ("charge", "tell"),
        ("shop/charge", "shop/tell"),
        ("function:shop/charge", "arn:aws:lambda:eu-west-1:123456789012:function:tell"),
    ] {
        let mocks = json!({
            charge: [{"error": "Busy", "cause": "later"}, {"return": {"paid": true}}],
            tell: {"return": "told"},
        });
        let report = simulate(RETRIED, json!({}), &mocks.to_string()).unwrap();
        assert_eq!((report.status, report.output), (Status::Succeeded, Some(json!("told"))), "{charge}");
        let last = report.history.last().unwrap();
        assert_eq!(last.timestamp.duration_since(BEGIN).as_secs(), 1, "the delay of the retry");
    }
}

#[test]
fn a_mock_that_takes_longer_than_the_limit_times_out() {
    let mocks = r#"{"charge": {"return": {}, "afterSeconds": 31}, "tell": {"return": 2}}"#;
    let report = simulate(RETRIED, json!({}), mocks).unwrap();
    assert_eq!((report.status, report.error.as_deref()), (Status::Failed, Some("States.Timeout")));
    let in_time = simulate(RETRIED, json!({}), &mocks.replace("31", "30")).unwrap();
    assert_eq!(in_time.output, Some(json!(2)), "an answer comes before a limit of the same time");
}

#[test]
fn what_mocks_lack_is_reported() {
    for (mocks, wanted) in [
        (
            r#"{"tell": {"return": 1}}"#,
            r#"state Charge: function shop/charge has no mock; add a mock: {"shop/charge": {"return": {}}}"#,
        ),
        (
            r#"{"charge": [{"error": "Busy"}], "tell": {"return": 1}}"#,
            r#"state Charge: function shop/charge has no mock for its call 2; add a mock: {"shop/charge": {"return": {}}}"#,
        ),
        (
            r#"{"charge": [{"return": 1}, {"return": 1, "error": "E"}]}"#,
            r#"line 1, column 28: mock charge[1]: expected exactly one of `return` and `error`; write {"return": …} or {"error": "Name", "cause": "…"}"#,
        ),
        (
            r#"{"charge": {"returns": 1}}"#,
            r#"line 1, column 2: mock charge: unknown field `returns`, expected one of `return`, `error`, `cause`, `afterSeconds`; write {"return": …} or {"error": "Name", "cause": "…"}"#,
        ),
    ] {
        assert_eq!(simulate(RETRIED, json!({}), mocks).unwrap_err(), wanted);
    }
    let broken = simulate(RETRIED, json!({}), "{\n\"charge\" 1}").unwrap_err();
    assert_eq!(
        broken,
        "line 2, column 10: expected `:`; see 'minik8s simulate workflow --help' for the format of MOCKS"
    );
}

#[test]
fn a_task_that_gives_its_function_no_object_ends_the_run_as_a_real_one_does() {
    let each = "startAt: each\nstates:\n  each:\n    type: Map\n    end: true\n    itemProcessor: {startAt: one, states: \
                {one: {type: Task, function: square, end: true, retry: [{errorEquals: [States.ALL]}]}}}";
    let report = simulate(each, json!([1, 2]), r#"{"square": {"return": 1}}"#).unwrap();
    assert_eq!((report.status, report.error.as_deref()), (Status::Failed, Some("States.Runtime")));
    let cause = report.cause.unwrap();
    assert!(cause.contains("function square takes a JSON object, but is given a number"), "{cause}");
    let object = each
        .replace("end: true\n    item", "end: true\n    itemSelector: {v.$: $$.Map.Item.Value}\n    item");
    let report = simulate(&object, json!([1, 2]), r#"{"square": {"return": 1}}"#).unwrap();
    assert_eq!(report.output, Some(json!([1, 1])));
}

#[test]
fn a_mock_that_takes_longer_than_its_function_may_is_a_timeout() {
    let functions = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: tell, namespace: shop}\nspec: {source: f, \
                     timeoutSeconds: 5}\n---\napiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: charge, \
                     namespace: shop}\nspec: {source: f}\n---\napiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: \
                     cluster}\nspec: {functions: {timeoutSeconds: 7}}\n";
    let loaded = schema::manifest::load_file("f.yaml", functions.as_bytes());
    assert!(!loaded.has_errors(), "{:#?}", loaded.violations);
    let limits = FunctionLimits::from_documents(loaded.documents.iter());
    let ended = |charge: f64, tell: f64| {
        let mocks = json!({
            "charge": {"return": {}, "afterSeconds": charge},
            "tell": {"return": 1, "afterSeconds": tell},
        });
        let report = simulate_with(RETRIED, json!({}), &mocks.to_string(), &limits).unwrap();
        let seconds = report.history.last().unwrap().timestamp.duration_since(BEGIN).as_secs();
        (report.status, report.error.unwrap_or_default(), report.cause.unwrap_or_default(), seconds)
    };
    let in_time = (Status::Succeeded, String::new(), String::new(), 12);
    assert_eq!(ended(7.0, 5.0), in_time);
    let late = |seconds: i64, after: i64| {
        let cause = format!("the call was ended after {seconds} s, the function's timeoutSeconds");
        (Status::Failed, "States.Timeout".to_owned(), cause, after)
    };
    assert_eq!(ended(1.0, 5.5), late(5, 6));
    assert_eq!(ended(7.5, 0.0), late(7, 7), "by the Cluster's default, as the function names none");
}

#[test]
fn mocks_that_the_run_does_not_use_are_reported() {
    let mocks =
        r#"{"charge": [{"return": {}}, {"return": {}}], "tell": {"return": 1}, "shop/chrge": {"return": 1}}"#;
    let report = simulate(RETRIED, json!({}), mocks).unwrap();
    assert_eq!(report.unused, ["mock `charge`: this run used 1 of its 2 answers"]);
    let unknown = Mocks::read(mocks).unwrap().unknown(&spec(RETRIED), "shop");
    let hints: Vec<_> = unknown.iter().map(|mock| (mock.name.as_str(), mock.help.as_str())).collect();
    assert_eq!(hints, [("shop/chrge", "did you mean `shop/charge`?")]);
    let failing = r#"{"charge": {"error": "E"}, "tell": {"return": 1}}"#;
    let report = simulate(RETRIED, json!({}), failing).unwrap();
    assert_eq!(report.unused, ["mock `tell` was not used by this run"]);
}

#[test]
fn reports_have_the_shape_that_tools_read() {
    let report =
        simulate(r#"{"StartAt": "a", "States": {"a": {"Type": "Pass", "End": true}}}"#, json!(null), "{}");
    let report = serde_json::to_value(report.unwrap()).unwrap();
    let entry = |id: u32, previous: u32, kind: &str, state: Json| json!([id, previous, kind, state]);
    let history = report["history"].as_array().unwrap().iter().map(|event| {
        json!([
            event["id"],
            event["previousEventId"],
            event["type"],
            event.get("state").expect("a state or null")
        ])
    });
    assert_eq!(
        history.collect::<Vec<_>>(),
        [
            entry(1, 0, "ExecutionStarted", json!(null)),
            entry(2, 1, "PassStateEntered", json!("a")),
            entry(3, 2, "PassStateExited", json!("a")),
            entry(4, 3, "ExecutionSucceeded", json!(null)),
        ]
    );
    assert_eq!((&report["status"], report.get("output")), (&json!("SUCCEEDED"), Some(&json!(null))));
    let failed = simulate(
        r#"{"StartAt": "a", "States": {"a": {"Type": "Fail", "Error": "E", "Cause": "c"}}}"#,
        json!({}),
        "{}",
    );
    let failed = serde_json::to_value(failed.unwrap()).unwrap();
    assert_eq!(json!([failed["status"], failed["error"], failed["cause"]]), json!(["FAILED", "E", "c"]));
    let late = simulate("startAt: w\nstates: {w: {type: Wait, seconds: 90000, end: true}}", json!({}), "{}")
        .unwrap();
    assert_eq!(late.status.as_str(), "TIMED_OUT");
}

#[test]
fn a_long_run_has_the_newest_of_its_data() {
    let definition = json!({"StartAt": "count", "States": {
        "count": {"Type": "Pass", "Parameters": {"n.$": "States.MathAdd($.c.n, 1)"}, "ResultPath": "$.c", "Next": "enough"},
        "enough": {"Type": "Choice", "Default": "done",
                   "Choices": [{"Variable": "$.c.n", "NumericLessThan": 60, "Next": "count"}]},
        "done": {"Type": "Succeed", "OutputPath": "$.c.n"}}});
    let input = json!({"c": {"n": 0}, "text": "x".repeat(200 * 1024)});
    let report = simulate(&definition.to_string(), input, "{}").unwrap();
    assert_eq!((report.output, report.history.len()), (Some(json!(60)), 1 + 2 * 121 + 1));
    let first = report.history.iter().position(|event| event.detail.input.is_some());
    assert!(report.without_data > 50 && first == Some(report.without_data), "{first:?}");
}

#[test]
fn every_recorded_comparison_gives_what_aws_gave() {
    let Some(corpora) = corpora("asl") else { return };
    let text = std::fs::read_to_string(corpora.join("choice-operators.json")).unwrap();
    let recorded: Json = serde_json::from_str(&text).unwrap();
    let mut rows = 0;
    for table in recorded["tables"].as_array().unwrap() {
        let operator = table["operator"].as_str().unwrap();
        for case in table["cases"].as_array().unwrap() {
            let operand = if operator.ends_with("Path") { json!("$.Value") } else { case["value"].clone() };
            let definition = json!({"StartAt": "Check", "States": {
                "Check": {"Type": "Choice", "Default": "No",
                          "Choices": [{"Variable": "$.Variable", operator: operand, "Next": "Yes"}]},
                "Yes": {"Type": "Pass", "Result": true, "End": true},
                "No": {"Type": "Pass", "Result": false, "End": true}}});
            let input = json!({"Variable": case["variable"], "Value": case["value"]});
            let report = simulate(&definition.to_string(), input.clone(), "{}").unwrap();
            assert_eq!(report.output.as_ref(), Some(&case["result"]), "{operator} {input}");
            rows += 1;
        }
    }
    assert!(rows >= 345, "{rows}");
}

#[test]
fn every_accepted_definition_of_the_corpus_runs_to_an_end() {
    let Some(corpora) = corpora("asl") else { return };
    let mut run_to_end = 0;
    for file in std::fs::read_dir(corpora.join("definitions")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let loaded = load_definition("flow.asl", text.as_bytes());
        let is_valid = path.file_name().unwrap().to_string_lossy().starts_with("valid-");
        if loaded.has_errors() {
            let is_unsupported = loaded.violations.iter().all(|found| {
                found.severity != schema::violation::Severity::Error || found.rule == "workflow-unsupported"
            });
            assert!(!is_valid || is_unsupported, "{}: {:#?}", path.display(), loaded.violations);
            continue;
        }
        assert!(is_valid, "{} is taken", path.display());
        let spec = spec(&text);
        let mocks: serde_json::Map<_, _> = spec
            .functions()
            .into_iter()
            .map(|(_, name)| (name.to_owned(), json!({"return": ["DONE"]})))
            .collect();
        let input = json!({"wait_time": 1, "trigger_date": "2026-01-01T00:00:01Z", "input": {"items": [1, 2]},
            "machines": [1, 2, 3], "a": 1, "b": 2, "input-foo-bar": {"output": 1}, "vals": [1, 2, 3, 4, 5]});
        let report = simulate(&text, input, &Json::Object(mocks).to_string());
        let report = report.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(report.history.len() >= 3, "{}", path.display());
        run_to_end += 1;
    }
    assert!(run_to_end >= 18, "{run_to_end}");
}
