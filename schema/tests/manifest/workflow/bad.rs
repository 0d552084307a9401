//! Invalid workflows: each breaks one rule at one position. `§` marks the position and is removed.

use super::{load, rules, states, workflow};
use crate::cases;

/// The rule, and the text with its mark.
fn cases() -> Vec<cases::Case> {
    let mut cases = graph();
    cases.extend(shape());
    cases.extend(times_and_errors());
    cases.extend(schedules());
    cases.extend(paths());
    cases.extend(choices());
    cases.extend(unsupported());
    cases
}

/// A task with these fields.
fn task(fields: &str) -> String {
    states(&format!("a:\n  type: Task\n  function: f\n  end: true\n  {}", fields.replace('\n', "\n  ")))
}

/// A Choice with this single rule.
fn rule(rule: &str) -> String {
    states(&format!("a: {{type: Choice, choices: [{rule}]}}\nb: {{type: Succeed}}"))
}

fn graph() -> Vec<cases::Case> {
    vec![
        ("missing-field", workflow("states: {a: {type: Succeed}}").replace("spec:", "§spec:")),
        ("missing-field", workflow("startAt: a").replace("spec:", "§spec:")),
        ("not-found", workflow("startAt: §b\nstates: {a: {type: Succeed}}")),
        ("not-found", states("a: {type: Pass, next: §bb}\nb: {type: Succeed}")),
        ("not-found", states("a: {type: Choice, choices: [{variable: $.x, isNull: true, next: §c}]}")),
        (
            "not-found",
            states(
                "a: {type: Choice, default: §c, choices: [{variable: $.x, isNull: true, next: b}]}\nb: {type: Fail}",
            ),
        ),
        ("not-found", task("catch: [{errorEquals: [E], next: §b}]")),
        ("exclusive", states("§a: {type: Pass}")),
        ("exclusive", states("a: {type: Pass, next: b, §end: true}\nb: {type: Succeed}")),
        ("unreachable-state", states("a: {type: Succeed}\n§b: {type: Succeed}")),
        ("no-end", workflow("startAt: a\n§states:\n  a: {type: Pass, next: a}")),
        (
            "invalid-name",
            states(&format!("a: {{type: Pass, next: {0}}}\n§{0}: {{type: Succeed}}", "s".repeat(81))),
        ),
        (
            "duplicate-name",
            states(
                "a:\n  type: Parallel\n  end: true\n  branches:\n  - startAt: b\n    states:\n      b: {type: Succeed}\n  - startAt: b\n    states:\n      §b: {type: Succeed}",
            ),
        ),
        (
            "not-found",
            states(
                "a:\n  type: Map\n  end: true\n  itemProcessor:\n    startAt: b\n    states:\n      b: {type: Pass, next: §a}",
            ),
        ),
    ]
}

fn shape() -> Vec<cases::Case> {
    vec![
        ("missing-field", states("§a: {end: true}")),
        ("unknown-value", states("a: {type: §Tsk, function: f, end: true}")),
        ("unknown-field", states("a: {§typ: Task, function: f, end: true}")),
        ("missing-field", states("§a:")),
        ("wrong-type", states("a: §Succeed")),
        ("missing-field", states("§a: {type: Task, end: true}")),
        ("unknown-field", states("a: {type: Succeed, §next: b}")),
        ("unknown-field", states("a: {type: Fail, §inputPath: $.x}")),
        ("unknown-field", task("§resultPth: $.x")),
        ("missing-field", task("§resultPath:")),
        ("wrong-type", task("resultPath: §5")),
        ("wrong-type", states("a: {type: Pass, end: §\"true\"}")),
        ("wrong-type", workflow("startAt: a\nstates: {a: {type: Succeed}}\nparams: {x: §007}")),
        ("out-of-range", workflow("startAt: a\nstates: {a: {type: Succeed}}\nparams: {x: §1e999}")),
        ("ambiguous-scalar", workflow("startAt: a\nstates: {a: {type: Succeed}}\nparams: {x: §off}")),
        ("out-of-range", workflow("startAt: a\nstates: {a: {type: Succeed}}\ntimeoutSeconds: §0")),
        ("invalid-name", task("").replace("function: f", "function: §f/g/h")),
        ("required", states("a: {type: Parallel, end: true, §branches: []}")),
        ("missing-field", states("§a: {type: Map, end: true}")),
        (
            "out-of-range",
            states(
                "a:\n  type: Map\n  end: true\n  toleratedFailurePercentage: §101\n  itemProcessor: {startAt: b, states: {b: {type: Succeed}}}",
            ),
        ),
    ]
}

fn times_and_errors() -> Vec<cases::Case> {
    vec![
        ("exclusive", states("§a: {type: Wait, end: true}")),
        ("exclusive", states("a: {type: Wait, end: true, seconds: 1, §secondsPath: $.s}")),
        ("timestamp", states("a: {type: Wait, end: true, timestamp: §2030-01-31}")),
        ("timestamp", states("a: {type: Wait, end: true, timestamp: §\"2030-01-31t12:00:00z\"}")),
        ("out-of-range", states("a: {type: Wait, end: true, seconds: §100000000}")),
        ("timeout", task("timeoutSeconds: 5\nheartbeatSeconds: §5")),
        ("exclusive", task("timeoutSeconds: 5\n§timeoutSecondsPath: $.t")),
        ("exclusive", states("a: {type: Fail, error: E, §errorPath: $.e}")),
        ("missing-field", task("retry:\n- §maxAttempts: 1")),
        ("required", task("retry: [{§errorEquals: []}]")),
        ("retry", task("retry: [{errorEquals: [E, §States.ALL]}]")),
        ("retry", task("retry: [{errorEquals: [§States.ALL]}, {errorEquals: [E]}]")),
        (
            "retry",
            task("catch: [{errorEquals: [§States.Timout], next: b}]\n").replace("end: true", "next: b")
                + "    b: {type: Succeed}\n",
        ),
        ("retry", task("retry: [{errorEquals: [E], intervalSeconds: 5, maxDelaySeconds: §5}]")),
        ("out-of-range", task("retry: [{errorEquals: [E], backoffRate: §0.5}]")),
        ("wrong-type", task("retry: [{errorEquals: [E], backoffRate: §\"2\"}]")),
        ("wrong-type", task("retry: [{errorEquals: §States.ALL}]")),
        ("unknown-value", task("retry: [{errorEquals: [E], jitterStrategy: §Full}]")),
    ]
}

fn triggers(text: &str) -> String {
    format!("{}  triggers:\n  - {text}\n", states("a: {type: Succeed}"))
}

fn schedules() -> Vec<cases::Case> {
    vec![
        ("schedule", triggers("{name: t, schedule: {cron: §'* * * *'}}")),
        ("schedule", triggers("{name: t, schedule: {cron: §'0 0 30 2 *'}}")),
        ("schedule", triggers("{name: t, schedule: {cron: §'0 24 * * *'}}")),
        ("schedule", triggers("{name: t, schedule: {cron: '* * * * *', timeZone: §Mars/Base}}")),
        ("unknown-value", triggers("{name: t, schedule: {cron: '* * * * *', missed: §all}}")),
        ("invalid-name", triggers("{name: §T_1, schedule: {cron: '* * * * *'}}")),
        ("required", triggers("§{name: t}")),
        ("exclusive", triggers("{name: t, schedule: {cron: '* * * * *'}, §onCommit: {}}")),
        ("invalid-path", triggers("{name: t, onCommit: {paths: [data/, §../x]}}")),
        ("invalid-path", triggers("{name: t, onCommit: {§paths: ['!*.md']}}")),
        ("wrong-type", triggers("{name: t, onCall: {tokenSha256: §my-token}}")),
        (
            "wrong-type",
            triggers(
                "{name: t, onCall: {tokenSha256: §E3B0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}}",
            ),
        ),
        (
            "duplicate-name",
            triggers(
                "{name: t, schedule: {cron: '* * * * *'}}\n  - {name: §t, schedule: {cron: '0 * * * *'}}",
            ),
        ),
    ]
}

fn paths() -> Vec<cases::Case> {
    vec![
        ("json-path", task("inputPath: §x.y")),
        ("json-path", task("inputPath: §States.UUID()")),
        ("intrinsic", task("parameters: {id.$: §States.Uuid()}")),
        (
            "intrinsic",
            task("parameters: {id.$: §States.MathAdd(1)}")
                .replace("§States.MathAdd(1)", "§\"States.MathAdd(1, 'x')\""),
        ),
        ("intrinsic", states("a: {type: Fail, causePath: §States.UUID(1)}")),
        (
            "exclusive",
            states(
                "a:\n  type: Map\n  end: true\n  maxConcurrency: 2\n  §maxConcurrencyPath: $.n\n  itemProcessor: {startAt: b, states: {b: {type: Succeed}}}",
            ),
        ),
        ("json-path", task("outputPath: §$..y")),
        ("json-path", task("resultPath: §\"$.x[1:]\"")),
        ("json-path", task("resultPath: §$$.State.Name")),
        ("json-path", task("parameters: {a: [{b.$: §b}]}")),
        ("payload", task("parameters: {a: 1, §a.$: $.a}")),
        ("payload", task("resultSelector: {a.$: §1}")),
        ("json-path", states("a: {type: Wait, end: true, secondsPath: §seconds}")),
    ]
}

fn choices() -> Vec<cases::Case> {
    vec![
        ("required", states("a: {type: Choice, §choices: [], default: b}\nb: {type: Succeed}")),
        ("exclusive", rule("§{variable: $.x, next: b}")),
        ("exclusive", rule("§{next: b}")),
        ("exclusive", rule("{variable: $.x, isNull: true, §isString: true, next: b}")),
        ("exclusive", rule("{§not: {variable: $.x, isNull: true}, variable: $.x, isNull: true, next: b}")),
        ("exclusive", rule("{not: {variable: $.x, isNull: true, §next: b}, next: b}")),
        ("missing-field", rule("§{isNull: true, next: b}")),
        ("required", rule("{§and: [], next: b}")),
        ("unknown-field", rule("{variable: $.x, §numericEqual: 1, next: b}")),
        ("wrong-type", rule("{variable: $.x, numericEquals: §\"1\", next: b}")),
        ("wrong-type", rule("{variable: $.x, stringEquals: §1, next: b}")),
        ("timestamp", rule("{variable: $.x, timestampEquals: §today, next: b}")),
        ("json-path", rule("{variable: §x, isNull: true, next: b}")),
        ("json-path", rule("{variable: $.x, stringEqualsPath: §z, next: b}")),
        (
            "unknown-field",
            states(
                "a: {type: Choice, choices: [{variable: $.x, isNull: true, next: b}], §end: true}\nb: {type: Succeed}",
            ),
        ),
    ]
}

fn unsupported() -> Vec<cases::Case> {
    vec![
        (
            "workflow-unsupported",
            workflow("§queryLanguage: JSONata\nstartAt: a\nstates: {a: {type: Succeed}}"),
        ),
        ("workflow-unsupported", states("a: {type: Pass, end: true, §assign: {x: 1}}")),
        ("workflow-unsupported", task("§credentials: {}")),
        (
            "workflow-unsupported",
            task("parameters: {id.$: \"§States.Format('{}', $name)\"}").replace("\"§", "§\""),
        ),
        (
            "workflow-unsupported",
            task("").replace("function: f", "resource: §arn:aws:states:::sqs:sendMessage"),
        ),
        ("task-resource", task("").replace("function: f", "resource: §\"arn:aws:lambda:::function:\"")),
        ("unknown-field", task("§resource: f")),
        (
            "workflow-unsupported",
            states(
                "a:\n  type: Map\n  end: true\n  §itemReader: {}\n  itemProcessor: {startAt: b, states: {b: {type: Succeed}}}",
            ),
        ),
        (
            "workflow-unsupported",
            states(
                "a:\n  type: Map\n  end: true\n  itemProcessor: {§processorConfig: {mode: DISTRIBUTED}, startAt: b, states: {b: {type: Succeed}}}",
            ),
        ),
    ]
}

#[test]
fn each_bad_workflow_breaks_exactly_its_rule_at_its_place() {
    cases::check(&cases());
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(cases::messages(&cases()));
}

#[test]
fn a_workflow_without_states_says_so_once() {
    let found = rules(&load(&workflow("startAt: a\nstates: {}")));
    assert_eq!(found, ["not-found 6:12", "required 7:3"]);
}

#[test]
fn machines_and_rules_lie_in_each_other_only_so_deep() {
    let mut machine = "{startAt: s, states: {s: {type: Succeed}}}".to_owned();
    for level in 0..8 {
        machine = format!(
            "{{startAt: s{level}, states: {{s{level}: {{type: Map, end: true, itemProcessor: {machine}}}}}}}"
        );
    }
    let text = workflow("X").replace("\n  X\n", &format!(" {machine}\n"));
    assert_eq!(
        rules(&load(&text)).iter().filter(|reported| reported.starts_with("too-deep")).count(),
        1,
        "{text}"
    );
    let mut deep = "{variable: $.x, isNull: true}".to_owned();
    for _ in 0..8 {
        deep = format!("{{not: {deep}}}");
    }
    let found = rules(&load(&rule(&deep.replacen('{', "{next: b, ", 1))));
    assert_eq!(found.iter().filter(|reported| reported.starts_with("too-deep")).count(), 1, "{found:?}");
}

/// Violations of a machine in the Amazon States Language, with their help texts.
fn said(states: &str) -> Vec<String> {
    let text = format!("{{\"StartAt\": \"b\",\n \"States\": {states}}}");
    let loaded = schema::manifest::load_definition("flow.asl.json", text.as_bytes());
    let reported = loaded.violations.iter();
    reported.map(|v| format!("{}:{} {} {} ({})", v.line, v.column, v.rule, v.message, v.help)).collect()
}

#[test]
fn a_mistake_in_a_field_hides_no_state_that_is_not_there() {
    let found = said(r#"{"a": {"Type": "Task", "Resource": "f", "Retrys": [], "Next": "c"}}"#);
    insta::assert_snapshot!(found.join("\n"), @r"
    1:13 not-found spec.startAt: this machine has no state `b` (did you mean `a`?)
    2:52 unknown-field spec.states.a.Retrys: unknown field `Retrys` (did you mean `retry`?)
    2:74 not-found spec.states.a.next: this machine has no state `c` (did you mean `a`?)
    ");
    // Where the mistake is in the field that lists the states, missing states would only follow from it.
    let loaded = load(&workflow("startAt: a\nstats: {a: {type: Succeed}}"));
    assert_eq!(rules(&loaded), ["unknown-field 7:3"]);
}

#[test]
fn the_error_of_a_task_without_a_function_says_how_to_name_one() {
    let mut found = said(r#"{"b": {"Type": "Task", "End": true}}"#);
    found.extend(said(r#"{"b": {"Type": "Task", "Resource": null, "End": true}}"#));
    let blank = load(&states("a: {type: Task, resource: , end: true}"));
    found.extend(blank.violations.iter().map(ToString::to_string));
    insta::assert_snapshot!(found.join("\n"), @r"
    2:13 missing-field spec.states.b.function: Required value: the field is missing (write `function: NAME` with the name of a Function, or `Resource: function:NAME` in the Amazon States Language)
    2:47 missing-field Resource: Required value: the field has no value (name a Function, for example `function: price` or `Resource: function:shop/price`)
    apps/web.yaml:8:21: error[missing-field]: resource: Required value: the field has no value (name a Function, for example `function: price` or `Resource: function:shop/price`)
    ");
}

#[test]
fn a_bad_path_of_a_definition_and_a_bad_name_of_a_schedule_say_how_to_write_them() {
    let path = load(&workflow("definitionPath: /flows/order.asl.json"));
    let mut found: Vec<String> = path.violations.iter().map(ToString::to_string).collect();
    found.extend(
        load(&triggers("{name: t, schedule: {cron: '@dayly'}}")).violations.iter().map(ToString::to_string),
    );
    found.extend(
        load(&triggers("{name: t, schedule: {cron: daily}}")).violations.iter().map(ToString::to_string),
    );
    assert!(load(&triggers("{name: t, schedule: {cron: '@daily'}}")).violations.is_empty());
    insta::assert_snapshot!(found.join("\n"), @r"
    apps/web.yaml:6:19: error[invalid-path]: spec.definitionPath: Invalid value: `/flows/order.asl.json`: must be a path within the repository (put the file into this repository and write its path from the root, for example `flows/order.asl.json`)
    apps/web.yaml:10:32: error[schedule]: spec.triggers[0].schedule.cron: Invalid value: `@dayly`: unknown schedule name (did you mean `@daily`?)
    apps/web.yaml:10:32: error[schedule]: spec.triggers[0].schedule.cron: Invalid value: `daily`: has 1 field, not 5 (write minute, hour, day of month, month and day of week, for example `30 2 * * MON-FRI`)
    ");
}
