//! Previews on which nodes the pods of an unpushed change would be placed. Changes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Largest change that is accepted.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Longest wait for other requests of this kind.
const TURN_WAIT: Duration = Duration::from_secs(4);
/// Longest time to read the request's body.
const BODY_WAIT: Duration = Duration::from_secs(2);
/// Longest simulation.
const SIMULATION_MAX: Duration = Duration::from_secs(8);

pub(super) fn route() -> MethodRouter<Arc<Shared>> {
    post(placed).layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
}

async fn placed(State(app): App, request: Request) -> Result<Json<Placements>, ApiError> {
    // Before the body is read, so that only one change at a time is held in memory.
    let busy = || ApiError::unavailable("other plans are being worked out", "try again in a few seconds");
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
