//! Autoscalers.

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use schema::meta::NamespacedName;

use crate::api::app::App;
use crate::api::error::ApiError;
use crate::api::events::{self, Wanted};
use crate::api::input::{self, Asked};
use crate::api::read::InNamespace;
use crate::view::{self, List};

type Answer<T> = Result<Json<T>, ApiError>;

pub(in crate::api) async fn all(
    State(app): App,
    Asked(query): Asked<InNamespace>,
) -> Answer<List<view::AutoscalerView>> {
    Ok(Json(List { items: view::autoscalers(&*app.snapshot()?, &query.selection()?, Timestamp::now()) }))
}

pub(in crate::api) async fn one(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
) -> Answer<view::AutoscalerDetail> {
    input::name("namespace", &namespace)?;
    input::name("autoscaler", &name)?;
    let id = NamespacedName::new(namespace, name);
    let (snapshot, now) = (app.snapshot()?, Timestamp::now());
    let Some(mut detail) = view::autoscaler(&snapshot, &id, Vec::new(), now) else {
        let NamespacedName { namespace, name } = &id;
        let message = format!("there is no autoscaler {name} in namespace {namespace}");
        return Err(ApiError::not_found(message, "see 'minik8s get hpa -A'"));
    };
    // Without etcd it is shown without its events.
    detail.events = events::read(&app, &Wanted::autoscaler(&id), now).await.unwrap_or_default();
    Ok(Json(detail))
}
