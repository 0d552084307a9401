//! Triggers, with their records and runs in etcd.

use std::sync::Arc;

use jiff::Timestamp;
use schema::codec::decode;
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::records::TriggerRecord;
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use serde_json::json;

use super::super::plan::{Observed, RunStep};
use super::super::records::{Origin, RunId};
use super::super::{RequestError, RunRequestOutcome, kept_run, plan, request_run};
use super::kit::{Kit, id};
use crate::controllers::LastKnown;

const PASS: &str = "\n  startAt: a\n  states: {a: {type: Pass, end: true}}";

fn spec(cron: &str) -> String {
    format!("\n  triggers: [{{name: tick, schedule: {{cron: '{cron}'}}}}]{PASS}")
}

/// A future date: a run then is within its time limit, which uses the real clock.
fn at(time: &str) -> Timestamp {
    format!("2099-11-23T{time}Z").parse().unwrap()
}

fn flow() -> ObjectRef {
    ObjectRef { kind: Kind::Workflow, namespace: "default".into(), name: "flow".into() }
}

async fn record(kit: &Kit) -> Option<TriggerRecord> {
    let found = kit.store.get(&Key::Trigger(flow(), "tick".into()).to_string()).await.unwrap();
    found.map(|found| decode(&found.value).unwrap())
}

async fn runs(kit: &Kit) -> Vec<String> {
    let heads = kit.store.list(prefix::RUN_HEADS).await.unwrap().items;
    heads.iter().filter_map(|head| head.key.rsplit('/').next().map(str::to_owned)).collect()
}

// The record and the head of the run each prevent a second run.
#[tokio::test]
async fn a_tick_starts_one_run_under_any_leader() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, &spec("*/5 * * * *")).await;
    kit.look_at(at("16:03:00")).await;
    assert_eq!(record(&kit).await.unwrap().next, Some(at("16:05:00")));
    assert_eq!(runs(&kit).await.len(), 0, "the first sight starts nothing");
    for second in ["16:05:00", "16:05:01"] {
        kit.look_at(at(second)).await;
        assert_eq!(record(&kit).await.unwrap().next, Some(at("16:10:00")));
        kit.crash().await;
        kit.look_at(at(second)).await;
    }
    assert_eq!(runs(&kit).await, ["tick.20991123T1605Z"]);
    kit.ended("flow", "tick.20991123T1605Z").await;
    let (head, _, loaded) = kept_run(&kit.store, &id("flow", "tick.20991123T1605Z")).await.unwrap().unwrap();
    assert_eq!(head.origin.to_string(), "trigger tick of 2099-11-23T16:05:00Z");
    assert_eq!(loaded.input, json!({"trigger": "tick", "time": "2099-11-23T16:05:00Z"}));
}

#[tokio::test]
async fn a_tick_while_all_was_down_is_run_once_and_said() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, &spec("* * * * *")).await;
    kit.look_at(at("16:00:30")).await;
    kit.crash().await;
    kit.look_at(at("16:03:10")).await;
    kit.look_at(at("16:03:11")).await;
    assert_eq!(runs(&kit).await, ["tick.20991123T1603Z"]);
    assert_eq!(record(&kit).await.unwrap().last.unwrap().missed, 2);
}

// Seen red with the stranger's run taken for that of the tick, with its input.
#[tokio::test]
async fn a_stranger_who_takes_the_id_of_a_tick_first_changes_nothing_of_its_run() {
    let mut kit = Kit::new().await;
    // Before there is such a trigger, nobody's ids are reserved.
    kit.push("flow", 1, PASS).await;
    kit.ask("flow", "tick.20991123T1602Z", json!({"of": "a stranger"})).await;
    kit.ended("flow", "tick.20991123T1602Z").await;
    kit.push("flow", 2, &spec("* * * * *")).await;
    kit.look_at(at("16:00:30")).await;
    kit.ask("flow", "tick.20991123T1601Z", json!({"of": "a stranger"})).await;
    for time in ["16:00:31", "16:01:00", "16:01:01", "16:02:00", "16:02:01"] {
        kit.look_at(at(time)).await;
    }
    assert_eq!(runs(&kit).await, ["tick.20991123T1601Z", "tick.20991123T1602Z", "tick.20991123T1602Z-2"]);
    for (run, time) in [("tick.20991123T1601Z", "16:01:00"), ("tick.20991123T1602Z-2", "16:02:00")] {
        let (_, _, loaded) = kept_run(&kit.store, &id("flow", run)).await.unwrap().unwrap();
        assert_eq!(loaded.input, json!({"trigger": "tick", "time": format!("2099-11-23T{time}Z")}), "{run}");
    }
    assert_eq!(record(&kit).await.unwrap().last.unwrap().run, "tick.20991123T1602Z-2");
    assert_eq!(kit.count(prefix::RUN_REQUESTS).await, 0, "the stranger's request is removed");
}

// Would fail with any run of that id taken for the caller's: its input was dropped.
#[tokio::test]
async fn a_call_whose_id_a_stranger_has_is_told() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, PASS).await;
    let (run, stranger) = (id("flow", "paid.order-1"), Origin::Request { reconciler: "r0".into() });
    let call = Origin::Call { trigger: "paid".into(), reconciler: "r0".into() };
    let ask = async |store: &SharedStore, origin: &Origin| {
        request_run(store, &run, json!({}), origin.clone(), Timestamp::now()).await
    };
    assert!(matches!(ask(&kit.store, &stranger).await, Ok(RunRequestOutcome::New)));
    assert!(matches!(ask(&kit.store, &call).await, Err(RequestError::Taken)), "while it waits");
    assert!(matches!(ask(&kit.store, &stranger).await, Ok(RunRequestOutcome::Existing)));
    kit.ended("flow", "paid.order-1").await;
    assert!(matches!(ask(&kit.store, &call).await, Err(RequestError::Taken)), "once it has run");
}

#[tokio::test]
async fn to_change_a_trigger_starts_no_run_of_the_push_and_its_end_takes_the_record() {
    let mut kit = Kit::new().await;
    let with_params = |cron: &str| format!("\n  params: {{}}{}", spec(cron));
    kit.push("flow", 1, &with_params("* * * * *")).await;
    kit.look_at(at("16:00:30")).await;
    kit.push("flow", 2, &with_params("0 3 * * *")).await;
    kit.look_at(at("16:05:30")).await;
    assert_eq!(runs(&kit).await.len(), 1, "that of the first push");
    assert_eq!(record(&kit).await.unwrap().next, Some("2099-11-24T03:00:00Z".parse().unwrap()));
    kit.push("flow", 3, PASS).await;
    kit.look_at(at("16:06:30")).await;
    assert_eq!(record(&kit).await, None);
}

// Seen red without triggers in `LastKnown::from_disk`.
#[tokio::test]
async fn after_a_loss_of_etcd_the_disk_says_which_ticks_had_their_run() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, &spec("*/5 * * * *")).await;
    kit.settle().await;
    for time in ["16:03:00", "16:05:00", "16:05:01"] {
        kit.look_at(at(time)).await;
    }
    let whole = kit.snapshot.current();
    let kept =
        LastKnown::from_disk(&LastKnown::from_snapshot(&whole, Timestamp::UNIX_EPOCH).unwrap().to_disk());
    let lost = Snapshot { objects: whole.objects.clone(), ..Snapshot::default() };
    let mut seen = Observed {
        resting: Vec::new(),
        snapshot: Arc::new(lost),
        last_known: Arc::new(kept),
        heads: Default::default(),
        carried: Default::default(),
        idle: Vec::new(),
        requests: Vec::new(),
        unreadable: Vec::new(),
        forgets: false,
        quota_bytes: 2 << 30,
    };
    let begun = |plan: &plan::RunSteps| {
        let begins = plan.steps.iter().filter_map(|step| match step {
            RunStep::Begin(begin) => Some(begin.id.run.clone()),
            _ => None,
        });
        begins.collect::<Vec<_>>()
    };
    let soon = plan::plan(&seen, at("16:06:00"));
    assert_eq!((begun(&soon).len(), soon.again_at), (0, Some(at("16:10:00"))));
    assert!(soon.steps.iter().any(|step| matches!(step, RunStep::WriteTrigger(_))), "etcd gets it back");
    assert_eq!(begun(&plan::plan(&seen, at("16:21:00"))), ["tick.20991123T1620Z"]);
    seen.last_known = Arc::default();
    assert_eq!(begun(&plan::plan(&seen, at("16:21:00"))).len(), 0, "without it, it is the first sight");
}

const BY_COMMIT: &str = "\n  triggers: [{name: data, onCommit: {paths: [/data/]}}]";

fn commit_of(flow: &ObjectRef, digit: char) -> (RunId, Origin) {
    let commit = digit.to_string().repeat(40);
    let run = RunId::for_object(flow, format!("data.{commit:.12}"));
    (run, Origin::Commit { trigger: "data".into(), commit })
}

// Seen red with a request whose origin differs from that of the head.
#[tokio::test]
async fn what_a_trigger_asks_for_is_a_run_of_its_own_and_said_once() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, &format!("{BY_COMMIT}{PASS}")).await;
    let (first, origin) = commit_of(&flow(), 'a');
    kit.ask_as(&first, json!({"paths": ["data/1"]}), origin.clone()).await;
    let (second, other) = commit_of(&flow(), 'b');
    kit.ask_as(&second, json!({}), other).await;
    let head = kit.ended("flow", &first.run).await;
    assert_eq!(head.origin.to_string(), "trigger data of commit aaaaaaaaaaaa");
    kit.ended("flow", &second.run).await;
    assert_eq!(kit.ask_as(&first, json!({}), origin).await, RunRequestOutcome::Existing);
    assert_eq!(runs(&kit).await, ["data.aaaaaaaaaaaa", "data.bbbbbbbbbbbb"]);
    let found = kit.store.get(&Key::Trigger(flow(), "data".into()).to_string()).await.unwrap().unwrap();
    let record: TriggerRecord = decode(&found.value).unwrap();
    let last = record.last.unwrap();
    assert_eq!((last.run, last.commit), (second.run, Some("b".repeat(40))));
    kit.push("flow", 2, PASS).await;
    kit.look().await;
    assert_eq!(kit.count(prefix::TRIGGERS).await, 0, "its end takes the record");
}

#[tokio::test]
async fn a_trigger_of_a_function_runs_one_task_which_ends_with_the_function() {
    let mut kit = Kit::new().await;
    let spec = "{image: 'example/thumb:1', triggers: [{name: tick, schedule: {cron: '*/5 * * * *'}}]}";
    kit.push_kind(Kind::Function, "thumb", 1, spec).await;
    kit.look_at(at("16:03:00")).await;
    kit.look_at(at("16:05:00")).await;
    let id = RunId::for_object(&thumb(), "tick.20991123T1605Z");
    let (head, spec, _) = kept_run(&kit.store, &id).await.unwrap().unwrap();
    assert_eq!(id.to_string(), "default/function:thumb/tick.20991123T1605Z");
    assert_eq!((head.is_running(), spec.functions()[0].1), (true, "thumb"));
    let key = Key::Trigger(thumb(), "tick".into()).to_string();
    assert!(kit.store.get(&key).await.unwrap().is_some());
    kit.look_at(at("16:05:01")).await;
    kit.remove_kind(Kind::Function, "thumb").await;
    let ended = kit.ended("function:thumb", "tick.20991123T1605Z").await;
    assert_eq!(ended.cause, "its function was removed");
    assert!(kit.store.get(&key).await.unwrap().is_none());
    assert_eq!(kit.count(prefix::WORKFLOWS).await, 0, "it is not a workflow");
}

fn thumb() -> ObjectRef {
    ObjectRef { kind: Kind::Function, namespace: "default".into(), name: "thumb".into() }
}
