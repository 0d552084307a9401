//! Tests of the routes on a bound port, over a fixed snapshot and an in-memory store.

use std::net::SocketAddr;
use std::sync::Mutex;

use futures::StreamExt;
use jiff::Timestamp;
use schema::codec::encode;
use schema::control::{LastRun, LoopRuns, Nudge, NudgeReceiver, Pulse};
use schema::keys::Key;
use schema::kinds::pod::{ContainerState, TerminatedState};
use schema::names::HostNames;
use schema::records::{Event, EventType, NodeRecord};
use schema::snapshot::Snapshot;
use schema::store::election::FenceReader;
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::store::{Op, SharedStore, Store};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::super::workflows::RequestQueue;
use super::*;
use crate::blobs::Blobs;
use crate::upkeep::{DefragRequests, Problem, UpkeepState};
use crate::view::testing::*;
use crate::webhooks::{Intake, SourceTarget};

mod access;
mod comparison;
mod metrics;
mod objects;
mod page;
mod page_logs;
mod page_runs;
mod runs;
mod trust;

struct Api {
    address: SocketAddr,
    store: Arc<MemoryStore>,
    nudged: NudgeReceiver,
    waiting: RequestQueue,
    etcd: watch::Sender<Arc<UpkeepState>>,
    samples: Arc<Mutex<view::AutoscalerSamples>>,
}

impl Api {
    async fn over(snapshot: Snapshot) -> Self {
        Self::beside("n1", snapshot).await
    }

    /// Serves the API on the machine of this node.
    async fn beside(local_node: &str, snapshot: Snapshot) -> Self {
        Self::reading(local_node, SnapshotReader::fixed(snapshot)).await
    }

    /// Serves the API on the machine of this node, over a snapshot that may change.
    async fn reading(local_node: &str, snapshot: SnapshotReader) -> Self {
        Self::comparing(local_node, snapshot, without_mirrors()).await
    }

    /// Serves the API with these comparisons of commits.
    async fn comparing(local_node: &str, snapshot: SnapshotReader, comparisons: Comparisons) -> Self {
        let store = Arc::new(MemoryStore::new());
        let deps = ApiDeps { comparisons, ..deps(snapshot, &store) };
        Self::with(local_node, store, deps).await
    }

    async fn with(local_node: &str, store: Arc<MemoryStore>, deps: ApiDeps) -> Self {
        let (sync, nudged) = Nudge::new();
        let etcd = watch::Sender::new(Arc::default());
        let waiting = RequestQueue::default();
        let samples = Arc::default();
        let deps = ApiDeps {
            intake: intake(sync, &deps.snapshot, &store),
            waiting_runs: waiting.clone(),
            autoscaler_samples: Arc::clone(&samples),
            etcd: etcd.subscribe(),
            hosts: HostNames::new(["api.example".to_owned()]),
            local_nodes: Arc::new([local_node.to_owned()].into()),
            ..deps
        };
        Self { address: bind_and_serve(router(deps)).await, store, nudged, waiting, etcd, samples }
    }

    async fn answer(&self, method: reqwest::Method, path: &str) -> (u16, Value) {
        let url = format!("http://{}{path}", self.address);
        let request = reqwest::Client::new().request(method, url).header("content-type", "application/json");
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.answer(reqwest::Method::GET, path).await
    }

    async fn put(&self, key: Key, value: Vec<u8>) {
        let _ = self.store.txn(Vec::new(), vec![Op::put(key, value)]).await.unwrap();
    }
}

/// Dependencies of a follower without loops, on the machine of no node.
fn deps(snapshot: SnapshotReader, store: &Arc<MemoryStore>) -> ApiDeps {
    ApiDeps {
        ui: true,
        trust: None,
        blobs: Blobs::new(std::path::Path::new("/nonexistent")),
        comparisons: without_mirrors(),
        intake: intake(Nudge::default(), &snapshot, store),
        hooks: None,
        waiting_runs: RequestQueue::default(),
        fence: FenceReader::fixed(None),
        etcd: watch::Sender::new(Arc::default()).subscribe(),
        trust_problems: watch::Sender::new(Arc::new(vec!["users are not managed".to_owned()])).subscribe(),
        defrag_requests: DefragRequests::new(store.clone(), "host-1".to_owned(), Nudge::default()),
        admission: None,
        snapshot,
        autoscaler_samples: Arc::default(),
        store: store.clone(),
        loops: LoopRuns::default(),
        identity: "host-1".to_owned(),
        version: "9.9.9".to_owned(),
        hosts: HostNames::default(),
        local_nodes: Arc::default(),
    }
}

/// Comparisons of a reconciler that fetched nothing.
fn without_mirrors() -> Comparisons {
    Comparisons::new(Arc::new(|_: &CommitPair| Err(ComparisonError::NoMirror)))
}

fn intake(nudge: Nudge, snapshot: &SnapshotReader, store: &Arc<MemoryStore>) -> Arc<Intake> {
    let target = SourceTarget::of_branch("main", "main", nudge);
    let store = Arc::clone(store) as SharedStore;
    Arc::new(Intake::new(vec![target], snapshot.clone(), store, "host-1"))
}

/// Serves a router to a user of this machine, unless it names another caller itself.
async fn bind_and_serve(router: Router) -> SocketAddr {
    let router = router.layer(axum::Extension(Caller::Local { uid: 0 }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn with_web() -> Snapshot {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    snapshot
}

fn event(name: &str, second: i64) -> Event {
    Event {
        time: at(second),
        kind: EventType::Normal,
        object_kind: "Pod".to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        reason: "Started".to_owned(),
        message: format!("started {name}"),
        reporter: "agent/n1".to_owned(),
    }
}

#[tokio::test]
async fn every_route_answers_with_json() {
    let api = Api::over(with_web()).await;
    for (path, pointer, wanted) in [
        ("/v1/healthz", "/ok", "true"),
        ("/v1/version", "/version", "\"9.9.9\""),
        ("/v1/status", "/pods/ready", "1"),
        ("/v1/pods", "/items/0/name", "\"web\""),
        ("/v1/pods?namespace=default", "/items/0/status", "\"Running\""),
        ("/v1/pods/default/web", "/containerStatuses/0/name", "\"app\""),
        ("/v1/nodes", "/items/0/isReady", "true"),
        ("/v1/nodes/n1", "/podList/0/name", "\"web\""),
        ("/v1/sources", "/items/0/author", "\"Ada <ada@example.org>\""),
        ("/v1/history", "/items/0/sequence", "2"),
        ("/v1/history?source=main", "/items/1/sequence", "1"),
        ("/v1/events", "/items", "[]"),
        ("/v1/wait-state", "/healthy", "true"),
        (&format!("/v1/wait-state?commit={C1}"), "/synced", "true"),
    ] {
        let (status, body) = api.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        assert_eq!(body.pointer(pointer).map(ToString::to_string).as_deref(), Some(wanted), "{path}: {body}");
    }
}

#[tokio::test]
async fn errors_are_json_with_the_right_code_and_say_what_to_do() {
    let api = Api::over(with_web()).await;
    for (path, code) in [
        ("/nothing", 404),
        ("/v1/pods/default/nobody", 404),
        ("/v1/nodes/nobody", 404),
        ("/v1/pods/default/-web", 400),
        ("/v1/pods/default/we%20b", 400),
        ("/v1/pods/..%2f..%2fleader/x", 400),
        ("/v1/pods?namespace=a/b", 400),
        ("/v1/pods?nmespace=default", 400),
        ("/v1/wait-state?commit=main", 400),
        ("/v1/sync", 405),
        ("/v1/logs/default/web?tail=some", 400),
    ] {
        let (status, body) = api.get(path).await;
        assert_eq!(status, code, "{path}: {body}");
        assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{path}: {body}");
        assert!(body["help"].as_str().is_some_and(|text| !text.is_empty()), "{path}: {body}");
    }
    let (status, _) = api.answer(reqwest::Method::DELETE, "/v1/pods/default/web").await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn before_etcd_is_read_views_are_unavailable_but_health_and_wait_answer() {
    let api = Api::over(Snapshot::default()).await;
    let why = "the reconciler is starting: it has not read etcd yet";
    for path in ["/v1/status", "/v1/pods", "/v1/nodes", "/v1/sources", "/v1/history"] {
        let (status, body) = api.get(path).await;
        assert_eq!((status, &body["error"]), (503, &Value::from(why)), "{path}");
    }
    assert_eq!(api.get("/v1/healthz").await.0, 200);
    assert_eq!(api.get("/v1/wait-state").await.1["why"], why);
}

#[tokio::test]
async fn events_come_sorted_filtered_and_bounded() {
    let api = Api::over(with_web()).await;
    for (n, (name, second)) in [("web", 30), ("db", 20), ("web", 10)].into_iter().enumerate() {
        let key = Key::Event("n1".to_owned(), "default".to_owned(), format!("{n}"));
        api.put(key, encode(&event(name, second)).unwrap()).await;
    }
    api.put(Key::Event("n1".to_owned(), "default".to_owned(), "bad".to_owned()), b"{".to_vec()).await;
    let names = |body: &Value| -> Vec<String> {
        body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["time"].to_string() + &e["name"].to_string())
            .collect()
    };
    let (_, all) = api.get("/v1/events").await;
    let sorted = names(&all);
    assert_eq!(sorted.len(), 3);
    assert!(sorted.is_sorted(), "{sorted:?}");
    assert_eq!(names(&api.get("/v1/events?name=web&kind=pod").await.1).len(), 2);
    assert_eq!(names(&api.get("/v1/events?namespace=other").await.1).len(), 0);
    // Node events belong to every namespace.
    let node = Event { object_kind: "Node".to_owned(), namespace: String::new(), ..event("n1", 40) };
    api.put(Key::Event("n1".to_owned(), "_cluster".to_owned(), "3".to_owned()), encode(&node).unwrap()).await;
    assert_eq!(names(&api.get("/v1/events?namespace=other").await.1).len(), 1);
    let (_, pod) = api.get("/v1/pods/default/web").await;
    assert_eq!(pod["events"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn the_leader_is_shown_and_a_dead_etcd_leaves_the_page_standing() {
    let api = Api::over(with_web()).await;
    let leader = format!(r#"{{"id":"host-1","since":"{}"}}"#, at(0));
    api.put(Key::Leader, leader.into_bytes()).await;
    assert_eq!(api.get("/v1/status").await.1["leader"]["id"], "host-1");
    api.store.refuse_everything(true);
    let (status, page) = api.get("/v1/status").await;
    assert_eq!((status, &page["pods"]["ready"]), (200, &Value::from(1)));
    assert!(page["etcdError"].is_string(), "{page}");
    assert_eq!(api.get("/v1/events").await.0, 503);
    assert_eq!(api.get("/v1/pods/default/web").await.0, 200);
}

// Seen red without `refuse_foreign` in the router: 200 and 202.
#[tokio::test]
async fn a_page_of_somebody_else_in_a_browser_of_this_machine_reads_and_starts_nothing() {
    let api = Api::over(with_web()).await;
    let own = format!("http://{}", api.address);
    let client = reqwest::Client::new();
    let send = async |method: reqwest::Method, path: &str, headers: &[(&str, &str)]| {
        let mut request = client.request(method, format!("{own}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (get, post) = (reqwest::Method::GET, reqwest::Method::POST);
    let json = ("content-type", "application/json");
    let (foreign, page) = (("host", "evil.example:7070"), ("origin", "http://evil.example:7070"));
    for path in ["/v1/pods", "/v1/logs/default/web", "/nothing"] {
        let (status, body) = send(get.clone(), path, &[foreign]).await;
        assert_eq!(status, 421, "{path}: {body}");
        assert!(body.contains("--allow-host evil.example"), "{body}");
    }
    for (headers, status) in [
        (&[foreign, page, json][..], 421),
        (&[page, json], 403),
        (&[("origin", own.as_str()), ("content-type", "text/plain")], 415),
        (&[], 415),
        (&[("host", "api.example"), ("origin", "https://api.example"), json], 202),
    ] {
        let (answered, body) = send(post.clone(), "/v1/sync", headers).await;
        assert_eq!(answered, status, "{headers:?}: {body}");
    }
    assert_eq!(api.store.list(schema::keys::ROOT).await.unwrap().items.len(), 1, "only the last one asked");
    let call = send(post, "/v1/calls/workflow/default/flow/paid", &[("content-type", "text/plain")]).await;
    assert_eq!(call.0, 401, "calls of triggers have a token, and any type of body");
}

#[tokio::test]
async fn sync_wakes_the_loop_and_leaves_a_request_and_nothing_else() {
    let api = Api::over(with_web()).await;
    let (status, body) = api.answer(reqwest::Method::POST, "/v1/sync").await;
    assert_eq!((status, &body["accepted"]), (202, &Value::Bool(true)));
    tokio::time::timeout(Duration::from_secs(5), api.nudged.wait()).await.unwrap();
    let id = body["requests"][0].as_str().unwrap();
    let keys = api.store.list(schema::keys::ROOT).await.unwrap().items;
    let keys: Vec<&str> = keys.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(keys, [Key::Request(id.to_owned()).to_string()]);
    assert_eq!(api.answer(reqwest::Method::POST, "/v1/sync?source=other").await.0, 404);
}

#[tokio::test]
async fn without_etcd_sync_wakes_the_loop_all_the_same_and_says_so() {
    let api = Api::over(with_web()).await;
    api.store.refuse_everything(true);
    let (status, body) = api.answer(reqwest::Method::POST, "/v1/sync").await;
    assert_eq!((status, &body["requests"]), (202, &Value::Array(Vec::new())));
    assert!(body["note"].as_str().unwrap().contains("cannot write the sync request"), "{body}");
    tokio::time::timeout(Duration::from_secs(5), api.nudged.wait()).await.unwrap();
}

#[tokio::test]
async fn pods_of_a_change_that_is_not_pushed_are_placed_and_nothing_is_written() {
    let api = Api::over(with_web()).await;
    let url = format!("http://{}/v1/placements", api.address);
    let post = |body: String| {
        let request = reqwest::Client::new().post(&url).header("content-type", "application/json");
        request.body(body).send()
    };
    let object = object("new", pod_spec(&["main"]));
    let changes = serde_json::json!({"put": [object], "delete": []}).to_string();
    let answer = post(changes).await.unwrap();
    assert_eq!(answer.status(), 200);
    let placed: Value = answer.json().await.unwrap();
    assert_eq!(
        (&placed["items"][0]["pod"], &placed["items"][0]["node"]),
        (&"new".into(), &"n1".into()),
        "{placed}"
    );
    assert!(api.store.list(schema::keys::ROOT).await.unwrap().items.is_empty());
    let wrong = post("{\"put\": 1}".to_owned()).await.unwrap();
    assert_eq!(wrong.status(), 400);
    assert!(wrong.json::<Value>().await.unwrap()["help"].as_str().unwrap().contains("16 MiB"));
}

/// Starts a node API that echoes the requested path in two chunks.
async fn node_api() -> SocketAddr {
    let log = |uri: axum::http::Uri| async move {
        let parts = ["asked ".to_owned(), format!("{uri}\n")].map(Ok::<_, std::convert::Infallible>);
        axum::body::Body::from_stream(futures::stream::iter(parts))
    };
    let missing = || async {
        let problem = r#"{"error":"container app never ran","help":"see its status"}"#;
        (axum::http::StatusCode::NOT_FOUND, problem)
    };
    let broken = || async { axum::http::StatusCode::INTERNAL_SERVER_ERROR };
    let router = Router::new()
        .route("/v1/logs/default/web/app", get(log))
        .route("/v1/logs/default/new/app", get(missing))
        .route("/v1/logs/default/odd/app", get(broken));
    bind_and_serve(router).await
}

fn with_node_api(api: String) -> Snapshot {
    let mut snapshot = with_web();
    for name in ["new", "odd"] {
        put_pod(&mut snapshot, name, running());
    }
    let node = NodeRecord { api, ..snapshot.nodes["n1"].value.clone() };
    snapshot.nodes.insert("n1".to_owned(), versioned(node));
    snapshot
}

#[tokio::test]
async fn logs_are_streamed_from_the_node_of_the_pod() {
    let node = node_api().await;
    let api = Api::over(with_node_api(format!("http://{node}"))).await;
    let url = format!("http://{}/v1/logs/default/web?tail=5&follow=true", api.address);
    let answer = reqwest::get(url).await.unwrap();
    assert_eq!(answer.status(), 200);
    let chunks: Vec<_> = answer.bytes_stream().map(|c| c.unwrap().to_vec()).collect().await;
    let text = String::from_utf8(chunks.concat()).unwrap();
    assert_eq!(text, "asked /v1/logs/default/web/app?follow=true&previous=false&tail=5\n");

    let (status, body) = api.get("/v1/logs/default/new").await;
    assert_eq!((status, &body["error"]), (404, &Value::from("container app never ran")));
    let (status, body) = api.get("/v1/logs/default/odd").await;
    assert_eq!(status, 502, "{body}");
    let (status, body) = api.get("/v1/logs/default/web?container=db").await;
    assert_eq!((status, &body["help"]), (404, &Value::from("its containers are app")));
}

// Seen red with a client that follows redirects; would fail with the URL of the record taken as it is.
#[tokio::test]
async fn a_node_sends_the_reconciler_nowhere_but_to_itself() {
    let secret = bind_and_serve(Router::new().fallback(|| async { "the metadata service" })).await;
    let elsewhere = format!("http://{secret}/");
    let redirect = move || async move { axum::response::Redirect::temporary(&elsewhere) };
    let redirecting = bind_and_serve(Router::new().fallback(redirect)).await;
    for api in [
        format!("http://{redirecting}"),
        format!("http://{secret}/?"),
        format!("http://localhost:{}", secret.port()),
        "http://x/?".to_owned(),
        "http://169.254.169.254:80".to_owned(),
    ] {
        let (status, body) = Api::over(with_node_api(api.clone())).await.get("/v1/logs/default/web").await;
        assert_eq!(status, 502, "{api}: {body}");
        assert!(!body.to_string().contains("metadata service"), "{api}: {body}");
    }
    // The node is not one of this machine, whatever its record says.
    for addresses in [&[][..], &["192.0.2.7"], &["127.0.0.1"], &["0.0.0.0"]] {
        let mut snapshot = with_node_api(format!("http://{secret}"));
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let node = NodeRecord { addresses, name: "n9".into(), ..snapshot.nodes["n1"].value.clone() };
        snapshot.nodes.insert("n1".to_owned(), versioned(node));
        let (status, body) = Api::beside("n9", snapshot).await.get("/v1/logs/default/web").await;
        assert_eq!(status, 502, "{body}");
        assert!(body["error"].as_str().unwrap().contains("not at one of the node's own addresses"), "{body}");
    }
}

/// Seen red without `not_started`: the node would report that the container does not exist.
#[tokio::test]
async fn logs_take_since_and_timestamps_and_one_that_waits_says_for_what() {
    let node = node_api().await;
    let mut snapshot = with_node_api(format!("http://{node}"));
    let mut waits = pod_waiting("ErrImagePull", "no such image");
    waits.container_statuses[0].container_id.clear();
    put_pod(&mut snapshot, "waits", waits);
    let api = Api::over(snapshot).await;
    let query = "since=1h30m&timestamps=true";
    let answer = reqwest::get(format!("http://{}/v1/logs/default/web?{query}", api.address)).await.unwrap();
    let text = answer.text().await.unwrap();
    let path = "/v1/logs/default/web/app?follow=false&previous=false&timestamps=true&since=5400s";
    assert_eq!(text, format!("asked {path}\n"));
    let (status, body) = api.get("/v1/logs/default/web?since=soon").await;
    assert_eq!(status, 400);
    assert!(body["error"].as_str().unwrap().contains("write an age (90s, 10m"), "{body}");
    let (status, body) = api.get("/v1/logs/default/waits").await;
    assert_eq!(status, 400);
    let error = body["error"].as_str().unwrap();
    assert_eq!(error, "container app of pod default/waits is waiting to start: ErrImagePull: no such image");
}

/// Without `not_started` the log would be empty, and `-p` would read the run before the last.
#[tokio::test]
async fn a_container_that_never_ran_has_no_log_and_one_that_crashed_has_that_of_its_last_run() {
    let node = node_api().await;
    let mut snapshot = with_node_api(format!("http://{node}"));
    let end = |started_at| TerminatedState {
        exit_code: 127,
        reason: "StartError".into(),
        message: "no such file".into(),
        started_at,
        finished_at: Some(at(9)),
    };
    let waiting = |last: TerminatedState| {
        let mut status = pod_waiting("CrashLoopBackOff", "back-off 10s");
        status.container_statuses[0].container_id = "c1".into();
        status.container_statuses[0].last_state = Some(last);
        status
    };
    put_pod(&mut snapshot, "web", waiting(end(Some(at(1)))));
    put_pod(&mut snapshot, "unstarted", waiting(end(None)));
    let mut given_up = waiting(end(None));
    given_up.container_statuses[0].state = ContainerState::Terminated(end(None));
    given_up.container_statuses[0].last_state = None;
    put_pod(&mut snapshot, "given-up", given_up);
    let api = Api::over(snapshot).await;
    let asked = async |query: &str| {
        let answer = reqwest::get(format!("http://{}/v1/logs/default/{query}", api.address)).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for (query, part) in [
        ("web?previous=true", "/app?follow=false&previous=ended"),
        ("web", "/app?follow=false&previous=false"),
    ] {
        let (status, text) = asked(query).await;
        assert!(status == 200 && text.trim_end().ends_with(part), "{query}: {status} {text}");
    }
    for (query, part) in [
        ("unstarted", "is waiting to start: CrashLoopBackOff: back-off 10s"),
        ("unstarted?previous=true", "is waiting to start: CrashLoopBackOff: back-off 10s"),
        ("given-up", "could not be started: no such file"),
    ] {
        let (status, text) = asked(query).await;
        assert!(status == 400 && text.contains(part), "{query}: {status} {text}");
    }
}

#[tokio::test]
async fn usage_is_served_for_pods_and_nodes() {
    let api = Api::over(with_web()).await;
    let (status, body) = api.get("/v1/usage/pods?namespace=default").await;
    assert_eq!((status, &body["items"][0]["name"]), (200, &Value::from("web")));
    assert!(body["items"][0]["why"].as_str().unwrap().contains("has not reported"), "{body}");
    assert_eq!(api.get("/v1/usage/nodes").await.1["items"][0]["cpuCapacity"], Value::from("2"));
    assert_eq!(api.get("/v1/usage/pods?namespace=a/b").await.0, 400);
}

#[tokio::test]
async fn logs_of_an_unreachable_node_are_a_502_that_names_it() {
    // Nothing listens on port 1 of loopback.
    let api = Api::over(with_node_api("http://127.0.0.1:1".to_owned())).await;
    let (status, body) = api.get("/v1/logs/default/web").await;
    assert_eq!(status, 502);
    let error = body["error"].as_str().unwrap();
    assert_eq!(error, "cannot read the log from node n1 at http://127.0.0.1:1: connection refused");
}

#[tokio::test]
async fn the_last_sync_is_shown_where_it_is_known() {
    let started_at = Timestamp::now();
    let last = LastRun {
        started_at,
        took: Duration::from_millis(7),
        did_something: true,
        error: Some("no".to_owned()),
        not_ready: None,
        runs: 3,
        failures: 1,
        busy: Duration::from_millis(20),
        last_success_at: None,
    };
    let loops = LoopRuns::default();
    loops.add("gitops/main", watch::channel(Some(last)).1, Pulse::default());
    loops.add("nodes", watch::channel(None).1, Pulse::default());
    let store = Arc::new(MemoryStore::new());
    let deps = ApiDeps { loops, ..deps(SnapshotReader::fixed(with_web()), &store) };
    let address = bind_and_serve(router(deps)).await;
    let page: Value =
        reqwest::get(format!("http://{address}/v1/status")).await.unwrap().json().await.unwrap();
    assert_eq!((&page["lastSync"]["tookMs"], &page["lastSync"]["error"]), (&7.into(), &"no".into()));
    let page: Value = reqwest::get(format!("http://{address}/v1/loops")).await.unwrap().json().await.unwrap();
    let expected = json!({"items": [
        {
            "name": "gitops/main", "startedAt": started_at, "tookMs": 7, "didSomething": true, "error": "no",
            "notReady": null, "runs": 3, "failures": 1, "busyMs": 20, "lastSuccessAt": null,
        },
        {
            "name": "nodes", "startedAt": null, "tookMs": 0, "didSomething": false, "error": null,
            "notReady": null, "runs": 0, "failures": 0, "busyMs": 0, "lastSuccessAt": null,
        },
    ]});
    assert_eq!(page, expected);
}

fn full() -> UpkeepState {
    let problem = Problem {
        reason: "EtcdFull",
        object_kind: "Etcd",
        name: "m1".to_owned(),
        message: "etcd refuses writes".to_owned(),
    };
    UpkeepState { problems: vec![problem], is_on: true, acts: true, ..UpkeepState::default() }
}

#[tokio::test]
async fn a_full_etcd_is_in_status_and_nothing_new_counts_as_reached() {
    let api = Api::over(with_web()).await;
    let wait =
        async |query: &str| api.answer(reqwest::Method::GET, &format!("/v1/wait-state{query}")).await.1;
    let before = wait("").await;
    assert_eq!(before["synced"], true, "{before}");
    api.etcd.send_replace(Arc::new(full()));
    let (_, page) = api.answer(reqwest::Method::GET, "/v1/status").await;
    assert_eq!(page["etcd"]["problems"], json!(["etcd refuses writes", "users are not managed"]));
    let now = wait("").await;
    assert_eq!((&now["synced"], &now["why"]), (&false.into(), &"etcd refuses writes".into()), "{now}");
    let other = wait("?commit=3333333").await;
    assert_eq!(other["why"], "etcd refuses writes", "{other}");
}

#[tokio::test]
async fn a_defragmentation_is_requested_only_where_the_reconcilers_maintain_etcd() {
    let api = Api::over(with_web()).await;
    let (code, body) = api.answer(reqwest::Method::POST, "/v1/etcd/defrag").await;
    assert_eq!(code, 409, "{body}");
    assert!(body["help"].as_str().unwrap().contains("etcdctl"), "{body}");
    assert!(api.store.get("/minik8s/etcd/defrag").await.unwrap().is_none());
    api.etcd.send_replace(Arc::new(UpkeepState { problems: Vec::new(), ..full() }));
    let (code, body) = api.answer(reqwest::Method::POST, "/v1/etcd/defrag").await;
    let written = api.store.get("/minik8s/etcd/defrag").await.unwrap().unwrap();
    assert_eq!((code, body["revision"].as_i64()), (202, Some(written.mod_revision)), "{body}");
}
