//! Asking a container over the network whether it is well: a request, or only a connection.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

mod fake;
mod real;

pub use fake::{FakeAnswer, FakeProber};
pub use real::RealProber;

/// A GET request, ready to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HttpRequest {
    /// Scheme, host, port, path.
    pub url: String,
    /// Names and values in order; `Host` replaces the one of the URL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Its status code; of the last one, when redirects were followed.
    pub status: u16,
}

/// Nothing came back, or no connection came about; in words for an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbeFailed(pub String);

/// Who asks. Every call ends within its timeout.
#[async_trait]
pub trait Prober: Send + Sync + 'static {
    /// Sends a request. No certificate is checked, no proxy is used, and a redirect to another host is
    /// not followed but is the answer, all as kubelet does.
    async fn http_get(&self, request: &HttpRequest, timeout: Duration) -> Result<HttpAnswer, ProbeFailed>;
    /// Opens a connection and closes it.
    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), ProbeFailed>;
}
