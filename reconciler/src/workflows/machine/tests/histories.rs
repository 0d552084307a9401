//! Golden histories: the events' names, ids and order.

use std::fmt::Write as _;

use serde_json::json;

use super::{Played, play};

/// `id < previous event: state: what happened`.
fn lines(played: &Played) -> String {
    let mut text = String::new();
    for event in &played.history {
        let state = event.state.as_deref().unwrap_or("-");
        let _ = writeln!(text, "{} < {}  {state}  {}", event.id, event.previous_event_id, event.kind);
    }
    text
}

#[test]
fn a_task_that_is_retried_then_caught() {
    let text = "{startAt: t, states: {t: {type: Task, function: f, next: e, retry: [{errorEquals: [E], maxAttempts: 1}], \
                catch: [{errorEquals: [E], next: w}]}, w: {type: Wait, seconds: 1, next: e}, e: {type: Succeed}}}";
    let played = play(text, json!({}), |_| Err(("E", "")));
    insta::assert_snapshot!(lines(&played), @r"
    1 < 0  -  ExecutionStarted
    2 < 1  t  TaskStateEntered
    3 < 2  t  TaskScheduled
    4 < 3  t  TaskStarted
    5 < 4  t  TaskFailed
    6 < 5  t  TaskScheduled
    7 < 6  t  TaskStarted
    8 < 7  t  TaskFailed
    9 < 8  t  TaskStateExited
    10 < 9  w  WaitStateEntered
    11 < 10  w  WaitStateExited
    12 < 11  e  SucceedStateEntered
    13 < 12  e  SucceedStateExited
    14 < 13  -  ExecutionSucceeded
    ");
}

#[test]
fn a_map_in_a_parallel() {
    let text = "{startAt: p, states: {p: {type: Parallel, next: f, branches: [\
                {startAt: a, states: {a: {type: Pass, end: true}}}, \
                {startAt: m, states: {m: {type: Map, itemsPath: $.items, maxConcurrency: 1, end: true, \
                itemProcessor: {startAt: t, states: {t: {type: Task, function: g, end: true}}}}}}]}, \
                f: {type: Fail, error: Sad}}}";
    let played = play(text, json!({"items": [1, 2]}), |_| Ok(json!(0)));
    insta::assert_snapshot!(lines(&played), @r"
    1 < 0  -  ExecutionStarted
    2 < 1  p  ParallelStateEntered
    3 < 2  p  ParallelStateStarted
    4 < 3  a  PassStateEntered
    5 < 3  m  MapStateEntered
    6 < 5  m  MapStateStarted
    7 < 6  m  MapIterationStarted
    8 < 7  t  TaskStateEntered
    9 < 8  t  TaskScheduled
    10 < 9  t  TaskStarted
    11 < 4  a  PassStateExited
    12 < 10  t  TaskSucceeded
    13 < 12  t  TaskStateExited
    14 < 13  m  MapIterationSucceeded
    15 < 14  m  MapIterationStarted
    16 < 15  t  TaskStateEntered
    17 < 16  t  TaskScheduled
    18 < 17  t  TaskStarted
    19 < 18  t  TaskSucceeded
    20 < 19  t  TaskStateExited
    21 < 20  m  MapIterationSucceeded
    22 < 21  m  MapStateSucceeded
    23 < 22  m  MapStateExited
    24 < 23  p  ParallelStateSucceeded
    25 < 24  p  ParallelStateExited
    26 < 25  f  FailStateEntered
    27 < 26  -  ExecutionFailed
    ");
}

#[test]
fn a_map_whose_item_fails() {
    let text = "{startAt: m, states: {m: {type: Map, end: true, \
                itemProcessor: {startAt: t, states: {t: {type: Task, function: g, end: true}}}}}}";
    let played = play(text, json!([1, 2]), |_| Err(("E", "")));
    insta::assert_snapshot!(lines(&played), @r"
    1 < 0  -  ExecutionStarted
    2 < 1  m  MapStateEntered
    3 < 2  m  MapStateStarted
    4 < 3  m  MapIterationStarted
    5 < 4  t  TaskStateEntered
    6 < 5  t  TaskScheduled
    7 < 6  t  TaskStarted
    8 < 3  m  MapIterationStarted
    9 < 8  t  TaskStateEntered
    10 < 9  t  TaskScheduled
    11 < 10  t  TaskStarted
    12 < 7  t  TaskFailed
    13 < 12  m  MapIterationFailed
    14 < 11  t  TaskStateAborted
    15 < 14  m  MapIterationAborted
    16 < 13  m  MapStateFailed
    17 < 16  -  ExecutionFailed
    ");
}

#[test]
fn events_say_what_went_in_and_came_out() {
    let text = "{startAt: t, states: {t: {type: Task, function: f, end: true}}}";
    let played = play(text, json!({"x": 1}), |_| Ok(json!(null)));
    let history = serde_json::to_value(&played.history).unwrap();
    assert_eq!(
        history[2],
        json!({"id": 3, "previousEventId": 2, "timestamp": "1970-01-01T00:00:00Z", "type": "TaskScheduled", "state": "t",
               "input": {"x": 1}, "function": "f", "call": 1, "attempt": 1})
    );
    assert_eq!(history[0]["state"], json!(null));
    let read: Vec<super::HistoryEvent> = serde_json::from_value(history).unwrap();
    assert_eq!(read, played.history);
}
