//! Services, endpoints and hosts.

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use schema::meta::NamespacedName;

use crate::api::app::App;
use crate::api::error::ApiError;
use crate::api::input::{self, Asked};
use crate::api::read::InNamespace;
use crate::view::{self, List};

type Answer<T> = Result<Json<T>, ApiError>;

pub(in crate::api) async fn services(
    State(app): App,
    Asked(query): Asked<InNamespace>,
) -> Answer<List<view::ServiceView>> {
    let snapshot = app.snapshot()?;
    Ok(Json(List { items: view::services(&snapshot, &query.selection()?, Timestamp::now()) }))
}

pub(in crate::api) async fn endpoints(
    State(app): App,
    Asked(query): Asked<InNamespace>,
) -> Answer<List<view::EndpointsView>> {
    let snapshot = app.snapshot()?;
    Ok(Json(List { items: view::endpoints(&snapshot, &query.selection()?, Timestamp::now()) }))
}

pub(in crate::api) async fn routes(
    State(app): App,
    Asked(query): Asked<InNamespace>,
) -> Answer<List<view::RouteView>> {
    let snapshot = app.snapshot()?;
    Ok(Json(List { items: view::routes(&snapshot, &query.selection()?, Timestamp::now()) }))
}

pub(in crate::api) async fn service(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
) -> Answer<view::ServiceDetail> {
    input::name("namespace", &namespace)?;
    input::name("service", &name)?;
    let id = NamespacedName::new(namespace, name);
    view::service(&*app.snapshot()?, &id, Timestamp::now()).map(Json).ok_or_else(|| {
        let NamespacedName { namespace, name } = &id;
        let message = format!("there is no service {name} in namespace {namespace}");
        ApiError::not_found(message, "see 'minik8s get services -A'")
    })
}
