//! Paths, payload templates, the context object.

use serde_json::json;

use super::{outcome, passed, play};

#[test]
fn paths_choose_what_a_state_sees_and_hands_on() {
    let input = json!({"a": {"b": [1, 2, 3]}, "c": 7});
    for (fields, wanted) in [
        ("comment: x", input.clone()),
        ("inputPath: $.a", json!({"b": [1, 2, 3]})),
        ("inputPath: null", json!({})),
        ("inputPath: '$.a.b[1:]'", json!([2, 3])),
        ("inputPath: '$.a.b[-1]'", json!(3)),
        ("inputPath: '$.a.b[*]'", json!([1, 2, 3])),
        ("inputPath: '$.a.b[5:9]'", json!([])),
        ("outputPath: $.c", json!(7)),
        ("outputPath: null", json!({})),
        ("result: {x: 1}, resultPath: $.c", json!({"a": {"b": [1, 2, 3]}, "c": {"x": 1}})),
        ("result: 9, resultPath: '$.a.b[0]'", json!({"a": {"b": [9, 2, 3]}, "c": 7})),
        ("result: 9, resultPath: $.d.e", json!({"a": {"b": [1, 2, 3]}, "c": 7, "d": {"e": 9}})),
        ("result: 9, resultPath: null", input.clone()),
        ("result: 9, resultPath: $", json!(9)),
        ("result: null", json!(null)),
        (
            "parameters: {x.$: $.c, y: {z.$: '$.a.b[0]'}, w: [{v.$: $.c}], u: $.c}",
            json!({"x": 7, "y": {"z": 1}, "w": [{"v": 7}], "u": "$.c"}),
        ),
        ("inputPath: $.a, parameters: {x.$: '$.b[0]'}, resultPath: $.c, outputPath: $.c.x", json!(1)),
        ("inputPath: $.none", json!({"failed": "States.Runtime"})),
        ("outputPath: $.none", json!({"failed": "States.Runtime"})),
        ("parameters: {x.$: $.none}", json!({"failed": "States.ParameterPathFailure"})),
        ("result: 1, resultPath: $.c.d", json!({"failed": "States.ResultPathMatchFailure"})),
        ("result: 1, resultPath: '$.a.b[3]'", json!({"failed": "States.ResultPathMatchFailure"})),
    ] {
        assert_eq!(passed(fields, input.clone()), wanted, "{fields}");
    }
}

#[test]
fn the_context_object_has_the_names_of_the_language() {
    let template = "parameters: {id.$: $$.Execution.Id, name.$: $$.Execution.Name, input.$: $$.Execution.Input.x, \
                    start.$: $$.Execution.StartTime, machine.$: $$.StateMachine.Name, state.$: $$.State.Name, \
                    entered.$: $$.State.EnteredTime, retries.$: $$.State.RetryCount}";
    assert_eq!(
        passed(template, json!({"x": 1})),
        json!({"id": "shop/flow/r1", "name": "r1", "input": 1, "start": "1970-01-01T00:00:00Z", "machine": "flow",
               "state": "a", "entered": "1970-01-01T00:00:00Z", "retries": 0})
    );
    assert_eq!(passed("inputPath: $$.Map.Item.Index", json!({})), json!({"failed": "States.Runtime"}));
}

#[test]
fn a_task_is_called_with_its_parameters_and_its_answer_goes_through_selector_and_paths() {
    let text = "{startAt: a, states: {a: {type: Task, function: f, inputPath: $.in, parameters: {n.$: $.x}, \
                resultSelector: {sum.$: $.total}, resultPath: $.out, outputPath: $.out, end: true}}}";
    let played = play(text, json!({"in": {"x": 4}}), |call| {
        assert_eq!((call.function.as_str(), &call.payload), ("f", &json!({"n": 4})));
        Ok(json!({"total": 9, "more": 1}))
    });
    assert_eq!(played.outcome(), json!({"sum": 9}));
}

#[test]
fn a_fail_takes_error_and_cause_from_paths_and_functions() {
    let text = "{startAt: a, states: {a: {type: Fail, errorPath: $.e, causePath: \"States.Format('no {}', $.what)\"}}}";
    let played = play(text, json!({"e": "Sold.Out", "what": "tea"}), |_| Ok(json!(null)));
    assert_eq!(
        serde_json::to_value(played.run.outcome()).unwrap(),
        json!({"type": "failed", "error": "Sold.Out", "cause": "no tea"})
    );
    assert_eq!(outcome(text, json!({"e": 1, "what": ""})), json!({"failed": "States.Runtime"}));
}
