//! Every type of state.

use serde_json::{Value as Json, json};

use super::{Played, at, outcome, play, spec};

#[test]
fn a_choice_takes_the_first_rule_that_fits() {
    let text = "startAt: c
states:
  c:
    type: Choice
    default: other
    choices:
      - {and: [{variable: $.x, isPresent: true}, {variable: $.x, numericGreaterThan: 10}], next: large}
      - {or: [{variable: $.x, numericEquals: 1}, {variable: $.x, numericEqualsPath: $.y}], next: same}
      - {not: {variable: $.s, stringMatches: 'a*'}, next: strange}
      - {variable: $.x, numericLessThan: 0, next: large}
  large: {type: Pass, result: large, end: true}
  same: {type: Pass, result: same, end: true}
  strange: {type: Pass, result: strange, end: true}
  other: {type: Pass, result: other, end: true}
";
    for (input, wanted) in [
        (json!({"x": 11, "s": "a"}), json!("large")),
        (json!({"x": 1, "s": "a"}), json!("same")),
        (json!({"x": 3, "y": 3.0, "s": "a"}), json!("same")),
        (json!({"x": 3, "y": "3", "s": "b"}), json!("strange")),
        (json!({"x": 3, "y": null, "s": "ab"}), json!("other")),
        (json!({"x": "11", "y": 1, "s": "ab"}), json!("other")),
        // A rule refers to a missing field: the run fails, and nothing catches that.
        (json!({"x": 3}), json!({"failed": "States.Runtime"})),
        (json!({"s": "a"}), json!({"failed": "States.Runtime"})),
    ] {
        assert_eq!(outcome(text, input.clone()), wanted, "{input}");
    }
}

#[test]
fn present_tolerates_what_is_missing_and_takes_null_for_a_value() {
    let text = |operand: bool| {
        format!(
            "{{startAt: c, states: {{c: {{type: Choice, choices: [{{variable: $.x.y, isPresent: {operand}, next: yes}}]}}, \
             'yes': {{type: Succeed}}}}}}"
        )
    };
    let none = json!({"failed": "States.NoChoiceMatched"});
    for (input, operand, fits) in [
        (json!({"x": {"y": null}}), true, true),
        (json!({"x": {}}), true, false),
        (json!({}), false, true),
        (json!({"x": {"y": 1}}), false, false),
    ] {
        let wanted = if fits { input.clone() } else { none.clone() };
        assert_eq!(outcome(&text(operand).replace("next: yes", "next: 'yes'"), input), wanted);
    }
}

#[test]
fn numbers_are_compared_as_doubles() {
    let text = "{startAt: c, states: {c: {type: Choice, choices: [{variable: $.x, numericEqualsPath: $.y, next: e}]}, \
                e: {type: Succeed}}}";
    let exact = json!({"x": 9_007_199_254_740_991_i64, "y": 9_007_199_254_740_991.0});
    assert_eq!(outcome(text, exact.clone()), exact);
    let near = json!({"x": 9_007_199_254_740_991_i64, "y": 9_007_199_254_740_990_i64});
    assert_eq!(outcome(text, near), json!({"failed": "States.NoChoiceMatched"}));
}

#[test]
fn a_wait_ends_at_its_time_in_all_four_ways() {
    for (way, input, seconds) in [
        ("seconds: 20", json!({}), 20),
        ("secondsPath: $.s", json!({"s": 7}), 7),
        ("timestamp: '1970-01-01T00:01:00Z'", json!({}), 60),
        ("timestampPath: $.t", json!({"t": "1970-01-01T01:00:00+00:30"}), 1800),
        ("timestamp: '1960-01-01T00:01:00Z'", json!({}), 0),
    ] {
        let text = format!("{{startAt: w, states: {{w: {{type: Wait, {way}, end: true}}}}}}");
        let played = play(&text, input.clone(), |_| Ok(json!(null)));
        assert_eq!((played.outcome(), played.run.at()), (input, at(seconds)), "{way}");
    }
    for (way, input) in [
        ("secondsPath: $.s", json!({"s": -1})),
        ("secondsPath: $.s", json!({"s": "7"})),
        ("secondsPath: $.s", json!({})),
        ("timestampPath: $.t", json!({"t": "1970-01-01 01:00:00Z"})),
    ] {
        let text = format!("{{startAt: w, states: {{w: {{type: Wait, {way}, end: true}}}}}}");
        assert_eq!(outcome(&text, input), json!({"failed": "States.Runtime"}), "{way}");
    }
}

#[test]
fn a_timer_that_comes_early_changes_nothing() {
    let mut played =
        Played::begin(spec("{startAt: w, states: {w: {type: Wait, seconds: 5, end: true}}}"), json!(1));
    let timer = played.run.pending().timers.iter().map(|timer| timer.id).max().unwrap();
    played.now = at(4);
    assert!(!played.step(super::Event::Due { timer }));
    played.now = at(5);
    assert!(played.step(super::Event::Due { timer }));
    assert_eq!(played.outcome(), json!(1));
}

#[test]
fn the_older_forms_hand_outputs_on_and_choose_by_top_level_variables() {
    let form_a = r#"{"kind": "Workflow", "apiVersion": "minik8s.io/v1", "metadata": {"name": "f"},
        "startAt": "add", "params": {"x": 1, "y": 2},
        "nodes": {"add": {"type": "Task", "next": "check"},
                  "check": {"type": "Choice", "choices": [{"variable": "z", "numericEquals": 3, "next": "print"}]},
                  "print": {"type": "Task"}}}"#;
    let form_b = "kind: Workflow
apiVersion: minik8s.io/v1
metadata: {name: f}
spec:
  entryParams: '{\"x\": 1, \"y\": 2}'
  entryNodeName: first
  workflowNodes:
  - {name: first, type: func, funcData: {funcName: add, funcNamespace: other, nextNodeName: check}}
  - {name: check, type: choice, choiceData: {checkType: numEqual, checkVarName: z, compareValue: 3, trueNextNodeName: last, falseNextNodeName: ''}}
  - {name: last, type: func, funcData: {funcName: print, nextNodeName: ''}}
";
    for text in [form_a, form_b] {
        let spec = spec(text);
        let params = spec.params.clone().unwrap();
        let answer = |call: &super::Call| {
            let number = |name: &str| call.payload[name].as_i64().unwrap_or_default();
            match call.function.as_str() {
                "add" | "other/add" => Ok(json!({"z": number("x") + number("y")})),
                "print" => Ok(json!({"printed": number("z")})),
                other => panic!("{other}"),
            }
        };
        let to_end = Played::begin(spec.clone(), params).finish(answer);
        assert_eq!(to_end.outcome(), json!({"printed": 3}));
        let other = Played::begin(spec.clone(), json!({"x": 5})).finish(answer);
        assert_eq!(other.outcome(), json!({"z": 5}), "nothing fits: the end");
        let missing = Played::begin(spec, json!({})).finish(|_| Ok(Json::Null));
        assert_eq!(missing.outcome(), json!({"failed": "States.Runtime"}));
    }
}

#[test]
fn a_check_of_another_type_than_its_variable_fails_whatever_it_compares() {
    for (check, value, variable, outcome) in [
        ("numEqual", "7", json!(7), json!("yes")),
        ("numEqual", "7", json!("7"), json!({"failed": "TypeMismatch"})),
        ("numNotEqual", "7", json!(8), json!("yes")),
        ("numNotEqual", "7", json!("8"), json!({"failed": "TypeMismatch"})),
        ("strNotEqual", "a", json!("b"), json!("yes")),
        ("strNotEqual", "a", json!(null), json!({"failed": "TypeMismatch"})),
        ("strLessThan", "b", json!([]), json!({"failed": "TypeMismatch"})),
        ("notEqual", "a", json!(1), json!({"failed": "TypeMismatch"})),
    ] {
        let text = format!(
            "kind: Workflow\napiVersion: minik8s.io/v1\nmetadata: {{name: f}}\nspec:\n  entryNodeName: c\n  workflowNodes:\n  \
             - {{name: c, type: choice, choiceData: {{checkType: {check}, checkVarName: 'my.var', compareValue: {value}, \
             trueNextNodeName: t, falseNextNodeName: ''}}}}\n  - {{name: t, type: func, funcData: {{funcName: f}}}}\n"
        );
        let played = Played::begin(spec(&text), json!({"my.var": variable})).finish(|_| Ok(json!("yes")));
        assert_eq!(played.outcome(), outcome, "{check} {value} of {variable}");
    }
}

#[test]
fn choices_of_form_a_read_any_name_at_the_top_level() {
    for name in ["my var", "a.b", "it's", "z"] {
        let text = json!({"kind": "Workflow", "apiVersion": "minik8s.io/v1", "metadata": {"name": "f"}, "startAt": "c", "nodes": {
            "c": {"type": "Choice", "choices": [{"variable": name, "numericEquals": 3, "next": "f"}]}, "f": {"type": "Task"}}});
        let played = Played::begin(spec(&text.to_string()), json!({name: 3})).finish(|_| Ok(json!("yes")));
        assert_eq!(played.outcome(), json!("yes"), "{name}");
    }
}
