//! Tests of workflow runs: requesting a run, and paging through existing runs.

use schema::keys::prefix;
use schema::manifest::load_file;
use schema::meta::NamespacedName;
use schema::object::Provenance;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::*;

const FLOW: &str = "kind: Workflow\napiVersion: minik8s.io/v1\nmetadata: {name: flow}\nspec:\n  startAt: a\n  states: {a: \
                    {type: Pass, end: true}}\n";
/// Its trigger, whose ids nobody else may take.
const TICK: &str = "  triggers: [{name: tick, schedule: {cron: '0 3 * * *'}}]\n";
const RUNS: &str = "/v1/workflows/default/flow/runs";

/// Starts an API that knows one workflow.
async fn with_flow() -> Api {
    let mut snapshot = with_web();
    let loaded = load_file("flow.yaml", format!("{FLOW}{TICK}").as_bytes());
    assert!(!loaded.has_errors(), "{:?}", loaded.violations);
    for document in loaded.documents {
        let object = Arc::unwrap_or_clone(document.object).into_object(Provenance::default(), 1);
        snapshot.put(&Key::Object(document.reference), &object, 1);
    }
    Api::over(snapshot).await
}

impl Api {
    async fn post(&self, path: &str, body: impl Into<String>) -> (u16, Value) {
        let request = reqwest::Client::new().post(format!("http://{}{path}", self.address));
        let request = request.header("content-type", "application/json").body(body.into());
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn requests(&self) -> usize {
        self.store.list(prefix::RUN_REQUESTS).await.unwrap().items.len()
    }
}

#[tokio::test]
async fn a_run_is_asked_for_once_under_each_id() {
    let api = with_flow().await;
    let longest = "a".repeat(80);
    for id in ["7", "order-4711", "A.b_c", longest.as_str()] {
        for (status, is_new) in [(202, true), (200, false)] {
            let body = json!({"id": id, "input": {"n": 1}}).to_string();
            assert_eq!(api.post(RUNS, body).await, (status, json!({"id": id, "isNew": is_new})));
        }
    }
    assert_eq!(api.requests().await, 4);
    let (first, second) = (api.post(RUNS, "{}").await, api.post(RUNS, "{}").await);
    assert_eq!((first.0, second.0), (202, 202));
    assert_ne!(first.1["id"], second.1["id"], "without an id, each is a run of its own");
}

#[tokio::test]
async fn what_cannot_be_a_run_is_refused_and_leaves_nothing() {
    let api = with_flow().await;
    let with_id = |id: &str| json!({ "id": id }).to_string();
    let deep = format!("{{\"input\": {}{}}}", "[".repeat(101), "]".repeat(101));
    let input = |bytes: usize| json!({"input": "x".repeat(bytes)}).to_string();
    for (path, body, status, said) in [
        (RUNS, "{\"input\":".to_owned(), 400, "EOF"),
        (RUNS, "7".to_owned(), 400, "expected"),
        (RUNS, "{\"inputs\": {}}".to_owned(), 400, "unknown field"),
        (RUNS, with_id(""), 400, "not a valid run name"),
        (RUNS, with_id("a/b"), 400, "not a valid run name"),
        // Seen red without `Trigger::owner_of`: 202, and the tick ran with this input.
        (RUNS, with_id("tick.20261129T0300Z"), 409, "belong to trigger tick"),
        (RUNS, with_id("-a"), 400, "not a valid run name"),
        (RUNS, with_id(&"a".repeat(254)), 400, "not a valid run name"),
        (RUNS, deep, 400, "more than 100 levels"),
        (RUNS, input(256 * 1024), 413, "the limit is 262144"),
        (RUNS, input(600 * 1024), 413, "length limit"),
        ("/v1/workflows/default/nothing/runs", "{}".to_owned(), 404, "there is no workflow nothing"),
        (
            "/v1/workflows/other/flow/runs",
            "{}".to_owned(),
            404,
            "there is no workflow flow in namespace other",
        ),
        ("/v1/workflows/default/a%2Fb/runs", "{}".to_owned(), 400, "not a valid workflow name"),
    ] {
        let (code, answer) = api.post(path, body).await;
        let error = answer["error"].as_str().unwrap();
        assert!(code == status && error.contains(said), "{path}: {code} {error}");
    }
    assert_eq!(api.store.list("/minik8s-runs/").await.unwrap().items, []);
}

#[tokio::test]
async fn a_thousand_runs_wait_and_one_more_has_to_come_again() {
    let api = with_flow().await;
    let store = Arc::clone(&api.store) as SharedStore;
    let follows = tokio::spawn(api.waiting.clone().follow(store, Nudge::default()));
    for number in 0..1_000 {
        let flow = NamespacedName::new("default", "flow");
        api.put(Key::RunRequest(flow, format!("r{number}")), b"{}".to_vec()).await;
    }
    let mut tries = 0;
    let refused = loop {
        let (code, body) = api.post(RUNS, "{\"id\": \"more\"}").await;
        if code == 429 {
            break body;
        }
        // The queue count lags behind the requests; a request accepted meanwhile is the same run.
        let gone = vec![Op::delete(Key::RunRequest(NamespacedName::new("default", "flow"), "more".into()))];
        let _ = api.store.txn(Vec::new(), gone).await.unwrap();
        tries += 1;
        assert!(tries < 2_000, "it is still taken: {code} {body}");
    };
    assert!(refused["error"].as_str().unwrap().starts_with("the queue is full: 1000 runs"), "{refused}");
    assert_eq!(api.post(RUNS, "{\"id\": \"r7\"}").await.0, 200, "it waits already");
    follows.abort();
}

#[tokio::test]
async fn no_more_than_32_bodies_are_read_at_once() {
    let api = with_flow().await;
    let mut slow = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        let head = format!(
            "POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let mut tries = 0;
    while api.post(RUNS, "{}").await.0 != 503 {
        tries += 1;
        assert!(tries < 2_000, "it is still taken");
    }
    drop(slow);
    while api.post(RUNS, "{}").await.0 != 202 {
        tries += 1;
        assert!(tries < 4_000, "it is not taken any more");
    }
}

#[tokio::test]
async fn calls_of_triggers_are_under_the_limits_of_the_api() {
    let api = with_flow().await;
    let (code, body) = api.get("/v1/calls/workflow/default/flow/paid").await;
    assert_eq!(
        (code, &body["error"]),
        (405, &"/v1/calls/workflow/default/flow/paid does not support GET".into())
    );
}

fn head_of(started: i64) -> Vec<u8> {
    let head = json!({
        "definition": "ab", "origin": {"by": "push", "generation": 1}, "startedAt": at(started), "phase": "Failed",
        "finishedAt": at(started + 2), "state": "a", "error": "Moody",
    });
    head.to_string().into_bytes()
}

#[tokio::test]
async fn runs_come_in_pages_the_newest_first() {
    let api = with_flow().await;
    for number in 0..1_200 {
        // Order ids and workflows differently from start times.
        let flow = NamespacedName::new("default", format!("flow-{}", number % 2));
        api.put(Key::RunHead(flow, format!("r{:04}", 9_999 - number)), head_of(number)).await;
    }
    let (code, page) = api.get("/v1/runs").await;
    let items = page["items"].as_array().unwrap();
    assert_eq!((code, items.len(), &items[0]["id"]), (200, 500, &"r8800".into()));
    assert!(page["next"].is_i64(), "{}", page["next"]);
    let (mut path, mut seen) =
        ("/v1/runs?namespace=default&workflow=flow-1&limit=250".to_owned(), Vec::new());
    loop {
        let (_, page) = api.get(&path).await;
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_i64() else { break };
        path = format!("/v1/runs?namespace=default&workflow=flow-1&limit=250&before={next}");
    }
    let wanted: Vec<String> = (0..600).map(|n| format!("r{:04}", 8_800 + 2 * n)).collect();
    assert_eq!(seen, wanted);
    for limit in ["0", "1001", "-1", "x"] {
        assert_eq!(api.get(&format!("/v1/runs?limit={limit}")).await.0, 400, "{limit}");
    }
    assert_eq!(api.get("/v1/runs?limit=1000").await.1["items"].as_array().unwrap().len(), 1_000);
}

#[tokio::test]
async fn runs_are_asked_for_by_namespace_and_one_in_short() {
    let api = Api::over(with_web()).await;
    let (code, body) = api.get("/v1/runs?workflow=flow").await;
    assert_eq!((code, &body["help"]), (400, &"add namespace=default&workflow=flow".into()));
    api.put(Key::RunHead(NamespacedName::new("default", "flow"), "r1".into()), head_of(0)).await;
    let (code, row) = api.get("/v1/runs/default/flow/r1/summary").await;
    assert_eq!((code, &row["phase"], &row["error"]), (200, &"Failed".into(), &"Moody".into()));
    assert_eq!(api.get("/v1/runs/default/flow/r2/summary").await.0, 404);
}

/// Stores an unfinished run of `transitions` transitions with 64 KiB in each state.
async fn long_run(api: &Api, run: &str, transitions: usize) {
    let flow = NamespacedName::new("default", "long");
    let spec = json!({"startAt": "a", "states": {
        "a": {"type": "Pass", "next": "b"}, "b": {"type": "Pass", "next": "c"},
        "c": {"type": "Choice", "choices": [{"variable": "$.x", "isPresent": true, "next": "d"}], "default": "a"},
        "d": {"type": "Succeed"}}});
    let head = json!({"definition": "ab", "origin": {"by": "push", "generation": 1}, "startedAt": at(0), "phase": "Running",
                      "state": "a"});
    let begun = json!({"begun": {"input": {"inline": {"text": "x".repeat(30 * 1024)}}}});
    let entries = vec![json!({"at": at(1), "event": {"type": "continue"}}); transitions];
    for (key, value) in [
        (Key::RunDefinition(flow.clone(), "ab".into()), spec),
        (Key::RunHead(flow.clone(), run.into()), head),
        (Key::RunEntries(flow.clone(), run.into(), 0), begun),
        (Key::RunEntries(flow.clone(), run.into(), 1), json!({ "entries": entries })),
    ] {
        api.put(key, value.to_string().into_bytes()).await;
    }
}

#[tokio::test]
async fn while_a_long_run_is_gone_through_others_are_answered() {
    let api = with_flow().await;
    // A debug build takes a second or two, far below the API's limit of 15 s per response.
    long_run(&api, "r1", 150).await;
    let showing = api.get("/v1/runs/default/long/r1");
    let mut showing = std::pin::pin!(showing);
    let mut others = 0;
    let (code, run) = loop {
        tokio::select! {
            shown = showing.as_mut() => break shown,
            (code, _) = api.get("/v1/healthz") => {
                assert_eq!(code, 200);
                others += 1;
            }
        }
    };
    assert_eq!((code, &run["steps"]), (200, &151.into()));
    // Every event fits; workflows/tests/takeovers.rs covers a run that is too long for that.
    assert_eq!(run["withoutData"], 0);
    // One before it begins and one after it has ended might be answered in any case.
    assert!(others > 10, "{others} others were answered");
}
