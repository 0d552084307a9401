//! API errors: a status code and `{"error", "help"}`.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schema::store::StoreError;

use crate::view::Problem;

/// Result of a handler that only reads.
pub(super) type JsonResult<T> = Result<Json<T>, ApiError>;

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    status: StatusCode,
    error: String,
    help: String,
    retry_after_seconds: Option<u64>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { status, error: error.into(), help: help.into(), retry_after_seconds: None }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn help(&self) -> String {
        self.help.clone()
    }

    /// Says when to try again.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_seconds: Some(seconds), ..self }
    }

    pub(super) fn bad_request(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, help)
    }

    pub(super) fn not_found(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error, help)
    }

    pub(super) fn bad_gateway(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, error, help)
    }

    pub(super) fn unavailable(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error, help)
    }

    pub(super) fn no_such_route(path: &str) -> Self {
        Self::not_found(
            format!("there is nothing at {path}"),
            "see /v1/status, /v1/pods, /v1/nodes, /v1/sources",
        )
    }

    pub(super) fn method_not_allowed(method: &str, path: &str) -> Self {
        let help = "the API only reads; push a commit to change the cluster";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not support {method}"), help)
    }

    pub(super) fn timed_out(path: &str, after: Duration) -> Self {
        let error = format!("no answer for {path} within {}s", after.as_secs());
        Self::new(StatusCode::GATEWAY_TIMEOUT, error, "etcd or the node is slow or gone; try again")
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string(), "check whether etcd runs; the nodes keep running without it")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response =
            (self.status, Json(Problem { error: self.error, help: self.help })).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
