//! Calls of triggers: `POST /v1/calls/<kind>/<namespace>/<object>/<trigger>` with a trigger's token starts a run,
//! at any reconciler, leading or not. Served next to the webhooks and by the API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::trigger::{Trigger, TriggerEvent};
use schema::meta::ObjectRef;
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::reflector::SnapshotReader;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::view::{Problem, RunAccepted};
use crate::workflows::{NewRun, Origin, RequestError, RequestQueue, RunId, RunRequestOutcome};

/// Largest body; the limit for a run's input is lower.
const BODY_MAX_BYTES: usize = 512 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls whose bodies are read: 16 MiB with the largest ones.
const CALLS_MAX: usize = 32;
/// `Retry-After` when there is no room.
const RETRY_AFTER_S: u64 = 5;
/// Longest id of a call; the run's id has the trigger's name in front.
const ID_MAX_CHARS: usize = 128;
/// Header with the id of a call, so that a repeated call gives the same run.
const ID_HEADER: &str = "idempotency-key";

/// Call handler state.
pub struct CallState {
    store: SharedStore,
    snapshot: SnapshotReader,
    identity: String,
    waiting: RequestQueue,
    room: Semaphore,
}

impl CallState {
    /// Creates the handler of calls of the triggers in this snapshot, which request runs at the reconciler
    /// `identity`; `waiting` counts requests that have not begun.
    pub fn new(
        store: &SharedStore,
        snapshot: &SnapshotReader,
        identity: &str,
        waiting: &RequestQueue,
    ) -> Self {
        let (store, snapshot) = (Arc::clone(store), snapshot.clone());
        let room = Semaphore::new(CALLS_MAX);
        Self { store, snapshot, identity: identity.to_owned(), waiting: waiting.clone(), room }
    }
}

/// The route, to be merged into a listener's router.
pub fn router<S: Clone + Send + Sync + 'static>(desk: CallState) -> Router<S> {
    Router::new()
        .route("/v1/calls/{kind}/{namespace}/{object}/{trigger}", post(call))
        .with_state(Arc::new(desk))
}

/// Reason for not starting a run. Reveals nothing to unauthorized callers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    NotReady,
    Unauthorized,
    WrongId,
    Busy,
    Slow,
    TooLarge,
    TooDeep(String),
    TooMany(String),
    TooManyBytes(String, u64),
    Taken,
    NotJson(String),
    Unavailable(String),
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::TooLarge(_) => Refusal::TooLarge,
            RequestError::TooDeep => Refusal::TooDeep(error.to_string()),
            RequestError::TooManyWaiting => Refusal::TooMany(error.to_string()),
            RequestError::TooManyBytes { seconds, .. } => Refusal::TooManyBytes(error.to_string(), seconds),
            RequestError::Taken => Refusal::Taken,
            RequestError::Store(error) => Refusal::Unavailable(error.to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let retry_after = match &self {
            Refusal::Busy => Some(RETRY_AFTER_S),
            Refusal::TooManyBytes(_, seconds) => Some(*seconds),
            _ => None,
        };
        let (status, error, help) = match self {
            Refusal::NotReady => (503, "not ready".to_owned(), "call again in a second"),
            Refusal::Unauthorized => (
                401,
                "unauthorized".to_owned(),
                "send `Authorization: Bearer TOKEN` with the token whose SHA-256 the trigger has; see 'minik8s get \
                 triggers' for the path",
            ),
            Refusal::WrongId => (
                400,
                "the id of the call can't be part of a run id".to_owned(),
                "use at most 128 letters, digits, '-', '_' and '.'",
            ),
            Refusal::Busy => (503, "too many calls at once".to_owned(), "call again in a few seconds"),
            Refusal::Slow => (408, "timed out reading the body".to_owned(), "send it again"),
            Refusal::TooLarge => (
                413,
                "the body is too large".to_owned(),
                "the limit is 256 KiB; keep it where a function can fetch it",
            ),
            Refusal::TooDeep(why) => (400, why, "make it flatter, or send the inner part as a string"),
            Refusal::TooMany(why) => {
                (429, why, "call again, with the same Idempotency-Key, once some have started")
            }
            Refusal::TooManyBytes(why, _) => (429, why, "call again later, with the same Idempotency-Key"),
            Refusal::Taken => (
                409,
                "somebody else started a run with this id before there was the trigger".to_owned(),
                "send another Idempotency-Key",
            ),
            Refusal::NotJson(why) => (400, format!("the body is not JSON: {why}"), "send JSON, or no body"),
            Refusal::Unavailable(why) => (503, why, "call again; with an Idempotency-Key it is the same run"),
        };
        let status = StatusCode::from_u16(status).expect("each is an HTTP status");
        let mut answer = (status, Json(Problem { error, help: help.to_owned() })).into_response();
        if let Some(seconds) = retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }
}

type TriggerPath = (String, String, String, String);

async fn call(
    State(desk): State<Arc<CallState>>,
    Path(names): Path<TriggerPath>,
    request: Request,
) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let snapshot = desk.snapshot.current();
    if !snapshot.synced {
        return Err(Refusal::NotReady);
    }
    // Before the body, so that it is read only for authorized callers.
    let (object, trigger) = authorized(&snapshot, &names, &head.headers).ok_or(Refusal::Unauthorized)?;
    let id = call_id(&head.headers)?;
    let _place = desk.room.try_acquire().map_err(|_| Refusal::Busy)?;
    let body = timeout(BODY_TIMEOUT, axum::body::to_bytes(body, BODY_MAX_BYTES)).await;
    let body = body.map_err(|_| Refusal::Slow)?.map_err(|_| Refusal::TooLarge)?;
    let input = input(trigger, &body)?;
    let at = Timestamp::now();
    let run = RunId::for_object(&object, trigger.run_id(&id.unwrap_or_else(|| fresh_id(at))));
    let origin = Origin::Call { trigger: trigger.name.clone(), reconciler: desk.identity.clone() };
    let asked = desk.waiting.request(&desk.store, &run, NewRun { input, origin, at }).await?;
    let is_new = asked == RunRequestOutcome::New;
    let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, Json(RunAccepted { id: run.run, is_new })).into_response())
}

/// Finds the trigger of these names if the caller has its token. Takes the same time whether or not the trigger
/// exists, and whatever part of the token is right.
fn authorized<'a>(
    snapshot: &'a Snapshot,
    (kind, namespace, name, trigger): &TriggerPath,
    headers: &HeaderMap,
) -> Option<(ObjectRef, &'a Trigger)> {
    let kind = Kind::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(kind));
    let found = kind.and_then(|kind| {
        let id = ObjectRef { kind, namespace: namespace.clone(), name: name.clone() };
        let object = &snapshot.objects.get(&id)?.value;
        let known = object.resource.triggers().iter().find(|known| known.name == *trigger)?;
        let TriggerEvent::Call(call) = known.event()? else { return None };
        let mut wanted = [0; 32];
        hex::decode_to_slice(&call.token_sha256, &mut wanted).ok()?;
        Some((id, known, wanted))
    });
    let wanted = found.as_ref().map_or([0; 32], |(.., wanted)| *wanted);
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let digest: [u8; 32] = Sha256::digest(shown.unwrap_or_default()).into();
    let is_right = bool::from(digest.ct_eq(&wanted)) & shown.is_some();
    found.filter(|_| is_right).map(|(id, known, _)| (id, known))
}

/// The bearer token; `None` if it is empty.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    Some(token.trim_ascii()).filter(|token| scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty())
}

/// The caller's own id of the call, if given.
fn call_id(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(ID_HEADER) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Refusal::WrongId)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > ID_MAX_CHARS || !text.chars().all(fits) {
        return Err(Refusal::WrongId);
    }
    Ok(Some(text.to_owned()))
}

fn fresh_id(at: Timestamp) -> String {
    format!("{:x}-{:08x}", at.as_millisecond(), rand::random::<u32>())
}

/// The trigger's params, else the body, else `{}`.
fn input(trigger: &Trigger, body: &[u8]) -> Result<Value, Refusal> {
    match &trigger.params {
        Some(params) => Ok(params.clone()),
        None if body.is_empty() => Ok(serde_json::json!({})),
        None => serde_json::from_slice(body).map_err(|error| Refusal::NotJson(error.to_string())),
    }
}
