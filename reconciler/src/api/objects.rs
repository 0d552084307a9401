//! Desired objects: as stored in etcd, which plans are computed against, and as rows.

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use schema::codec::decode;
use schema::keys::prefix;
use schema::kinds::Kind;
use schema::meta::{DEFAULT_NAMESPACE, NamespacedName, ObjectRef};
use schema::records::Event;
use serde::Deserialize;

use super::app::{ApiState, App};
use super::error::{ApiError, JsonResult};
use super::input;
use super::input::QueryParams;
use crate::view;
use crate::view::{EventView, List, Selection, event_views};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectQuery {
    source: Option<String>,
    namespace: Option<String>,
    selector: Option<String>,
}

impl ObjectQuery {
    fn selection(&self, kind: Option<Kind>) -> Result<Selection<'_>, ApiError> {
        input::optional_name("source", self.source.as_deref())?;
        input::optional_name("namespace", self.namespace.as_deref())?;
        let labels = input::selector(self.selector.as_deref())?;
        Ok(Selection { source: self.source.as_deref(), kind, namespace: self.namespace.as_deref(), labels })
    }
}

pub(super) async fn stored(
    State(app): App,
    QueryParams(which): QueryParams<ObjectQuery>,
) -> JsonResult<List<view::StoredObject>> {
    Ok(Json(List { items: view::stored_objects(&*app.snapshot()?, &which.selection(None)?) }))
}

/// Rows of one kind, or of `all`.
pub(super) async fn list_kind(
    State(app): App,
    Path(kind): Path<String>,
    QueryParams(which): QueryParams<ObjectQuery>,
) -> JsonResult<List<view::ObjectView>> {
    let kind = if kind == "all" { None } else { Some(parse_kind(&kind)?) };
    Ok(Json(List { items: view::objects(&*app.snapshot()?, &which.selection(kind)?, Timestamp::now()) }))
}

pub(super) async fn one(
    State(app): App,
    Path((kind, namespace, name)): Path<(String, String, String)>,
) -> JsonResult<view::ObjectDetail> {
    let id = object_ref(&kind, namespace, name)?;
    let found = view::object(&*app.snapshot()?, &id, Timestamp::now());
    found.map(Json).ok_or_else(|| not_found(&id))
}

/// The selected objects with what runs for them, below their sources.
pub(super) async fn tree(
    State(app): App,
    QueryParams(which): QueryParams<ObjectQuery>,
) -> JsonResult<List<view::TreeNode>> {
    Ok(Json(List { items: view::tree(&*app.snapshot()?, &which.selection(None)?, Timestamp::now()) }))
}

/// The tree of one object, or of one pod.
pub(super) async fn subtree(
    State(app): App,
    Path((kind, namespace, name)): Path<(String, String, String)>,
) -> JsonResult<view::TreeNode> {
    let id = object_ref(&kind, namespace, name)?;
    let found = view::subtree(&*app.snapshot()?, &id, Timestamp::now());
    found.map(Json).ok_or_else(|| not_found(&id))
}

pub(super) fn not_found(id: &ObjectRef) -> ApiError {
    let ObjectRef { kind, namespace, name } = id;
    let place = if kind.is_cluster_scoped() { String::new() } else { format!(" in namespace {namespace}") };
    ApiError::not_found(format!("there is no {kind} {name}{place}"), "see 'minik8s get all -A'")
}

/// Lines about the quarantined file of an object, which need not exist.
pub(super) async fn quarantine(
    State(app): App,
    Path((kind, namespace, name)): Path<(String, String, String)>,
) -> JsonResult<List<String>> {
    let id = object_ref(&kind, namespace, name)?;
    Ok(Json(List { items: view::quarantine(&*app.snapshot()?, &id) }))
}

pub(super) fn object_ref(kind: &str, namespace: String, name: String) -> Result<ObjectRef, ApiError> {
    let kind = parse_kind(kind)?;
    input::name("namespace", &namespace)?;
    input::name("object", &name)?;
    // Cluster-scoped objects are stored under the default namespace.
    let namespace = if kind.is_cluster_scoped() { DEFAULT_NAMESPACE.to_owned() } else { namespace };
    Ok(ObjectRef { kind, namespace, name })
}

pub(super) fn parse_kind(text: &str) -> Result<Kind, ApiError> {
    Kind::ALL.into_iter().find(|kind| kind.as_str().eq_ignore_ascii_case(text)).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        ApiError::not_found(
            format!("unknown kind `{}`", shown.escape_debug()),
            format!("kinds are {}", kinds.join(", ")),
        )
    })
}

// Events, read from etcd on demand: no snapshot contains them.

const EVENTS_MAX: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventQuery {
    /// Selects this namespace, and objects without a namespace.
    namespace: Option<String>,
    name: Option<String>,
    /// Kind of the object, case-insensitive.
    kind: Option<String>,
}

impl EventQuery {
    pub(super) fn for_object(kind: Kind, id: &NamespacedName) -> Self {
        Self {
            namespace: Some(id.namespace.clone()),
            name: Some(id.name.clone()),
            kind: Some(kind.as_str().to_owned()),
        }
    }

    fn matches(&self, event: &Event) -> bool {
        self.namespace.as_ref().is_none_or(|n| event.namespace.is_empty() || *n == event.namespace)
            && self.name.as_ref().is_none_or(|n| *n == event.name)
            && self.kind.as_ref().is_none_or(|k| k.eq_ignore_ascii_case(&event.object_kind))
    }
}

pub(super) async fn events(
    State(app): App,
    QueryParams(wanted): QueryParams<EventQuery>,
) -> Result<Json<List<EventView>>, ApiError> {
    for (what, text) in [("namespace", &wanted.namespace), ("object", &wanted.name), ("kind", &wanted.kind)] {
        input::optional_name(what, text.as_deref())?;
    }
    let items = read(&app, &wanted, Timestamp::now()).await?;
    Ok(Json(List { items }))
}

/// The matching events, oldest first. Skips events that can't be decoded.
pub(super) async fn read(
    app: &ApiState,
    wanted: &EventQuery,
    now: Timestamp,
) -> Result<Vec<EventView>, ApiError> {
    let listing = app.deps.store.list(prefix::EVENTS).await?;
    let events = listing.items.iter().filter_map(|item| decode::<Event>(&item.value).ok());
    Ok(event_views(events.filter(|event| wanted.matches(event)).collect(), EVENTS_MAX, now))
}
