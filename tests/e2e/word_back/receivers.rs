//! Receivers of messages: a webhook that verifies signatures as Standard Webhooks has them, an incoming webhook of
//! Slack, and a Matrix homeserver. What their documentation does not allow is refused and recorded, and dice lose some
//! of the answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::{Context, HttpAnswer, HttpRequest, HttpServer, Result, bail, ensure};
use jiff::Timestamp;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use schema::control::lock;
use serde_json::{Value, json};

use super::dice::{self, Dice};

/// Seconds that the time of a signed request may differ from now.
const TOLERANCE: i64 = 300;

/// Type of a receiver, with its secret.
#[derive(Debug, Clone)]
pub(super) enum Shape {
    /// A webhook with the key that signs its requests, `whsec_…`.
    Webhook(String),
    /// An incoming webhook of Slack; its path is the secret.
    Slack,
    /// A Matrix homeserver with an access token and a room.
    Matrix { token: String, room: &'static str },
}

/// A message that was received, maybe not for the first time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Delivery {
    /// Id of the delivery; empty where there is none.
    pub(super) id: String,
    /// The request's body.
    pub(super) body: Value,
}

/// A server that receives messages.
#[derive(Debug)]
pub(super) struct Receiver {
    server: HttpServer,
    path: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shape: Shape,
    path: String,
    dice: Dice,
    received: Mutex<Vec<Delivery>>,
    complaints: Mutex<Vec<String>>,
}

impl Receiver {
    /// Serves at this path; empty for a homeserver.
    pub(super) fn serve(shape: Shape, path: &str, dice: &Dice) -> Result<Self> {
        let shared = Arc::new(Shared {
            shape,
            path: path.to_owned(),
            dice: dice.clone(),
            received: Mutex::default(),
            complaints: Mutex::default(),
        });
        let served = Arc::clone(&shared);
        let server = HttpServer::serve(move |request| {
            // The id, the path with the transaction, or the text.
            let id = request.header("webhook-id").unwrap_or(&request.path);
            let subject = format!("{id} {}", String::from_utf8_lossy(&request.body));
            served.dice.play(&subject, request, || served.answer(request))
        })?;
        Ok(Self { server, path: path.to_owned(), shared })
    }

    /// URL for the secret.
    pub(super) fn url(&self) -> String {
        format!("http://{}{}", self.server.address(), self.path)
    }

    /// Messages received so far, repeats included.
    pub(super) fn received(&self) -> Vec<Delivery> {
        lock(&self.shared.received).clone()
    }

    /// Checks that every request was as documented, and that no id stood for two messages.
    pub(super) fn is_content(&self) -> Result<()> {
        let complaints = lock(&self.shared.complaints).clone();
        ensure!(complaints.is_empty(), "{:?}: {complaints:#?}", self.shared.shape);
        let mut bodies: BTreeMap<String, Value> = BTreeMap::new();
        for Delivery { id, body } in self.received().into_iter().filter(|delivery| !delivery.id.is_empty()) {
            let first = bodies.entry(id.clone()).or_insert_with(|| body.clone());
            ensure!(*first == body, "{id} stands for {first} and {body}");
        }
        Ok(())
    }
}

impl Shared {
    fn answer(&self, request: &HttpRequest) -> HttpAnswer {
        let received = match &self.shape {
            Shape::Webhook(key) => self.webhook(key, request),
            Shape::Slack => self.slack(request),
            Shape::Matrix { token, room } => matrix(token, room, request),
        };
        match received {
            Ok(delivery) => {
                let event = json!({"event_id": format!("${}", delivery.id)});
                lock(&self.received).push(delivery);
                match &self.shape {
                    Shape::Webhook(_) => dice::plain(204, ""),
                    Shape::Slack => dice::plain(200, "ok"),
                    Shape::Matrix { .. } => dice::json(200, &event),
                }
            }
            Err(error) => {
                let line = format!("{} {}: {error:#}", request.method, request.path);
                lock(&self.complaints).push(line);
                dice::plain(400, "not as documented")
            }
        }
    }

    fn webhook(&self, key: &str, request: &HttpRequest) -> Result<Delivery> {
        let body = self.posted(request)?;
        let header = |name: &str| request.header(name).with_context(|| format!("there is no {name}"));
        let (id, at, signatures) =
            (header("webhook-id")?, header("webhook-timestamp")?, header("webhook-signature")?);
        ensure!(!id.is_empty() && !id.contains('.'), "the id {id} makes signatures ambiguous");
        let second: i64 = at.parse().with_context(|| format!("{at} is no time"))?;
        ensure!((Timestamp::now().as_second() - second).abs() <= TOLERANCE, "{at} is not now");
        let key = key.strip_prefix("whsec_").context("a key begins with whsec_")?;
        let key = PKey::hmac(&STANDARD.decode(key)?)?;
        let mut signer = Signer::new(MessageDigest::sha256(), &key)?;
        let signed = [format!("{id}.{at}.").as_bytes(), &request.body].concat();
        let wanted = format!("v1,{}", STANDARD.encode(signer.sign_oneshot_to_vec(&signed)?));
        ensure!(signatures.split(' ').any(|signature| signature == wanted), "{signatures} is not {wanted}");
        Ok(Delivery { id: id.to_owned(), body })
    }

    fn slack(&self, request: &HttpRequest) -> Result<Delivery> {
        let body = self.posted(request)?;
        let text = body["text"].as_str().context("no_text")?;
        ensure!(!text.trim().is_empty() && text.chars().count() <= 40_000, "no_text");
        Ok(Delivery { id: String::new(), body })
    }

    /// Body of a POST to the path.
    fn posted(&self, request: &HttpRequest) -> Result<Value> {
        ensure!(request.method == "POST" && request.path == self.path, "nothing is served there");
        object(request)
    }
}

fn matrix(token: &str, room: &str, request: &HttpRequest) -> Result<Delivery> {
    let login = request.header("authorization").unwrap_or_default();
    ensure!(login == format!("Bearer {token}"), "M_UNKNOWN_TOKEN");
    let parts: Vec<String> = request.path.split('/').map(decoded).collect::<Result<_>>()?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let ["", "_matrix", "client", "v3", "rooms", to, "send", "m.room.message", id] = parts.as_slice() else {
        bail!("M_UNRECOGNIZED")
    };
    ensure!(request.method == "PUT" && *to == room && !id.is_empty(), "M_FORBIDDEN: {to}");
    let body = object(request)?;
    let text = |name: &str| body[name].as_str();
    ensure!(matches!(text("msgtype"), Some("m.text" | "m.notice")), "M_BAD_JSON: msgtype");
    ensure!(text("body").is_some_and(|body| !body.trim().is_empty()), "M_BAD_JSON: body");
    let is_html = text("format") == Some("org.matrix.custom.html");
    ensure!(is_html == text("formatted_body").is_some(), "M_BAD_JSON: format without formatted_body");
    Ok(Delivery { id: (*id).to_owned(), body })
}

/// The body of a request, an object.
fn object(request: &HttpRequest) -> Result<Value> {
    let media = request.header("content-type").unwrap_or_default();
    ensure!(media.split(';').next() == Some("application/json"), "Content-Type: {media}");
    let body: Value = serde_json::from_slice(&request.body).context("invalid_payload")?;
    ensure!(body.is_object(), "invalid_payload: {body}");
    Ok(body)
}

/// A part of a path without its escapes.
fn decoded(part: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next(), rest.next()].map(Option::unwrap_or_default);
                u8::from_str_radix(std::str::from_utf8(&digits)?, 16).context("a broken escape")?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).context("a path that is not UTF-8")
}
