//! Calls of triggers: authentication, and the runs that they start.

use std::net::SocketAddr;
use std::sync::Arc;

use schema::codec::decode;
use schema::keys::{Key, prefix};
use schema::kinds::Resource;
use schema::manifest::load_file;
use schema::object::Provenance;
use schema::snapshot::Snapshot;
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::store::{SharedStore, Store as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::webhooks::calls::{CallState, router};
use crate::workflows::RequestQueue;

const TOKEN: &str = "a-token-of-this-test";

struct Desk {
    address: SocketAddr,
    store: MemoryStore,
}

impl Desk {
    async fn new() -> Self {
        let digest = hex::encode_upper(Sha256::digest(TOKEN));
        let triggers = format!(
            "[{{name: paid, onCall: {{tokenSha256: {digest}}}}}, {{name: fixed, onCall: {{tokenSha256: {digest}}}, params: {{n: 7}}}}, \
             {{name: nightly, schedule: {{cron: '0 3 * * *'}}}}, {{name: careless, onCall: {{tokenSha256: {digest}}}}}]"
        );
        let manifests = format!(
            "kind: Workflow\napiVersion: minik8s.io/v1\nmetadata: {{name: order}}\nspec:\n  triggers: {triggers}\n  startAt: \
             a\n  states: {{a: {{type: Pass, end: true}}}}\n---\nkind: Function\napiVersion: minik8s.io/v1\nmetadata: {{name: \
             thumb}}\nspec: {{image: 'example/thumb:1', triggers: {triggers}}}\n"
        );
        let loaded = load_file("w.yaml", manifests.as_bytes());
        assert!(!loaded.has_errors(), "{:?}", loaded.violations);
        let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
        for document in loaded.documents {
            let mut object = Arc::unwrap_or_clone(document.object).into_object(Provenance::default(), 1);
            // As an older reconciler stored it.
            if let Resource::Workflow(spec) = &mut object.resource
                && let Some(call) =
                    Arc::make_mut(spec).triggers.last_mut().and_then(|trigger| trigger.on_call.as_mut())
            {
                call.token_sha256 = hex::encode(Sha256::digest(""));
            }
            snapshot.put(&Key::Object(document.reference), &object, 1);
        }
        let store = MemoryStore::new();
        let shared: SharedStore = Arc::new(store.clone());
        let desk = CallState::new(&shared, &SnapshotReader::fixed(snapshot), "r0", &RequestQueue::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router(desk)).await });
        Self { address, store }
    }

    async fn call(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let mut request = reqwest::Client::new().post(format!("http://{}/v1/calls/{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.body(body.to_owned()).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or(Value::Null))
    }

    /// Requested runs with their inputs.
    async fn asked(&self) -> Vec<(String, Value)> {
        let items = self.store.list(prefix::RUN_REQUESTS).await.unwrap().items;
        let read = |value: &[u8]| decode::<Value>(value).unwrap()["input"]["inline"].clone();
        items
            .iter()
            .map(|item| (item.key[prefix::RUN_REQUESTS.len()..].to_owned(), read(&item.value)))
            .collect()
    }
}

fn bearer() -> (&'static str, String) {
    ("authorization", format!("Bearer {TOKEN}"))
}

#[tokio::test]
async fn who_has_the_token_starts_a_run_and_the_same_id_is_the_same_run() {
    let desk = Desk::new().await;
    let (name, token) = bearer();
    let headers = [(name, token.as_str()), ("idempotency-key", "order-17")];
    let (status, body) = desk.call("workflow/default/order/paid", &headers, r#"{"sum": 3}"#).await;
    assert_eq!((status, body), (202, json!({"id": "paid.order-17", "isNew": true})));
    let (status, body) = desk.call("Workflow/default/order/paid", &headers, r#"{"sum": 4}"#).await;
    assert_eq!((status, body), (200, json!({"id": "paid.order-17", "isNew": false})));
    assert_eq!(desk.call("function/default/thumb/fixed", &headers, "not JSON").await.0, 202);
    assert_eq!(
        desk.asked().await,
        [
            ("default/function:thumb/fixed.order-17".to_owned(), json!({"n": 7})),
            ("default/order/paid.order-17".to_owned(), json!({"sum": 3})),
        ]
    );
    let without_id = desk.call("workflow/default/order/paid", &headers[..1], "").await;
    let again = desk.call("workflow/default/order/paid", &headers[..1], "").await;
    assert_ne!(without_id.1["id"], again.1["id"], "each is a run of its own");
}

// Seen red without the comparison of the token.
#[tokio::test]
async fn who_has_not_learns_nothing_and_starts_nothing() {
    let desk = Desk::new().await;
    let (name, token) = bearer();
    let digest = format!("Bearer {}", hex::encode(Sha256::digest(TOKEN)));
    let mut answers = Vec::new();
    for (path, token) in [
        ("workflow/default/order/paid", "Bearer another-token"),
        ("workflow/default/order/paid", "Bearer "),
        ("workflow/default/order/paid", TOKEN),
        ("workflow/default/order/paid", &digest),
        ("workflow/default/order/nothing", &token),
        ("workflow/default/nothing/paid", &token),
        ("workflow/default/order/nightly", &token),
        ("workflow/default/order/careless", &token),
        ("workflow/default/order/careless", "Bearer "),
        ("workflow/default/order/careless", "Bearer"),
        ("workflow/default/order/careless", ""),
        ("pod/default/order/paid", &token),
        ("nothing/default/order/paid", &token),
    ] {
        answers.push(desk.call(path, &[(name, token)], "{}").await);
    }
    for trigger in ["paid", "careless"] {
        answers.push(desk.call(&format!("workflow/default/order/{trigger}"), &[], "{}").await);
    }
    assert!(answers.iter().all(|(status, _)| *status == 401), "{answers:?}");
    answers.dedup();
    assert_eq!(answers.len(), 1, "they differ: {answers:?}");
    assert_eq!(desk.asked().await, []);
}

#[tokio::test]
async fn what_cannot_be_an_input_or_an_id_is_refused() {
    let desk = Desk::new().await;
    let (name, token) = bearer();
    let path = "workflow/default/order/paid";
    assert_eq!(desk.call(path, &[(name, &token)], "{").await.0, 400);
    assert_eq!(desk.call(path, &[(name, &token)], &format!("\"{}\"", "x".repeat(300 * 1024))).await.0, 413);
    assert_eq!(desk.call(path, &[(name, &token)], &"x".repeat(600 * 1024)).await.0, 413);
    assert_eq!(desk.call(path, &[(name, &token), ("idempotency-key", "a/b")], "{}").await.0, 400);
    // It can be parsed, but not once it is nested within the stored request.
    let deep = format!("{}{}", "[".repeat(126), "]".repeat(126));
    assert_eq!(desk.call(path, &[(name, &token)], &deep).await.0, 400);
    assert_eq!(desk.asked().await, []);
}

#[tokio::test]
async fn no_more_than_32_bodies_are_read_at_once_and_none_of_a_stranger() {
    let desk = Desk::new().await;
    let (_, token) = bearer();
    let open = async |token: &str| {
        let mut stream = TcpStream::connect(desk.address).await.unwrap();
        let head = "POST /v1/calls/workflow/default/order/paid HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nauthorization";
        stream.write_all(format!("{head}: {token}\r\n\r\n{{").as_bytes()).await.unwrap();
        stream
    };
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(open("Bearer of-no-use").await);
    }
    let call = async || desk.call("workflow/default/order/paid", &[("authorization", &token)], "{}").await;
    assert_eq!(call().await.0, 202);
    for _ in 0..32 {
        slow.push(open(&token).await);
    }
    let mut tries = 0;
    while call().await.0 != 503 {
        tries += 1;
        assert!(tries < 2_000, "it is still taken");
    }
    drop(slow);
    while call().await.0 != 202 {
        tries += 1;
        assert!(tries < 4_000, "it is not taken any more");
    }
}
