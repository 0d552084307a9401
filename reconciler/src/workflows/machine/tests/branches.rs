//! The Parallel and Map states.

use serde_json::json;

use super::{Event, Played, at, outcome, play, spec};

const PARALLEL: &str = "startAt: p
states:
  p:
    type: Parallel
    end: true
    resultPath: $.out
    catch: [{errorEquals: [CAUGHT], next: caught}]
    branches:
    - startAt: a
      states: {a: {type: Task, function: f, end: true}}
    - startAt: b
      states: {b: {type: Wait, seconds: 5, next: b2}, b2: {type: Pass, inputPath: $.x, end: true}}
    - startAt: n
      states:
        n:
          type: Parallel
          end: true
          branches: [{startAt: n1, states: {n1: {type: Task, function: g, end: true}}}]
  caught: {type: Pass, end: true}
";

#[test]
fn branches_run_at_the_same_time_and_their_outputs_keep_their_order() {
    let mut played = Played::begin(spec(&PARALLEL.replace("CAUGHT", "E")), json!({"x": 1}));
    let calls: Vec<_> =
        played.run.pending().calls.iter().map(|call| (call.id, call.function.clone())).collect();
    assert_eq!(calls.iter().map(|(_, function)| function.as_str()).collect::<Vec<_>>(), ["f", "g"]);
    assert_eq!(played.run.state_name(), "p");
    assert!(played.step(Event::Returned { call: calls[1].0, output: json!("g") }));
    assert!(!played.step(Event::Returned { call: calls[1].0, output: json!("again") }));
    let played = played.finish(|_| Ok(json!("f")));
    assert_eq!(played.outcome(), json!({"x": 1, "out": ["f", 1, ["g"]]}));
    assert_eq!(played.run.at(), at(5));
}

#[test]
fn a_branch_that_fails_cancels_the_others() {
    for name in ["E", "States.BranchFailed", "States.TaskFailed", "States.ALL"] {
        let mut played = Played::begin(spec(&PARALLEL.replace("CAUGHT", name)), json!({"x": 1}));
        let call = played.run.pending().calls[0].id;
        assert!(played.step(Event::Failed { call, error: "E".to_owned(), cause: "why".to_owned() }));
        let pending = played.run.pending();
        assert!(pending.calls.is_empty(), "the other call is gone");
        assert_eq!(pending.timers.len(), 1, "and the wait's timer");
        played.go_on();
        assert_eq!(played.outcome(), json!({"Error": "E", "Cause": "why"}), "{name}");
        // Seen red without the aborts.
        let aborted: Vec<_> = played.kinds().into_iter().filter(|kind| kind.ends_with("Aborted")).collect();
        assert_eq!(aborted, ["WaitStateAborted", "TaskStateAborted", "ParallelStateAborted"]);
    }
    let uncaught = play(&PARALLEL.replace("CAUGHT", "Other"), json!({"x": 1}), |_| Err(("E", "")));
    assert_eq!(uncaught.outcome(), json!({"failed": "E"}));
}

#[test]
fn a_parallel_is_tried_again_as_a_whole() {
    let text = "{startAt: p, states: {p: {type: Parallel, end: true, retry: [{errorEquals: [E], intervalSeconds: 2}], \
                branches: [{startAt: a, states: {a: {type: Task, function: f, end: true}}}, \
                {startAt: b, states: {b: {type: Task, function: g, end: true}}}]}}}";
    let mut calls = Vec::new();
    let played = play(text, json!({}), |call| {
        calls.push((call.function.clone(), call.step));
        if calls.len() == 2 { Err(("E", "")) } else { Ok(json!(calls.len())) }
    });
    assert_eq!(played.outcome(), json!([3, 4]));
    assert_eq!(played.run.at(), at(2));
    let steps: std::collections::BTreeSet<_> = calls.iter().map(|(_, step)| step).collect();
    assert_eq!(steps.len(), 4, "another visit has another key: {calls:?}");
}

fn map(fields: &str) -> String {
    format!(
        "{{startAt: m, states: {{m: {{type: Map, end: true, {fields}, itemProcessor: {{startAt: t, \
         states: {{t: {{type: Task, function: f, end: true}}}}}}}}}}}}"
    )
}

#[test]
fn a_map_does_each_item_with_its_selector_and_keeps_the_order() {
    let fields = "itemsPath: $.items, itemSelector: {n.$: $$.Map.Item.Value, at.$: $$.Map.Item.Index, all.$: $.k}, \
                  resultSelector: {list.$: $}, resultPath: $.done";
    let played = play(&map(fields), json!({"items": [5, 6], "k": 1}), |call| Ok(call.payload.clone()));
    let wanted = json!([{"n": 5, "at": 0, "all": 1}, {"n": 6, "at": 1, "all": 1}]);
    assert_eq!(played.outcome(), json!({"items": [5, 6], "k": 1, "done": {"list": wanted}}));
    let nothing = outcome(&map("itemsPath: $.items"), json!({"items": []}));
    assert_eq!(nothing, json!([]));
    for input in [json!({"items": {}}), json!({})] {
        assert_eq!(outcome(&map("itemsPath: $.items"), input), json!({"failed": "States.Runtime"}));
    }
}

#[test]
fn no_more_items_are_under_way_than_may() {
    let few: Vec<u32> = (3..8).collect();
    let many: Vec<u32> = (45..95).collect();
    for (fields, items, most) in [
        ("maxConcurrency: 2", &few, 2),
        ("maxConcurrency: 0", &few, 5),
        ("maxConcurrencyPath: '$[0]'", &few, 3),
        ("maxConcurrency: 0", &many, 40),
        ("maxConcurrency: 41", &many, 40),
        ("maxConcurrencyPath: '$[0]'", &many, 40),
    ] {
        let mut played = Played::begin(spec(&map(fields)), json!(items));
        assert_eq!(played.run.pending().calls.len(), most, "{fields}");
        // The most recent running call is answered first.
        while played.run.outcome().is_none() {
            let (id, payload) =
                played.run.pending().calls.last().map(|call| (call.id, call.payload.clone())).unwrap();
            assert!(played.step(Event::Returned { call: id, output: payload }));
            assert!(played.run.pending().calls.len() <= most);
        }
        assert_eq!(played.outcome(), json!(items));
    }
}

#[test]
fn as_many_items_fail_as_are_tolerated() {
    let input = json!([0, 1, 2, 3]);
    let failing = |below: i64| {
        move |call: &super::Call| match call.payload.as_i64() {
            Some(n) if n < below => Err(("E", "low")),
            _ => Ok(call.payload.clone()),
        }
    };
    let low = json!({"Error": "E", "Cause": "low"});
    let too_many = json!({"failed": "States.ExceedToleratedFailureThreshold"});
    for (fields, below, wanted) in [
        ("maxConcurrency: 1", 1, json!({"failed": "E"})),
        ("toleratedFailureCount: 1", 1, json!([low, 1, 2, 3])),
        ("toleratedFailureCount: 1", 2, too_many.clone()),
        ("toleratedFailurePercentage: 50", 2, json!([low, low, 2, 3])),
        ("toleratedFailurePercentage: 50", 3, too_many.clone()),
        ("toleratedFailureCount: 1, toleratedFailurePercentage: 50", 2, too_many),
    ] {
        assert_eq!(play(&map(fields), input.clone(), failing(below)).outcome(), wanted, "{fields} {below}");
    }
}

#[test]
fn a_map_in_a_map_knows_its_own_item() {
    let text = "{startAt: m, states: {m: {type: Map, end: true, itemProcessor: {startAt: i, states: {i: {type: Map, end: true, \
                itemProcessor: {startAt: t, states: {t: {type: Pass, parameters: {v.$: $$.Map.Item.Value, \
                i.$: $$.Map.Item.Index}, outputPath: $.v, end: true}}}}}}}}}";
    assert_eq!(outcome(text, json!([[1, 2], [], [3]])), json!([[1, 2], [], [3]]));
}
