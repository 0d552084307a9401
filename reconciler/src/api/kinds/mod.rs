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

use super::app::{App, Shared};
use super::error::{Answer, ApiError};
use super::input::{self, Asked};
use super::objects;
use super::objects::Wanted;
use super::read::InNamespace;
use crate::view::{EventView, List, Selection};

pub(super) mod functions;
pub(super) mod results;
pub(super) mod workflows;

/// Checks the namespace and name of an object.
pub(super) fn named(kind: Kind, namespace: String, name: String) -> Result<NamespacedName, ApiError> {
    input::name("namespace", &namespace)?;
    input::name(&kind.as_str().to_ascii_lowercase(), &name)?;
    Ok(NamespacedName::new(namespace, name))
}

/// Error 404 for a missing object.
pub(super) fn missing(kind: Kind, id: &NamespacedName) -> ApiError {
    let word = kind.as_str().to_ascii_lowercase();
    let message = format!("there is no {word} {} in namespace {}", id.name, id.namespace);
    ApiError::not_found(message, format!("see 'minik8s get {} -A'", kind.descriptor().plural))
}

/// Route that lists the rows of a kind.
pub(super) fn list_of<T: Serialize + Send + 'static>(
    rows: fn(&Snapshot, &Selection<'_>, Timestamp) -> Vec<T>,
) -> MethodRouter<Arc<Shared>> {
    get(move |State(app): App, Asked(query): Asked<InNamespace>| async move {
        let items = rows(&*app.snapshot()?, &query.selection()?, Timestamp::now());
        Answer::Ok(Json(List { items }))
    })
}

/// Route that shows one object of a kind in full, with its events.
pub(super) fn one_of<T: Serialize + Send + 'static>(
    kind: Kind,
    detail: fn(&Snapshot, &NamespacedName, Vec<EventView>, Timestamp) -> Option<T>,
) -> MethodRouter<Arc<Shared>> {
    get(move |State(app): App, Path((namespace, name)): Path<(String, String)>| async move {
        let id = named(kind, namespace, name)?;
        let (snapshot, now) = (app.snapshot()?, Timestamp::now());
        let page = |events| detail(&snapshot, &id, events, now).ok_or_else(|| missing(kind, &id));
        // Reject an unknown name without waiting for etcd.
        page(Vec::new())?;
        // If etcd is down, show the object without its events.
        let events = objects::read(&app, &Wanted::of(kind, &id), now).await.unwrap_or_default();
        page(events).map(Json)
    })
}
