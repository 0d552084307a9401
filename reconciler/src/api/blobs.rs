//! Content of repository volumes and secrets, by digest. Secrets are ciphertext.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use schema::codec::decode;
use schema::keys::Key;
use schema::store::election::LeaderRecord;
use tokio_util::io::ReaderStream;

use super::app::{App, Shared};
use super::error::ApiError;
use crate::blobs::BlobsError;

pub(super) async fn blob(State(app): App, Path(digest): Path<String>) -> Result<Response, ApiError> {
    let snapshot = app.snapshot()?;
    let permit = Arc::clone(&app.blob_streams)
        .try_acquire_owned()
        .map_err(|_| ApiError::unavailable("too many files are being sent", "try again in a moment"))?;
    let (blobs, asked) = (app.deps.blobs.clone(), digest.clone());
    let opened = tokio::task::spawn_blocking(move || blobs.open(&snapshot, &asked)).await;
    let (file, size) = match opened {
        Ok(Err(error @ BlobsError::Absent(_))) => return Err(app.absent(&error).await),
        Ok(opened) => opened?,
        Err(error) => {
            return Err(ApiError::unavailable(format!("{digest} can't be read: {error}"), "try again"));
        }
    };
    let stream = ReaderStream::new(tokio::fs::File::from_std(file)).map(move |chunk| {
        // The stream owns the permit and releases it at its end.
        let _held = &permit;
        chunk
    });
    let kind =
        [(header::CONTENT_TYPE, "application/x-tar".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((kind, Body::from_stream(stream)).into_response())
}

impl Shared {
    /// Error for missing content, which only the leader recreates, if it can. The help depends on who leads.
    async fn absent(&self, error: &BlobsError) -> ApiError {
        let leader = self.deps.store.get(&Key::Leader.to_string()).await.ok().flatten();
        let leader = leader.and_then(|leader| decode::<LeaderRecord>(&leader.value).ok());
        let help = match leader {
            Some(leader) if leader.id == self.deps.identity => {
                "it is made from its source's mirror: 'minik8s sync' fetches that again; if its commit \
                 was rewritten away, push a commit that has the file"
            }
            _ => "ask the leader ('minik8s status' names it)",
        };
        ApiError::not_found(error.to_string(), help)
    }
}

impl From<BlobsError> for ApiError {
    fn from(error: BlobsError) -> Self {
        let text = error.to_string();
        match error {
            BlobsError::Digest(_) => ApiError::bad_request(text, "give the 64 hex digits of a SHA-256"),
            BlobsError::Unreferred(_) => {
                ApiError::not_found(text, "only files that a manifest names are given out")
            }
            BlobsError::Absent(_) => ApiError::not_found(text, "ask the leader ('minik8s status' names it)"),
            BlobsError::Read { .. } => {
                ApiError::unavailable(text, "look at the reconciler's disk and its log")
            }
        }
    }
}
