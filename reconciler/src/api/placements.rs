//! Where pods of a change that is not pushed yet would go. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::StatusCode;
use axum::routing::{MethodRouter, post};
use jiff::Timestamp;
use tokio::time::timeout;

use super::app::{App, Shared};
use super::error::ApiError;
use crate::simulate::placements::{ObjectChanges, Placements, placements};

/// Largest change that is looked at.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Longest wait for the changes that others ask about.
const TURN_WAIT: Duration = Duration::from_secs(4);
/// Longest time in which a change must have come in.
const BODY_WAIT: Duration = Duration::from_secs(2);
/// Longest work for one answer.
const PATIENCE: Duration = Duration::from_secs(8);

pub(super) fn route() -> MethodRouter<Arc<Shared>> {
    post(placed).layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
}

async fn placed(State(app): App, request: Request) -> Result<Json<Placements>, ApiError> {
    // Before the body is read: one change at a time is held in memory.
    let busy = || ApiError::unavailable("other plans are being worked out", "try again in a few seconds");
    let turn = timeout(TURN_WAIT, Arc::clone(&app.rehearsals).acquire_owned()).await;
    let turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
    let changes = timeout(BODY_WAIT, Json::<ObjectChanges>::from_request(request, &())).await;
    let slow = |_| ApiError::bad_request("the change does not come in", "send it at once");
    let Json(changes) = changes.map_err(slow)?.map_err(|rejection: JsonRejection| {
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
