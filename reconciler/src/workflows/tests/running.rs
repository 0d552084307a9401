//! Starting, resuming after crashes, ending and forgetting runs.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::control::Nudge;
use schema::keys::prefix;
use schema::kinds::workflow::RunPhase;
use schema::snapshot::Snapshot;
use serde_json::{Value as Json, json};

use super::super::active_runs::{Heads, Progress, StoredHead};
use super::super::batches::Batches;
use super::super::journal::Journal;
use super::super::plan::{KEPT_FOR, KEPT_PER_WORKFLOW, Observed, RUNNING_MAX, RunStep, RunSteps};
use super::super::records::{Origin, RunHead};
use super::super::request::WAITING_MAX;
use super::super::{NewRun, RequestError, RequestQueue, RunRequestOutcome, kept_run, plan, request_run};
use super::kit::{COUNTS, Kit, count_to, id};

const WAITS: &str = "\n  startAt: wait\n  states:\n    wait: {type: Wait, seconds: 3000, end: true}";

// Seen red without the comparison of hashes in `plan::status`.
#[tokio::test]
async fn a_push_with_params_starts_one_run_for_each_change_of_what_runs() {
    let mut kit = Kit::new().await;
    let spec = |n: u32, more: &str| format!("\n  params: {{n: 0, until: {n}}}{more}{COUNTS}");
    kit.push("flow", 1, &spec(3, "")).await;
    let first = kit.until("a run", async |kit: &Kit| kit.record("flow").await?.last_run).await;
    assert!(first.id.starts_with("push-1-"), "{first:?}");
    assert_eq!(kit.ended("flow", &first.id).await.phase, RunPhase::Succeeded);
    kit.push("flow", 2, &spec(3, "\n  cancel: [nothing]")).await;
    for _ in 0..3 {
        kit.look().await;
    }
    assert_eq!(kit.count(prefix::RUN_HEADS).await, 1, "to end a run starts none");
    let record = kit.record("flow").await.unwrap();
    assert_eq!(
        (record.generation, record.running, record.last_run.unwrap().phase),
        (2, 0, RunPhase::Succeeded)
    );
    kit.push("flow", 3, &spec(4, "")).await;
    kit.until("another run", async |kit: &Kit| (kit.count(prefix::RUN_HEADS).await == 2).then_some(())).await;
    kit.remove("flow").await;
    kit.until("the record goes", async |kit: &Kit| kit.record("flow").await.is_none().then_some(())).await;
}

#[tokio::test]
async fn the_same_id_is_the_same_run_and_its_input_may_lie_in_parts() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, "\n  startAt: a\n  states: {a: {type: Pass, end: true}}").await;
    // Quotes and multi-byte characters: no part may end within one.
    let input = json!({"text": "\"€𝄞\\".repeat(9_000)});
    assert_eq!(kit.ask("flow", "big", input.clone()).await, RunRequestOutcome::New);
    assert_eq!(kit.ask("flow", "big", Json::Null).await, RunRequestOutcome::Existing);
    assert!(kit.count(prefix::RUN_INPUTS).await > 1);
    assert_eq!(kit.ended("flow", "big").await.phase, RunPhase::Succeeded);
    assert_eq!(kit.ask("flow", "big", Json::Null).await, RunRequestOutcome::Existing);
    kit.look().await;
    let (_, _, loaded) = kept_run(&kit.store, &id("flow", "big")).await.unwrap().unwrap();
    assert_eq!(loaded.input, input);
    assert_eq!(kit.count(prefix::RUN_INPUTS).await + kit.count(prefix::RUN_REQUESTS).await, 0);
    for item in kit.store.list("/minik8s-runs/").await.unwrap().items {
        assert!(item.value.len() <= 64 * 1024, "{} has {} bytes", item.key, item.value.len());
    }
}

#[tokio::test]
async fn a_lost_answer_of_etcd_writes_no_entry_twice() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(40)).await;
    kit.until("it begins", async |kit: &Kit| kit.head("flow", "r1").await).await;
    for _ in 0..6 {
        kit.memory.lose_next_answers(1);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let head = kit.ended("flow", "r1").await;
    // 40 times two states, plus the last one.
    assert_eq!((head.phase, head.steps), (RunPhase::Succeeded, 81));
}

// Seen red with a `resume` that starts from the beginning of the journal.
#[tokio::test]
async fn a_run_goes_on_where_its_journal_ends_whenever_its_process_ends() {
    let mut kit = Kit::new().await;
    // A wait in each round gives the test its turn.
    let counts =
        COUNTS.replace("next: enough}", "next: rest}\n    rest: {type: Wait, seconds: 0, next: enough}");
    kit.push("flow", 1, &counts).await;
    kit.ask("flow", "r1", count_to(100)).await;
    let mut crashes = 0;
    while kit.head("flow", "r1").await.is_none_or(|head| head.is_running()) {
        kit.look().await;
        tokio::task::yield_now().await;
        let before = Journal::load(&kit.store, &id("flow", "r1")).await.unwrap();
        kit.crash().await;
        crashes += 1;
        let after = Journal::load(&kit.store, &id("flow", "r1")).await.unwrap();
        let length =
            |loaded: Option<super::super::LoadedJournal>| loaded.map_or(0, |loaded| loaded.entries.len());
        assert!(length(after) >= length(before), "the journal only grows");
        // The next one gets further before it ends, too.
        kit.look().await;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert!(crashes < 500, "it does not go on");
    }
    let (head, spec, loaded) = kept_run(&kit.store, &id("flow", "r1")).await.unwrap().unwrap();
    assert_eq!((head.phase, head.steps), (RunPhase::Succeeded, 301));
    let workflow = id("flow", "r1").workflow;
    let page = crate::view::run_detail(&workflow, "r1", (&head, spec), loaded, Timestamp::now());
    assert_eq!(page.output, Some(json!(100)));
    assert!(crashes > 1, "it ended before it could be disturbed");
}

#[tokio::test]
async fn a_long_journal_is_a_few_keys() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(1_000)).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.steps), (RunPhase::Succeeded, 2_001));
    let keys = kit.journal_keys("flow", "r1").await;
    assert!(keys <= 1 + 20 + 100, "{keys} keys");
    let (_, _, loaded) = kept_run(&kit.store, &id("flow", "r1")).await.unwrap().unwrap();
    assert_eq!(loaded.entries.len(), 2_001);
}

#[tokio::test]
async fn what_is_too_much_waits_and_begins_when_another_ends() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, WAITS).await;
    for number in 0..RUNNING_MAX + 2 {
        kit.ask("flow", &format!("r{number:03}"), json!({})).await;
    }
    kit.look().await;
    kit.look().await;
    let record = kit.record("flow").await.unwrap();
    assert_eq!((record.running, record.waiting), (500, 2));
    let end = format!("\n  cancel: [r000]{WAITS}");
    kit.push("flow", 2, &end).await;
    assert_eq!(kit.ended("flow", "r000").await.phase, RunPhase::Aborted);
    kit.until("one more begins", async |kit: &Kit| (kit.record("flow").await?.waiting == 1).then_some(()))
        .await;
    kit.remove("flow").await;
    let head = kit.ended("flow", "r400").await;
    assert_eq!((head.phase, head.cause.as_str()), (RunPhase::Aborted, "its workflow was removed"));
    kit.look().await;
    assert_eq!(kit.count(prefix::RUN_REQUESTS).await, 1, "its workflow may be on its way");
    kit.look_at(Timestamp::now() + SignedDuration::from_secs(20)).await;
    assert_eq!(kit.count(prefix::RUN_REQUESTS).await, 0);
}

// Seen red without `make_sure`: the run is started, and nobody continues it.
#[tokio::test]
async fn a_run_whose_beginning_was_not_answered_goes_on() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(3)).await;
    // The answers to the look's own write and to the start of the run are lost.
    kit.memory.lose_next_answers(2);
    kit.try_to_look().await;
    assert!(kit.head("flow", "r1").await.is_some());
    assert_eq!(kit.ended("flow", "r1").await.phase, RunPhase::Succeeded);
}

// Seen red with the same name for every run.
#[tokio::test]
async fn a_workflow_that_comes_back_runs_again() {
    let mut kit = Kit::new().await;
    let spec = format!("\n  params: {{n: 0, until: 2}}{COUNTS}");
    kit.push("flow", 1, &spec).await;
    kit.until("a run", async |kit: &Kit| (kit.count(prefix::RUN_HEADS).await == 1).then_some(())).await;
    kit.remove("flow").await;
    kit.until("the record goes", async |kit: &Kit| kit.record("flow").await.is_none().then_some(())).await;
    kit.push("flow", 1, &spec).await;
    kit.until("another run", async |kit: &Kit| (kit.count(prefix::RUN_HEADS).await == 2).then_some(())).await;
    let last = kit.record("flow").await.unwrap().last_run.unwrap();
    assert!(last.id.ends_with("-2"), "{last:?}");
}

#[tokio::test]
async fn a_run_whose_journal_cannot_be_read_ends_with_an_error() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, WAITS).await;
    for run in ["garbage", "gap", "fine"] {
        kit.ask("flow", run, json!({})).await;
        kit.until("it begins", async |kit: &Kit| kit.head("flow", run).await).await;
    }
    kit.crash().await;
    kit.put(&id("flow", "garbage").entries(0), b"{\"begun\": 7".to_vec()).await;
    let late = br#"{"entries": [{"at": "2026-11-23T16:00:00Z", "event": {"type": "continue"}}]}"#;
    kit.put(&id("flow", "gap").entries(9), late.to_vec()).await;
    for (run, why) in [("garbage", "journal/default/flow/garbage/"), ("gap", "entry 1 is missing")] {
        let head = kit.ended("flow", run).await;
        assert_eq!((head.phase, head.error.as_str()), (RunPhase::Failed, "Minik8s.JournalUnreadable"));
        assert!(head.cause.contains(why), "{}", head.cause);
    }
    kit.look().await;
    assert_eq!(kit.record("flow").await.unwrap().running, 1);
    assert!(kit.head("flow", "fine").await.unwrap().is_running());
}

// Seen red without the write of the head in `carry_on`: the run is resumed again and again.
#[tokio::test]
async fn a_run_that_its_journal_ends_has_that_end_in_its_head() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, WAITS).await;
    kit.ask("flow", "r1", json!({})).await;
    kit.until("it begins", async |kit: &Kit| kit.head("flow", "r1").await).await;
    kit.crash().await;
    let last =
        br#"{"entries": [{"at": "2026-11-23T16:00:00Z", "event": {"type": "cancelled", "cause": "so"}}]}"#;
    kit.put(&id("flow", "r1").entries(1), last.to_vec()).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.cause.as_str()), (RunPhase::Aborted, "so"));
}

#[tokio::test]
async fn an_input_that_could_not_be_read_back_is_refused_and_such_a_request_is_removed() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, WAITS).await;
    let deep = (0..101).fold(json!(1), |inner, _| json!([inner]));
    let origin = Origin::Request { reconciler: "r0".into() };
    let refused = request_run(&kit.store, &id("flow", "deep"), deep, origin, Timestamp::now()).await;
    assert!(matches!(refused, Err(RequestError::TooDeep)), "{refused:?}");
    kit.put(&id("flow", "broken").request(), b"{\"askedAt\": 7".to_vec()).await;
    kit.look().await;
    assert_eq!(kit.count(prefix::RUN_REQUESTS).await, 0);
}

#[tokio::test]
async fn what_git_asks_for_comes_before_what_people_ask_for() {
    let mut kit = Kit::new().await;
    let triggers = "\n  params: {}\n  triggers: [{name: tick, schedule: {cron: '* * * * *'}}]";
    kit.push("asked", 1, WAITS).await;
    for number in 0..RUNNING_MAX + 3 {
        kit.ask("asked", &format!("r{number:03}"), json!({})).await;
    }
    let now = Timestamp::now();
    kit.look_at(now).await;
    kit.push("pushed", 1, &format!("{triggers}{WAITS}")).await;
    kit.look_at(now).await;
    assert!(kit.record("pushed").await.unwrap().last_run.is_none(), "there is no room yet");
    kit.push("asked", 2, &format!("\n  cancel: [r000, r001]{WAITS}")).await;
    kit.look_at(now).await;
    for run in ["r000", "r001"] {
        while kit.head("asked", run).await.unwrap().is_running() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    // The next tick is due by now, and two places are free.
    kit.look_at(now + SignedDuration::from_secs(61)).await;
    assert!(kit.record("pushed").await.unwrap().last_run.is_some());
    assert_eq!(kit.count(&format!("{}default/pushed/", prefix::RUN_HEADS)).await, 2);
    kit.look_at(now).await;
    assert_eq!(kit.record("asked").await.unwrap().waiting, 3);
}

#[tokio::test]
async fn no_further_run_is_taken_while_too_many_wait() {
    let kit = Kit::new().await;
    let waiting = RequestQueue::default();
    let follows = tokio::spawn(waiting.clone().follow(Arc::clone(&kit.store), Nudge::new().0));
    for number in 0..WAITING_MAX {
        waiting.admit(&kit.store, &id("flow", &format!("r{number}"))).await.unwrap();
        kit.ask("flow", &format!("r{number}"), json!({})).await;
    }
    let refused = async || {
        matches!(waiting.admit(&kit.store, &id("flow", "more")).await, Err(RequestError::TooManyWaiting))
    };
    let until = async |wanted: bool| {
        for _ in 0..2_000 {
            if refused().await == wanted {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("not in time");
    };
    until(true).await;
    waiting.admit(&kit.store, &id("flow", "r7")).await.expect("it waits already");
    let gone = vec![schema::store::Op::delete(id("flow", "r7").request())];
    let _ = kit.store.txn(Vec::new(), gone).await.unwrap();
    until(false).await;
    follows.abort();
}

// Seen red with bytes that are never counted; would fail with those of a repeated request counted twice.
#[tokio::test(start_paused = true)]
async fn a_workflow_has_its_bytes_of_a_minute_and_another_one_its_own() {
    let kit = Kit::new().await;
    let queue = RequestQueue::limited_to(100 * 1024);
    let ask = async |workflow: &str, run: &str| {
        let (input, origin) = (json!("x".repeat(20_000)), Origin::Request { reconciler: "r0".into() });
        let new = NewRun { input, origin, at: Timestamp::UNIX_EPOCH };
        queue.request(&kit.store, &id(workflow, run), new).await
    };
    for run in ["r1", "r2", "r2", "r2", "r3", "r4"] {
        ask("flow", run).await.unwrap();
    }
    let refused = ask("flow", "r5").await;
    let Err(RequestError::TooManyBytes { most, seconds }) = refused else { panic!("{refused:?}") };
    assert_eq!((most, seconds), (100 * 1024, 61));
    assert!(matches!(ask("flow", "r1").await, Ok(RunRequestOutcome::Existing)), "it is there already");
    assert!(matches!(ask("other", "r5").await, Ok(RunRequestOutcome::New)));
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    assert!(matches!(ask("flow", "r5").await, Ok(RunRequestOutcome::New)));
}

/// A run that ended `ended` before `now`.
fn ended_before(now: Timestamp, ended: SignedDuration) -> Arc<StoredHead> {
    let head = RunHead {
        definition: "ab".into(),
        origin: Origin::Push { generation: 1 },
        started_at: now - ended,
        phase: RunPhase::Succeeded,
        finished_at: Some(now - ended),
        state: "a".into(),
        steps: 1,
        bytes: 0,
        error: String::new(),
        cause: String::new(),
        tries: None,
    };
    Arc::new(StoredHead { head, revision: 1 })
}

/// Observed state without running tasks.
fn observed(heads: Heads, snapshot: Arc<Snapshot>) -> Observed {
    Observed {
        snapshot,
        last_known: Arc::default(),
        heads,
        carried: Default::default(),
        idle: Vec::new(),
        resting: Vec::new(),
        requests: Vec::new(),
        unreadable: Vec::new(),
        forgets: true,
        quota_bytes: 2 << 30,
    }
}

/// Ids of the runs to forget, and whether more remain.
fn forgotten(heads: Heads, snapshot: Arc<Snapshot>, now: Timestamp) -> (Vec<String>, bool) {
    let plan = plan::plan(&observed(heads, snapshot), now);
    let more = plan.has_more_to_forget;
    assert_eq!(more, plan.again_at.is_some(), "it looks again at once");
    let forgets = plan.steps.into_iter().filter_map(|step| match step {
        RunStep::Forget { id, definition } => {
            let with = if definition.is_some() { " and its definition" } else { "" };
            Some(format!("{}/{}{with}", id.workflow.name, id.run))
        }
        _ => None,
    });
    (forgets.collect(), more)
}

#[tokio::test]
async fn runs_that_are_resumed_after_a_pause_keep_their_places() {
    let kit = Kit::new().await;
    kit.push("flow", 1, &format!("\n  params: {{}}{WAITS}")).await;
    kit.caught_up().await;
    let begins = |resting: usize| {
        let resting = (0..resting).map(|number| id("other", &number.to_string())).collect();
        let seen = Observed { resting, ..observed(Heads::new(), kit.snapshot.current()) };
        plan::plan(&seen, Timestamp::now()).steps.iter().any(|step| matches!(step, RunStep::Begin(_)))
    };
    assert!(begins(RUNNING_MAX - 1));
    assert!(!begins(RUNNING_MAX));
}

#[test]
fn runs_that_ended_long_ago_or_are_too_many_are_forgotten() {
    let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
    let mut heads = Heads::new();
    for number in 0..KEPT_PER_WORKFLOW + 3 {
        let ended = SignedDuration::from_secs(10_000 - i64::try_from(number).unwrap());
        heads.insert(id("many", &format!("r{number:04}")), ended_before(now, ended));
    }
    let second = SignedDuration::from_secs(1);
    heads.insert(id("few", "old"), ended_before(now, KEPT_FOR + second));
    heads.insert(id("few", "young"), ended_before(now, KEPT_FOR - second));
    let (gone, more) = forgotten(heads, Arc::default(), now);
    assert_eq!(gone, ["few/old", "many/r0000", "many/r0001", "many/r0002"]);
    assert!(!more);
}

#[tokio::test]
async fn runs_take_a_tenth_of_etcds_quota_together_and_the_oldest_go_first() {
    let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
    let run = |seconds: i64, mib: u64| {
        let kept = ended_before(now, SignedDuration::from_secs(seconds));
        Arc::new(StoredHead { head: RunHead { bytes: mib << 20, ..kept.head.clone() }, revision: 1 })
    };
    let mut heads = Heads::new();
    for (workflow, name, seconds, mib) in
        [("a", "old", 400, 6), ("b", "older", 500, 6), ("a", "young", 100, 6), ("b", "younger", 50, 6)]
    {
        heads.insert(id(workflow, name), run(seconds, mib));
    }
    let mut running = run(1_000, 0).head.clone();
    (running.finished_at, running.phase) = (None, RunPhase::Running);
    heads.insert(id("c", "running"), Arc::new(StoredHead { head: running, revision: 1 }));
    let carried =
        |mib: u64| [(id("c", "running"), Progress { state: "a".into(), steps: 1, bytes: mib << 20 })];
    let gone = |running_mib: u64, quota_mib: u64| {
        let (carried, quota_bytes) = (carried(running_mib).into_iter().collect(), quota_mib << 20);
        let seen = Observed { carried, quota_bytes, ..observed(heads.clone(), Arc::default()) };
        let steps = plan::plan(&seen, now).steps.into_iter();
        let forgets = steps.filter_map(|step| match step {
            RunStep::Forget { id, .. } => Some(id.run),
            _ => None,
        });
        forgets.collect::<Vec<_>>()
    };
    for (running_mib, quota_mib, expected) in [
        (0, 240, ""),
        (0, 239, "older"),
        (1, 240, "older"),
        (0, 130, "older old"),
        (12, 240, "older old"),
        (100, 240, "older old young younger"),
    ] {
        assert_eq!(gone(running_mib, quota_mib).join(" "), expected, "{running_mib} of {quota_mib}");
    }
}

#[tokio::test]
async fn the_head_of_a_run_that_ended_knows_the_bytes_of_its_journal() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(150)).await;
    let head = kit.ended("flow", "r1").await;
    let mut stored = 0;
    for item in kit.store.list(&format!("{}default/flow/r1/", prefix::RUN_JOURNALS)).await.unwrap().items {
        stored += item.key.len() + item.value.len();
    }
    let stored = u64::try_from(stored).unwrap();
    // Compaction has joined entries since, which saves their keys.
    assert!(head.bytes >= stored && head.bytes < 4 * stored, "{} for {stored}", head.bytes);
}

// Seen red with a definition that is removed although a run starts with it, that then stays for ever, that goes
// with the first of two runs, and while other runs exist.
#[tokio::test]
async fn a_definition_goes_after_the_last_run_that_has_it_and_not_while_another_begins() {
    let kit = Kit::new().await;
    let spec = format!("\n  params: {{}}{WAITS}");
    kit.push("flow", 1, &spec).await;
    kit.caught_up().await;
    let (snapshot, now) = (kit.snapshot.current(), Timestamp::now());
    let begun = plan::plan(&observed(Heads::new(), Arc::clone(&snapshot)), now);
    let definition = begun.steps.iter().find_map(|step| match step {
        RunStep::Begin(begin) => Some(begin.head.definition.clone()),
        _ => None,
    });
    let old = |workflow: &str, run: &str, definition: &str| {
        let kept = ended_before(now, KEPT_FOR + SignedDuration::from_secs(60));
        let head = RunHead { definition: definition.to_owned(), ..kept.head.clone() };
        (id(workflow, run), Arc::new(StoredHead { head, revision: 1 }))
    };
    let definition = definition.expect("a run begins");
    let heads: Heads = [
        old("flow", "a", &definition),
        old("flow", "b", &definition),
        old("gone", "a", "ab"),
        old("gone", "b", "cd"),
        old("gone", "c", "ab"),
    ]
    .into_iter()
    .collect();
    let (gone, _) = forgotten(heads.clone(), Arc::clone(&snapshot), now);
    assert_eq!(
        gone,
        ["flow/a", "gone/a", "gone/b and its definition", "gone/c and its definition"],
        "whether the run of flow begins is not known yet"
    );
    let batches = Batches::of(plan::plan(&observed(heads.clone(), snapshot), now), &heads).batches;
    let names = |batch: &Vec<RunStep>| {
        let forgets = batch.iter().filter_map(|step| match step {
            RunStep::Forget { id, .. } => Some(id.run.clone()),
            _ => None,
        });
        forgets.collect::<Vec<_>>()
    };
    let order: Vec<_> = batches.iter().map(names).filter(|names| !names.is_empty()).collect();
    assert_eq!(order, [vec!["a", "a"], vec!["b", "c"]]);
}

// Seen red with every run in one batch.
#[test]
fn a_run_by_which_a_reconciler_may_have_ended_is_taken_up_alone_and_of_others_at_most_32_at_once() {
    let resume = |run: usize| RunStep::Resume { id: id("flow", &format!("r{run:02}")), cancelled: None };
    let plan = RunSteps { steps: (0..40).map(resume).collect(), ..RunSteps::default() };
    let mut tried = ended_before(Timestamp::now(), SignedDuration::ZERO).head.clone();
    tried.tries = tried.next_try(0).ok();
    let heads = [3, 5].map(|run| (id("flow", &format!("r{run:02}")), tried.clone()));
    let heads =
        heads.into_iter().map(|(id, head)| (id, Arc::new(StoredHead { head, revision: 1 }))).collect();
    let batches = Batches::of(plan, &heads).batches;
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [32, 6, 1, 1]);
    assert_eq!(batches[2..], [vec![resume(3)], vec![resume(5)]]);
}

#[tokio::test]
async fn a_workflow_may_say_how_long_and_how_many_of_its_runs_are_kept() {
    let kit = Kit::new().await;
    kit.push("short", 1, &format!("\n  ttlSecondsAfterFinished: 60{WAITS}")).await;
    kit.push("few", 1, &format!("\n  runsHistoryLimit: 2{WAITS}")).await;
    kit.caught_up().await;
    let (snapshot, now) = (kit.snapshot.current(), Timestamp::now());
    let mut heads = Heads::new();
    for seconds in [30, 50, 70, 90] {
        for workflow in ["short", "few"] {
            let run = id(workflow, &format!("r{seconds}"));
            heads.insert(run, ended_before(now, SignedDuration::from_secs(seconds)));
        }
    }
    let (gone, _) = forgotten(heads.clone(), Arc::clone(&snapshot), now);
    assert_eq!(gone, ["few/r90", "few/r70", "short/r90", "short/r70"]);
    for number in 0..250 {
        let run = id("short", &format!("n{number:03}"));
        heads.insert(run, ended_before(now, SignedDuration::from_secs(1_000)));
    }
    let (gone, more) = forgotten(heads, snapshot, now);
    assert!(more && gone.len() == 200, "{} and {more}", gone.len());
}

#[tokio::test]
async fn what_is_forgotten_leaves_nothing() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(150)).await;
    kit.ended("flow", "r1").await;
    let long_ago = Timestamp::now() - KEPT_FOR - SignedDuration::from_secs(60);
    let mut head = kit.head("flow", "r1").await.unwrap();
    head.finished_at = Some(long_ago);
    kit.put(&id("flow", "r1").head(), serde_json::to_vec(&head).unwrap()).await;
    kit.crash().await;
    kit.settle().await;
    kit.until("it is forgotten", async |kit: &Kit| (kit.count("/minik8s-runs/").await == 0).then_some(()))
        .await;
}

// Seen red with a book that keeps the definition: the next run starts without one.
#[tokio::test]
async fn a_run_after_a_forgotten_one_has_its_definition_even_if_an_answer_was_lost() {
    let mut kit = Kit::new().await;
    kit.push("flow", 1, COUNTS).await;
    kit.ask("flow", "r1", count_to(1)).await;
    let mut head = kit.ended("flow", "r1").await;
    kit.look().await;
    head.finished_at = Some(Timestamp::now() - KEPT_FOR - SignedDuration::from_secs(60));
    kit.put(&id("flow", "r1").head(), serde_json::to_vec(&head).unwrap()).await;
    // Without a journal, one transaction forgets it.
    for number in 0..8 {
        let gone = vec![schema::store::Op::delete(id("flow", "r1").entries(number))];
        let _ = kit.store.txn(Vec::new(), gone).await.unwrap();
    }
    kit.crash().await;
    kit.settle().await;
    // The answer to the look's own write is lost, too.
    kit.memory.lose_next_answers(2);
    kit.try_to_look().await;
    assert_eq!(kit.count("/minik8s-runs/").await, 0, "it is forgotten");
    kit.ask("flow", "r2", count_to(1)).await;
    assert_eq!(kit.ended("flow", "r2").await.phase, RunPhase::Succeeded);
    assert!(kept_run(&kit.store, &id("flow", "r2")).await.unwrap().is_some(), "its definition is gone");
}
