//! The read-only HTTP API: views of the snapshot as JSON, events from etcd, logs through the nodes.
//!
//! Reads the snapshot, etcd (events, leader) and the agents' APIs; decides access and status codes; writes
//! only the requests of `POST /v1/sync` and `POST /v1/etcd/defrag`, those for runs, and who is admitted. Every error is
//! `{"error", "help"}`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use schema::kinds::Kind;
use schema::metrics::code_class;
use tokio::sync::Semaphore;

use crate::metrics::METRICS;
use crate::view;
use crate::webhooks::calls::{self, CallState};

mod access;
mod app;
mod comparisons;
mod error;
mod input;
mod kinds;
mod logs;
mod metrics;
mod objects;
mod page;
mod read;
mod sync;
#[cfg(test)]
mod tests;
mod trust;

pub use crate::listener::Caller;
pub use app::ApiDeps;
use app::{ApiState, STARTS_MAX};
pub use comparisons::{
    CommitPair, Compare, Comparison, ComparisonError, ComparisonLine, Comparisons, FieldDifference,
    ObjectChange,
};
pub use error::ApiError;
use kinds::{detail_route, functions, list_route, results, workflows};

/// Longest time until an answer begins; a log stream may go on after that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Largest request body of a route that needs none.
const BODY_MAX_BYTES: usize = 16 * 1024;

/// Maximum number of concurrent log streams; each holds a connection to a node.
const LOG_STREAMS_MAX: usize = 256;

/// Maximum number of archives sent concurrently; a rejected agent retries.
const BLOB_STREAMS_MAX: usize = 64;

/// Maximum number of open pages that are kept up to date.
const TABS_MAX: usize = 256;

/// Maximum number of concurrent collections of metrics; another Prometheus tries again at its next scrape.
const COLLECTIONS_MAX: usize = 2;

/// Maximum number of nodes whose metrics are read concurrently.
const NODE_METRICS_MAX: usize = 16;

/// Maximum number of runs replayed concurrently for display; each is replayed from its beginning, with up to 16 MiB
/// of answers and 32 MiB of history.
const REPLAYS_MAX: usize = 4;

/// Routes of the API. Requests have their [`Caller`] as an extension; without one they are anonymous.
pub fn router(deps: ApiDeps) -> Router {
    let calls = CallState::new(&deps.store, &deps.snapshot, &deps.identity, &deps.waiting_runs);
    let calls = calls::router(calls);
    let (has_ui, trust, admission) = (deps.ui, deps.trust.clone(), deps.admission.clone());
    let shared = ApiState {
        nodes: logs::client(deps.trust.clone()),
        deps,
        log_streams: Arc::new(Semaphore::new(LOG_STREAMS_MAX)),
        tabs: Arc::new(Semaphore::new(TABS_MAX)),
        blob_streams: Arc::new(Semaphore::new(BLOB_STREAMS_MAX)),
        collections: Arc::new(Semaphore::new(COLLECTIONS_MAX)),
        node_metrics: Semaphore::new(NODE_METRICS_MAX),
        simulations: Arc::new(Semaphore::new(1)),
        replays: Arc::new(Semaphore::new(REPLAYS_MAX)),
        starts: Semaphore::new(STARTS_MAX),
        starts_of: Arc::default(),
    };
    Router::new()
        .route("/v1/healthz", get(read::healthz))
        .route("/v1/version", get(read::version))
        .route("/v1/status", get(read::status))
        .route("/v1/loops", get(read::loops))
        .route("/v1/pods", get(read::pods))
        .route("/v1/pods/{namespace}/{name}", detail_route(Kind::Pod, view::pod))
        .route("/v1/nodes", get(read::nodes))
        .route("/v1/nodes/{name}", get(read::node))
        .route("/v1/nodes/{name}/metrics", get(metrics::of_node))
        .route("/v1/metrics/targets", get(metrics::targets))
        .route("/metrics", get(metrics::own))
        .merge(of_kinds())
        .merge(admission.map_or_else(Router::new, trust::routes))
        .route("/v1/usage/pods", get(read::pod_usage))
        .route("/v1/usage/nodes", get(read::node_usage))
        .route("/v1/objects", get(objects::stored))
        .route("/v1/objects/{kind}", get(objects::list_kind))
        .route("/v1/objects/{kind}/{namespace}/{name}", get(objects::one))
        .route("/v1/objects/{kind}/{namespace}/{name}/quarantine", get(objects::quarantine))
        .route("/v1/tree", get(objects::tree))
        .route("/v1/tree/{kind}/{namespace}/{name}", get(objects::subtree))
        .route("/v1/sources", get(read::sources))
        .route("/v1/history", get(read::history))
        .route("/v1/notifications", get(read::notifications))
        .route("/v1/wait-state", get(read::wait_state))
        .route("/v1/blobs/{digest}", get(read::blob))
        .route("/v1/events", get(objects::events))
        .route("/v1/logs/{namespace}/{pod}", get(logs::logs))
        .route("/v1/requests", get(sync::requests))
        .route("/v1/requests/{id}", get(sync::request))
        .route("/v1/sync", post(sync::sync))
        .route("/v1/etcd", get(sync::etcd))
        .route("/v1/etcd/defrag", post(sync::defrag))
        .route("/v1/placements", read::route())
        .merge(calls)
        .merge(if has_ui { page::routes() } else { Router::new().fallback(no_such_route) })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn(enforce_timeout))
        .layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
        .layer(from_fn_with_state(Arc::new(shared.deps.hosts.clone()), input::refuse_foreign))
        .layer(from_fn_with_state(trust, access::guard))
        .layer(from_fn(count_answer))
        .with_state(Arc::new(shared))
}

/// Routes of the kinds that have views of their own, besides pods and nodes.
fn of_kinds() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/services", list_route(view::services))
        .route("/v1/services/{namespace}/{name}", detail_route(Kind::Service, view::service))
        .route("/v1/endpoints", list_route(view::endpoints))
        .route("/v1/dns", list_route(view::routes))
        .route("/v1/autoscalers", list_route(view::autoscalers))
        .route(
            "/v1/autoscalers/{namespace}/{name}",
            detail_route(Kind::HorizontalPodAutoscaler, view::autoscaler),
        )
        .route("/v1/functions", list_route(view::functions))
        .route("/v1/functions/{namespace}/{name}", detail_route(Kind::Function, view::function))
        .route("/v1/functions/{namespace}/{name}/build-log", get(functions::build_log))
        .route("/v1/workflows", list_route(view::workflows))
        .route("/v1/workflows/{namespace}/{name}", detail_route(Kind::Workflow, view::workflow))
        .route("/v1/workflows/{namespace}/{name}/runs", workflows::start_route())
        .route("/v1/triggers", get(workflows::triggers))
        .route("/v1/runs", get(workflows::runs))
        .route("/v1/runs/{namespace}/{workflow}/{run}", get(workflows::run))
        .route("/v1/runs/{namespace}/{workflow}/{run}/summary", get(workflows::run_summary))
        .route("/v1/jobs", list_route(view::jobs))
        .route("/v1/jobs/{namespace}/{name}", detail_route(Kind::Job, view::job))
        .route("/v1/jobs/{namespace}/{name}/output", get(results::output))
        .route("/v1/jobs/{namespace}/{name}/results", get(results::all))
        .route("/v1/jobs/{namespace}/{name}/results/{digest}", get(results::one))
}

async fn no_such_route(request: Request) -> ApiError {
    ApiError::no_such_route(request.uri().path())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}

async fn enforce_timeout(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    match tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::timed_out(&path, ANSWER_TIMEOUT).into_response(),
    }
}

async fn count_answer(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    METRICS.api_requests.inc(&[code_class(response.status().as_u16())]);
    response
}
