//! Listener for webhooks: HTTP/1.1, one request per connection, with limits on everything.
//!
//! A request passes cheap checks first: length (413), secret (503), signature header (401), room (503), then its
//! body (408, 413), the signature (401) and the source (404). After too many failures an address gets tighter
//! limits (429).

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::BodyDataStream;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::StreamExt as _;
use jiff::Timestamp;
use schema::control::lock;
use schema::records::Provider;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::intake::{IncomingRequest, Intake, Outcome, Receipt, digest};
use super::limit::Failures;
use super::provider::{self, EventKind};
use super::verify::Verifier;
use super::{payload, read_secrets};
use crate::listener::{self, Bounds, Listening, Peer};
use crate::view::{HookCounts, Problem};

/// Largest body; GitHub sends no larger ones.
pub(super) const BODY_BYTES_MAX: u64 = 25 * 1024 * 1024;
/// Maximum bytes kept of a body. A larger one is not parsed as JSON, and the repository is checked.
const KEPT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of bodies read concurrently; times [`KEPT_BYTES_MAX`] it is the memory for webhooks.
const BODIES_MAX: usize = 16;
/// Limits of connections: one request each.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    // A proxy may represent all senders.
    per_address: 256,
    head_bytes: 32 * 1024,
    head_wait: Duration::from_secs(5),
    keeps_alive: false,
    lasts: Some(Duration::from_secs(30)),
    drain: Duration::from_secs(2),
};
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body from an address that failed too often; most push webhooks have a tenth of it.
pub(super) const NARROW_BYTES_MAX: u64 = 256 * 1024;
/// Longest time for such a body, because the next one waits.
const NARROW_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a turn among such bodies.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// `Retry-After` when there is no room.
const RETRY_AFTER_S: u64 = 5;

/// Counters of webhook outcomes.
#[derive(Debug, Default)]
pub struct Counts(Mutex<HookCounts>);

/// Selects the counter that a request increments.
type Count = fn(&mut HookCounts) -> &mut u64;

impl Counts {
    fn add(&self, count: Count) {
        *count(&mut lock(&self.0)) += 1;
    }

    pub fn now(&self) -> HookCounts {
        *lock(&self.0)
    }
}

/// State of the listener.
pub struct Hooks {
    intake: Arc<Intake>,
    secret_file: PathBuf,
    bodies: Semaphore,
    failures: Mutex<Failures>,
    /// Queue for bodies from addresses that failed too often: one at a time.
    suspect_turns: Semaphore,
    begun: Instant,
    counts: Arc<Counts>,
}

impl Hooks {
    /// Creates the state for webhooks signed with the secret in `secret_file` and passed to `intake`.
    pub fn new(intake: Arc<Intake>, secret_file: PathBuf, counts: Arc<Counts>) -> Self {
        Self {
            intake,
            secret_file,
            bodies: Semaphore::new(BODIES_MAX),
            failures: Mutex::default(),
            suspect_turns: Semaphore::new(1),
            begun: Instant::now(),
            counts,
        }
    }
}

/// Serves webhooks and calls of triggers until shutdown, and gives those in progress a little longer.
pub(crate) async fn serve(
    listening: Listening,
    hooks: Hooks,
    calls: Router,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let router = router(Arc::new(hooks)).merge(calls);
    listener::serve(listening, BOUNDS, router, shutdown).await
}

fn router(hooks: Arc<Hooks>) -> Router {
    Router::new()
        .route("/v1/healthz", get(|| async { Json(serde_json::json!({"ok": true})) }))
        .route("/v1/webhooks", post(receive))
        .route("/v1/webhooks/{source}", post(receive))
        .with_state(hooks)
}

type App = State<Arc<Hooks>>;

async fn receive(
    State(hooks): App,
    Extension(peer): Extension<Peer>,
    source: Option<Path<String>>,
    request: Request,
) -> Response {
    let source = source.map(|Path(source)| source);
    hooks.receive(peer.0, source.as_deref(), request).await
}

/// Reason for rejecting a request. Reveals nothing to a stranger.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    TooOften(Duration),
    TooLarge,
    NoSecret,
    Unauthorized,
    Busy,
    Slow,
    Broken,
    NoSuchSource,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, error, help) = match &self {
            Refusal::TooOften(_) => {
                (429, "too many invalid requests from this address", "send it again later")
            }
            Refusal::TooLarge => (413, "the body is too large", "the limit is 25 MiB"),
            Refusal::NoSecret => (503, "not ready", "see the reconciler's log, and send it again"),
            Refusal::Unauthorized => (401, "unauthorized", "sign it with the secret of this reconciler"),
            Refusal::Busy => (503, "too many webhooks at once", "send it again"),
            Refusal::Slow => (408, "timed out reading the body", "send it again"),
            Refusal::Broken => (400, "the body was cut off", "send it again"),
            Refusal::NoSuchSource => {
                let help = "send it to /v1/webhooks/SOURCE; see 'minik8s get sources'";
                (404, "there is no such source", help)
            }
        };
        let status = StatusCode::from_u16(status).expect("each is an HTTP status");
        let problem = Problem { error: error.to_owned(), help: help.to_owned() };
        let mut answer = (status, Json(problem)).into_response();
        let wait = match self {
            Refusal::TooOften(wait) => Some(wait.as_secs() + 1),
            Refusal::Busy | Refusal::NoSecret => Some(RETRY_AFTER_S),
            _ => None,
        };
        if let Some(wait) = wait {
            answer.headers_mut().insert(header::RETRY_AFTER, wait.into());
        }
        answer
    }
}

/// Limits on the size and time of a body.
struct BodyLimits {
    bytes: u64,
    time: Duration,
    too_large: Refusal,
}

impl BodyLimits {
    /// Limits for an address; `narrow` is the remaining time of its tighter limits.
    fn of(narrow: Option<Duration>) -> Self {
        match narrow {
            None => Self { bytes: BODY_BYTES_MAX, time: BODY_TIMEOUT, too_large: Refusal::TooLarge },
            // Not "too large": the same body will be accepted later.
            Some(left) => {
                Self { bytes: NARROW_BYTES_MAX, time: NARROW_TIMEOUT, too_large: Refusal::TooOften(left) }
            }
        }
    }
}

struct Delivery<'a> {
    peer: IpAddr,
    source: Option<&'a str>,
    headers: &'a HeaderMap,
}

impl Hooks {
    pub(super) async fn receive(&self, peer: IpAddr, source: Option<&str>, request: Request) -> Response {
        let taken = self.authenticated(peer, source, request).await;
        match &taken {
            Ok((_, count)) => self.counts.add(*count),
            Err(refusal) => self.count_refused(peer, refusal),
        }
        taken.map_or_else(Refusal::into_response, |(response, _)| response)
    }

    async fn authenticated(
        &self,
        peer: IpAddr,
        source: Option<&str>,
        request: Request,
    ) -> Result<(Response, Count), Refusal> {
        let narrow = lock(&self.failures).tight_limits_left(peer, self.begun.elapsed());
        let room = BodyLimits::of(narrow);
        let (head, body) = request.into_parts();
        if length(&head.headers).is_some_and(|length| length > room.bytes) {
            return Err(room.too_large);
        }
        let secrets = read_secrets(&self.secret_file).map_err(|error| {
            tracing::error!(%error, "secrets of webhooks not read; all webhooks are rejected");
            Refusal::NoSecret
        })?;
        let claim = provider::claim(&head.headers).map_err(|_| Refusal::Unauthorized)?;
        let now = Timestamp::now().as_second();
        let verifier = Verifier::begin(&claim, &secrets, now).map_err(|_| Refusal::Unauthorized)?;
        let _turn = match narrow {
            None => None,
            Some(left) => {
                let waited = timeout(TURN_TIMEOUT, self.suspect_turns.acquire()).await;
                Some(waited.map_err(|_| Refusal::TooOften(left))?)
            }
        };
        let _place = self.bodies.try_acquire().map_err(|_| Refusal::Busy)?;
        let read = read_body(body.into_data_stream(), verifier, &room);
        let (kept, hash) = timeout(room.time, read).await.map_err(|_| Refusal::Slow)??;
        self.handle(Delivery { peer, source, headers: &head.headers }, claim.provider, &kept, hash).await
    }

    /// Handles a request with a valid signature.
    async fn handle(
        &self,
        Delivery { peer, source, headers }: Delivery<'_>,
        provider: Provider,
        body: &[u8],
        hash: String,
    ) -> Result<(Response, Count), Refusal> {
        let target = self.intake.target(source).ok_or(Refusal::NoSuchSource)?;
        let envelope = provider::envelope(provider, headers);
        if provider::event_kind(&envelope.event) == EventKind::Ping {
            let pong = Json(serde_json::json!({"ok": true, "source": target.source}));
            return Ok((pong.into_response(), |counts: &mut HookCounts| &mut counts.ignored));
        }
        let incoming = IncomingRequest {
            provider,
            event: envelope.event,
            id: envelope.id,
            hint: payload::read(body),
            body: hash,
            peer: peer.to_canonical().to_string(),
        };
        let taken: Receipt = self.intake.accept(target, incoming).await;
        let (status, count): (_, Count) = match taken.outcome {
            Outcome::Accepted | Outcome::Repeated => {
                (StatusCode::ACCEPTED, |counts: &mut HookCounts| &mut counts.accepted)
            }
            Outcome::Ignored => (StatusCode::ACCEPTED, |counts: &mut HookCounts| &mut counts.ignored),
            Outcome::Duplicate => (StatusCode::OK, |counts: &mut HookCounts| &mut counts.duplicate),
        };
        Ok(((status, Json(taken)).into_response(), count))
    }

    fn count_refused(&self, peer: IpAddr, refusal: &Refusal) {
        self.counts.add(match refusal {
            Refusal::TooLarge => |counts: &mut HookCounts| &mut counts.too_large,
            Refusal::Busy | Refusal::NoSecret => |counts: &mut HookCounts| &mut counts.busy,
            Refusal::Slow | Refusal::Broken => |counts: &mut HookCounts| &mut counts.slow,
            Refusal::TooOften(_) | Refusal::Unauthorized | Refusal::NoSuchSource => {
                |counts: &mut HookCounts| &mut counts.refused
            }
        });
        let is_wrong = matches!(refusal, Refusal::Unauthorized | Refusal::TooLarge | Refusal::Slow);
        if is_wrong && lock(&self.failures).count(peer, self.begun.elapsed()) {
            tracing::warn!(%peer, ?refusal, "webhook refused; further ones from this address are only counted");
        }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body through the verifier; returns the kept part and its SHA-256 if it is authentic.
async fn read_body(
    mut pieces: BodyDataStream,
    mut verifier: Verifier,
    room: &BodyLimits,
) -> Result<(Vec<u8>, String), Refusal> {
    let (mut kept, mut hash, mut total) = (Vec::new(), Sha256::new(), 0_u64);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Refusal::Broken)?;
        total = total.saturating_add(piece.len() as u64);
        if total > room.bytes {
            return Err(room.too_large.clone());
        }
        verifier.update(&piece);
        hash.update(&piece);
        let left = KEPT_BYTES_MAX.saturating_sub(kept.len());
        kept.extend_from_slice(&piece[..piece.len().min(left)]);
    }
    verifier.finish().map_err(|_| Refusal::Unauthorized)?;
    if total > kept.len() as u64 {
        // A truncated JSON text can't be parsed.
        kept = Vec::new();
    }
    Ok((kept, digest(hash)))
}

#[cfg(test)]
impl Hooks {
    /// Takes all permits for bodies, until dropped.
    pub(super) fn take_all_permits(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.bodies.try_acquire_many(u32::try_from(BODIES_MAX).unwrap()).unwrap()
    }
}
