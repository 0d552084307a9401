//! The agent's read-only HTTP API: logs of containers and builds on this node, images of functions, health and metrics.
//! It answers reconcilers, and other nodes that fetch images, all with their certificates.
//!
//! Reads Docker's listing and logs; changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use schema::control::LoopRuns;
use schema::kinds::function::{IMAGE_PREFIX, image_hash};
use schema::meta::NamespacedName;
use schema::metrics::CONTENT_TYPE;
use schema::since::Since;
use schema::trust::{Identity, Peer, Role, TrustReader};
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncSeekExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::converge::builds::log_path;
use crate::converge::slurm::{JobFiles, Piece};
use crate::http::routes::{self, Bounds, CertifiedClient};
use crate::metrics::{METRICS, Resources};
use crate::names;
use crate::worlds::docker::{Docker, DockerError, EngineState, ListedContainer, LogOptions};

/// State shared by the API's handlers.
#[derive(Clone)]
pub struct Api {
    pub docker: Arc<dyn Docker>,
    pub instance: String,
    pub state_dir: PathBuf,
    pub loops: LoopRuns,
    /// Figures of the node and its pods; `None` before the first sample.
    pub resources: watch::Receiver<Option<Arc<Resources>>>,
    pub jobs: JobFiles,
}

/// Routes: `GET /metrics`, `GET /v1/healthz`, `GET /v1/loops`, `GET /v1/images/<hash>`, `GET
/// /v1/builds/<hash>/log`, `GET /v1/jobs/<ns>/<name>/output?stderr=&from=`, `GET
/// /v1/jobs/<ns>/<name>/results/<digest>` and `GET
/// /v1/logs/<ns>/<pod>/<container>?follow=&tail=&previous=&since=&timestamps=`.
pub fn router(api: Api, trust: TrustReader) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/healthz", get(healthz))
        .route("/v1/loops", get(loops))
        .route("/v1/images/{hash}", get(image))
        .route("/v1/builds/{hash}/log", get(build_log))
        .route("/v1/jobs/{namespace}/{name}/output", get(job_output))
        .route("/v1/jobs/{namespace}/{name}/results/{digest}", get(job_result))
        .route("/v1/logs/{namespace}/{pod}/{container}", get(logs))
        .layer(from_fn_with_state(trust, refuse_others))
        .with_state(api)
}

/// A client that may not send a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Denied {
    #[error("this API needs a certificate of the cluster")]
    NoCertificate,
    #[error("the key of {0} was revoked")]
    Revoked(Identity),
    #[error("{0} may not request this of an agent")]
    NotYours(Identity),
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        let help = "reconcilers serve what agents know: use `minik8s logs`, `minik8s top` or their API";
        let status = match denied {
            Denied::NoCertificate | Denied::Revoked(_) => StatusCode::UNAUTHORIZED,
            Denied::NotYours(_) => StatusCode::FORBIDDEN,
        };
        Self(status, denied.to_string(), help.to_owned())
    }
}

/// Decides on a request of this client: reconcilers may read everything, nodes the images of functions.
fn may_read(
    client: Option<&Peer>,
    is_revoked: impl Fn(&str) -> bool,
    method: &Method,
    path: &str,
) -> Result<(), Denied> {
    let Some(Peer { identity, key }) = client else { return Err(Denied::NoCertificate) };
    if is_revoked(key) {
        return Err(Denied::Revoked(identity.clone()));
    }
    match identity.role() {
        Role::Reconciler => Ok(()),
        Role::Node if *method == Method::GET && path.starts_with("/v1/images/") => Ok(()),
        Role::Node | Role::User | Role::Etcd => Err(Denied::NotYours(identity.clone())),
    }
}

/// Refuses requests of others. A key may have been revoked since its connection began.
async fn refuse_others(State(trust): State<TrustReader>, request: Request, next: Next) -> Response {
    let credentials = trust.current();
    let client = request.extensions().get::<CertifiedClient>().and_then(|client| client.0.as_ref());
    let is_revoked = |key: &str| credentials.is_revoked(key);
    match may_read(client, is_revoked, request.method(), request.uri().path()) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let closes = matches!(denied, Denied::Revoked(_));
            let mut response = Refusal::from(denied).into_response();
            // It would outlive the list of revoked keys.
            if closes {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// Limits of the API's connections. One client may hold 256, as many as a reconciler follows logs. An idle connection
/// lives longer than clients keep theirs, which is 90 s for reqwest, so that no request meets a closing one. Followed
/// streams do not end by themselves, so shutdown waits only briefly.
const BOUNDS: Bounds = Bounds {
    connections: 1024,
    head_bytes: 64 * 1024,
    head: Duration::from_secs(10),
    idle: Duration::from_secs(120),
    drain: Duration::from_secs(1),
};

/// Serves the API over TLS until `shutdown`.
pub async fn serve(listener: TcpListener, api: Api, trust: TrustReader, shutdown: CancellationToken) {
    let router = router(api, trust.clone());
    routes::serve("the agent's API", (listener, trust), BOUNDS, router, shutdown).await;
}

/// Returns the metrics of the agent, for Prometheus.
async fn metrics(State(api): State<Api>) -> Response {
    let resources = api.resources.borrow().clone();
    let text = METRICS.text(&api.loops, resources.as_deref());
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

async fn healthz() -> Response {
    axum::Json(json!({"ok": true})).into_response()
}

async fn loops(State(api): State<Api>) -> Response {
    axum::Json(json!({"items": api.loops.statuses()})).into_response()
}

/// Streams a function's image to a node that lacks it.
async fn image(State(api): State<Api>, Path(hash): Path<String>) -> Result<Response, Refusal> {
    let reference = format!("{IMAGE_PREFIX}{hash}");
    let known = if image_hash(&reference).is_some() { api.docker.image(&reference).await? } else { None };
    if known.is_none() {
        let what = format!("this node has no image {reference}");
        return Err(Refusal(StatusCode::NOT_FOUND, what, "another node may have it".to_owned()));
    }
    let pieces = api.docker.save(&reference).map(|piece| piece.map_err(std::io::Error::other));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::from_stream(pieces)).into_response())
}

/// Returns the log of an image build.
async fn build_log(State(api): State<Api>, Path(hash): Path<String>) -> Result<Response, Refusal> {
    let is_hash = image_hash(&format!("{IMAGE_PREFIX}{hash}")).is_some();
    let read = if is_hash { std::fs::read(log_path(&api.state_dir, &hash)).ok() } else { None };
    let Some(log) = read else {
        let help = "the image was built on another node, or its log was removed with it".to_owned();
        return Err(Refusal(StatusCode::NOT_FOUND, "this node has no log of that build".to_owned(), help));
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], log).into_response())
}

/// Query parameters of a job's output.
#[derive(Debug, Default, Deserialize)]
struct OutputQuery {
    stderr: Option<String>,
    /// Offset of the first byte to return.
    from: Option<u64>,
}

/// Returns the output of a Slurm job, complete or so far.
async fn job_output(
    State(api): State<Api>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Refusal> {
    let stderr = flag("stderr", query.stderr.as_deref())?;
    let pieces = api.jobs.output(&NamespacedName::new(namespace, name), stderr, query.from).await;
    let pieces = pieces
        .map_err(|why| Refusal(StatusCode::NOT_FOUND, why, "see `minik8s describe job/NAME`".to_owned()))?;
    let body = Body::from_stream(futures::stream::iter(pieces).then(open_piece).try_flatten());
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// Opens a piece of a job's output as a stream.
async fn open_piece(piece: Piece) -> std::io::Result<BoxStream<'static, std::io::Result<Bytes>>> {
    match piece {
        Piece::Bytes(bytes) => Ok(futures::stream::iter([Ok(Bytes::from(bytes))]).boxed()),
        Piece::File { path, from } => {
            let mut file = tokio::fs::File::open(path).await?;
            file.seek(std::io::SeekFrom::Start(from)).await?;
            Ok(tokio_util::io::ReaderStream::new(file).boxed())
        }
    }
}

/// Returns a result file of a Slurm job.
async fn job_result(
    State(api): State<Api>,
    Path((namespace, name, digest)): Path<(String, String, String)>,
) -> Result<Response, Refusal> {
    let file = api.jobs.result(&NamespacedName::new(namespace, name), &digest);
    let opened = match file {
        Some(file) => tokio::fs::File::open(file).await.ok(),
        None => None,
    };
    let Some(file) = opened else {
        let help = "see `minik8s results job/NAME`".to_owned();
        return Err(Refusal(StatusCode::NOT_FOUND, "this node has no such result".to_owned(), help));
    };
    let body = Body::from_stream(tokio_util::io::ReaderStream::new(file));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Query parameters of a container's log.
#[derive(Debug, Default, Deserialize)]
struct LogQuery {
    follow: Option<String>,
    previous: Option<String>,
    tail: Option<String>,
    since: Option<String>,
    timestamps: Option<String>,
}

/// An error response: status, error and help.
#[derive(Debug)]
struct Refusal(StatusCode, String, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, error, help) = self;
        (status, axum::Json(json!({"error": error, "help": help}))).into_response()
    }
}

impl From<DockerError> for Refusal {
    fn from(error: DockerError) -> Self {
        let (status, help) = match error {
            DockerError::NotFound { .. } => {
                (StatusCode::NOT_FOUND, "try again; the container was just replaced")
            }
            _ if error.is_outage() => (StatusCode::SERVICE_UNAVAILABLE, "start Docker on the node"),
            _ => (StatusCode::BAD_GATEWAY, "see the agent's log on the node"),
        };
        Self(status, error.to_string(), help.to_owned())
    }
}

async fn logs(
    State(api): State<Api>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Refusal> {
    let options = options(&query, Timestamp::now())?;
    let rows = api.docker.list(&api.instance).await?;
    let id = find(&rows, &namespace, &pod, &container, requested_run(query.previous.as_deref())?)?;
    let stream = api.docker.logs(&id, &options).await?;
    let body = Body::from_stream(stream.map(|piece| piece.map_err(std::io::Error::other)));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

fn options(query: &LogQuery, now: Timestamp) -> Result<LogOptions, Refusal> {
    let wrong = |what: &str, help: &str| {
        Refusal(StatusCode::BAD_REQUEST, format!("`{what}` cannot be read"), help.to_owned())
    };
    let tail = match query.tail.as_deref().filter(|t| !t.is_empty() && *t != "all") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| wrong("tail", "write a number of lines"))?),
    };
    let since = match query.since.as_deref().filter(|t| !t.is_empty()) {
        None => None,
        Some(text) => {
            let since = text.parse::<Since>().map_err(|why| wrong("since", &why))?;
            Some(since.time(now).unwrap_or(Timestamp::UNIX_EPOCH))
        }
    };
    let timestamps = flag("timestamps", query.timestamps.as_deref())?;
    Ok(LogOptions { follow: flag("follow", query.follow.as_deref())?, tail, since, timestamps })
}

fn flag(name: &str, text: Option<&str>) -> Result<bool, Refusal> {
    match text {
        None | Some("false" | "0") => Ok(false),
        Some("" | "true" | "1") => Ok(true),
        Some(other) => Err(Refusal(
            StatusCode::BAD_REQUEST,
            format!("`{name}={other}` cannot be read"),
            "write true or false".to_owned(),
        )),
    }
}

/// The run of a container whose log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainerRun {
    Newest,
    Former,
    /// The newest run that has exited, for a container that waits to be restarted.
    Ended,
}

fn requested_run(previous: Option<&str>) -> Result<ContainerRun, Refusal> {
    match previous {
        Some("ended") => Ok(ContainerRun::Ended),
        other => flag("previous", other)
            .map(|former| if former { ContainerRun::Former } else { ContainerRun::Newest }),
    }
}

/// Finds the ID of the container of that run.
fn find(
    rows: &[ListedContainer],
    namespace: &str,
    pod: &str,
    container: &str,
    which: ContainerRun,
) -> Result<String, Refusal> {
    let label = |row: &ListedContainer, key: &str| row.labels.get(key).cloned().unwrap_or_default();
    let attempt = |row: &ListedContainer| label(row, names::ATTEMPT).parse::<u32>().unwrap_or_default();
    let of_pod: Vec<&ListedContainer> = rows
        .iter()
        .filter(|row| label(row, names::NAMESPACE) == namespace && label(row, names::POD) == pod)
        .collect();
    if of_pod.is_empty() {
        return Err(Refusal(
            StatusCode::NOT_FOUND,
            format!("pod {namespace}/{pod} has no containers on this node"),
            "see `minik8s get pods -A -o wide` for the node of each pod".to_owned(),
        ));
    }
    let mut by_uid: BTreeMap<String, Vec<&ListedContainer>> = BTreeMap::new();
    for row in of_pod.iter().filter(|row| label(row, names::CONTAINER) == container) {
        // A container that was created but never started has no log yet.
        if row.state != EngineState::Created || which == ContainerRun::Newest {
            by_uid.entry(label(row, names::UID)).or_default().push(row);
        }
    }
    // While a pod replaces another of the same name, take the newer one.
    let newest = by_uid.into_values().max_by_key(|starts| starts.iter().map(|row| row.created_at).max());
    let Some(mut starts) = newest else {
        let there: BTreeSet<String> =
            of_pod.iter().map(|row| label(row, names::CONTAINER)).filter(|c| c != names::PAUSE).collect();
        let there: Vec<String> = there.into_iter().collect();
        return Err(Refusal(
            StatusCode::NOT_FOUND,
            format!("pod {namespace}/{pod} has no container {container} on this node"),
            format!("its containers are: {}", there.join(", ")),
        ));
    };
    starts.sort_by_key(|row| std::cmp::Reverse((attempt(row), row.created_at)));
    let wanted = match which {
        ContainerRun::Newest => starts.first(),
        ContainerRun::Former => starts.get(1),
        ContainerRun::Ended => starts.iter().find(|row| row.state == EngineState::Exited),
    };
    wanted.map(|row| row.id.clone()).ok_or_else(|| {
        Refusal(
            StatusCode::NOT_FOUND,
            format!("container {container} of pod {namespace}/{pod} has no previous run"),
            "leave out previous".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests;
