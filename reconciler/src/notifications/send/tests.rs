//! Deliveries to servers of these tests: read-back, pauses, cut connections, redirects, addresses, and secrets that no
//! error repeats.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::slice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Response;
use schema::control::lock;
use schema::kinds::cluster::{
    Notification, NotificationEvent, NotificationMatrix, NotificationSlack, NotificationSmtp,
    NotificationWebhook,
};
use schema::records::{Message, MessageState};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::git::{CommitStatus, CommitStatusFields, Forge, SourceConfig};
use crate::notifications::target::{OwnAddresses, targets};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CANARY: &str = "s3cr3t-canary-0123";

/// An answer of the server: status, headers, body.
type Reply = (u16, Vec<(&'static str, &'static str)>, String);

/// A server with an answer for each request, in order, which keeps the requests: method and path, token, body.
#[derive(Clone, Default)]
struct Server {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    seen: Arc<Mutex<Vec<(String, String, Value)>>>,
}

impl Server {
    async fn start(replies: Vec<Reply>) -> (Self, SocketAddr) {
        let server = Self { replies: Arc::new(Mutex::new(replies.into())), ..Self::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(Self::reply).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (server, address)
    }

    async fn reply(State(server): State<Self>, request: Request) -> Response<Body> {
        let what = format!("{} {}", request.method(), request.uri());
        let token = request.headers().get("authorization").or(request.headers().get("private-token"));
        let token = token.map(|token| token.to_str().unwrap().to_owned()).unwrap_or_default();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        lock(&server.seen).push((what, token, serde_json::from_slice(&body).unwrap_or_default()));
        let (status, headers, body) = lock(&server.replies).pop_front().expect("a request too many");
        let builder = headers
            .into_iter()
            .fold(Response::builder().status(status), |builder, (name, value)| builder.header(name, value));
        builder.body(body.into()).unwrap()
    }

    fn requests(&self) -> Vec<String> {
        lock(&self.seen).iter().map(|(what, ..)| what.replace(COMMIT, "COMMIT")).collect()
    }
}

fn delivery() -> Delivery {
    let message = Message {
        event: NotificationEvent::Verdict,
        state: MessageState::Failure,
        title: "Bad".to_owned(),
        text: "web: no progress".to_owned(),
        page: "/revisions/7".to_owned(),
        source: Some("shop".to_owned()),
        commit: Some(COMMIT.to_owned()),
    };
    Delivery {
        id: "d-7".to_owned(),
        subject: format!("commit.{COMMIT}"),
        message,
        link: None,
        may_have_arrived: false,
    }
}

/// A forge at this address, with the canary as token.
fn forge(forge: Forge, address: SocketAddr, allow_private: bool, dir: &Path) -> Target {
    let token = dir.join("token");
    std::fs::write(&token, CANARY).unwrap();
    let mut config = SourceConfig::branch("shop", "https://git.example/kim/shop.git", "main");
    let api = crate::outgoing::url(address, "");
    let given = CommitStatusFields {
        forge: Some(forge),
        api: Some(api),
        repository: Some("kim/shop".to_owned()),
        token_file: Some(token),
        // Without it, an unencrypted API is refused when the settings are read.
        allow_private: true,
        ..CommitStatusFields::default()
    };
    let mut status = CommitStatus::new(given, &config.url).unwrap();
    status.allow_private = allow_private;
    config.commit_status = Some(status);
    targets(slice::from_ref(&config), None, dir, &OwnAddresses::default()).remove(0)
}

/// Delivers to a chat with these secrets.
async fn to_chat(
    notification: Notification,
    delivery: &Delivery,
    secrets: &[(&str, &str)],
) -> Result<DeliveryOutcome, DeliveryError> {
    let kind = TargetKind::Chat { notification, source: "main".to_owned(), home: None };
    let own = OwnAddresses { cluster_name: Some("lab".to_owned()), ..OwnAddresses::default() };
    let target = Target { name: "ops".to_owned(), kind, own };
    let secrets: Secrets =
        secrets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let delivered = dispatch(&target, delivery, &secrets, Instant::now() + DELIVERY_MAX).await;
    delivered.map_err(|error| DeliveryError { message: redacted(&error.message, &secrets), ..error })
}

fn private() -> Notification {
    Notification { name: "ops".to_owned(), allow_private: true, ..Notification::default() }
}

fn ok() -> Reply {
    (200, vec![], "{}".to_owned())
}

#[tokio::test]
async fn a_status_is_set_once_if_it_may_have_arrived() {
    let dir = tempfile::tempdir().unwrap();
    let shown = |state: &str, description: &str| {
        let list = json!([{"id": 1, "context": "minik8s/shop", "status": state, "description": description}]);
        (200, vec![], list.to_string())
    };
    let others = vec![json!({"id": 1, "context": "ci", "status": "success"}); 10];
    let others = || (200, vec![], json!(others).to_string());
    let (server, address) = Server::start(vec![
        (201, vec![], "{}".to_owned()),
        others(),
        shown("failure", "Bad"),
        shown("failure", "another reason"),
        (201, vec![], "{}".to_owned()),
        others(),
        others(),
        others(),
        others(),
        others(),
        (201, vec![], "{}".to_owned()),
        (200, vec![], "x".repeat(100_000)),
        (201, vec![], "{}".to_owned()),
    ])
    .await;
    let target = forge(Forge::Gitea, address, true, dir.path());
    assert_eq!(send(&target, &delivery()).await, Ok(DeliveryOutcome::Sent));
    let again = Delivery { may_have_arrived: true, ..delivery() };
    assert_eq!(send(&target, &again).await, Ok(DeliveryOutcome::AlreadyThere));
    assert_eq!(send(&target, &again).await, Ok(DeliveryOutcome::Sent));
    assert_eq!(send(&target, &again).await, Ok(DeliveryOutcome::Sent), "not on five pages");
    assert_eq!(send(&target, &again).await, Ok(DeliveryOutcome::Sent), "the list is too large");
    let path = "/api/v1/repos/kim/shop/statuses/COMMIT";
    let list = |page: usize| format!("GET {path}?sort=recentupdate&limit=10&page={page}");
    let mut wanted = vec![format!("POST {path}"), list(1), list(2), list(1), format!("POST {path}")];
    wanted.extend((1..=5).map(list));
    wanted.extend([format!("POST {path}"), list(1), format!("POST {path}")]);
    assert_eq!(server.requests(), wanted);
    let (_, token, body) = lock(&server.seen)[0].clone();
    assert_eq!(token, format!("token {CANARY}"));
    let wanted = json!({"context": "minik8s/shop", "state": "failure", "description": "Bad"});
    assert_eq!(body, wanted);
}

// Would fail without the read-back, and if any state counted.
#[tokio::test]
async fn gitlab_refuses_a_state_that_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || {
        let why = "Cannot transition status via :drop from :failed (Reason(s): Status cannot transition)";
        (400, vec![], json!({"message": why}).to_string())
    };
    let shown =
        |state: &str| (200, vec![], json!([{"id": 1, "name": "minik8s/shop", "status": state}]).to_string());
    let (server, address) =
        Server::start(vec![refused(), shown("failed"), refused(), shown("success")]).await;
    let target = forge(Forge::GitLab, address, true, dir.path());
    assert_eq!(send(&target, &delivery()).await, Ok(DeliveryOutcome::AlreadyThere));
    let error = send(&target, &delivery()).await.unwrap_err();
    assert!(error.message.contains("Cannot transition status"), "{error}");
    assert_eq!(server.requests().len(), 4);
    assert_eq!(lock(&server.seen)[0].1, CANARY);
}

#[tokio::test]
async fn a_forge_may_ask_for_a_pause_and_no_error_repeats_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let said = json!({"message": format!("no access with {CANARY}")}).to_string();
    let (_, address) = Server::start(vec![
        (429, vec![("retry-after", "30")], said.clone()),
        (403, vec![], said.clone()),
        (302, vec![("location", "http://127.0.0.1:1/elsewhere")], said.clone()),
        (500, vec![], CANARY.to_owned()),
        // Would leave a part of it if it were cut first.
        (500, vec![], "x".repeat(190) + CANARY),
    ])
    .await;
    let target = forge(Forge::GitHub, address, true, dir.path());
    let mut errors = Vec::new();
    for _ in 0..5 {
        errors.push(send(&target, &delivery()).await.unwrap_err());
    }
    assert_eq!(errors[0].retry_after, Some(Duration::from_secs(30)));
    for (error, part) in errors.iter().zip([
        "429 Too Many Requests: no access with ***",
        "the token lacks write access to commit statuses",
        "a redirect to http://127.0.0.1:1, which is not followed: name the new address",
        "500 Internal Server Error: ***",
        "xxx***",
    ]) {
        assert!(error.message.contains(part) && !format!("{error:?}").contains(&CANARY[..6]), "{error}");
    }
}

#[tokio::test]
async fn a_cut_connection_and_a_silent_server_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        let _ = first.read(&mut [0; 16]).await;
        drop(first);
        let _kept = listener.accept().await;
        std::future::pending::<()>().await;
    });
    let target = forge(Forge::Gitea, address, true, dir.path());
    let error = send(&target, &delivery()).await.unwrap_err();
    assert_eq!(error.message, format!("http://{address} closed the connection"));
    let error = send(&target, &delivery()).await.unwrap_err();
    assert_eq!(error.message, format!("http://{address} did not answer within 5 s"));
}

#[tokio::test]
async fn a_server_that_is_away_or_plain_is_named_with_its_port() {
    let (_, plain) = Server::start(vec![]).await;
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (url, wanted) in [
        (format!("http://{away}/s3cret"), format!("cannot connect to http://{away}: connection refused")),
        (
            format!("https://{plain}/s3cret"),
            format!("cannot connect to https://{plain}: it does not speak TLS"),
        ),
    ] {
        let slack = Notification { slack: Some(NotificationSlack {}), ..private() };
        let error = to_chat(slack, &delivery(), &[("url", url.as_str())]).await.unwrap_err();
        assert_eq!(error.message, wanted);
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_private_address_unless_it_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = Server::start(vec![]).await;
    let target = forge(Forge::Gitea, address, false, dir.path());
    let error = send(&target, &delivery()).await.unwrap_err();
    assert!(error.message.contains("loopback, private or the cluster's own"), "{error}");
    for url in [format!("http://{address}/"), format!("http://localhost:{}/", address.port())] {
        let webhook = Some(NotificationWebhook { url: Some(url), template: None });
        let notification = Notification { webhook, allow_private: false, ..private() };
        let error = to_chat(notification, &delivery(), &[]).await.unwrap_err();
        assert!(error.message.contains("allowPrivate"), "{error}");
    }
    assert!(server.requests().is_empty());
}

// Would fail if a redirect were followed: its target would get the message.
#[tokio::test]
async fn a_webhook_is_sent_to_its_address_and_nowhere_else() {
    let (elsewhere, other) = Server::start(vec![ok()]).await;
    let location: &'static str = format!("http://{other}/stolen").leak();
    let (server, address) =
        Server::start(vec![ok(), (307, vec![("location", location)], String::new())]).await;
    let webhook =
        Some(NotificationWebhook { url: Some(format!("http://{address}/hook?a=b")), template: None });
    let notification = Notification { webhook, ..private() };
    let secrets = [("key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
    assert_eq!(to_chat(notification.clone(), &delivery(), &secrets).await, Ok(DeliveryOutcome::Sent));
    let error = to_chat(notification, &delivery(), &secrets).await.unwrap_err();
    let redirect = format!("307 Temporary Redirect, a redirect to http://{other}, which is not followed");
    assert!(error.message.contains(&redirect), "{error}");
    assert_eq!(server.requests(), ["POST /hook?a=b", "POST /hook?a=b"]);
    let body = lock(&server.seen)[0].2.clone();
    assert_eq!((&body["title"], &body["cluster"]), (&json!("Bad"), &json!("lab")));
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn chats_get_their_form_and_no_error_repeats_their_secrets() {
    let not_found = |text: &str| (404, vec![], text.to_owned());
    let (server, address) = Server::start(vec![
        ok(),
        not_found(&format!("no hook /services/T0/{CANARY} of {CANARY}")),
        ok(),
        (401, vec![], json!({"errcode": "M_UNKNOWN_TOKEN", "message": CANARY}).to_string()),
    ])
    .await;
    let hook = format!("http://{address}/services/T0/{CANARY}");
    let slack = Notification { slack: Some(NotificationSlack {}), ..private() };
    let secrets = [("url", hook.as_str())];
    assert_eq!(to_chat(slack.clone(), &delivery(), &secrets).await, Ok(DeliveryOutcome::Sent));
    let error = to_chat(slack.clone(), &delivery(), &secrets).await.unwrap_err();
    assert!(error.message.contains("no hook /***") && !error.message.contains(CANARY), "{error}");

    let room = NotificationMatrix { room: "!a:b".to_owned() };
    let matrix = Notification { matrix: Some(room), ..private() };
    let homeserver = format!("http://{address}");
    let secrets = [("url", homeserver.as_str()), ("token", CANARY)];
    assert_eq!(to_chat(matrix.clone(), &delivery(), &secrets).await, Ok(DeliveryOutcome::Sent));
    let error = to_chat(matrix, &delivery(), &secrets).await.unwrap_err();
    assert!(error.message.contains("401 Unauthorized: ***"), "{error}");
    let put = "PUT /_matrix/client/v3/rooms/!a:b/send/m.room.message/d-7";
    let post = format!("POST /services/T0/{CANARY}");
    assert_eq!(server.requests(), [post.as_str(), post.as_str(), put, put]);
    assert_eq!(lock(&server.seen)[0].2["text"], "[lab] Bad\nweb: no progress");
    assert_eq!(lock(&server.seen)[2].1, format!("Bearer {CANARY}"));
    let slack = Notification { secret_name: Some("chat".to_owned()), ..slack };
    let error = to_chat(slack, &delivery(), &[]).await.unwrap_err();
    assert_eq!(error.message, "secrets/.notifications/chat.age has no `url`");
}

// Would fail if the login, or the mail, went before STARTTLS.
#[tokio::test]
async fn mail_is_not_sent_without_encryption() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let talk = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        socket.write_all(b"220 mail.example\r\n").await.unwrap();
        let mut buffer = [0; 512];
        while let Ok(count) = socket.read(&mut buffer).await
            && count > 0
        {
            heard.extend_from_slice(&buffer[..count]);
            let _ = socket.write_all(b"250-mail.example\r\n250 AUTH PLAIN LOGIN\r\n").await;
        }
        String::from_utf8(heard).unwrap()
    });
    let smtp = NotificationSmtp { from: "a@example.org".to_owned(), to: vec!["b@example.org".to_owned()] };
    let notification = Notification { smtp: Some(smtp), ..private() };
    let url = format!("smtp://{address}");
    let secrets = [("url", url.as_str()), ("username", "kim"), ("password", CANARY)];
    let error = to_chat(notification.clone(), &delivery(), &secrets).await.unwrap_err();
    let wanted = format!("cannot connect to {address}: it does not offer STARTTLS: use smtps://");
    assert_eq!(error.message, wanted);
    let heard = talk.await.unwrap();
    assert!(heard.starts_with("EHLO ") && !heard.contains("AUTH") && !heard.contains("MAIL"), "{heard}");

    let public = Notification { allow_private: false, ..notification.clone() };
    let error = to_chat(public, &delivery(), &secrets).await.unwrap_err();
    assert!(error.message.contains("allowPrivate"), "{error}");
    let error = to_chat(notification, &delivery(), &secrets[..2]).await.unwrap_err();
    assert!(error.message.contains("only one of `username` and `password`"), "{error}");
}

#[test]
fn secrets_are_masked_in_every_form_in_which_a_server_may_repeat_them() {
    let secrets = [
        ("url", "https://hooks.example/services/T00000000/abcdefghijkl?key=0123456789"),
        ("username", "kim"),
        ("password", "hunter2"),
        ("key", ""),
        ("ca", "-----BEGIN CERTIFICATE-----"),
    ];
    let secrets: Secrets = secrets.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    for text in [
        "services/T00000000/abcdefghijkl?key=0123456789",
        "/services/T00000000/abcdefghijkl",
        "abcdefghijkl",
        "0123456789",
        "hunter2",
        "aHVudGVyMg==",
        "AGtpbQBodW50ZXIy",
    ] {
        let shown = redacted(&format!("cannot reach hooks.example as kim: {text}"), &secrets);
        assert!(shown.starts_with("cannot reach hooks.example as kim: "), "{shown}");
        assert!(shown.contains("***") && !shown.contains(text), "{shown}");
    }
    let url = "https://hooks.example?token=0123456789".to_owned();
    let secrets = Secrets::from([("url".to_owned(), url)]);
    for text in ["no token=0123456789", "no 0123456789"] {
        assert_eq!(redacted(text, &secrets), "no ***");
    }
}
