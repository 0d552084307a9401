//! Calls of functions: the meaning of each answer, and retries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use jiff::{SignedDuration, Timestamp};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::workflow::RunPhase;
use schema::records::Heartbeat;
use schema::store::{Op, SharedStore};
use schema::testing::node_record;
use serde_json::json;

use super::kit::{Kit, id};

/// A function, its answers, and the expected error and cause of its run.
type Case<'a> = (&'a str, Vec<(u16, &'a str)>, &'a str, &'a str);

/// Remaining answers of each function, and the keys that it was called with.
pub(super) type Functions = Arc<Mutex<BTreeMap<String, (Vec<(u16, &'static str)>, Vec<String>)>>>;

async fn answer(
    State(functions): State<Functions>,
    Path((_, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let mut functions = functions.lock().unwrap();
    let (answers, keys) = functions.entry(name).or_default();
    keys.push(headers["idempotency-key"].to_str().unwrap().to_owned());
    let (status, body) = if answers.is_empty() { (200, "{\"well\": true}") } else { answers.remove(0) };
    (StatusCode::from_u16(status).unwrap(), [("retry-after", "0")], body)
}

/// Adds a node whose gateway serves these functions.
pub(super) async fn gateway(kit: &Kit, functions: &Functions) {
    let router = Router::new().route("/{namespace}/{name}", post(answer)).with_state(Arc::clone(functions));
    node(kit, router).await;
}

/// Adds a node with this gateway.
pub(super) async fn node(kit: &Kit, router: Router) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let calls = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let record = schema::records::NodeRecord { calls, ..node_record("n1") };
    kit.put(&Key::Node("n1".into()), serde_json::to_vec(&record).unwrap()).await;
    let beat = Heartbeat { since: record.registered_at };
    kit.put(&Key::Heartbeat("n1".into()), serde_json::to_vec(&beat).unwrap()).await;
}

pub(super) fn one_task(function: &str, more: &str) -> String {
    format!("\n  startAt: a\n  states: {{a: {{type: Task, function: {function}, {more}end: true}}}}")
}

// Seen red with every error of the function called States.TaskFailed.
#[tokio::test]
async fn each_answer_has_its_error_and_a_call_that_did_not_begin_is_made_again() {
    let mut kit = Kit::new().await;
    let own = r#"{"error": {"type": "Moody", "message": "not yet", "stackTrace": ["line 3"]}}"#;
    let said = r#"{"error": {"type": "Other", "message": "so"}}"#;
    let functions: Functions = Arc::default();
    let cases: [Case<'_>; 9] = [
        ("well", vec![], "", ""),
        ("own", vec![(500, own)], "Moody", "not yet\nline 3"),
        ("late", vec![(504, said)], "States.Timeout", "so"),
        ("large", vec![(413, said)], "States.DataLimitExceeded", "so"),
        ("wrong", vec![(502, said)], "Function.Other", "so"),
        ("missing", vec![(404, said)], "Function.NotFound", "so"),
        ("closed", vec![(403, said)], "States.Permissions", "so"),
        ("busy", vec![(503, said), (429, said), (503, said)], "", ""),
        (
            "mad",
            vec![(500, r#"{"error": {"type": "States.Fake", "message": "no"}}"#)],
            "States.TaskFailed",
            "500 Internal Server Error: no",
        ),
    ];
    for (name, answers, ..) in &cases {
        functions.lock().unwrap().insert((*name).to_owned(), (answers.clone(), Vec::new()));
        kit.push(name, 1, &one_task(name, "")).await;
        kit.ask(name, "r1", json!({})).await;
    }
    // Calls wait until there is a node.
    kit.look().await;
    gateway(&kit, &functions).await;
    for (name, answers, error, cause) in cases {
        let head = kit.ended(name, "r1").await;
        let phase = if error.is_empty() { RunPhase::Succeeded } else { RunPhase::Failed };
        assert_eq!((head.phase, head.error.as_str(), head.cause.as_str()), (phase, error, cause), "{name}");
        let keys = functions.lock().unwrap()[name].1.clone();
        let expected = if name == "busy" { answers.len() + 1 } else { 1 };
        assert_eq!(keys.len(), expected, "{name}");
        assert!(
            keys.iter().all(|key| key.starts_with(&format!("default/{name}/r1/")) && *key == keys[0]),
            "{keys:?}"
        );
    }
}

#[tokio::test]
async fn a_call_that_a_gateway_answers_before_it_knows_the_function_is_made_again() {
    let mut kit = Kit::new().await;
    let functions: Functions = Arc::default();
    let unknown = r#"{"error": {"type": "NotFound", "message": "there is no function default/new"}}"#;
    functions.lock().unwrap().insert("new".to_owned(), (vec![(404, unknown); 2], Vec::new()));
    gateway(&kit, &functions).await;
    kit.push_kind(Kind::Function, "new", 1, "{image: 'none:1'}").await;
    kit.push("flow", 1, &one_task("new", "")).await;
    kit.ask("flow", "r1", json!({})).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.error.as_str()), (RunPhase::Succeeded, ""));
    assert_eq!(functions.lock().unwrap()["new"].1.len(), 3);
}

#[tokio::test]
async fn of_an_answer_no_more_is_read_than_a_run_takes() {
    let mut kit = Kit::new().await;
    let endless = || async {
        let pieces = futures::stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(64 * 1024)));
        Body::from_stream(pieces)
    };
    node(&kit, Router::new().route("/{namespace}/{name}", post(endless))).await;
    kit.push("flow", 1, &one_task("f", "")).await;
    kit.ask("flow", "r1", json!({})).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.error.as_str()), (RunPhase::Failed, "States.DataLimitExceeded"));
}

#[tokio::test]
async fn an_error_with_a_long_traceback_keeps_its_name() {
    let mut kit = Kit::new().await;
    let trace = vec!["x".repeat(1024); 300];
    let error = json!({"error": {"type": "Deep", "message": "down", "stackTrace": trace}}).to_string();
    let raises = move || {
        let error = error.clone();
        async move { (StatusCode::INTERNAL_SERVER_ERROR, error) }
    };
    node(&kit, Router::new().route("/{namespace}/{name}", post(raises))).await;
    kit.push("flow", 1, &one_task("f", "")).await;
    kit.ask("flow", "r1", json!({})).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.error.as_str()), (RunPhase::Failed, "Deep"));
}

#[tokio::test]
async fn an_error_is_retried_under_the_same_key_and_then_caught() {
    let mut kit = Kit::new().await;
    let own = r#"{"error": {"type": "Moody", "message": "not yet"}}"#;
    let functions: Functions = Arc::default();
    functions.lock().unwrap().insert("moody".to_owned(), (vec![(500, own); 9], Vec::new()));
    gateway(&kit, &functions).await;
    let more = "retry: [{errorEquals: [Moody], maxAttempts: 1, intervalSeconds: 1}], ";
    kit.push("flow", 1, &one_task("moody", more)).await;
    kit.ask("flow", "r1", json!({})).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.error.as_str()), (RunPhase::Failed, "Moody"));
    let keys = functions.lock().unwrap()["moody"].1.clone();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
}

#[tokio::test]
async fn a_function_is_given_an_object_and_an_error_says_how() {
    let mut kit = Kit::new().await;
    let each = "\n  startAt: m\n  states: {m: {type: Map, end: true, itemProcessor: {startAt: t, states: {t: \
                {type: Task, function: f, retry: [{errorEquals: [States.ALL]}], end: true}}}}}";
    kit.push("flow", 1, each).await;
    kit.ask("flow", "r1", json!([1, 2])).await;
    let head = kit.ended("flow", "r1").await;
    assert_eq!((head.phase, head.error.as_str()), (RunPhase::Failed, "States.Runtime"));
    assert!(
        head.cause.starts_with("function f takes a JSON object, but is given a number;"),
        "{}",
        head.cause
    );
}

/// Answers after five seconds; `alive` sends heartbeats until then, with the token of its call.
async fn slow(
    State(store): State<SharedStore>,
    Path((_, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> &'static str {
    let token = headers["x-heartbeat-token"].to_str().unwrap().to_owned();
    for beat in 1..=10 {
        if name == "alive" {
            let demand = json!({"since": Timestamp::now(), "beats": {&token: beat}});
            let op = Op::put(Key::Demand(format!("n{}", beat % 2)), demand.to_string());
            let _ = store.txn(Vec::new(), vec![op]).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    "{}"
}

// Heartbeats arrive through two nodes in turn, as after a change of gateway.
#[tokio::test]
async fn a_function_that_says_it_is_alive_is_waited_for_and_another_is_not() {
    let mut kit = Kit::new().await;
    let router = Router::new().route("/{namespace}/{name}", post(slow)).with_state(Arc::clone(&kit.store));
    node(&kit, router).await;
    for name in ["alive", "dead"] {
        kit.push(name, 1, &one_task(name, "heartbeatSeconds: 1, timeoutSeconds: 60, ")).await;
        kit.ask(name, "r1", json!({})).await;
    }
    let dead = kit.ended("dead", "r1").await;
    assert_eq!((dead.phase, dead.error.as_str()), (RunPhase::Failed, "States.HeartbeatTimeout"));
    assert!(kit.head("alive", "r1").await.unwrap().is_running());
    let alive = kit.ended("alive", "r1").await;
    assert_eq!((alive.phase, alive.error.as_str()), (RunPhase::Succeeded, ""));
    assert_eq!(
        kit.journal_keys("alive", "r1").await,
        2,
        "the beginning and the end: no beat is written down"
    );
}

// Seen red without `grant_heartbeats`.
#[tokio::test]
async fn after_a_change_of_leader_a_call_has_its_time_for_a_first_sign_of_life_anew() {
    let mut kit = Kit::new().await;
    let router = Router::new().route("/{namespace}/{name}", post(slow)).with_state(Arc::clone(&kit.store));
    node(&kit, router).await;
    kit.push("flow", 1, &one_task("alive", "heartbeatSeconds: 1, timeoutSeconds: 600, ")).await;
    kit.ask("flow", "r1", json!({})).await;
    let mut head = kit.until("it begins", async |kit: &Kit| kit.head("flow", "r1").await).await;
    kit.crash().await;
    head.started_at -= SignedDuration::from_secs(60);
    kit.put(&id("flow", "r1").head(), serde_json::to_vec(&head).unwrap()).await;
    let ended = kit.ended("flow", "r1").await;
    assert_eq!((ended.phase, ended.error.as_str()), (RunPhase::Succeeded, ""));
}
