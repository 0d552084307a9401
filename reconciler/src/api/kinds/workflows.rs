//! Workflow runs: lists and pages. Any reconciler accepts requests for a run here.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequest as _, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json};
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::trigger::Trigger;
use schema::meta::{NamespacedName, ObjectRef};
use serde::Deserialize;
use tokio::time::timeout;

use super::{JsonResult, object_not_found};
use crate::api::app::{ApiState, App, STARTS_MAX};
use crate::api::error::ApiError;
use crate::api::input::{self, QueryParams};
use crate::api::read::NamespaceQuery;
use crate::listener::{AddressPlace, Peer, loopback_share};
use crate::view::{self, List, RunAccepted, RunBody};
use crate::workflows;
use crate::workflows::{JournalError, RequestError, RunId};

/// Largest request: an input and its envelope.
const BODY_MAX_BYTES: usize = 512 * 1024;
/// Longest time to read the body.
const BODY_WAIT: Duration = Duration::from_secs(10);
/// Longest wait for other runs to be replayed.
const TURN_WAIT: Duration = Duration::from_secs(4);
/// Number of runs in an answer without `limit`, and the highest `limit`.
const RUNS_SHOWN: u16 = 500;
const RUNS_MAX: u16 = 1_000;

/// Selects runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RunQuery {
    namespace: Option<String>,
    workflow: Option<String>,
    /// Maximum number of runs in the answer.
    limit: Option<u16>,
    /// Selects older runs only: the `next` of the previous answer.
    before: Option<i64>,
}

pub(in crate::api) async fn triggers(
    State(app): App,
    QueryParams(query): QueryParams<NamespaceQuery>,
) -> JsonResult<List<view::TriggerView>> {
    let namespace = query.namespace.as_deref();
    input::optional_name("namespace", namespace)?;
    Ok(Json(List { items: view::triggers(&*app.snapshot()?, namespace) }))
}

/// Lists runs a page at a time, newest first.
pub(in crate::api) async fn runs(
    State(app): App,
    QueryParams(query): QueryParams<RunQuery>,
) -> JsonResult<view::RunPage> {
    input::optional_name("namespace", query.namespace.as_deref())?;
    input::optional_name(
        "workflow",
        query.workflow.as_deref().map(|w| w.strip_prefix("function:").unwrap_or(w)),
    )?;
    let below = match (&query.namespace, &query.workflow) {
        (Some(namespace), Some(workflow)) => format!("{namespace}/{workflow}/"),
        (Some(namespace), None) => format!("{namespace}/"),
        (None, None) => String::new(),
        (None, Some(workflow)) => {
            let message = format!("workflow={workflow} needs its namespace");
            return Err(ApiError::bad_request(message, format!("add namespace=default&workflow={workflow}")));
        }
    };
    let limit = query.limit.unwrap_or(RUNS_SHOWN);
    if !(1..=RUNS_MAX).contains(&limit) {
        let message = format!("limit={limit}: an answer has 1 to {RUNS_MAX} runs");
        return Err(ApiError::bad_request(message, "get older ones with ?before= and `next` of the answer"));
    }
    let newest = workflows::newest_runs(&app.deps.store, &below, limit, query.before).await;
    let (heads, next) = newest.map_err(|error| unavailable(&error))?;
    let now = Timestamp::now();
    let items = heads.iter().map(|(id, head)| view::run(&id.workflow, &id.run, head, now)).collect();
    Ok(Json(view::RunPage { items, next }))
}

pub(in crate::api) async fn run(
    State(app): App,
    Path((namespace, name, run)): Path<(String, String, String)>,
) -> Result<Response, ApiError> {
    let id = run_id(namespace, name, run)?;
    replay(&app, id, |detail| Json(detail).into_response()).await
}

/// Reads a run and replays its journal, beside few other replays. `show` turns it into the answer.
pub(in crate::api) async fn replay<T: Send + 'static>(
    app: &ApiState,
    id: RunId,
    show: impl FnOnce(view::RunDetail) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let busy =
        || ApiError::unavailable("other requests for runs are being served", "try again in a few seconds");
    let turn = timeout(TURN_WAIT, Arc::clone(&app.replays).acquire_owned()).await;
    let turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
    let found = workflows::kept_run(&app.deps.store, &id).await.map_err(|error| read_error(&id, &error))?;
    let (head, definition, journal) = found.ok_or_else(|| run_not_found(&id))?;
    // Replaying a long run takes seconds and must not block this thread.
    let (shown, now) = (id.clone(), Timestamp::now());
    let made = tokio::task::spawn_blocking(move || {
        let detail = view::run_detail(&shown.workflow, &shown.run, (&head, definition), journal, now);
        let answer = show(detail);
        // The replay finishes even if the caller has disconnected; only then may another begin.
        drop(turn);
        answer
    });
    made.await.map_err(|error| read_error(&id, &JournalError::Unreadable(error.to_string())))
}

/// Summary of a run, without reading its journal.
pub(in crate::api) async fn run_summary(
    State(app): App,
    Path((namespace, name, run)): Path<(String, String, String)>,
) -> JsonResult<view::RunView> {
    let id = run_id(namespace, name, run)?;
    let found = workflows::run_head(&app.deps.store, &id).await.map_err(|error| read_error(&id, &error))?;
    let head = found.ok_or_else(|| run_not_found(&id))?;
    Ok(Json(view::run(&id.workflow, &id.run, &head, Timestamp::now())))
}

/// Checks the parts of a run's id.
pub(in crate::api) fn run_id(namespace: String, name: String, run: String) -> Result<RunId, ApiError> {
    let workflow = workflow_id(namespace, name)?;
    input::name("run", &run)?;
    Ok(RunId::new(workflow, run))
}

fn run_not_found(id: &RunId) -> ApiError {
    let message = format!("there is no run {} of workflow {}", id.run, id.workflow);
    ApiError::not_found(message, "see 'minik8s get runs -A'; one that was just requested starts soon")
}

fn read_error(id: &RunId, error: &JournalError) -> ApiError {
    match error {
        JournalError::Unreadable(_) => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("run {id} can't be read: {error}"),
            "'minik8s get runs' shows how it ended",
        ),
        other => unavailable(other),
    }
}

pub(in crate::api) fn start_route() -> MethodRouter<Arc<ApiState>> {
    get(no_list).post(start).layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
}

async fn no_list() -> ApiError {
    ApiError::not_found("runs are listed at /v1/runs", "add ?namespace=NS&workflow=NAME")
}

async fn start(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> Result<(StatusCode, Json<RunAccepted>), ApiError> {
    let workflow = workflow_id(namespace, name)?;
    let busy = || ApiError::unavailable("too many runs requested at once", "try again in a few seconds");
    let address = peer.map_or(Ipv4Addr::LOCALHOST.into(), |Extension(Peer(address))| address);
    let most = if address.is_loopback() { loopback_share(STARTS_MAX) } else { STARTS_MAX / 4 };
    let _of_address = AddressPlace::of(&app.starts_of, address, most).ok_or_else(busy)?;
    let _place = app.starts.try_acquire().map_err(|_| busy())?;
    let asked = timeout(BODY_WAIT, Json::<RunBody>::from_request(request, &())).await;
    let slow =
        |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time", "send it again");
    let Json(asked) = asked.map_err(slow)?.map_err(|rejection| {
        let help = "send {\"input\": {…}, \"id\": \"…\"}, both optional, 512 KiB at most";
        let status = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        ApiError::new(status, rejection.body_text(), help)
    })?;
    let at = Timestamp::now();
    let run = asked.id.unwrap_or_else(|| format!("r{:x}-{:08x}", at.as_millisecond(), rand::random::<u32>()));
    input::name("run", &run)?;
    let snapshot = app.snapshot()?;
    let key = ObjectRef {
        kind: Kind::Workflow,
        namespace: workflow.namespace.clone(),
        name: workflow.name.clone(),
    };
    let Some(object) = snapshot.objects.get(&key) else {
        return Err(object_not_found(Kind::Workflow, &workflow));
    };
    if let Some(owner) = Trigger::owner_of(object.value.resource.triggers(), &run) {
        let message =
            format!("run ids that begin with `{}.` belong to trigger {0} of the workflow", owner.name);
        let help = "choose another id; calls of a trigger go to /v1/calls, with its token";
        return Err(ApiError::new(StatusCode::CONFLICT, message, help));
    }
    let id = RunId::new(workflow, run);
    let given = asked.input.unwrap_or_else(|| serde_json::json!({}));
    let origin = workflows::Origin::Request { reconciler: app.deps.identity.clone() };
    let new = workflows::NewRun { input: given, origin, at };
    let asked = app.deps.waiting_runs.request(&app.deps.store, &id, new);
    let asked = asked.await.map_err(|error| request_error(&error))?;
    let is_new = asked == workflows::RunRequestOutcome::New;
    let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, Json(RunAccepted { id: id.run, is_new })))
}

fn request_error(error: &RequestError) -> ApiError {
    let (status, help) = match error {
        RequestError::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "keep it where a function can fetch it"),
        RequestError::TooDeep => {
            (StatusCode::BAD_REQUEST, "make it flatter, or send the inner part as a string")
        }
        RequestError::TooManyWaiting => {
            (StatusCode::TOO_MANY_REQUESTS, "try again, with the same id, once some have started")
        }
        RequestError::TooManyBytes { seconds, .. } => {
            let help = "ask again later, or raise --run-bytes-per-minute of minik8s serve";
            return ApiError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string(), help)
                .retry_after(*seconds);
        }
        RequestError::Taken => (StatusCode::CONFLICT, "choose another id"),
        RequestError::Store(error) => return unavailable(error),
    };
    ApiError::new(status, error.to_string(), help)
}

fn unavailable(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::unavailable(error.to_string(), "see 'minik8s status', and try again")
}

fn workflow_id(namespace: String, name: String) -> Result<NamespacedName, ApiError> {
    input::name("namespace", &namespace)?;
    // Runs of functions belong to `function:NAME`.
    input::name("workflow", name.strip_prefix("function:").unwrap_or(&name))?;
    Ok(NamespacedName::new(namespace, name))
}
