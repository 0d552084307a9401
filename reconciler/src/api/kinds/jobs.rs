//! Slurm jobs, what they wrote and what they left.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use serde::Deserialize;

use crate::api::app::{App, Shared};
use crate::api::error::ApiError;
use crate::api::events::{self, Wanted};
use crate::api::input::{self, Asked};
use crate::api::logs;
use crate::api::read::InNamespace;
use crate::view::{self, List};

type Answer<T> = Result<Json<T>, ApiError>;

/// Which of a job's two outputs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct WantedOutput {
    #[serde(default)]
    stderr: bool,
    /// The first byte that is wanted.
    from: Option<u64>,
}

pub(in crate::api) async fn all(
    State(app): App,
    Asked(query): Asked<InNamespace>,
) -> Answer<List<view::JobView>> {
    Ok(Json(List { items: view::jobs(&*app.snapshot()?, &query.selection()?, Timestamp::now()) }))
}

pub(in crate::api) async fn one(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
) -> Answer<view::JobDetail> {
    let id = named(namespace, name)?;
    let (snapshot, now) = (app.snapshot()?, Timestamp::now());
    let Some(mut detail) = view::job(&snapshot, &id, Vec::new(), now) else { return Err(missing(&id)) };
    // Without etcd it is shown without its events.
    detail.events = events::read(&app, &Wanted::of(Kind::Job, &id), now).await.unwrap_or_default();
    Ok(Json(detail))
}

/// What the job has written so far, from the node that sees to it.
pub(in crate::api) async fn output(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
    Asked(wanted): Asked<WantedOutput>,
) -> Result<Response, ApiError> {
    let from = wanted.from.map(|from| format!("&from={from}")).unwrap_or_default();
    of_job(&app, named(namespace, name)?, &format!("output?stderr={}{from}", wanted.stderr)).await
}

pub(super) async fn of_job(app: &Shared, id: NamespacedName, what: &str) -> Result<Response, ApiError> {
    let snapshot = app.snapshot()?;
    let detail = view::job(&snapshot, &id, Vec::new(), Timestamp::UNIX_EPOCH).ok_or_else(|| missing(&id))?;
    let Some(node) = detail.row.node else {
        return Err(ApiError::not_found(
            format!("job {id} is not assigned to a node yet"),
            "see 'minik8s get nodes'",
        ));
    };
    logs::of_node(app, &snapshot, &node, &format!("/v1/jobs/{}/{}/{what}", id.namespace, id.name)).await
}

pub(super) fn named(namespace: String, name: String) -> Result<NamespacedName, ApiError> {
    input::name("namespace", &namespace)?;
    input::name("job", &name)?;
    Ok(NamespacedName::new(namespace, name))
}

pub(super) fn missing(id: &NamespacedName) -> ApiError {
    let NamespacedName { namespace, name } = id;
    let message = format!("there is no job {name} in namespace {namespace}");
    ApiError::not_found(message, "see 'minik8s get jobs -A'")
}
