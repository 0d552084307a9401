//! Valid workflows and their loaded form.

use schema::kinds::workflow::{JitterStrategy, NullablePath, Operator, State};
use serde_json::json;

use super::{load, only, states, workflow};

/// Every type of state, and most fields.
const EVERY_TYPE: &str = r#"
comment: all of it
startAt: prepare
timeoutSeconds: 3600
params: {x: 1, y: [1.5, null, yes please, 0x10], z: {"no": "on"}}
states:
  prepare:
    type: Pass
    comment: gone
    result: null
    resultPath: $.empty
    next: call
  call:
    type: Task
    function: add
    inputPath: $
    parameters: {first.$: $.x, execution.$: $$.Execution.Id, part.$: "$.y[1:]", fixed: {a: null}}
    resultSelector: {sum.$: $.result}
    resultPath: $.sum
    timeoutSeconds: 60
    heartbeatSecondsPath: $.beat
    retry:
    - errorEquals: [States.Timeout, ValueError]
      backoffRate: 1.5
      maxDelaySeconds: 30
      jitterStrategy: FULL
    - {errorEquals: [States.ALL], maxAttempts: 0}
    catch:
    - {errorEquals: [States.ALL], resultPath: null, next: broken}
    next: which
  which:
    type: Choice
    choices:
    - and:
      - {variable: $.sum, numericGreaterThan: 0}
      - not: {variable: "$['odd name']", isPresent: true}
      next: each
    - {variable: $.x, timestampLessThan: "2030-01-31T12:00:00Z", next: later}
    - {variable: $.x, stringEqualsPath: $.y, next: later}
    default: done
  each:
    type: Map
    itemsPath: $.y
    itemSelector: {value.$: $$.Map.Item.Value}
    maxConcurrency: 4
    toleratedFailurePercentage: 10
    itemProcessor:
      startAt: item
      states:
        item: {type: Task, function: square, end: true}
    next: both
  both:
    type: Parallel
    branches:
    - startAt: left
      states:
        left: {type: Task, function: add, end: true}
    - startAt: right
      states:
        right: {type: Succeed}
    end: true
  later: {type: Wait, timestampPath: $.when, next: done}
  broken: {type: Fail, error: Broken, causePath: $.why}
  done: {type: Succeed, outputPath: $.sum}
"#;

#[test]
fn a_workflow_of_every_type_of_state_is_read() {
    let loaded = load(&workflow(EVERY_TYPE.trim()));
    let (spec, _) = only(&loaded);
    assert_eq!(spec.params, Some(json!({"x": 1, "y": [1.5, null, "yes please", 16], "z": {"no": "on"}})));
    let State::Pass(prepare) = &spec.states["prepare"] else { panic!() };
    assert_eq!(prepare.result, Some(json!(null)), "null is a result, not none");
    assert_eq!((spec.comment.as_ref(), prepare.comment.as_ref()), (None, None));
    let State::Task(call) = &spec.states["call"] else { panic!() };
    assert_eq!(call.input_path, None, "`$` is what is so without it");
    assert_eq!(call.catch[0].result_path, Some(NullablePath(None)), "null drops the error");
    assert_eq!(call.parameters.as_ref().unwrap()["fixed"], json!({"a": null}));
    let [first, last] = call.retry.as_slice() else { panic!() };
    assert_eq!((first.interval_seconds, first.max_attempts, first.backoff_rate), (1, 3, 1.5));
    assert_eq!((first.jitter_strategy, last.max_attempts), (JitterStrategy::Full, 0));
    let State::Choice(which) = &spec.states["which"] else { panic!() };
    let compared = &which.choices[0].and.as_ref().unwrap()[0].comparisons;
    assert_eq!(compared[&Operator::NumericGreaterThan], json!(0.0));
}

#[test]
fn functions_are_found_in_branches_and_maps_with_their_lines() {
    let loaded = load(&workflow(EVERY_TYPE.trim()));
    let (spec, _) = only(&loaded);
    let functions: Vec<&str> = spec.functions().into_iter().map(|(_, name)| name).collect();
    assert_eq!(functions, ["add", "add", "square"]);
    let text = workflow(EVERY_TYPE.trim());
    for (name, place) in functions.iter().zip(&loaded.documents[0].places) {
        let line = text.lines().nth(place.line as usize - 1).unwrap();
        assert!(line[place.column as usize - 1..].starts_with(name) && line.contains("function: "), "{line}");
    }
}

#[test]
fn what_is_stored_reads_back_as_it_was() {
    let loaded = load(&workflow(EVERY_TYPE.trim()));
    let (spec, _) = only(&loaded);
    let stored = serde_json::to_value(spec).unwrap();
    assert_eq!(&serde_json::from_value::<schema::kinds::workflow::WorkflowSpec>(stored).unwrap(), spec);
}

#[test]
fn comments_and_written_defaults_are_not_part_of_the_hash() {
    let short = load(&states("a: {type: Task, function: f, end: true, retry: [{errorEquals: [E]}]}"));
    let long = load(&states(
        "a:\n  comment: c\n  type: Task\n  function: f\n  end: true\n  resultPath: $\n  outputPath: $\n  retry:\n  - {comment: d, errorEquals: [E], intervalSeconds: 1, maxAttempts: 3, backoffRate: 2, jitterStrategy: NONE}",
    ));
    assert_eq!(only(&short).1, only(&long).1);
    let null = load(&states(
        "a: {type: Task, function: f, end: true, resultPath: null, retry: [{errorEquals: [E]}]}",
    ));
    assert_ne!(only(&short).1, only(&null).1);
}

#[test]
fn a_null_params_is_an_input_and_none_is_no_run() {
    let with = load(&workflow("startAt: a\nparams: null\nstates: {a: {type: Succeed}}"));
    assert_eq!(only(&with).0.params, Some(json!(null)));
    let without = load(&states("a: {type: Succeed}"));
    assert_eq!(only(&without).0.params, None);
}
