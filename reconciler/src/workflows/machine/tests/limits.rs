//! Limits of a run.

use serde_json::json;

use super::super::context::{
    CALLS_MAX, DEPTH_MAX, EVENTS_MAX, PAYLOAD_MAX_BYTES, RUN_MAX_BYTES, STEPS_MAX, STRANDS_MAX, size,
};
use super::{Event, Outcome, Played, at, outcome, passed, play, spec};

const FOREVER: &str = "{startAt: a, states: {a: {type: Pass, next: b}, b: {type: Choice, \
                       choices: [{variable: $.x, isPresent: true, next: e}], default: a}, e: {type: Succeed}}}";

#[test]
fn a_run_that_goes_in_circles_ends_after_25_000_states() {
    let played = play(FOREVER, json!({}), |_| Ok(json!(null)));
    assert_eq!(played.outcome(), json!({"failed": "Minik8s.StepLimitExceeded"}));
    assert_eq!(played.run.steps(), STEPS_MAX + 1);
    assert!(played.run.pending().timers.is_empty());
}

#[test]
fn branches_count_together() {
    let text = "{startAt: m, states: {m: {type: Map, end: true, catch: [{errorEquals: [States.ALL], next: e}], \
                itemProcessor: {startAt: a, states: {a: {type: Pass, end: true}}}}, e: {type: Succeed}}}";
    let items: Vec<u32> = (0..STEPS_MAX).collect();
    let played = play(text, json!(items), |_| Ok(json!(null)));
    assert_eq!(played.outcome(), json!({"failed": "Minik8s.StepLimitExceeded"}), "nothing catches it");
    let items: Vec<u32> = (0..STEPS_MAX - 1).collect();
    assert_eq!(play(text, json!(items), |_| Ok(json!(null))).outcome(), json!(items));
}

#[test]
fn a_run_whose_journal_grows_without_states_ends_after_25_000_entries() {
    let text = "{startAt: t, timeoutSeconds: 99999999, states: {t: {type: Task, function: f, end: true, \
                retry: [{errorEquals: [States.ALL], maxAttempts: 99999999, maxDelaySeconds: 2}]}}}";
    let played = play(text, json!({}), |_| Err(("E", "")));
    assert_eq!(played.outcome(), json!({"failed": "Minik8s.EventLimitExceeded"}));
    assert_eq!((played.run.events(), played.run.steps()), (EVENTS_MAX, 1));
}

#[test]
fn data_has_at_most_256_kib() {
    // The two quotes count.
    let most = json!("x".repeat(PAYLOAD_MAX_BYTES - 2));
    let more = json!("x".repeat(PAYLOAD_MAX_BYTES - 1));
    let failed = json!({"failed": "States.DataLimitExceeded"});
    assert_eq!(passed("comment: input", most.clone()), most);
    assert_eq!(passed("comment: input", more.clone()), failed);
    assert_eq!(passed("parameters: {twice.$: $}", most.clone()), failed, "an output");
    let task = |fields: &str| {
        format!(
            "{{startAt: t, states: {{t: {{type: Task, function: f, end: true, {fields}, \
             catch: [{{errorEquals: [States.DataLimitExceeded], next: e}}]}}, \
             e: {{type: Succeed}}}}}}"
        )
    };
    let answered = |answer: &serde_json::Value| {
        play(&task("timeoutSeconds: 9"), json!({}), |_| Ok(answer.clone())).outcome()
    };
    assert_eq!(answered(&most), most);
    assert_eq!(
        answered(&more)["Error"],
        "States.DataLimitExceeded",
        "an answer, and it can be caught by name"
    );
    let called = play(&task("parameters: {twice.$: $}"), most, |_| panic!("called"));
    assert_eq!(called.outcome()["Error"], "States.DataLimitExceeded", "what a function is called with");
}

// Seen red without the bound in `sized`.
#[test]
fn data_is_nested_100_levels_at_most() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let failed = json!({"failed": "States.DataLimitExceeded"});
    assert_eq!(passed("comment: input", nested(DEPTH_MAX)), nested(DEPTH_MAX));
    assert_eq!(passed("comment: input", nested(DEPTH_MAX + 1)), failed);
    assert_eq!(passed("parameters: {in.$: $}", nested(DEPTH_MAX)), failed, "an output");
    // Its data size alone would end this only tens of thousands of levels deep.
    let wraps = "{startAt: a, states: {a: {type: Pass, parameters: {a.$: $}, next: b}, b: {type: Choice, \
                 choices: [{variable: $.x, isPresent: true, next: e}], default: a}, e: {type: Succeed}}}";
    let played = play(wraps, json!({}), |_| Ok(json!(null)));
    assert_eq!(played.outcome(), failed);
    assert!(played.run.steps() < 300, "{} states", played.run.steps());
}

#[test]
fn a_run_has_24_hours_or_what_its_workflow_says() {
    let text = "{startAt: w, states: {w: {type: Wait, seconds: 99999999, end: true}}}";
    let played = play(text, json!({}), |_| Ok(json!(null)));
    assert_eq!((played.outcome(), played.run.at()), (json!("timed out"), at(24 * 3600)));
    let shorter = play(&text.replacen('{', "{timeoutSeconds: 60, ", 1), json!({}), |_| Ok(json!(null)));
    assert_eq!((shorter.outcome(), shorter.run.at()), (json!("timed out"), at(60)));
    assert_eq!(shorter.history.last().unwrap().kind, "ExecutionTimedOut");
}

#[test]
fn a_run_that_is_over_takes_nothing_more() {
    let mut played =
        Played::begin(spec("{startAt: t, states: {t: {type: Task, function: f, end: true}}}"), json!({}));
    let call = played.run.pending().calls[0].id;
    assert!(played.step(Event::Cancelled { cause: "by Ada".to_owned() }));
    assert_eq!(played.run.outcome(), Some(&Outcome::Aborted { cause: "by Ada".to_owned() }));
    assert_eq!(played.run.state_name(), "t");
    let pending = played.run.pending();
    assert!(!pending.continues && pending.calls.is_empty() && pending.timers.is_empty());
    for event in [
        Event::Returned { call, output: json!(1) },
        Event::Cancelled { cause: String::new() },
        Event::Continue,
        Event::Due { timer: 0 },
    ] {
        assert!(!played.step(event));
    }
    assert_eq!(outcome("{startAt: e, states: {e: {type: Succeed}}}", json!(3)), json!(3));
}

#[test]
fn the_answers_of_a_run_have_a_bound_in_all() {
    let text = "{startAt: t, states: {t: {type: Task, function: f, resultPath: null, next: b}, b: {type: Choice, \
                choices: [{variable: $.x, isPresent: true, next: e}], default: t}, e: {type: Succeed}}}";
    let most = json!("x".repeat(PAYLOAD_MAX_BYTES - 2));
    let played = play(text, json!({}), |_| Ok(most.clone()));
    assert_eq!(played.outcome(), json!({"failed": "Minik8s.RunDataLimitExceeded"}));
    assert_eq!(played.run.events() as usize, 2 * RUN_MAX_BYTES / PAYLOAD_MAX_BYTES + 1);

    // Errors are bounded, too: each is in the journal, and may be as long as a function's traceback.
    let text = "{startAt: t, states: {t: {type: Task, function: f, end: true, \
                retry: [{errorEquals: [E], intervalSeconds: 1, backoffRate: 1, maxAttempts: 99999}]}}}";
    let cause: &str = Box::leak("x".repeat(4 * 1024).into_boxed_str());
    let played = play(text, json!({}), |_| Err(("E", cause)));
    assert_eq!(played.outcome(), json!({"failed": "Minik8s.RunDataLimitExceeded"}));
    assert_eq!(played.run.events() as usize, 2 * (RUN_MAX_BYTES / (cause.len() + 1)) + 1);
}

/// A Map over `items`; `inner` is its state, named by its nesting depth.
fn map_of(items: &str, fields: &str, inner: &str) -> String {
    let name = format!("s{}", inner.matches("itemProcessor").count());
    format!(
        "{{type: Map, end: true, itemsPath: {items}, {fields}itemProcessor: {{startAt: {name}, states: {{{name}: {inner}}}}}}}"
    )
}

fn alone(state: &str) -> String {
    format!("{{startAt: a, states: {{a: {state}}}}}")
}

#[test]
fn a_template_in_a_template_stops_growing_at_256_kib() {
    let copies = "parameters: {a.$: $, b.$: $, c.$: $, d.$: $}";
    let nested = (0..6).fold("{type: Pass, result: 1, end: true}".to_owned(), |inner, n| {
        format!("{{type: Parallel, end: true, {copies}, branches: [{{startAt: s{n}, states: {{s{n}: {inner}}}}}]}}")
    });
    let played = play(&alone(&nested), json!({"text": "x".repeat(1024)}), |_| Ok(json!(null)));
    assert_eq!(played.outcome(), json!({"failed": "States.DataLimitExceeded"}));
    let largest = played.history.iter().filter_map(|event| event.detail.input.as_ref()).map(size).max();
    assert!(largest > Some(PAYLOAD_MAX_BYTES / 5) && largest <= Some(PAYLOAD_MAX_BYTES), "{largest:?}");
    for fields in ["itemSelector: {a.$: $, b.$: $}, ", "resultSelector: {a.$: $, b.$: $}, "] {
        let map = map_of("$.list", fields, "{type: Pass, result: 1, end: true}");
        let input = json!({"list": [1], "text": "x".repeat(PAYLOAD_MAX_BYTES / 2)});
        let failed = play(&alone(&map), input, |_| Ok(json!(null))).outcome();
        let wanted = if fields.starts_with("item") { "States.DataLimitExceeded" } else { "" };
        assert_eq!(failed["failed"].as_str().unwrap_or_default(), wanted, "{fields}");
    }
}

// The field that exceeds the limit is named before the rest is built; a template that is too large as a whole names
// itself.
#[test]
fn a_template_stops_at_the_field_that_makes_it_too_large() {
    let input = json!({"half": "x".repeat(200 * 1024), "name": "x"});
    for (parameters, said) in [
        ("{a.$: $.half, b.$: $.half, c.$: $.name}", "with b, the resulting data"),
        ("{a.$: 'States.Array($.half, $.half)'}", "with a, the resulting data"),
        ("{a: [{b.$: $.half}, {c.$: $.half}], d: 1}", "with c, the resulting data"),
        ("{a.$: $}", "the output has"),
    ] {
        let input = match parameters {
            "{a.$: $}" => json!("x".repeat(PAYLOAD_MAX_BYTES - 4)),
            _ => input.clone(),
        };
        let state = format!("{{type: Pass, end: true, parameters: {parameters}}}");
        let played = play(&alone(&state), input, |_| Ok(json!(null)));
        let Some(Outcome::Failed { error, cause }) = played.run.outcome() else {
            panic!("{parameters}: {:?}", played.outcome())
        };
        assert!(error == "States.DataLimitExceeded" && cause.starts_with(said), "{parameters}: {cause}");
    }
}

#[test]
fn all_that_the_branches_of_a_run_hold_has_a_bound() {
    let large =
        json!({"text": "x".repeat(PAYLOAD_MAX_BYTES - 1024), "list": vec![1; 100], "few": vec![1; 60]});
    let too_much = json!({"failed": "Minik8s.RunDataLimitExceeded"});
    let fits = RUN_MAX_BYTES / PAYLOAD_MAX_BYTES - 2;
    let branches = |count: usize| {
        let branch = |n: String| {
            let states = format!(
                "w{n}: {{type: Wait, seconds: 1, next: p{n}}}, p{n}: {{type: Pass, result: 1, end: true}}"
            );
            format!("{{startAt: w{n}, states: {{{states}}}}}")
        };
        // Twice, so that space released by the first no longer counts.
        let state = |name: &str, next: &str| {
            let all: Vec<_> = (0..count).map(|n| branch(format!("{name}{n}"))).collect();
            format!("{name}: {{type: Parallel, resultPath: null, {next}, branches: [{}]}}", all.join(", "))
        };
        format!("{{startAt: a, states: {{{}, {}}}}}", state("a", "next: b"), state("b", "end: true"))
    };
    assert_eq!(play(&branches(fits), large.clone(), |_| Ok(json!(null))).outcome(), large);
    let played = play(&branches(70), large.clone(), |_| Ok(json!(null)));
    assert_eq!((played.outcome(), played.now), (too_much.clone(), at(0)), "none begins");
    assert!(played.run.steps() < 70, "{} states", played.run.steps());
    let item = "{type: Pass, parameters: {all.$: $$.Execution.Input.text}, end: true}";
    for (items, wanted) in [("$.few", json!([])), ("$.list", too_much)] {
        let fields = "itemSelector: {}, maxConcurrency: 1, resultPath: null, outputPath: '$.list[100:]', ";
        let played = play(&alone(&map_of(items, fields, item)), large.clone(), |_| Ok(json!(null)));
        assert_eq!(played.outcome(), wanted, "{items}");
    }
}

#[test]
fn a_run_makes_40_calls_at_once_however_its_maps_are_nested() {
    let task = "{type: Task, function: f, timeoutSeconds: 60, heartbeatSeconds: 9, end: true}";
    let nested = map_of("$.rows", "", &map_of("$.cells", "", task));
    let row = json!({"cells": (0..9).collect::<Vec<_>>()});
    let one = |n: u32| {
        format!(
            "{{startAt: t{n}, states: {{t{n}: {{type: Task, function: f, timeoutSeconds: 60, end: true}}}}}}"
        )
    };
    let many: Vec<_> = (0..90).map(one).collect();
    let parallel = format!("{{type: Parallel, end: true, branches: [{}]}}", many.join(", "));
    for (text, input, in_all) in [(nested, json!({"rows": vec![row; 10]}), 90), (parallel, json!(0), 90)] {
        let mut played = Played::begin(spec(&alone(&text)), input);
        let mut answered = 0;
        while played.run.outcome().is_none() {
            let pending = played.run.pending();
            assert_eq!(pending.calls.len(), CALLS_MAX.min(in_all - answered), "after {answered}");
            let limits = pending.timers.len() - 1 - pending.heartbeats.len();
            assert_eq!(limits, pending.calls.len(), "a limit begins with its call");
            // Waiting calls come in the order of their states.
            let last = pending.calls.last().unwrap();
            let event = Event::Returned { call: last.id, output: json!(last.step) };
            assert!(played.step(event));
            played.go_on();
            answered += 1;
        }
        assert_eq!(answered, in_all);
        assert!(matches!(played.run.outcome(), Some(Outcome::Succeeded { .. })), "{:?}", played.outcome());
    }
}

#[test]
fn maps_in_maps_begin_no_more_than_a_thousand_strands() {
    let wait = "{type: Wait, seconds: 1, end: true}";
    let items =
        (0..15).map(|_| json!((0..15).map(|_| json!((0..15).collect::<Vec<_>>())).collect::<Vec<_>>()));
    let input = json!(items.collect::<Vec<_>>());
    let text = alone(&map_of("$", "", &map_of("$", "", &map_of("$", "", wait))));
    let mut played = Played::begin(spec(&text), input.clone());
    let mut most = 0;
    while played.run.outcome().is_none() {
        let pending = played.run.pending();
        most = most.max(pending.timers.len() - 1);
        let event = if pending.continues {
            Event::Continue
        } else {
            let timer = pending.timers.iter().min_by_key(|timer| timer.due).copied().unwrap();
            played.now = timer.due;
            Event::Due { timer: timer.id }
        };
        assert!(played.step(event));
    }
    assert_eq!(played.outcome(), input);
    assert!((STRANDS_MAX / 2..=STRANDS_MAX).contains(&most), "{most} at once");
}

#[test]
fn a_map_over_more_items_than_the_run_can_enter_states_does_not_begin() {
    let inner = map_of("$$.Execution.Input.items", "", "{type: Wait, seconds: 1, end: true}");
    let text = alone(&map_of("$.few", "itemSelector: {}, ", &inner));
    let played = play(&text, json!({"items": vec![1; 20_000], "few": vec![1; 40]}), |_| Ok(json!(null)));
    assert_eq!(played.outcome(), json!({"failed": "Minik8s.StepLimitExceeded"}));
    assert!(played.run.steps() < 100, "{} states", played.run.steps());
}
