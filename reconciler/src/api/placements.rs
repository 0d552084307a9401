//! Where pods of a change that is not pushed yet would go. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::StatusCode;
use axum::routing::{MethodRouter, post};
use jiff::Timestamp;

use super::app::{App, Shared};
use super::error::ApiError;
use crate::simulate::placements::{ObjectChanges, Placements, placements};

/// Largest change that is looked at.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Longest work for one answer.
const PATIENCE: Duration = Duration::from_secs(8);

pub(super) fn route() -> MethodRouter<Arc<Shared>> {
    post(placed).layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
}

async fn placed(State(app): App, request: Request) -> Result<Json<Placements>, ApiError> {
    // Before the body is read: one change at a time is held in memory.
    let turn = Arc::clone(&app.rehearsals).try_acquire_owned().map_err(|_| {
        ApiError::unavailable("another plan is being worked out", "try again in a few seconds")
    })?;
    let changes = Json::<ObjectChanges>::from_request(request, &()).await;
    let Json(changes) = changes.map_err(|rejection: JsonRejection| {
        let help =
            "send {\"put\": [objects], \"delete\": [{\"kind\", \"namespace\", \"name\"}]}, 16 MiB at most";
        ApiError::bad_request(rejection.body_text(), help)
    })?;
    let snapshot = app.snapshot()?;
    let found = tokio::task::spawn_blocking(move || {
        let found = placements(&snapshot, &changes, Timestamp::now(), PATIENCE);
        // A caller who has gone leaves it to its end, and only then another may ask.
        drop(turn);
        found
    });
    let broken =
        |error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error, "this is a bug; please report it");
    let found = found.await.map_err(|error| broken(format!("the plan came to no end: {error}")))?;
    let too_many = |why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why, "plan a smaller change");
    found.map(Json).map_err(too_many)
}
