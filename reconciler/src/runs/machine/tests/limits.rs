//! The bounds of a run.

use serde_json::json;

use super::super::limits::{DEPTH_MAX, EVENTS_MAX, PAYLOAD_MAX_BYTES, RUN_MAX_BYTES, STEPS_MAX};
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
    // Two quotes are part of it.
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
    // The size of its data alone would end this tens of thousands of levels deep.
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
}
