//! Sync requests from callers of the API, which take the same path as webhooks. Changes no desired state.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use futures::future::join_all;
use jiff::Timestamp;
use schema::records::Provider;

use super::app::{ApiState, App};
use super::error::ApiError;
use super::input::{self, QueryParams};
use super::read::SourceQuery;
use crate::view::{self, List, SyncAccepted, SyncRun};
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

impl ApiState {
    pub(super) fn last_sync(&self) -> Option<SyncRun> {
        let last = self.deps.loops.newest("gitops/")?;
        Some(SyncRun {
            started_at: last.started_at,
            took_ms: last.took_ms(),
            error: last.error.or(last.not_ready),
        })
    }
}
