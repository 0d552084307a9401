//! Functions, and what the build of their images said.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::function::{ImageState, image_hash};
use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;

use crate::api::app::App;
use crate::api::error::ApiError;
use crate::api::events::{self, Wanted};
use crate::api::input::{self, Asked};
use crate::api::logs;
use crate::api::read::InNamespace;
use crate::view::{self, List};

type Answer<T> = Result<Json<T>, ApiError>;

pub(in crate::api) async fn all(
    State(app): App,
    Asked(query): Asked<InNamespace>,
) -> Answer<List<view::FunctionView>> {
    Ok(Json(List { items: view::functions(&*app.snapshot()?, &query.selection()?, Timestamp::now()) }))
}

pub(in crate::api) async fn one(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
) -> Answer<view::FunctionDetail> {
    let id = named(namespace, name)?;
    let (snapshot, now) = (app.snapshot()?, Timestamp::now());
    let Some(mut detail) = view::function(&snapshot, &id, Vec::new(), now) else { return Err(missing(&id)) };
    // Without etcd it is shown without its events.
    detail.events = events::read(&app, &Wanted::of(Kind::Function, &id), now).await.unwrap_or_default();
    Ok(Json(detail))
}

/// The log of the newest build, from the node that made it.
pub(in crate::api) async fn build_log(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let id = named(namespace, name)?;
    let snapshot = app.snapshot()?;
    let record = snapshot.functions.get(&id).map(|found| &found.value).ok_or_else(|| missing(&id))?;
    let built = record.image().and_then(|image| Some((image_hash(&image.reference)?, image)));
    let Some((hash, image)) = built else {
        let error = format!("nothing is built for function {id}");
        return Err(ApiError::not_found(error, "its manifest names an image"));
    };
    let builder = match &image.state {
        ImageState::Building { node } => vec![node.clone()],
        _ => of_node_images(&snapshot, hash),
    };
    let mut last = None;
    for node in builder {
        match logs::of_node(&app, &snapshot, &node, &format!("/v1/builds/{hash}/log")).await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = Some(error),
        }
    }
    let none = || {
        ApiError::not_found(format!("no node has begun to build function {id}"), "see 'minik8s get nodes'")
    };
    Err(last.unwrap_or_else(none))
}

fn of_node_images(snapshot: &Snapshot, hash: &str) -> Vec<String> {
    let found = snapshot.node_images.keys().filter(|(_, image)| image == hash);
    found.map(|(node, _)| node.clone()).collect()
}

fn named(namespace: String, name: String) -> Result<NamespacedName, ApiError> {
    input::name("namespace", &namespace)?;
    input::name("function", &name)?;
    Ok(NamespacedName::new(namespace, name))
}

fn missing(id: &NamespacedName) -> ApiError {
    let NamespacedName { namespace, name } = id;
    let message = format!("there is no function {name} in namespace {namespace}");
    ApiError::not_found(message, "see 'minik8s get functions -A'")
}
