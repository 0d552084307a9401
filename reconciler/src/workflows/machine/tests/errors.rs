//! Retriers, catchers, time limits.

use serde_json::json;

use super::{Event, Played, at, play, spec};

/// A Task with these fields, after which `caught` shows what was caught.
fn task(fields: &str) -> String {
    format!(
        "{{startAt: t, states: {{t: {{type: Task, function: f, {fields}, end: true}}, \
         caught: {{type: Pass, parameters: {{caught.$: $}}, end: true}}}}}}"
    )
}

/// A workflow of this Task alone, without the state `caught`, which nothing would lead to.
fn alone(fields: &str) -> String {
    format!("{{startAt: t, states: {{t: {{type: Task, function: f, {fields}, end: true}}}}}}")
}

#[test]
fn a_retrier_waits_longer_each_time_and_counts_its_own_attempts() {
    let text = alone(
        "retry: [{errorEquals: [A], intervalSeconds: 1, maxAttempts: 3}, \
         {errorEquals: [States.ALL], intervalSeconds: 10, maxAttempts: 1, backoffRate: 1}]",
    );
    let mut calls = Vec::new();
    let mut played = Played::begin(spec(&text), json!({}));
    for error in ["A", "B", "A", "A", "A"] {
        let call = played.run.pending().calls[0].clone();
        calls.push((played.now.as_second(), call.attempt, call.step, call.id));
        assert!(played.step(Event::Failed { call: call.id, error: error.to_owned(), cause: String::new() }));
        if let Some(timer) = played.run.pending().timers.into_iter().find(|timer| timer.id > 0) {
            played.now = timer.due;
            assert!(played.step(Event::Due { timer: timer.id }));
        }
    }
    let times: Vec<_> = calls.iter().map(|(at, attempt, ..)| (*at, *attempt)).collect();
    // Seen red with rate^n instead of rate^(n-1).
    assert_eq!(times, [(0, 1), (1, 2), (11, 3), (13, 4), (17, 5)], "1 s, 10 s, 2 s, 4 s");
    assert!(calls.iter().all(|(_, _, step, _)| *step == 1), "one visit has one key");
    assert_eq!(calls.iter().map(|(.., id)| id).collect::<std::collections::BTreeSet<_>>().len(), 5);
    assert_eq!(played.outcome(), json!({"failed": "A"}));
}

#[test]
fn delays_have_a_bound_and_may_be_random() {
    let text = alone(
        "retry: [{errorEquals: [States.TaskFailed], intervalSeconds: 4, maxAttempts: 4, maxDelaySeconds: 6}]",
    );
    let played = play(&text, json!({}), |_| Err(("E", "")));
    assert_eq!(played.run.at(), at(4 + 6 + 6 + 6));
    let jitter = text.replace("maxDelaySeconds: 6", "maxDelaySeconds: 6, jitterStrategy: FULL");
    let (first, again) =
        (play(&jitter, json!({}), |_| Err(("E", ""))), play(&jitter, json!({}), |_| Err(("E", ""))));
    assert_eq!(first.run, again.run);
    assert!(first.run.at() < at(22) && first.run.at() > at(0), "{}", first.run.at());
}

#[test]
fn each_visit_of_a_state_has_its_attempts_anew() {
    let text = "{startAt: t, states: {t: {type: Task, function: f, next: c, retry: [{errorEquals: [E], maxAttempts: 1}]}, \
                c: {type: Choice, choices: [{variable: $.n, numericLessThan: 3, next: t}], default: e}, e: {type: Succeed}}}";
    let mut calls = 0;
    let played = play(text, json!({}), |call| {
        calls += 1;
        if call.attempt == 1 { Err(("E", "")) } else { Ok(json!({"n": calls})) }
    });
    assert_eq!((played.outcome(), calls), (json!({"n": 4}), 4));
}

#[test]
fn handlers_fit_by_the_names_of_the_language() {
    for (error, names, fits) in [
        ("Mine", "[Mine]", true),
        ("Mine", "[Other, Mine]", true),
        ("Mine", "[Other]", false),
        ("Mine", "[States.TaskFailed]", true),
        ("Mine", "[States.ALL]", true),
        ("States.Timeout", "[States.TaskFailed]", false),
        ("States.Timeout", "[States.Timeout]", true),
        ("States.HeartbeatTimeout", "[States.Timeout]", true),
        ("States.HeartbeatTimeout", "[States.TaskFailed]", false),
        ("States.Permissions", "[States.TaskFailed]", true),
        ("States.DataLimitExceeded", "[States.ALL]", false),
        ("States.DataLimitExceeded", "[States.DataLimitExceeded]", true),
        ("States.Runtime", "[States.ALL]", false),
        ("States.Runtime", "[States.Runtime]", false),
    ] {
        let text = task(&format!("catch: [{{errorEquals: {names}, next: caught}}]"));
        let outcome = play(&text, json!({}), |_| Err((error, "why"))).outcome();
        let wanted =
            if fits { json!({"caught": {"Error": error, "Cause": "why"}}) } else { json!({"failed": error}) };
        assert_eq!(outcome, wanted, "{error} {names}");
    }
}

#[test]
fn a_catcher_puts_the_error_where_its_path_says_and_comes_after_the_retriers() {
    let text = task(
        "retry: [{errorEquals: [E], maxAttempts: 2}], catch: [{errorEquals: [Other], next: caught}, \
         {errorEquals: [E], resultPath: $.failure, next: caught}]",
    );
    let mut calls = 0;
    let played = play(&text, json!({"x": 1}), |_| {
        calls += 1;
        Err(("E", "why"))
    });
    assert_eq!(calls, 3);
    assert_eq!(played.outcome(), json!({"caught": {"x": 1, "failure": {"Error": "E", "Cause": "why"}}}));
}

#[test]
fn an_error_of_the_data_of_a_task_is_caught_before_the_call() {
    let text = task(
        "parameters: {x.$: $.none}, catch: [{errorEquals: [States.ParameterPathFailure], next: caught}]",
    );
    let played = play(&text, json!({}), |call| panic!("{}", call.function));
    assert_eq!(played.outcome()["caught"]["Error"], "States.ParameterPathFailure");
}

#[test]
fn a_function_that_takes_too_long_or_gives_no_sign_of_life_times_out() {
    let fields = "timeoutSecondsPath: $.limit, heartbeatSeconds: 3, catch: [{errorEquals: [States.ALL], next: caught}]";
    let begin = || Played::begin(spec(&task(fields)), json!({"limit": 10}));
    let timers = |played: &Played| {
        let mut timers = played.run.pending().timers;
        timers.retain(|timer| timer.id > 0);
        timers.sort_by_key(|timer| timer.due);
        timers
    };
    let mut silent = begin();
    let [heartbeat, timeout] = timers(&silent)[..] else { panic!() };
    assert_eq!((heartbeat.due, timeout.due), (at(3), at(10)));
    silent.now = at(3);
    assert!(silent.step(Event::Due { timer: heartbeat.id }));
    silent.go_on();
    assert_eq!(silent.outcome()["caught"]["Error"], "States.HeartbeatTimeout");

    let mut alive = begin();
    let call = alive.run.pending().calls[0].id;
    for second in [2, 4, 6, 8] {
        alive.now = at(second);
        assert!(alive.step(Event::Beat { call }));
        assert!(!alive.step(Event::Beat { call }), "a second beat at the same time changes nothing");
        assert!(!alive.step(Event::Due { timer: heartbeat.id }), "it was put off");
    }
    alive.now = at(10);
    assert!(alive.step(Event::Due { timer: timeout.id }));
    assert!(!alive.step(Event::Returned { call, output: json!(1) }), "too late");
    alive.go_on();
    assert_eq!(alive.outcome()["caught"]["Error"], "States.Timeout");
    assert!(alive.kinds().contains(&"TaskTimedOut"));
    // Without the heartbeats, which are not entries, the journal leads to the same run.
    let mut again = begin();
    for (at, event) in alive.journal.iter().filter(|(_, event)| !matches!(event, Event::Beat { .. })) {
        again.now = *at;
        assert!(again.step(event.clone()));
    }
    assert_eq!((again.run.outcome(), again.run.events()), (alive.run.outcome(), alive.run.events()));
}
