//! "Look at the repository now": wakes the sync loop, changes no intent.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;

use super::{App, Shared};
use crate::view::{SyncAccepted, SyncRun};

pub(super) async fn sync(State(app): App) -> (StatusCode, Json<SyncAccepted>) {
    let at = Timestamp::now();
    app.deps.sync.nudge();
    (StatusCode::ACCEPTED, Json(SyncAccepted { accepted: true, at }))
}

impl Shared {
    pub(super) fn last_sync(&self) -> Option<SyncRun> {
        let last = self.deps.last_sync.as_ref()?.borrow().clone()?;
        Some(SyncRun {
            started_at: last.started_at,
            took_ms: u64::try_from(last.took.as_millis()).unwrap_or(u64::MAX),
            error: last.error.or(last.not_ready),
        })
    }
}
