//! Output of Slurm jobs, fetched from the node that handles the job.

use axum::extract::{Path, State};
use axum::response::Response;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use serde::Deserialize;

use super::{missing, named};
use crate::api::app::{App, Shared};
use crate::api::error::ApiError;
use crate::api::input::Asked;
use crate::api::logs;
use crate::view;

/// Selects one of a job's two outputs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct WantedOutput {
    #[serde(default)]
    stderr: bool,
    /// Offset of the first byte.
    from: Option<u64>,
}

/// Streams the job's output so far from the node that handles the job.
pub(in crate::api) async fn output(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
    Asked(wanted): Asked<WantedOutput>,
) -> Result<Response, ApiError> {
    let from = wanted.from.map(|from| format!("&from={from}")).unwrap_or_default();
    of_job(&app, named(Kind::Job, namespace, name)?, &format!("output?stderr={}{from}", wanted.stderr)).await
}

pub(super) async fn of_job(app: &Shared, id: NamespacedName, what: &str) -> Result<Response, ApiError> {
    let snapshot = app.snapshot()?;
    let detail = view::job(&snapshot, &id, Vec::new(), Timestamp::UNIX_EPOCH);
    let detail = detail.ok_or_else(|| missing(Kind::Job, &id))?;
    let Some(node) = detail.row.node else {
        return Err(ApiError::not_found(
            format!("job {id} is not assigned to a node yet"),
            "see 'minik8s get nodes'",
        ));
    };
    logs::of_node(app, &snapshot, &node, &format!("/v1/jobs/{}/{}/{what}", id.namespace, id.name)).await
}
