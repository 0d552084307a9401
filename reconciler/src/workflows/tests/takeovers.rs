//! Runs that a new leader finds: those that may have crashed the leaders before, those that must end, those in an
//! endless loop, and old ones.

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use jiff::{SignedDuration, Timestamp};
use schema::keys::prefix;
use schema::kinds::workflow::RunPhase;
use serde_json::json;

use super::super::machine::{PANICS, errors};
use super::super::plan::KEPT_FOR;
use super::super::records::TRIES_MAX;
use super::calls::{Functions, gateway, node, one_task};
use super::kit::{COUNTS, Kit, count_to, id};

/// Runs the loop once, and gives the tasks of runs their turn.
async fn look_and_let_work(kit: &mut Kit) {
    kit.look().await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_run_that_no_reconciler_can_work_out_ends_after_five_tries_and_disturbs_no_other() {
    let mut kit = Kit::new().await;
    let panics = format!(
        "\n  startAt: a\n  states: {{a: {{type: Pass, next: {PANICS}}}, {PANICS}: {{type: Pass, end: true}}}}"
    );
    // One fails as soon as it starts, the other at the first state missing from its journal.
    kit.push("at-once", 1, &panics.replace("startAt: a", &format!("startAt: {PANICS}"))).await;
    kit.push("later", 1, &panics).await;
    kit.push("waits", 1, "\n  startAt: w\n  states: {w: {type: Wait, seconds: 3000, end: true}}").await;
    for flow in ["at-once", "later", "waits"] {
        kit.ask(flow, "r1", json!({})).await;
    }
    for _ in 0..=TRIES_MAX {
        assert!(kit.head("later", "r1").await.is_none_or(|head| head.is_running()), "too soon");
        look_and_let_work(&mut kit).await;
        kit.crash().await;
    }
    for flow in ["at-once", "later"] {
        let head = kit.ended(flow, "r1").await;
        assert_eq!((head.phase, head.error.as_str()), (RunPhase::Failed, errors::CRASHED), "{flow}");
        assert!(head.cause.contains("5 attempts") && head.cause.contains("entry 1 "), "{}", head.cause);
        assert_eq!(head.tries, None);
    }
    look_and_let_work(&mut kit).await;
    let waits = kit.head("waits", "r1").await.unwrap();
    assert!(waits.is_running() && waits.tries.is_none(), "{waits:?}");
}

#[tokio::test]
async fn a_run_that_fails_with_each_answer_of_a_function_ends_after_five_tries() {
    let mut kit = Kit::new().await;
    let functions: Functions = Arc::default();
    gateway(&kit, &functions).await;
    let flow = format!(
        "\n  startAt: a\n  states: {{a: {{type: Task, function: f, next: {PANICS}}}, {PANICS}: {{type: Pass, end: true}}}}"
    );
    kit.push("flow", 1, &flow).await;
    kit.ask("flow", "r1", json!({})).await;
    let called = || functions.lock().unwrap().get("f").map_or(0, |(_, keys)| keys.len());
    for tries in 1..=TRIES_MAX + 1 {
        kit.until("the function is called again", async |_: &Kit| (called() >= tries as usize).then_some(()))
            .await;
        look_and_let_work(&mut kit).await;
        kit.crash().await;
    }
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.error.as_str(), called()), (errors::CRASHED, 1 + TRIES_MAX as usize));
}

#[tokio::test]
async fn a_run_that_waits_is_taken_up_as_often_as_leaders_change() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, "\n  startAt: w\n  states: {w: {type: Wait, seconds: 3000, end: true}}").await;
    kit.ask("flow", "r1", json!({})).await;
    for _ in 0..3 * TRIES_MAX {
        look_and_let_work(&mut kit).await;
        kit.crash().await;
    }
    assert!(kit.head("flow", "r1").await.unwrap().is_running());
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_nobody_leads_makes_no_call_any_more() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, &one_task("f", "")).await;
    kit.push("gone", 1, &one_task("f", "")).await;
    for flow in ["flow", "gone"] {
        kit.ask(flow, "r1", json!({})).await;
        // There is no node, so the call waits.
        kit.until("it begins", async |kit: &Kit| kit.head(flow, "r1").await).await;
    }
    kit.crash().await;
    kit.push("flow", 2, &format!("\n  cancel: [r1]{}", one_task("f", ""))).await;
    kit.remove("gone").await;
    let functions: Functions = Arc::default();
    gateway(&kit, &functions).await;
    for (flow, why) in [("flow", "spec.cancel names it"), ("gone", "its workflow was removed")] {
        let head = kit.ended(flow, "r1").await;
        assert_eq!((head.phase, head.cause.as_str()), (RunPhase::Aborted, why));
    }
    assert!(functions.lock().unwrap().is_empty(), "it was called");
}

#[tokio::test]
async fn a_run_that_its_workflow_cancels_in_advance_makes_no_call() {
    let spec = |cancel: &str| format!("\n  params: {{}}\n  cancel: [{cancel}]{}", one_task("f", ""));
    let mut kit = Kit::new().await;
    kit.push("flow", 1, &spec("nothing")).await;
    let run = kit.until("a run", async |kit: &Kit| kit.record("flow").await?.last_run).await.id;

    let mut kit = Kit::new().await;
    let functions: Functions = Arc::default();
    gateway(&kit, &functions).await;
    let triggers = "\n  triggers: [{name: tick, schedule: {cron: '*/5 * * * *'}}]\n  cancel: [tick.20991123T1605Z, asked]";
    kit.push("timed", 1, &format!("{triggers}{}", one_task("f", ""))).await;
    for second in ["16:03:00", "16:05:00"] {
        kit.look_at(format!("2099-11-23T{second}Z").parse().unwrap()).await;
    }
    kit.push("flow", 1, &spec(&run)).await;
    kit.ask("timed", "asked", json!({})).await;
    for (flow, run) in [("timed", "tick.20991123T1605Z"), ("flow", run.as_str()), ("timed", "asked")] {
        let head = kit.ended(flow, run).await;
        assert_eq!((head.phase, head.cause.as_str()), (RunPhase::Aborted, "spec.cancel names it"), "{run}");
    }
    assert!(functions.lock().unwrap().is_empty(), "it was called");
}

#[tokio::test]
async fn a_run_that_goes_round_in_circles_keeps_none_of_499_others_waiting() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    let three = "\n  startAt: a\n  states: {a: {type: Pass, next: b}, b: {type: Pass, next: c}, c: {type: Pass, end: true}}";
    kit.push("short", 1, three).await;
    kit.ask("flow", "endless", count_to(1_000_000)).await;
    for number in 0..499 {
        kit.ask("short", &format!("r{number:03}"), json!({})).await;
    }
    kit.until("499 runs end", async |kit: &Kit| {
        let heads = kit.store.list(&format!("{}default/short/", prefix::RUN_HEADS)).await.unwrap().items;
        let ended =
            heads.iter().filter(|head| head.value.windows(9).any(|text| text == b"Succeeded")).count();
        (ended == 499).then_some(())
    })
    .await;
    let endless = kit.head("flow", "endless").await.unwrap();
    assert!(endless.is_running(), "it ended first: {endless:?}");
    let ended = kit.ended("flow", "endless").await;
    assert_eq!(ended.error, "Minik8s.StepLimitExceeded");
}

#[tokio::test]
async fn old_runs_are_forgotten_as_fast_as_the_loop_looks() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(1)).await;
    let mut head = kit.ended("flow", "r1").await;
    head.finished_at = Some(Timestamp::now() - KEPT_FOR - SignedDuration::from_secs(60));
    for number in 0..450 {
        kit.put(&id("flow", &format!("old{number}")).head(), serde_json::to_vec(&head).unwrap()).await;
    }
    kit.crash().await;
    kit.settle().await;
    for left in [251, 51, 1] {
        kit.look().await;
        assert_eq!(kit.count(prefix::RUN_HEADS).await, left);
    }
}

#[tokio::test]
async fn a_look_reads_no_inputs_of_runs_that_wait() {
    let mut kit = Kit::new().await;
    let input = json!({"text": "x".repeat(200 * 1024)});
    kit.push("flow", 1, &one_task("f", "")).await;
    kit.ask("flow", "r1", input.clone()).await;
    let requests = kit.store.list(prefix::RUN_REQUESTS).await.unwrap().items;
    assert!(requests.iter().all(|request| request.value.len() < 500), "{requests:?}");
    // The function gets the whole input.
    let router = Router::new().route("/{namespace}/{name}", post(|body: String| async move { body }));
    node(&kit, router).await;
    assert_eq!(kit.ended("flow", "r1").await.phase, RunPhase::Succeeded);
    let (.., loaded) = super::super::kept_run(&kit.store, &id("flow", "r1")).await.unwrap().unwrap();
    assert_eq!(loaded.input, input);
}

#[tokio::test]
async fn a_long_history_has_only_the_newest_of_its_data() {
    let mut kit = Kit::new().await;
    let counts = "
  startAt: count
  states:
    count: {type: Pass, parameters: {n.$: 'States.MathAdd($.c.n, 1)'}, resultPath: $.c, next: enough}
    enough:
      type: Choice
      choices: [{variable: $.c.n, numericLessThan: 60, next: count}]
      default: done
    done: {type: Succeed, outputPath: $.c.n}";
    kit.push("flow", 1, counts).await;
    kit.ask("flow", "r1", json!({"c": {"n": 0}, "text": "x".repeat(200 * 1024)})).await;
    kit.ended("flow", "r1").await;
    let run = id("flow", "r1");
    let (head, spec, loaded) = super::super::kept_run(&kit.store, &run).await.unwrap().unwrap();
    let page = crate::view::run_detail(&run.workflow, "r1", (&head, spec), loaded, Timestamp::now());
    let data = page.history.iter().flat_map(|event| event.detail.input.iter().chain(&event.detail.output));
    let bytes: usize = data.map(super::super::machine::context::size).sum();
    assert!((24 << 20..=32 << 20).contains(&bytes), "{bytes} bytes");
    // The start, 121 states entered and exited, and the end.
    assert_eq!((page.history.len(), page.output), (1 + 2 * 121 + 1, Some(json!(60))));
    let first = page.history.iter().position(|event| event.detail.input.is_some()).unwrap();
    assert_eq!(first, page.without_data);
}
