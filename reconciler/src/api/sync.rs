//! Requests from callers of the API: to sync, on the same path as webhooks, and to defragment etcd. Change no desired
//! state.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use futures::future::join_all;
use jiff::Timestamp;
use schema::records::{Provider, repair_commands};

use super::app::{ApiState, App};
use super::error::ApiError;
use super::input::{self, QueryParams};
use super::read::SourceQuery;
use crate::view::{self, DefragAccepted, List, SyncAccepted, SyncRun};
use crate::webhooks::{IncomingRequest, SourceTarget, payload::Hint};

pub(super) async fn sync(
    State(app): App,
    QueryParams(SourceQuery { source }): QueryParams<SourceQuery>,
) -> Result<(StatusCode, Json<SyncAccepted>), ApiError> {
    input::optional_name("source", source.as_deref())?;
    let at = Timestamp::now();
    let all = app.deps.intake.targets().iter();
    let wanted: Vec<&SourceTarget> =
        all.filter(|target| source.as_ref().is_none_or(|name| *name == target.source)).collect();
    if wanted.is_empty() {
        let name = source.unwrap_or_default();
        let error = format!("this reconciler has no source {name}");
        return Err(ApiError::not_found(error, "see 'minik8s get sources'"));
    }
    let (mut requests, mut note) = (Vec::new(), None);
    // Concurrently, because many sources in sequence take longer than the caller waits.
    for taken in
        join_all(wanted.into_iter().map(|target| app.deps.intake.accept(target, cli_request(at)))).await
    {
        match taken.note {
            None => requests.push(taken.request),
            some => note = some,
        }
    }
    Ok((StatusCode::ACCEPTED, Json(SyncAccepted { accepted: true, at, requests, note })))
}

/// Builds the request of a `minik8s sync`, with its own id.
fn cli_request(at: Timestamp) -> IncomingRequest {
    IncomingRequest {
        provider: Provider::Cli,
        event: "push".to_owned(),
        id: Some(format!("{:016}-{:08x}", at.as_microsecond(), rand::random::<u32>())),
        hint: Hint::default(),
        body: String::new(),
        peer: String::new(),
    }
}

pub(super) async fn requests(State(app): App) -> Result<Json<List<view::RequestView>>, ApiError> {
    Ok(Json(List { items: view::requests(&*app.snapshot()?, Timestamp::now()) }))
}

pub(super) async fn request(
    State(app): App,
    Path(id): Path<String>,
) -> Result<Json<view::RequestView>, ApiError> {
    view::request(&*app.snapshot()?, &id, Timestamp::now())
        .map(Json)
        .ok_or_else(|| ApiError::not_found("there is no such sync request", "see 'minik8s get requests'"))
}

/// State of etcd as this reconciler sees it, also while etcd accepts no writes.
pub(super) async fn etcd(State(app): App) -> Json<view::EtcdView> {
    Json(app.etcd_view())
}

pub(super) async fn defrag(State(app): App) -> Result<(StatusCode, Json<DefragAccepted>), ApiError> {
    let (state, at) = (app.deps.etcd.borrow().clone(), Timestamp::now());
    if !state.is_on {
        let endpoints: Vec<String> = state.members.iter().map(|member| member.endpoint.clone()).collect();
        let newest = state.members.iter().map(|member| member.revision).max().unwrap_or(0);
        let help = format!(
            "run '{}', or start the reconcilers with --etcd-upkeep",
            repair_commands(&endpoints, newest)
        );
        return Err(ApiError::new(StatusCode::CONFLICT, "the reconcilers do not maintain this etcd", help));
    }
    let revision = match app.deps.defrag_requests.request(at).await {
        Ok(revision) => revision,
        // Nothing can be written to a full etcd.
        Err(_) if state.acts => {
            app.deps.defrag_requests.request_here(at);
            0
        }
        Err(error) => {
            let error = format!("the request is not recorded: {error}");
            return Err(ApiError::unavailable(
                error,
                "ask the leader ('minik8s status' names it) with --server",
            ));
        }
    };
    Ok((StatusCode::ACCEPTED, Json(DefragAccepted { at, revision })))
}

impl ApiState {
    pub(super) fn etcd_view(&self) -> view::EtcdView {
        let snapshot = self.deps.snapshot.current();
        view::etcd(&snapshot, &self.deps.etcd.borrow(), &self.deps.trust_problems.borrow())
    }

    pub(super) fn last_sync(&self) -> Option<SyncRun> {
        let last = self.deps.loops.newest("gitops/")?;
        Some(SyncRun {
            started_at: last.started_at,
            took_ms: last.took_ms(),
            error: last.error.or(last.not_ready),
        })
    }
}
