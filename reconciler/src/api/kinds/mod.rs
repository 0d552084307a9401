//! Routes of single kinds. Most kinds have a list and a page of one object, which differ only in the view.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::routing::{MethodRouter, get};
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;
use serde::Serialize;

use super::app::{ApiState, App};
use super::error::{ApiError, JsonResult};
use super::input::{self, QueryParams};
use super::objects;
use super::objects::EventQuery;
use super::read::SelectionQuery;
use crate::view::{EventView, List, Selection};

pub(super) mod functions;
pub(super) mod results;
pub(super) mod workflows;

/// Checks the namespace and name of an object.
pub(super) fn object_id(kind: Kind, namespace: String, name: String) -> Result<NamespacedName, ApiError> {
    input::name("namespace", &namespace)?;
    input::name(&kind.as_str().to_ascii_lowercase(), &name)?;
    Ok(NamespacedName::new(namespace, name))
}

/// Error 404 for a missing object.
pub(super) fn object_not_found(kind: Kind, id: &NamespacedName) -> ApiError {
    let word = kind.as_str().to_ascii_lowercase();
    let message = format!("there is no {word} {} in namespace {}", id.name, id.namespace);
    ApiError::not_found(message, format!("see 'minik8s get {} -A'", kind.descriptor().plural))
}

/// Route that lists the rows of a kind.
pub(super) fn list_route<T: Serialize + Send + 'static>(
    rows: fn(&Snapshot, &Selection<'_>, Timestamp) -> Vec<T>,
) -> MethodRouter<Arc<ApiState>> {
    get(move |State(app): App, QueryParams(query): QueryParams<SelectionQuery>| async move {
        let items = rows(&*app.snapshot()?, &query.selection()?, Timestamp::now());
        JsonResult::Ok(Json(List { items }))
    })
}

/// Route that shows one object of a kind in full, with its events.
pub(super) fn detail_route<T: Serialize + Send + 'static>(
    kind: Kind,
    detail: fn(&Snapshot, &NamespacedName, Vec<EventView>, Timestamp) -> Option<T>,
) -> MethodRouter<Arc<ApiState>> {
    get(move |State(app): App, Path((namespace, name)): Path<(String, String)>| async move {
        let id = object_id(kind, namespace, name)?;
        let (snapshot, now) = (app.snapshot()?, Timestamp::now());
        let page = |events| detail(&snapshot, &id, events, now).ok_or_else(|| object_not_found(kind, &id));
        // Reject an unknown name without waiting for etcd.
        page(Vec::new())?;
        // If etcd is down, show the object without its events.
        let events = objects::read(&app, &EventQuery::for_object(kind, &id), now).await.unwrap_or_default();
        page(events).map(Json)
    })
}
