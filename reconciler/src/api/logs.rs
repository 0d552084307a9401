//! Container logs, streamed from the API of the pod's node.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::pod::{ContainerState, TerminatedState};
use schema::meta::NamespacedName;
use schema::records::NodeRecord;
use schema::snapshot::Snapshot;
use schema::trust::TrustReader;
use serde::Deserialize;

use super::app::{ApiState, App};
use super::error::ApiError;
use super::input::{self, QueryParams};
use super::kinds;
use crate::outgoing::{self, DaemonClient};
use crate::view::{self, PodDetail, Problem};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const ERROR_MAX_BYTES: usize = 16 * 1024;

/// Headers of text by others: a browser must not guess another type.
const PLAIN_TEXT: [(&str, &str); 2] =
    [("content-type", "text/plain; charset=utf-8"), ("x-content-type-options", "nosniff")];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    pub(super) container: Option<String>,
    #[serde(default)]
    pub(super) follow: bool,
    pub(super) tail: Option<u64>,
    #[serde(default)]
    pub(super) previous: bool,
    pub(super) since: Option<String>,
    #[serde(default)]
    pub(super) timestamps: bool,
}

/// Bytes of a log, as they come from its node.
pub(super) type LogStream = BoxStream<'static, reqwest::Result<Bytes>>;

pub(super) fn client(trust: Option<TrustReader>) -> DaemonClient {
    outgoing::to_nodes(trust, CONNECT_TIMEOUT)
}

pub(super) async fn logs(
    State(app): App,
    Path((namespace, pod)): Path<(String, String)>,
    QueryParams(wanted): QueryParams<LogQuery>,
) -> Result<Response, ApiError> {
    let stream = open(&app, namespace, pod, &wanted).await?;
    Ok((PLAIN_TEXT, Body::from_stream(stream)).into_response())
}

/// Opens the log of a container on its node.
pub(super) async fn open(
    app: &ApiState,
    namespace: String,
    pod: String,
    wanted: &LogQuery,
) -> Result<LogStream, ApiError> {
    input::name("namespace", &namespace)?;
    input::name("pod", &pod)?;
    let pod = NamespacedName::new(namespace, pod);
    let snapshot = app.snapshot()?;
    let url = log_url(app, &snapshot, &pod, wanted)?;
    let permit = Arc::clone(&app.log_streams).try_acquire_owned().map_err(|_| {
        ApiError::unavailable("too many logs are being followed", "end one of them, or try again later")
    })?;
    let answer = send_to_node(app, &url).await?;
    // The stream owns the permit and releases it at its end.
    let stream = answer.bytes_stream().map(move |chunk| {
        let _held = &permit;
        chunk
    });
    Ok(stream.boxed())
}

/// Streams the response of a node's agent for `path`.
pub(super) async fn stream_from_node(
    app: &ApiState,
    snapshot: &Snapshot,
    node: &str,
    path: &str,
) -> Result<Response, ApiError> {
    let Some(record) = snapshot.nodes.get(node) else {
        return Err(ApiError::bad_gateway(
            format!("node {node} is not registered"),
            "see 'minik8s get nodes'",
        ));
    };
    let base = base_url(app, node, &record.value)?;
    let url = format!("{base}{path}");
    let to = NodeUrl { node: node.to_owned(), base, url, heartbeat: snapshot.node_is_ready(node) };
    let answer = send_to_node(app, &to).await?;
    Ok((PLAIN_TEXT, Body::from_stream(answer.bytes_stream())).into_response())
}

fn log_url(
    app: &ApiState,
    snapshot: &Snapshot,
    pod: &NamespacedName,
    wanted: &LogQuery,
) -> Result<NodeUrl, ApiError> {
    let detail = view::pod(snapshot, pod, Vec::new(), Timestamp::UNIX_EPOCH);
    let detail = detail.ok_or_else(|| kinds::object_not_found(Kind::Pod, pod))?;
    let container = choose_container(&detail, wanted.container.as_deref())?;
    let since = input::since(wanted.since.as_deref())?;
    let waits = waits_for_restart(&detail, &container)?;
    let previous = match wanted.previous {
        // For a container that waits for a restart, the run before the next one is the last run.
        true if waits => "ended",
        true => "true",
        false => "false",
    };
    let Some(node) = detail.row.node else {
        let error = format!("pod {pod} is on no node yet: {}", detail.row.why);
        return Err(ApiError::not_found(error, "logs begin when a node has started it"));
    };
    let Some(record) = snapshot.nodes.get(&node) else {
        let error = format!("node {node}, which has pod {pod}, is not registered");
        return Err(ApiError::bad_gateway(error, "see 'minik8s get nodes'"));
    };
    let base = base_url(app, &node, &record.value)?;
    let mut url = format!(
        "{base}/v1/logs/{}/{}/{container}?follow={}&previous={previous}",
        pod.namespace, pod.name, wanted.follow
    );
    if wanted.timestamps {
        url.push_str("&timestamps=true");
    }
    if let Some(since) = since {
        url.push_str(&format!("&since={since}"));
    }
    if let Some(tail) = wanted.tail {
        url.push_str(&format!("&tail={tail}"));
    }
    let heartbeat = snapshot.node_is_ready(&node);
    Ok(NodeUrl { node, base, url, heartbeat })
}

/// Returns the URL of a node's agent, which must be at an address of that node: nodes write their records themselves.
pub(super) fn base_url(app: &ApiState, node: &str, record: &NodeRecord) -> Result<String, ApiError> {
    let is_local = app.deps.local_nodes.contains(node);
    record.server(&record.api, is_local).map_err(|why| {
        let help = "set --listen of its agent to 0.0.0.0:7071 or to the node's address; if it runs on the machine of \
                    the reconciler, name it in --local-node of 'minik8s serve'";
        ApiError::bad_gateway(format!("the reconciler does not connect to node {node}: {why}"), help)
    })
}

struct NodeUrl {
    node: String,
    base: String,
    url: String,
    heartbeat: bool,
}

impl NodeUrl {
    fn unreachable(&self, why: &str) -> ApiError {
        let silent = if self.heartbeat { "" } else { ", which has no heartbeat" };
        ApiError::bad_gateway(
            format!("cannot read the log from node {}{silent} at {}: {why}", self.node, self.base),
            "check that minik8s-agent runs there and the reconciler can reach it",
        )
    }
}

/// Rejects a container that never ran, with the reason. Otherwise returns true if it waits for a restart.
fn waits_for_restart(detail: &PodDetail, container: &str) -> Result<bool, ApiError> {
    let mut reported = detail.init_container_statuses.iter().chain(&detail.container_statuses);
    let Some(status) = reported.find(|status| status.name == container) else { return Ok(false) };
    let ran = |end: &TerminatedState| end.started_at.is_some();
    let pod = format!("{}/{}", detail.row.namespace, detail.row.name);
    let because = |message: &str| if message.is_empty() { String::new() } else { format!(": {message}") };
    let what = match &status.state {
        ContainerState::Waiting(_) if status.last_state.as_ref().is_some_and(ran) => return Ok(true),
        // Created, and maybe started since the report.
        ContainerState::Waiting(waiting)
            if !status.container_id.is_empty()
                && matches!(waiting.reason.as_str(), "ContainerCreating" | "PodInitializing") =>
        {
            return Ok(false);
        }
        ContainerState::Waiting(waiting) => {
            format!("is waiting to start: {}{}", waiting.reason, because(&waiting.message))
        }
        ContainerState::Terminated(end) if !ran(end) && !status.last_state.as_ref().is_some_and(ran) => {
            format!("could not be started{}", because(&end.message))
        }
        ContainerState::Running(_) | ContainerState::Terminated(_) => return Ok(false),
    };
    let error = format!("container {container} of pod {pod} {what}");
    Err(ApiError::bad_request(error, "its log begins when it has started"))
}

/// The container by name, or the only one.
fn choose_container(detail: &PodDetail, wanted: Option<&str>) -> Result<String, ApiError> {
    let (main, init): (Vec<&str>, Vec<&str>) = match &detail.spec {
        Some(spec) => (
            spec.containers.iter().map(|c| c.name.as_str()).collect(),
            spec.init_containers.iter().map(|c| c.name.as_str()).collect(),
        ),
        None => (
            detail.container_statuses.iter().map(|c| c.name.as_str()).collect(),
            detail.init_container_statuses.iter().map(|c| c.name.as_str()).collect(),
        ),
    };
    let pod = format!("pod {}/{}", detail.row.namespace, detail.row.name);
    let all = [main.as_slice(), init.as_slice()].concat().join(", ");
    match (wanted, main.as_slice()) {
        (Some(name), _) if main.contains(&name) || init.contains(&name) => Ok(name.to_owned()),
        (Some(name), _) => {
            input::name("container", name)?;
            let error = format!("{pod} has no container {name}");
            Err(ApiError::not_found(error, format!("its containers are {all}")))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => {
            let help = format!("name one with -c (container=): {all}");
            Err(ApiError::bad_request(format!("{pod} has {} containers", main.len()), help))
        }
    }
}

async fn send_to_node(app: &ApiState, to: &NodeUrl) -> Result<reqwest::Response, ApiError> {
    let sent = tokio::time::timeout(ANSWER_TIMEOUT, app.nodes.get(&to.url)).await;
    let answer = match sent {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(to.unreachable(&view::root_cause(&error))),
        Err(_) => return Err(to.unreachable(&format!("no answer within {}s", ANSWER_TIMEOUT.as_secs()))),
    };
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let problem = read_problem(answer).await;
    match (status, problem) {
        (StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST, Some(problem)) => {
            Err(ApiError::new(status, problem.error, problem.help))
        }
        (_, Some(problem)) => Err(to.unreachable(&problem.error)),
        (_, None) => Err(to.unreachable(&format!("it answered {status}"))),
    }
}

/// The node's own error message, if it sent one.
async fn read_problem(answer: reqwest::Response) -> Option<Problem> {
    let mut text = Vec::new();
    let mut chunks = answer.bytes_stream();
    while let Ok(Some(Ok(chunk))) = tokio::time::timeout(CONNECT_TIMEOUT, chunks.next()).await {
        if text.len() + chunk.len() > ERROR_MAX_BYTES {
            return None;
        }
        text.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&text).ok()
}
