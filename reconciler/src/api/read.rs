//! Views of the snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Extension, Json};
use futures::StreamExt as _;
use jiff::Timestamp;
use schema::codec::decode;
use schema::control::LoopStatus;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;
use schema::store::election::LeaderRecord;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use super::app::{ApiState, App};
use super::error::{ApiError, JsonResult};
use super::input;
use super::input::QueryParams;
use crate::blobs::{BlobsError, is_named_for};
use crate::listener::Caller;
use crate::simulate::placements::{ObjectChanges, Placements, placements};
use crate::view;
use crate::view::{List, Selection};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SelectionQuery {
    pub(super) namespace: Option<String>,
    pub(super) selector: Option<String>,
}

impl SelectionQuery {
    pub(super) fn selection(&self) -> Result<Selection<'_>, ApiError> {
        input::optional_name("namespace", self.namespace.as_deref())?;
        let labels = input::selector(self.selector.as_deref())?;
        Ok(Selection { namespace: self.namespace.as_deref(), labels, ..Selection::default() })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceQuery {
    pub(super) namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelQuery {
    selector: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceQuery {
    pub(super) source: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitQuery {
    commit: Option<String>,
}

impl ApiState {
    /// The snapshot, or an error until etcd has been read completely.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, ApiError> {
        let snapshot = self.deps.snapshot.current();
        if snapshot.synced {
            return Ok(snapshot);
        }
        Err(ApiError::unavailable(
            "the reconciler is starting: it has not read etcd yet",
            "try again in a second; if it persists, check whether etcd runs",
        ))
    }
}

pub(super) async fn healthz() -> Json<Value> {
    Json(json!({"ok": true}))
}

pub(super) async fn loops(State(app): App) -> Json<List<LoopStatus>> {
    Json(List { items: app.deps.loops.statuses() })
}

pub(super) async fn version(State(app): App) -> Json<view::VersionView> {
    let (version, name) = (app.deps.version.clone(), app.deps.identity.clone());
    Json(view::VersionView { version, name })
}

pub(super) async fn status(State(app): App) -> JsonResult<view::ClusterStatus> {
    let snapshot = app.snapshot()?;
    // If etcd is down, the rest of the page is still valid.
    let (leader, etcd_error) = match app.deps.store.get(&Key::Leader.to_string()).await {
        Ok(found) => (found.and_then(|kv| decode(&kv.value).ok()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let page = view::cluster_status(&snapshot, leader, Timestamp::now());
    Ok(Json(view::ClusterStatus {
        etcd_error,
        etcd: Some(app.etcd_view()),
        last_sync: app.last_sync(),
        webhooks: app.deps.hooks.as_ref().map(|counts| counts.now()),
        ..page
    }))
}

pub(super) async fn pods(
    State(app): App,
    QueryParams(SelectionQuery { namespace, selector }): QueryParams<SelectionQuery>,
) -> JsonResult<List<view::PodView>> {
    input::optional_name("namespace", namespace.as_deref())?;
    let selector = input::selector(selector.as_deref())?;
    let snapshot = app.snapshot()?;
    let mut items = view::pods(&snapshot, namespace.as_deref(), Timestamp::now());
    if let Some(selector) = selector {
        items.retain(|pod| {
            let found = snapshot.pods.get(&NamespacedName::new(&pod.namespace, &pod.name));
            found.is_some_and(|pod| selector.matches(&pod.value.labels))
        });
    }
    Ok(Json(List { items }))
}

pub(super) async fn pod_usage(
    State(app): App,
    QueryParams(NamespaceQuery { namespace }): QueryParams<NamespaceQuery>,
) -> JsonResult<List<view::PodUsageView>> {
    input::optional_name("namespace", namespace.as_deref())?;
    Ok(Json(List { items: view::pod_usage(&*app.snapshot()?, namespace.as_deref(), Timestamp::now()) }))
}

pub(super) async fn node_usage(State(app): App) -> JsonResult<List<view::NodeUsageView>> {
    Ok(Json(List { items: view::node_usage(&*app.snapshot()?, Timestamp::now()) }))
}

pub(super) async fn nodes(
    State(app): App,
    QueryParams(query): QueryParams<LabelQuery>,
) -> JsonResult<List<view::NodeView>> {
    let selector = input::selector(query.selector.as_deref())?;
    let mut items = view::nodes(&*app.snapshot()?, Timestamp::now());
    items.retain(|node| selector.as_ref().is_none_or(|selector| selector.matches(&node.labels)));
    Ok(Json(List { items }))
}

pub(super) async fn node(State(app): App, Path(name): Path<String>) -> JsonResult<view::NodeDetail> {
    input::name("node", &name)?;
    let snapshot = app.snapshot()?;
    view::node(&snapshot, &name, Timestamp::now())
        .map(Json)
        .ok_or_else(|| ApiError::not_found(format!("there is no node {name}"), "see 'minik8s get nodes'"))
}

pub(super) async fn sources(State(app): App) -> JsonResult<List<view::SourceView>> {
    Ok(Json(List { items: view::sources(&*app.snapshot()?, Timestamp::now()) }))
}

pub(super) async fn history(
    State(app): App,
    QueryParams(SourceQuery { source }): QueryParams<SourceQuery>,
) -> JsonResult<List<view::RevisionView>> {
    input::optional_name("source", source.as_deref())?;
    Ok(Json(List { items: view::history(&*app.snapshot()?, source.as_deref(), Timestamp::now()) }))
}

pub(super) async fn notifications(State(app): App) -> JsonResult<List<view::NotificationView>> {
    Ok(Json(List { items: view::notifications(&*app.snapshot()?, Timestamp::now()) }))
}

/// Also answers before etcd is read; the state then names that as the reason to wait.
pub(super) async fn wait_state(
    State(app): App,
    QueryParams(CommitQuery { commit }): QueryParams<CommitQuery>,
) -> JsonResult<view::WaitState> {
    let commit = commit.map(|text| text.to_ascii_lowercase());
    if let Some(commit) = &commit {
        input::commit(commit)?;
    }
    let state = view::wait_state(&app.deps.snapshot.current(), commit.as_deref(), Timestamp::now());
    Ok(Json(match app.deps.etcd.borrow().full() {
        Some(full) => state.while_etcd_is_full(full, commit.is_some()),
        None => state,
    }))
}

// Previews on which nodes the pods of an unpushed change would be placed. Changes nothing.

/// Largest change that is accepted.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Longest wait for other requests of this kind.
const TURN_WAIT: Duration = Duration::from_secs(4);
/// Longest time to read the request's body.
const BODY_WAIT: Duration = Duration::from_secs(2);
/// Longest simulation.
const SIMULATION_MAX: Duration = Duration::from_secs(8);

pub(super) fn route() -> MethodRouter<Arc<ApiState>> {
    post(preview_placements).layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
}

async fn preview_placements(State(app): App, request: Request) -> Result<Json<Placements>, ApiError> {
    // Before the body is read, so that only one change at a time is held in memory.
    let busy = || ApiError::unavailable("other plans are being computed", "try again in a few seconds");
    let turn = timeout(TURN_WAIT, Arc::clone(&app.simulations).acquire_owned()).await;
    let turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
    let changes = timeout(BODY_WAIT, Json::<ObjectChanges>::from_request(request, &())).await;
    let slow = |_| ApiError::bad_request("the request's body did not arrive in time", "try again");
    let Json(changes) = changes.map_err(slow)?.map_err(|rejection: JsonRejection| {
        let help =
            "send {\"put\": [objects], \"delete\": [{\"kind\", \"namespace\", \"name\"}]}, 16 MiB at most";
        ApiError::bad_request(rejection.body_text(), help)
    })?;
    let snapshot = app.snapshot()?;
    let found = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        let found = placements(&snapshot, &changes, Timestamp::now(), || begun.elapsed() < SIMULATION_MAX);
        // The simulation finishes even if the caller has disconnected; only then may another begin.
        drop(turn);
        found
    });
    let broken =
        |error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error, "this is a bug; please report it");
    let found = found.await.map_err(|error| broken(format!("the simulation failed: {error}")))?;
    let too_many = |why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why, "plan a smaller change");
    found.map(Json).map_err(too_many)
}

// Content of repository volumes and secrets, by digest. Secrets are ciphertext.

/// Longest wait for a snapshot that names the content: the node may have read its order before this reconciler has.
const NAMED_WAIT: Duration = Duration::from_secs(1);

pub(super) async fn blob(
    State(app): App,
    caller: Option<Extension<Caller>>,
    Path(digest): Path<String>,
) -> Result<Response, ApiError> {
    let snapshot = match caller.as_ref().and_then(|Extension(caller)| caller.node()) {
        Some(node) => app.naming(node, &digest).await?,
        None => app.snapshot()?,
    };
    let permit = Arc::clone(&app.blob_streams)
        .try_acquire_owned()
        .map_err(|_| ApiError::unavailable("too many files are being sent", "try again in a moment"))?;
    let (blobs, asked) = (app.deps.blobs.clone(), digest.clone());
    let opened = tokio::task::spawn_blocking(move || blobs.open(&snapshot, &asked)).await;
    let (file, size) = match opened {
        Ok(Err(error @ BlobsError::Absent(_))) => return Err(app.absent(&error).await),
        Ok(opened) => opened?,
        Err(error) => {
            return Err(ApiError::unavailable(format!("{digest} can't be read: {error}"), "try again"));
        }
    };
    let stream = ReaderStream::new(tokio::fs::File::from_std(file)).map(move |chunk| {
        // The stream owns the permit and releases it at its end.
        let _held = &permit;
        chunk
    });
    let kind =
        [(header::CONTENT_TYPE, "application/x-tar".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((kind, Body::from_stream(stream)).into_response())
}

impl ApiState {
    /// Snapshot that names the content for a node.
    async fn naming(&self, node: &str, digest: &str) -> Result<Arc<Snapshot>, ApiError> {
        self.snapshot()?;
        let mut snapshots = self.deps.snapshot.clone();
        let named = async {
            loop {
                let snapshot = snapshots.current();
                if is_named_for(&snapshot, node, digest) {
                    return snapshot;
                }
                snapshots.changed().await;
            }
        };
        let unreferred = |_| ApiError::from(BlobsError::Unreferred(digest.to_owned()));
        timeout(NAMED_WAIT, named).await.map_err(unreferred)
    }

    /// Error for missing content, which only the leader recreates, if it can. The help depends on who leads.
    async fn absent(&self, error: &BlobsError) -> ApiError {
        let leader = self.deps.store.get(&Key::Leader.to_string()).await.ok().flatten();
        let leader = leader.and_then(|leader| decode::<LeaderRecord>(&leader.value).ok());
        let help = match leader {
            Some(leader) if leader.id == self.deps.identity => {
                "it is made from its source's mirror: 'minik8s sync' fetches that again; if its commit \
                 is gone from history, push a commit that has the file"
            }
            _ => "ask the leader ('minik8s status' names it)",
        };
        ApiError::not_found(error.to_string(), help)
    }
}

impl From<BlobsError> for ApiError {
    fn from(error: BlobsError) -> Self {
        let text = error.to_string();
        match error {
            BlobsError::Digest(_) => ApiError::bad_request(text, "give the 64 hex digits of a SHA-256"),
            BlobsError::Unreferred(_) => {
                ApiError::not_found(text, "only files that a manifest names are served")
            }
            BlobsError::Absent(_) => ApiError::not_found(text, "ask the leader ('minik8s status' names it)"),
            BlobsError::Read { .. } => ApiError::unavailable(text, "check the reconciler's disk and log"),
        }
    }
}
