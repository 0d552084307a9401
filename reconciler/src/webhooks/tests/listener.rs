//! The listener on a bound port: accepted requests, rejected ones with their status, and its bounds.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::RETRY_AFTER;
use jiff::{SignedDuration, Timestamp};
use schema::control::{Nudge, NudgeReceiver};
use schema::keys::prefix;
use schema::snapshot::Snapshot;
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::store::{SharedStore, Store};
use schema::trust::{Authority, KeyPair, LeafRequest, connect_pinned};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{PUSH, PUSH_SHA256, SECRET};
use crate::listener::{Listening, PublicCertificate};
use crate::view::HookCounts;
use crate::webhooks::limit::FAILURES_MAX;
use crate::webhooks::server::NARROW_BYTES_MAX;
use crate::webhooks::{Counts, Hooks, Intake, SourceTarget, WebhookArgs, WebhookTls, serve};

struct Gate {
    address: SocketAddr,
    store: MemoryStore,
    counts: Arc<Counts>,
    secret: tempfile::NamedTempFile,
    _nudged: Vec<NudgeReceiver>,
}

fn hooks(sources: &[&str]) -> (Hooks, Gate) {
    let store = MemoryStore::new();
    let (mut targets, mut nudged) = (Vec::new(), Vec::new());
    for source in sources {
        let (nudge, end) = Nudge::new();
        targets.push(SourceTarget::of_branch(source, "main", nudge));
        nudged.push(end);
    }
    let snapshot = SnapshotReader::fixed(Snapshot { synced: true, ..Snapshot::default() });
    let intake = Intake::new(targets, snapshot, Arc::new(store.clone()) as SharedStore, "r0");
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), SECRET).unwrap();
    let counts = Arc::new(Counts::default());
    let hooks = Hooks::new(Arc::new(intake), secret.path().to_owned(), Arc::clone(&counts));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    (hooks, Gate { address, store, counts, secret, _nudged: nudged })
}

impl Gate {
    async fn with(sources: &[&str]) -> Self {
        Self::on(sources, |listener| Listening::Tcp(listener, None)).await
    }

    async fn on(sources: &[&str], listening: impl FnOnce(TcpListener) -> Listening) -> Self {
        let (hooks, gate) = hooks(sources);
        let listener = TcpListener::bind(gate.address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let listening = listening(listener);
        tokio::spawn(serve(listening, hooks, axum::Router::new(), CancellationToken::new()));
        Gate { address, ..gate }
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let mut request = reqwest::Client::new().post(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.body(body.to_owned()).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or(Value::Null))
    }

    /// Sends these bytes and reads the status of the answer; `None` if there is no answer.
    async fn raw(&self, text: &[u8]) -> Option<u16> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let _ = stream.write_all(text).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
    }

    async fn keys(&self) -> usize {
        self.store.list(prefix::REQUESTS).await.unwrap().items.len()
    }
}

fn signed() -> [(&'static str, &'static str); 3] {
    let signature: &'static str = Box::leak(format!("sha256={PUSH_SHA256}").into_boxed_str());
    [("x-hub-signature-256", signature), ("x-github-event", "push"), ("x-github-delivery", "d1")]
}

#[tokio::test]
async fn a_signed_push_is_taken_in_once_and_recognized_when_it_comes_again() {
    let gate = Gate::with(&["main"]).await;
    let (status, body) = gate.post("/v1/webhooks/main", &signed(), PUSH).await;
    assert_eq!((status, &body["request"]), (202, &Value::from("main-github-d1")), "{body}");
    let (status, body) = gate.post("/v1/webhooks", &signed(), PUSH).await;
    assert_eq!((status, &body["outcome"]), (200, &Value::from("duplicate")));
    assert_eq!(gate.keys().await, 1);
    let ping = [signed()[0], ("x-github-event", "ping"), ("x-github-delivery", "d2")];
    assert_eq!(gate.post("/v1/webhooks/main", &ping, PUSH).await.0, 200);
    let other = [signed()[0], ("x-github-event", "issues"), ("x-github-delivery", "d3")];
    let (status, body) = gate.post("/v1/webhooks/main", &other, PUSH).await;
    assert_eq!((status, &body["outcome"]), (202, &Value::from("ignored")));
    assert_eq!(
        gate.counts.now(),
        HookCounts { accepted: 1, duplicate: 1, ignored: 2, ..HookCounts::default() }
    );
}

#[tokio::test]
async fn a_signed_push_is_taken_in_over_tls() {
    let lifetime = SignedDuration::from_hours(1);
    let authority = Authority::create(lifetime, Timestamp::now()).unwrap();
    let (key, identity) = (KeyPair::generate().unwrap(), "reconciler-r1".parse().unwrap());
    let leaf = LeafRequest { identity: &identity, key: &key.public_key().unwrap(), addresses: &[], lifetime };
    let certificate = authority.sign(&leaf, Timestamp::now()).unwrap();
    let pem =
        [key.to_pem().unwrap(), certificate.to_pem().unwrap(), authority.certificate().to_pem().unwrap()];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pem.concat()).unwrap();
    let public = PublicCertificate::new(file.path().to_owned());
    let gate = Gate::on(&["main"], |listener| Listening::Public(listener, public)).await;
    let stream = TcpStream::connect(gate.address).await.unwrap();
    let mut tls = connect_pinned(stream, &authority.certificate().digest().unwrap()).await.unwrap();
    let request = format!(
        "POST /v1/webhooks HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nx-hub-signature-256: {}\r\n\
         x-github-event: push\r\nx-github-delivery: d1\r\n\r\n{PUSH}",
        PUSH.len(),
        signed()[0].1
    );
    tls.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tls.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert_eq!(gate.keys().await, 1);
    // In clear nobody answers.
    assert_eq!(gate.raw(request.as_bytes()).await, None);
}

#[test]
fn a_certificate_is_that_of_the_cluster_or_in_a_file() {
    let tls = |value: &str| {
        let args = WebhookArgs {
            webhook_listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            webhook_secret_file: Some("/s".into()),
            webhook_tls: Some(value.into()),
        };
        args.config().unwrap().tls.unwrap()
    };
    assert_eq!(tls("cluster"), WebhookTls::Cluster);
    assert_eq!(tls("./cluster"), WebhookTls::File("./cluster".into()));
}

#[tokio::test]
async fn a_sender_without_the_secret_learns_nothing_and_changes_nothing() {
    let gate = Gate::with(&["main"]).await;
    let good = signed()[0];
    let forged =
        ("x-hub-signature-256", "sha256=0000000000000000000000000000000000000000000000000000000000000000");
    let token = ("x-gitlab-token", "a-guess-of-the-secret-that-is-wrong");
    let mut answers = Vec::new();
    for (headers, body) in [
        (vec![], PUSH),
        (vec![forged], PUSH),
        (vec![good], ""),
        (vec![good], &PUSH[..50]),
        (vec![("x-gitea-signature", "zz")], PUSH),
        (vec![("x-hub-signature", "sha1=a4f3bc42591e2661250a00f556f4b4e64f847b16")], PUSH),
        (vec![token], PUSH),
    ] {
        for path in ["/v1/webhooks/main", "/v1/webhooks/nobody", "/v1/webhooks"] {
            answers.push(gate.post(path, &headers, body).await);
        }
    }
    let first = (401, answers[0].1.clone());
    assert!(answers.iter().all(|answer| *answer == first), "{answers:?}");
    assert!(!first.1.to_string().contains("guess"));
    assert_eq!(gate.keys().await, 0);
    assert_eq!(gate.counts.now().refused, 21);
}

#[tokio::test]
async fn only_webhooks_are_to_be_seen_here() {
    let gate = Gate::with(&["main"]).await;
    for path in ["/v1/status", "/v1/pods", "/v1/sync", "/v1/requests", "/"] {
        assert_eq!(gate.post(path, &signed(), PUSH).await.0, 404, "{path}");
    }
    assert_eq!(gate.raw(b"GET /v1/webhooks HTTP/1.1\r\nhost: x\r\n\r\n").await, Some(405));
}

#[tokio::test]
async fn several_sources_need_a_name_and_only_a_signed_request_learns_that_one_is_wrong() {
    let gate = Gate::with(&["main", "lab"]).await;
    assert_eq!(gate.post("/v1/webhooks/lab", &signed(), PUSH).await.0, 202);
    assert_eq!(gate.post("/v1/webhooks", &signed(), PUSH).await.0, 404);
    assert_eq!(gate.post("/v1/webhooks/other", &signed(), PUSH).await.0, 404);
}

#[tokio::test]
async fn a_secret_is_changed_without_a_restart_and_a_broken_file_lets_nobody_in() {
    let gate = Gate::with(&["main"]).await;
    std::fs::write(gate.secret.path(), format!("the-new-secret-0123456789\n{SECRET}\n")).unwrap();
    assert_eq!(gate.post("/v1/webhooks", &signed(), PUSH).await.0, 202);
    std::fs::write(gate.secret.path(), "the-new-secret-0123456789\n").unwrap();
    assert_eq!(gate.post("/v1/webhooks", &signed(), PUSH).await.0, 401);
    for broken in ["", "short"] {
        std::fs::write(gate.secret.path(), broken).unwrap();
        assert_eq!(gate.post("/v1/webhooks", &signed(), PUSH).await.0, 503);
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_and_while_it_comes() {
    let gate = Gate::with(&["main"]).await;
    let head = |more: &str| {
        format!(
            "POST /v1/webhooks HTTP/1.1\r\nhost: x\r\nx-hub-signature-256: {}\r\n{more}\r\n",
            signed()[0].1
        )
    };
    assert_eq!(gate.raw(head("content-length: 52428800\r\n").as_bytes()).await, Some(413));
    // Without a declared length, the bytes are counted. The answer may be lost with the connection,
    // because the sender keeps sending; the refusal is counted anyway.
    let mut chunked = head("transfer-encoding: chunked\r\n").into_bytes();
    let piece = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    (0..26).for_each(|_| chunked.extend_from_slice(piece.as_bytes()));
    assert!(matches!(gate.raw(&chunked).await, Some(413) | None));
    assert_eq!(gate.counts.now().too_large, 2);
    let large = head(&format!("x-padding: {}\r\n", "x".repeat(64 * 1024)));
    assert_eq!(gate.raw(large.as_bytes()).await, Some(431));
    assert_eq!(gate.keys().await, 0);
}

#[tokio::test(start_paused = true)]
async fn who_sends_too_slowly_is_let_go() {
    let gate = Gate::with(&["main"]).await;
    assert_eq!(gate.raw(b"POST /v1/webhooks HTTP/1.1\r\nhost:").await, None);
    let begun = format!(
        "POST /v1/webhooks HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\nx-hub-signature-256: {}\r\n\r\nx",
        signed()[0].1
    );
    assert_eq!(gate.raw(begun.as_bytes()).await, Some(408));
    assert_eq!(gate.counts.now().slow, 1);
}

fn request(signature: &str) -> Request {
    let request = Request::post("/v1/webhooks").header("x-hub-signature-256", signature);
    request.header("x-github-delivery", "d1").body(Body::from(PUSH)).unwrap()
}

#[tokio::test]
async fn when_all_places_are_taken_the_next_learns_when_to_come_again() {
    let (hooks, gate) = hooks(&["main"]);
    let address = IpAddr::from([192, 0, 2, 1]);
    let taken = hooks.take_all_permits();
    let answer = hooks.receive(address, None, request(signed()[0].1)).await;
    assert_eq!((answer.status().as_u16(), answer.headers().contains_key(RETRY_AFTER)), (503, true));
    drop(taken);
    assert_eq!(hooks.receive(address, None, request(signed()[0].1)).await.status().as_u16(), 202);
    assert_eq!(gate.counts.now().busy, 1);
}

/// Hooks after this address has sent too many wrong requests.
async fn after_guesses(guesser: IpAddr) -> (Hooks, Gate) {
    let (hooks, gate) = hooks(&["main"]);
    let wrong = format!("sha256={}", "0".repeat(64));
    for _ in 0..FAILURES_MAX {
        assert_eq!(hooks.receive(guesser, None, request(&wrong)).await.status().as_u16(), 401);
    }
    (hooks, gate)
}

#[tokio::test]
async fn an_address_that_guesses_has_less_room_and_what_is_right_of_it_still_gets_through() {
    let (guesser, friend) = (IpAddr::from([192, 0, 2, 66]), IpAddr::from([192, 0, 2, 1]));
    let (hooks, gate) = after_guesses(guesser).await;
    assert_eq!(hooks.receive(guesser, None, request(signed()[0].1)).await.status().as_u16(), 202);
    let wrong = format!("sha256={}", "0".repeat(64));
    assert_eq!(hooks.receive(guesser, None, request(&wrong)).await.status().as_u16(), 401);
    let refused = gate.counts.now().refused;
    // Large bodies are not read, with or without a declared length.
    let large = || vec![b'x'; usize::try_from(NARROW_BYTES_MAX).unwrap() + 1];
    let said = Request::post("/v1/webhooks").header("content-length", large().len());
    let counted = Request::post("/v1/webhooks");
    for request in [said, counted] {
        let request = request.header("x-hub-signature-256", signed()[0].1).body(Body::from(large())).unwrap();
        let answer = hooks.receive(guesser, None, request).await;
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key(RETRY_AFTER)), (429, true));
    }
    assert_eq!(gate.counts.now().refused, refused + 2);
    // From other addresses they are read.
    let counted = Request::post("/v1/webhooks").header("x-hub-signature-256", signed()[0].1);
    let answer = hooks.receive(friend, None, counted.body(Body::from(large())).unwrap()).await;
    assert_eq!(answer.status().as_u16(), 401);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_guesses_sends_one_body_at_a_time_and_the_next_waits_for_its_turn() {
    let guesser = IpAddr::from([192, 0, 2, 66]);
    let (hooks, _gate) = after_guesses(guesser).await;
    let endless = || {
        let request = Request::post("/v1/webhooks").header("x-hub-signature-256", signed()[0].1);
        let pending = futures::stream::pending::<Result<Vec<u8>, std::convert::Infallible>>();
        hooks.receive(guesser, None, request.body(Body::from_stream(pending)).unwrap())
    };
    let begun = tokio::time::Instant::now();
    let right = hooks.receive(guesser, None, request(signed()[0].1));
    let (first, second, right) = tokio::join!(endless(), endless(), right);
    assert_eq!([&first, &second, &right].map(|answer| answer.status().as_u16()), [408, 408, 202]);
    assert_eq!(begun.elapsed().as_secs(), 4, "two endless ones before it, two seconds each");
}
