//! Asking a container over the network whether it is well: a request, or only a connection.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod fake;
mod real;

#[cfg(test)]
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

/// Who asks. Every call ends within its timeout; its error is in words for an event.
#[async_trait]
pub trait Prober: Send + Sync + 'static {
    /// The status of the answer to a request. No certificate is checked, no proxy is used, and a redirect to another host is
    /// not followed but is the answer, all as kubelet does.
    async fn http_get(&self, request: &HttpRequest, timeout: Duration) -> Result<u16, String>;
    /// Opens a connection and closes it.
    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String>;
}
