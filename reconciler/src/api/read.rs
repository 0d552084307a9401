//! Views of the snapshot.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use schema::control::LoopStatus;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::{App, Shared};
use super::error::{Answer, ApiError};
use super::input::{self, Asked};
use crate::view::{self, List, Selection};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InNamespace {
    pub(super) namespace: Option<String>,
    pub(super) selector: Option<String>,
}

impl InNamespace {
    pub(super) fn selection(&self) -> Result<Selection<'_>, ApiError> {
        input::optional_name("namespace", self.namespace.as_deref())?;
        let labels = input::selector(self.selector.as_deref())?;
        Ok(Selection { namespace: self.namespace.as_deref(), labels, ..Selection::default() })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfNamespace {
    pub(super) namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WithLabels {
    selector: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfSource {
    pub(super) source: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfCommit {
    commit: Option<String>,
}

impl Shared {
    /// The snapshot, or an error until etcd has been read completely.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, ApiError> {
        let snapshot = self.deps.snapshot.current();
        if snapshot.synced {
            return Ok(snapshot);
        }
        Err(ApiError::unavailable(
            "the reconciler has not read etcd yet",
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

pub(super) async fn status(State(app): App) -> Answer<view::ClusterStatus> {
    let snapshot = app.snapshot()?;
    // If etcd is down, the rest of the page is still valid.
    let (leader, etcd_error) = match app.deps.store.get(&Key::Leader.to_string()).await {
        Ok(found) => (found.and_then(|kv| schema::codec::decode(&kv.value).ok()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let page = view::cluster_status(&snapshot, leader, Timestamp::now());
    Ok(Json(view::ClusterStatus {
        etcd_error,
        last_sync: app.last_sync(),
        webhooks: app.deps.hooks.as_ref().map(|counts| counts.now()),
        ..page
    }))
}

pub(super) async fn pods(
    State(app): App,
    Asked(InNamespace { namespace, selector }): Asked<InNamespace>,
) -> Answer<List<view::PodView>> {
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
    Asked(OfNamespace { namespace }): Asked<OfNamespace>,
) -> Answer<List<view::PodUsageView>> {
    input::optional_name("namespace", namespace.as_deref())?;
    Ok(Json(List { items: view::pod_usage(&*app.snapshot()?, namespace.as_deref(), Timestamp::now()) }))
}

pub(super) async fn node_usage(State(app): App) -> Answer<List<view::NodeUsageView>> {
    Ok(Json(List { items: view::node_usage(&*app.snapshot()?, Timestamp::now()) }))
}

pub(super) async fn nodes(State(app): App, Asked(query): Asked<WithLabels>) -> Answer<List<view::NodeView>> {
    let selector = input::selector(query.selector.as_deref())?;
    let mut items = view::nodes(&*app.snapshot()?, Timestamp::now());
    items.retain(|node| selector.as_ref().is_none_or(|selector| selector.matches(&node.labels)));
    Ok(Json(List { items }))
}

pub(super) async fn node(State(app): App, Path(name): Path<String>) -> Answer<view::NodeDetail> {
    input::name("node", &name)?;
    let snapshot = app.snapshot()?;
    view::node(&snapshot, &name, Timestamp::now())
        .map(Json)
        .ok_or_else(|| ApiError::not_found(format!("there is no node {name}"), "see 'minik8s get nodes'"))
}

pub(super) async fn sources(State(app): App) -> Answer<List<view::SourceView>> {
    Ok(Json(List { items: view::sources(&*app.snapshot()?, Timestamp::now()) }))
}

pub(super) async fn history(
    State(app): App,
    Asked(OfSource { source }): Asked<OfSource>,
) -> Answer<List<view::RevisionView>> {
    input::optional_name("source", source.as_deref())?;
    Ok(Json(List { items: view::history(&*app.snapshot()?, source.as_deref(), Timestamp::now()) }))
}

/// Also answers before etcd is read; the state then names that as the reason to wait.
pub(super) async fn wait_state(
    State(app): App,
    Asked(OfCommit { commit }): Asked<OfCommit>,
) -> Answer<view::WaitState> {
    let commit = commit.map(|text| text.to_ascii_lowercase());
    if let Some(commit) = &commit {
        input::commit(commit)?;
    }
    Ok(Json(view::wait_state(&app.deps.snapshot.current(), commit.as_deref(), Timestamp::now())))
}
