//! Where pods of a change that is not pushed yet would go. Changes nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{MethodRouter, post};
use jiff::Timestamp;

use super::app::{App, Shared};
use super::error::ApiError;
use crate::simulate::placements::{ObjectChanges, Placement, placements};
use crate::view::List;

/// Largest change that is looked at.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;

pub(super) fn route() -> MethodRouter<Arc<Shared>> {
    post(placed).layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
}

async fn placed(
    State(app): App,
    changes: Result<Json<ObjectChanges>, JsonRejection>,
) -> Result<Json<List<Placement>>, ApiError> {
    let Json(changes) = changes.map_err(|rejection| {
        let help =
            "send {\"put\": [objects], \"delete\": [{\"kind\", \"namespace\", \"name\"}]}, 16 MiB at most";
        ApiError::bad_request(rejection.body_text(), help)
    })?;
    let snapshot = app.snapshot()?;
    let busy = || ApiError::unavailable("the reconciler is shutting down", "try again in a second");
    let turn = Arc::clone(&app.rehearsals).acquire_owned().await.map_err(|_| busy())?;
    let found = tokio::task::spawn_blocking(move || {
        let found = placements(&snapshot, &changes, Timestamp::now());
        // A caller who has gone leaves it to its end, and the next waits for that.
        drop(turn);
        found
    });
    Ok(Json(List { items: found.await.map_err(|_| busy())? }))
}
