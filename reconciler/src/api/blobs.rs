//! Content of repository volumes and secrets, by digest. Secrets are ciphertext.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use tokio_util::io::ReaderStream;

use super::App;
use super::error::ApiError;
use crate::blobs::BlobsError;

pub(super) async fn blob(State(app): App, Path(digest): Path<String>) -> Result<Response, ApiError> {
    let world = app.world()?;
    let permit = Arc::clone(&app.blob_streams)
        .try_acquire_owned()
        .map_err(|_| ApiError::unavailable("too many files are being sent", "try again in a moment"))?;
    let (blobs, asked) = (app.deps.blobs.clone(), digest.clone());
    let opened = tokio::task::spawn_blocking(move || blobs.open(&world, &asked)).await;
    let (file, size) = match opened {
        Ok(opened) => opened?,
        Err(error) => {
            return Err(ApiError::unavailable(format!("{digest} can't be read: {error}"), "try again"));
        }
    };
    let stream = ReaderStream::new(tokio::fs::File::from_std(file)).map(move |chunk| {
        // The permit goes with the stream and is given back at its end.
        let _held = &permit;
        chunk
    });
    let kind =
        [(header::CONTENT_TYPE, "application/x-tar".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((kind, Body::from_stream(stream)).into_response())
}

impl From<BlobsError> for ApiError {
    fn from(error: BlobsError) -> Self {
        let text = error.to_string();
        match error {
            BlobsError::Digest(_) => ApiError::bad_request(text, "give the 64 hex digits of a SHA-256"),
            BlobsError::Unreferred(_) => {
                ApiError::not_found(text, "only files that a manifest names are given out")
            }
            BlobsError::Absent(_) => {
                ApiError::not_found(text, "ask the reconciler that leads ('minik8s status' names it)")
            }
            BlobsError::Read { .. } => {
                ApiError::unavailable(text, "look at the reconciler's disk and its log")
            }
        }
    }
}
