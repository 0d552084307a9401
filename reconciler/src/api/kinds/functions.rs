//! Build logs of functions' images.

use axum::extract::{Path, State};
use axum::response::Response;
use schema::kinds::Kind;
use schema::kinds::function::{ImageState, image_hash};
use schema::snapshot::Snapshot;

use super::{object_id, object_not_found};
use crate::api::app::App;
use crate::api::error::ApiError;
use crate::api::logs;

/// Streams the log of the newest build from the node that ran it.
pub(in crate::api) async fn build_log(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let id = object_id(Kind::Function, namespace, name)?;
    let snapshot = app.snapshot()?;
    let record = snapshot.functions.get(&id).map(|found| &found.value);
    let record = record.ok_or_else(|| object_not_found(Kind::Function, &id))?;
    let built = record.image().and_then(|image| Some((image_hash(&image.reference)?, image)));
    let Some((hash, image)) = built else {
        let error = format!("nothing is built for function {id}");
        return Err(ApiError::not_found(error, "its manifest names an image"));
    };
    let builder = match &image.state {
        ImageState::Building { node } => vec![node.clone()],
        _ => nodes_with_image(&snapshot, hash),
    };
    let mut last = None;
    for node in builder {
        match logs::stream_from_node(&app, &snapshot, &node, &format!("/v1/builds/{hash}/log")).await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = Some(error),
        }
    }
    let none = || {
        ApiError::not_found(format!("no node has begun to build function {id}"), "see 'minik8s get nodes'")
    };
    Err(last.unwrap_or_else(none))
}

fn nodes_with_image(snapshot: &Snapshot, hash: &str) -> Vec<String> {
    let found = snapshot.node_images.keys().filter(|(_, image)| image == hash);
    found.map(|(node, _)| node.clone()).collect()
}
