//! Older forms and AWS' own spelling: every spelling gives the same state machine.

use proptest::prelude::*;
use schema::kinds::workflow::function_from_resource;
use schema::manifest::{ManifestFile, load_definition, load_file};

use super::{load, only, rules, workflow};
use crate::cases::unmarked;

/// Form A, as JSON.
const FORM_A: &str = r#"{
  "apiVersion": "/api/v1", "kind": "Workflow",
  "metadata": {"namespace": "default", "name": "flow"},
  "startAt": "double",
  "params": {"x": 3},
  "nodes": {
    "double": {"type": "task", "next": "check"},
    "check": {"type": "Choice", "choices": [
      {"variable": "x", "numericEquals": "10", "next": "same"},
      {"variable": "$.x", "numericNotEquals": 10.5, "next": "other"}]},
    "same": {"type": "Task"},
    "other": {"type": "Task", "next": null}
  }
}"#;

const FORM_A_TODAY: &str = r#"
params: {x: 3}
startAt: double
states:
  double: {type: Task, function: double, next: check}
  check:
    type: Choice
    choices:
    - {variable: $.x, numericEquals: 10, next: same}
    - {not: {variable: $.x, numericEquals: 10.5}, next: other}
    default: end
  same: {type: Task, function: same, end: true}
  other: {type: Task, function: other, end: true}
  end: {type: Succeed}
"#;

/// Form B.
const FORM_B: &str = r#"
kind: Workflow
apiVersion: v1
metadata:
  name: flow
spec:
  entryParams: '{"x": 1, "y": [2]}'
  entryNodeName: first
  workflowNodes:
  - name: first
    type: func
    funcData: {funcName: sum, funcNamespace: default, nextNodeName: second}
  - name: second
    type: choice
    choiceData: {trueNextNodeName: end, falseNextNodeName: "", checkType: numGreaterAndEqualThan, checkVarName: y, compareValue: 0}
  - name: end
    type: func
    funcData: {funcName: square}
    choiceData:
"#;

const FORM_B_TODAY: &str = r#"
params: {x: 1, y: [2]}
startAt: first
states:
  first: {type: Task, function: sum, next: second}
  second:
    type: Choice
    choices:
    - {not: {variable: $.y, isNumeric: true}, next: second-mismatch}
    - {variable: $.y, numericGreaterThanEquals: 0, next: end}
    default: end-2
  end: {type: Task, function: square, end: true}
  end-2: {type: Succeed}
  second-mismatch: {type: Fail, error: TypeMismatch, cause: 'y is not a number, but checkType is numGreaterAndEqualThan'}
"#;

/// AWS' spelling; `INDENT` is replaced according to the surrounding text.
const AMAZON: &str = r#"{
  "Comment": "one of each",
  "StartAt": "Call it",
  "Version": "1.0",
  "States": {
    "Call it": {
      "Type": "Task", "Resource": "arn:aws:lambda:eu-west-1:123456789012:function:call:$LATEST",
      "Parameters": {"Next": "stays", "Type.$": "$.Type"}, "ResultPath": null,
      "Retry": [{"ErrorEquals": ["States.ALL"], "MaxAttempts": 2}],
      "Catch": [{"ErrorEquals": ["Oops"], "Next": "Each"}],
      "Next": "Each"
    },
    "Each": {
      "Type": "Map", "ItemsPath": "$.Items", "Parameters": {"Value.$": "$$.Map.Item.Value"},
      "Iterator": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Which", "States": {
        "Which": {"Type": "Choice", "Default": "Stop", "Choices": [
          {"Or": [{"Variable": "$.A", "StringNotEquals": "x"}, {"Variable": "$.B", "IsNull": true}], "Next": "Stop"}]},
        "Stop": {"Type": "Succeed"}
      }},
      "End": true
    }
  }
}"#;

const AMAZON_TODAY: &str = r#"
startAt: Call it
states:
  Call it:
    type: Task
    function: call
    parameters: {Next: stays, Type.$: $.Type}
    resultPath: null
    retry: [{errorEquals: [States.ALL], maxAttempts: 2}]
    catch: [{errorEquals: [Oops], next: Each}]
    next: Each
  Each:
    type: Map
    itemsPath: $.Items
    itemSelector: {Value.$: $$.Map.Item.Value}
    itemProcessor:
      startAt: Which
      states:
        Which:
          type: Choice
          default: Stop
          choices:
          - or: [{not: {variable: $.A, stringEquals: x}}, {variable: $.B, isNull: true}]
            next: Stop
        Stop: {type: Succeed}
    end: true
"#;

fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect()
}

/// Every way to write the AWS machine.
fn amazon() -> Vec<ManifestFile> {
    let json = format!(
        r#"{{"apiVersion": "minik8s.io/v1", "kind": "Workflow", "metadata": {{"name": "flow"}}, "spec": {AMAZON}}}"#
    );
    let quoted = serde_json::to_string(AMAZON).expect("a string is JSON");
    vec![
        load_file("flow.json", json.as_bytes()),
        load_file("flow.yaml", json.as_bytes()),
        load(&workflow(&format!("definition: |\n{}", indented(AMAZON, 2)))),
        load(&workflow(&format!("definition: {quoted}"))),
        load(&workflow(&format!("definition: >-\n{}", indented(AMAZON_TODAY.trim(), 2))).replace(">-", "|")),
        load(&workflow(&format!("definition:\n{}", indented(AMAZON_TODAY.trim(), 2)))),
    ]
}

fn spelled_older(loaded: &ManifestFile) -> usize {
    loaded.violations.iter().filter(|violation| violation.rule == "older-spelling").count()
}

#[test]
fn every_spelling_of_a_machine_gives_the_same_object() {
    for (older, today) in [
        (vec![load_file("flow.json", FORM_A.as_bytes())], FORM_A_TODAY),
        (vec![load(FORM_B.trim_start())], FORM_B_TODAY),
        (amazon(), AMAZON_TODAY),
    ] {
        let today = load(&workflow(today.trim()));
        assert_eq!(spelled_older(&today), 0, "{:#?}", today.violations);
        for older in older {
            assert!(spelled_older(&older) > 0, "{older:#?}");
            assert_eq!(only(&older).0, only(&today).0);
            assert_eq!(only(&older).1, only(&today).1);
        }
    }
}

#[test]
fn mistakes_in_other_spellings_are_shown_where_they_are_written() {
    let definition = |text: &str| workflow(&format!("definition: |\n{}", indented(text, 4)));
    for (rule, marked) in [
        ("not-found", FORM_A.replacen("\"next\": \"check\"", "\"next\": §\"chek\"", 1)),
        ("unknown-field", FORM_A.replacen("\"startAt\"", "§\"start\": 1, \"startAt\"", 1)),
        ("unknown-field", FORM_A.replacen("{\"type\": \"Task\"}", "{\"type\": \"Task\", §\"nxt\": 1}", 1)),
        ("json-syntax", FORM_B.replacen("'{\"x\"", "§'{x", 1)),
        ("not-found", FORM_B.replacen("entryNodeName: first", "entryNodeName: §frst", 1)),
        ("unknown-field", FORM_B.replacen("nextNodeName", "§nextNode: x, nextNodeName", 1)),
        ("unknown-value", FORM_B.replacen("numGreaterAndEqualThan", "§numGreaterEqual", 1)),
        ("wrong-type", FORM_B.replacen("compareValue: 0", "compareValue: §zero", 1)),
        ("missing-field", FORM_B.replacen("- name: second\n    type", "- §type", 1)),
        ("duplicate-name", FORM_B.replacen("name: second", "name: §first", 1)),
        ("unknown-value", FORM_B.replacen("type: func", "type: §function", 1)),
        (
            "missing-field",
            FORM_B.replacen("- name: second", "- §name: second", 1).replacen("checkVarName: y, ", "", 1),
        ),
        ("not-found", definition(&AMAZON.replacen("\"Next\": \"Each\"\n", "\"Next\": §\"Eac\"\n", 1))),
        ("unknown-field", definition(&AMAZON.replacen("\"Retry\"", "§\"Retrys\"", 1))),
        ("json-syntax", definition(&AMAZON.replacen("\"Retry\": ", "\"Retry\" §", 1))),
        (
            "duplicate-key",
            definition(&AMAZON.replacen(
                "\"Next\": \"Each\"\n",
                "\"Next\": \"Each\", §\"Next\": \"Each\"\n",
                1,
            )),
        ),
        (
            "unknown-field",
            definition(&AMAZON.replacen(
                "\"Next\": \"Each\"\n",
                "\"Next\": \"Each\", §\"next\": \"Each\"\n",
                1,
            ))
            .replacen("§\"next\"", "\"next\"", 1)
            .replacen("\"Next\": \"Each\", \"next\"", "§\"Next\": \"Each\", \"next\"", 1),
        ),
        ("wrong-type", workflow("§definition: flow.asl.json")),
    ] {
        let (text, place) = unmarked(&marked);
        let found =
            rules(&load_file(if text.starts_with('{') { "f.json" } else { "f.yaml" }, text.as_bytes()));
        assert_eq!(found.first(), Some(&format!("{rule} {place}")), "{found:?}\n{text}");
        assert_eq!(found.len(), 1, "{found:?}\n{text}");
    }
}

fn reported(loaded: &ManifestFile) -> Vec<String> {
    let reported = loaded.violations.iter();
    reported.map(|v| format!("{}:{} {} {}", v.line, v.column, v.rule, v.message)).collect()
}

#[test]
fn the_language_s_own_names_are_no_older_spelling() {
    let machine = r#"{"StartAt": "a", "States": {"a": {"Type": "Task", "Resource": "function:default/price", "End": true}}}"#;
    assert_eq!(reported(&load_definition("flow.asl.json", machine.as_bytes())), Vec::<String>::new());
    let whole = "`definition` is an older spelling, read as `its fields in spec`";
    let found = reported(&load(&workflow(&format!("definition: |\n  {machine}"))));
    assert_eq!(found, [format!("6:3 older-spelling {whole}")]);
    let arn = "arn:aws:lambda:eu-west-1:123456789012:function:pay";
    let mixed = machine.replace(
        r#""End": true}"#,
        &format!(r#""Next": "b"}}, "b": {{"Type": "Task", "Resource": "{arn}", "End": true}}"#),
    );
    let found = reported(&load_definition("flow.asl.json", mixed.as_bytes()));
    assert_eq!(
        found,
        ["1:137 older-spelling an ARN is read as the Function that its last part names: `pay`"]
    );
    let ours = workflow("startAt: a\nstates: {a: {type: Task, resource: price, end: true}}");
    let found = reported(&load(&ours));
    assert_eq!(found, ["7:38 older-spelling `resource` is an older spelling, read as `function: price`"]);
    // A violation uses the name as written.
    let blank = load_definition("flow.asl.json", machine.replace("function:default/price", "").as_bytes());
    assert_eq!(reported(&blank), ["1:63 task-resource Resource: `` does not name a function"]);
    let found = reported(&load(&ours.replace("price", "''")));
    assert_eq!(found, ["7:38 task-resource resource: `` does not name a function"]);
}

#[test]
fn functions_of_other_namespaces_keep_theirs() {
    let first = |text: String| {
        let loaded = load(text.trim_start());
        let hash = only(&loaded).0.clone();
        (format!("{hash:?}"), loaded.violations)
    };
    let (other, notes) = first(FORM_B.replacen("funcNamespace: default", "funcNamespace: other", 1));
    let (today, _) = first(workflow(FORM_B_TODAY.trim()).replacen("function: sum", "function: other/sum", 1));
    assert_eq!(other, today, "{notes:#?}");
    for (resource, function) in [
        ("function:sum", Some("sum")),
        ("function:shop/sum", Some("sum")),
        ("function:other/sum", Some("other/sum")),
        ("arn:aws:lambda:eu-west-1:123456789012:function:sum:$LATEST", Some("sum")),
        ("arn:aws:states:::sqs:sendMessage", None),
        ("function:a/b/c", None),
    ] {
        assert_eq!(function_from_resource(resource, "shop").as_deref(), function, "{resource}");
    }
}

#[test]
fn a_definition_alone_is_read_as_the_spec_of_a_workflow() {
    for path in ["flow.asl.json", "flow.asl", "flow.yaml"] {
        let loaded = load_definition(path, AMAZON.as_bytes());
        assert!(!loaded.has_errors(), "{path}: {:#?}", loaded.violations);
        let whole = load(&workflow(AMAZON_TODAY.trim()));
        assert_eq!(loaded.documents[0].object.resource, whole.documents[0].object.resource);
        let broken = load_definition(path, AMAZON.replacen("\"Retry\"", "\"Retrys\"", 1).as_bytes());
        assert!(broken.violations.iter().any(|found| found.rule == "unknown-field" && found.line > 1));
    }
    for text in ["", "7", "[]", "{}", "a: 1"] {
        assert!(load_definition("flow.yaml", text.as_bytes()).documents.is_empty(), "{text}");
    }
}

#[test]
fn a_state_machine_without_a_kind_is_left_alone() {
    for path in ["flow.asl.json", "flow.yaml"] {
        assert_eq!(load_file(path, AMAZON.as_bytes()), ManifestFile::default());
    }
}

/// A machine of tasks and choices limited to what form B can express: for each node its successors, `None` for the
/// end.
fn machines() -> impl Strategy<Value = Vec<(usize, Option<(usize, usize)>)>> {
    proptest::collection::vec((0..7usize, proptest::option::of((0..7usize, 0..6usize))), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_machine_of_form_b_is_the_same_as_amazon_s(machine in machines()) {
        let (older, amazon) = (form_b(&machine), amazon_of(&machine));
        let (older, amazon) = (load_file("a.json", older.as_bytes()), load_file("a.json", amazon.as_bytes()));
        prop_assert_eq!(rules(&older).is_empty(), rules(&amazon).is_empty(), "{:?}\n{:?}", rules(&older), rules(&amazon));
        let hash = |loaded: &ManifestFile| loaded.documents.first().map(|document| document.object.hash());
        prop_assert_eq!(hash(&older), hash(&amazon));
    }
}

const CHECKS: [(&str, &str); 6] = [
    ("numEqual", "NumericEquals"),
    ("numLessThan", "NumericLessThan"),
    ("numGreaterThen", "NumericGreaterThan"),
    ("strEqual", "StringEquals"),
    ("strLessAndEqualThan", "StringLessThanEquals"),
    ("strGreaterThan", "StringGreaterThan"),
];

fn wrapped(spec: &serde_json::Value) -> String {
    serde_json::json!({"apiVersion": "minik8s.io/v1", "kind": "Workflow", "metadata": {"name": "flow"}, "spec": spec})
        .to_string()
}

fn form_b(machine: &[(usize, Option<(usize, usize)>)]) -> String {
    let next = |next: usize| if next < machine.len() { format!("n{next}") } else { String::new() };
    let nodes: Vec<_> = machine.iter().enumerate().map(|(index, (first, choice))| match choice {
        None => serde_json::json!({"name": format!("n{index}"), "type": "func", "funcData": {"funcName": "f", "nextNodeName": next(*first)}}),
        Some((second, check)) => serde_json::json!({"name": format!("n{index}"), "type": "choice", "choiceData": {
            "trueNextNodeName": next(*first), "falseNextNodeName": next(*second),
            "checkType": CHECKS[*check].0, "checkVarName": "x", "compareValue": "7"}}),
    }).collect();
    wrapped(&serde_json::json!({"entryNodeName": "n0", "workflowNodes": nodes}))
}

fn amazon_of(machine: &[(usize, Option<(usize, usize)>)]) -> String {
    let mut leads_to_end = false;
    let mut next = |next: usize| {
        leads_to_end |= next >= machine.len();
        if next < machine.len() { format!("n{next}") } else { "end".to_owned() }
    };
    let mut states = serde_json::Map::new();
    for (index, (first, choice)) in machine.iter().enumerate() {
        let state = match choice {
            None if *first >= machine.len() => {
                serde_json::json!({"Type": "Task", "Resource": "f", "End": true})
            }
            None => serde_json::json!({"Type": "Task", "Resource": "f", "Next": next(*first)}),
            Some((second, check)) => {
                let operand = if *check < 3 { serde_json::json!(7) } else { serde_json::json!("7") };
                let mut rule = serde_json::json!({"Variable": "$.x", "Next": next(*first)});
                rule[CHECKS[*check].1] = operand;
                let mismatch = format!("n{index}-mismatch");
                let (is_type, name) =
                    if *check < 3 { ("IsNumeric", "number") } else { ("IsString", "string") };
                let cause = format!("x is not a {name}, but checkType is {}", CHECKS[*check].0);
                let guard = serde_json::json!({"Not": {"Variable": "$.x", is_type: true}, "Next": mismatch});
                let fail = serde_json::json!({"Type": "Fail", "Error": "TypeMismatch", "Cause": cause});
                states.insert(mismatch, fail);
                serde_json::json!({"Type": "Choice", "Choices": [guard, rule], "Default": next(*second)})
            }
        };
        states.insert(format!("n{index}"), state);
    }
    if leads_to_end {
        states.insert("end".to_owned(), serde_json::json!({"Type": "Succeed"}));
    }
    wrapped(&serde_json::json!({"StartAt": "n0", "States": states}))
}
