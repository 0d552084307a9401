//! Metrics for Prometheus: this reconciler's with those of the cluster, those of the nodes, and where to find them.
//!
//! Reads the snapshot, the leader's key and this process; asks an agent for the metrics of its node, because often only
//! reconcilers reach its API. Writes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use schema::metrics::{CONTENT_TYPE, build_info, loop_families, process_families};
use schema::store::election;
use serde::Serialize;
use tokio::time::timeout;

use super::app::{ApiState, App};
use super::error::{ApiError, JsonResult};
use super::{input, logs};
use crate::metrics::METRICS;
use crate::outgoing::{self, DaemonError};
use crate::view::{self, OwnState};

/// Longest wait for etcd's answer on who leads.
const LEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for all metrics of a node; Prometheus waits for 10 s.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a node's metrics.
const NODE_MAX_BYTES: usize = 8 << 20;
/// Start of a line that the metrics of every agent have.
const OF_AGENTS: &str = "\nminik8s_build_info{";

/// Headers of metrics, whoever wrote them: a browser must not guess another type.
const HEADERS: [(&str, &str); 2] = [("content-type", CONTENT_TYPE), ("x-content-type-options", "nosniff")];

/// Metrics of this reconciler, and of the cluster if it leads.
pub(super) async fn own(State(app): App) -> Result<Response, ApiError> {
    let busy = |_| ApiError::unavailable("others are reading the metrics", "try again in a second");
    let turn = Arc::clone(&app.collections).try_acquire_owned().map_err(busy)?;
    // Health of every object: too long for a thread that serves others.
    let text = tokio::task::spawn_blocking(move || {
        let text = text(&app);
        // The collection finishes even if the caller has disconnected; only then may another begin.
        drop(turn);
        text
    });
    let text = text.await.map_err(|error| {
        let error = format!("the metrics could not be read: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error, "this is a bug; please report it")
    })?;
    Ok((HEADERS, text).into_response())
}

fn text(app: &ApiState) -> String {
    let deps = &app.deps;
    let (snapshot, etcd) = (deps.snapshot.current(), deps.etcd.borrow().clone());
    let leads = deps.fence.current().is_some();
    let hooks = deps.hooks.as_ref().map(|counts| counts.now());
    let own = view::own_families(&OwnState { leads, etcd: &etcd, hooks });
    let mut state = process_families();
    state.push(build_info(&deps.version));
    state.extend(loop_families(&deps.loops));
    state.extend(own);
    if leads && snapshot.synced {
        state.extend(view::state_families(&snapshot));
    }
    METRICS.text(state)
}

/// Entry of Prometheus' HTTP service discovery.
#[derive(Serialize)]
pub(super) struct TargetGroup {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

/// Lists this reconciler, and every node if it leads. All are scraped at the address under which the list was
/// requested. An error while nobody is known to lead: Prometheus then keeps its former list, and so the nodes.
pub(super) async fn targets(State(app): App, headers: HeaderMap, uri: Uri) -> JsonResult<Vec<TargetGroup>> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str())).ok_or_else(|| {
        let help = "send the address of this API in it: the targets are reached there, too";
        ApiError::bad_request("the request has no Host header", help)
    })?;
    let group = |component: &str, instance: &str, path: String| {
        let labels = [
            ("job", "minik8s".to_owned()),
            ("component", component.to_owned()),
            ("instance", instance.to_owned()),
            ("__metrics_path__", path),
        ];
        TargetGroup { targets: [host.to_owned()], labels: labels.into() }
    };
    let mut groups = vec![group("reconciler", &app.deps.identity, "/metrics".to_owned())];
    if app.deps.fence.current().is_some() {
        let snapshot = app.snapshot()?;
        // Of another name there are no metrics, see `of_node`.
        let nodes = snapshot.nodes.keys().filter(|node| input::name("node", node).is_ok());
        groups.extend(nodes.map(|node| {
            let mut group = group("agent", node, format!("/v1/nodes/{node}/metrics"));
            group.labels.insert("node", node.clone());
            group
        }));
    } else if !another_leads(&app).await {
        let help = "try again in a few seconds; if it persists, check whether etcd runs";
        return Err(ApiError::unavailable(
            "no reconciler is known to lead, so the nodes to scrape are unknown",
            help,
        ));
    }
    Ok(Json(groups))
}

/// True if etcd names another reconciler as leader. The name of this one is a remainder of a term that it has lost.
async fn another_leads(app: &ApiState) -> bool {
    let found = timeout(LEADER_TIMEOUT, election::leader(app.deps.store.as_ref())).await;
    matches!(found, Ok(Ok(Some(leader))) if leader.id != app.deps.identity)
}

/// Metrics of a node, from its agent.
pub(super) async fn of_node(State(app): App, Path(node): Path<String>) -> Result<Response, ApiError> {
    input::name("node", &node)?;
    let snapshot = app.snapshot()?;
    let record = snapshot
        .nodes
        .get(&node)
        .ok_or_else(|| ApiError::not_found(format!("there is no node {node}"), "see 'minik8s get nodes'"))?;
    let base = logs::base_url(&app, &node, &record.value)?;
    let busy =
        |_| ApiError::unavailable("too many nodes are being asked for metrics", "try again in a second");
    let _turn = app.node_metrics.try_acquire().map_err(busy)?;
    let read = async {
        let answer = app.nodes.get(&format!("{base}/metrics")).await?;
        let status = answer.status();
        Result::<_, DaemonError>::Ok((status, outgoing::body(answer, NODE_MAX_BYTES).await?))
    };
    let (status, why) = match timeout(NODE_TIMEOUT, read).await {
        Ok(Ok((StatusCode::OK, Some(text)))) if is_of_agent(&text) => {
            return Ok((HEADERS, text).into_response());
        }
        // A node names its server itself: it must not get that of somebody else read.
        Ok(Ok((StatusCode::OK, Some(_)))) => (StatusCode::BAD_GATEWAY, "not a minik8s agent".to_owned()),
        Ok(Ok((StatusCode::OK, None))) => {
            (StatusCode::BAD_GATEWAY, format!("they are larger than {} MiB", NODE_MAX_BYTES >> 20))
        }
        Ok(Ok((status, _))) => (StatusCode::BAD_GATEWAY, format!("it answered {status}")),
        Ok(Err(error)) => (StatusCode::BAD_GATEWAY, view::root_cause(&error)),
        Err(_) => (StatusCode::GATEWAY_TIMEOUT, format!("no answer within {}s", NODE_TIMEOUT.as_secs())),
    };
    let error = format!("cannot read the metrics of node {node} at {base}: {why}");
    Err(ApiError::new(status, error, "check that minik8s-agent runs there and the reconciler can reach it"))
}

fn is_of_agent(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.contains(OF_AGENTS))
}
