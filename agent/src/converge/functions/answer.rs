//! Responses to callers of functions.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use schema::meta::NamespacedName;
use serde_json::json;

use crate::http::body::{Answer, GuardedBody};

/// Response to a caller.
pub type CallResponse = Response<GuardedBody<Answer, ()>>;

/// Header with the id of the call.
pub const ACTIVATION_ID: HeaderName = HeaderName::from_static("x-activation-id");
/// Header with the duration of each phase of a call, in the format browsers know.
pub const TIMINGS: HeaderName = HeaderName::from_static("server-timing");

/// Error type of a function that can't be built or started.
pub(super) const NOT_RUNNING: &str = "FunctionNotRunning";

/// Error response that did not come from a replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct CallError {
    pub(super) status: StatusCode,
    /// Type of the error for programs, one CamelCase word.
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) retry_after_seconds: Option<u32>,
}

impl CallError {
    pub(super) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), retry_after_seconds: None }
    }

    /// Creates a response that invites a retry.
    pub(super) fn retryable(kind: &'static str, message: impl Into<String>) -> Self {
        let refused = Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, message);
        Self { retry_after_seconds: Some(1), ..refused }
    }

    /// Creates the response for a gateway full of other calls' bodies.
    pub(super) fn gateway_full(status: StatusCode, bytes: u64) -> Self {
        let message = format!(
            "this node's gateway is full of other calls' bodies and answers and cannot hold another {bytes} bytes"
        );
        let retry_after_seconds = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Self { retry_after_seconds, ..Self::new(status, "GatewayFull", message) }
    }

    /// Creates the response for a namespace that has used up its calls of this minute.
    pub(super) fn rate_limited(namespace: &str, most: u32, seconds: u32) -> Self {
        let message =
            format!("namespace {namespace} has used up its {most} calls per minute through this node");
        let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyCalls", message);
        Self { retry_after_seconds: Some(seconds), ..refused }
    }

    /// Removes the output of a build or crash, for callers who must not read it.
    pub(super) fn without_details(self, id: &NamespacedName) -> Self {
        if self.kind != NOT_RUNNING {
            return self;
        }
        Self { message: format!("function {id} is not running at present"), ..self }
    }

    pub(super) fn answer(&self, activation: &str) -> CallResponse {
        let error = json!({"type": self.kind, "message": self.message});
        let body = json!({"activationId": activation, "error": error}).to_string();
        let mut response = json_answer(self.status, Answer::words(body), activation);
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Creates a JSON response.
pub(super) fn json_answer(status: StatusCode, body: Answer, activation: &str) -> CallResponse {
    let mut response = Response::new(GuardedBody::new(body, None));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Ok(activation) = HeaderValue::from_str(activation) {
        headers.insert(ACTIVATION_ID, activation);
    }
    response
}
