//! Probes of containers over the network: an HTTP request, a gRPC call, or only a connection.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod fake;
mod real;

#[cfg(test)]
pub use fake::{FakeAnswer, FakeProber};
pub use real::RealProber;

/// A GET request to send.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HttpRequest {
    /// Scheme, host, port, path.
    pub url: String,
    /// Names and values in order; `Host` replaces that of the URL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// Prober of containers. Every call ends within its timeout; its error is a text for an event.
#[async_trait]
pub trait Prober: Send + Sync + 'static {
    /// Returns the status of the response. As with the kubelet, no certificate is verified, no proxy is used, and a
    /// redirect to another host is not followed but counts as the response.
    async fn http_get(&self, request: &HttpRequest, timeout: Duration) -> Result<u16, String>;
    /// Calls `grpc.health.v1.Health/Check` for the service without TLS; an empty name stands for the whole server. Fails
    /// unless the answer is `SERVING`.
    async fn grpc_check(&self, address: SocketAddr, service: &str, timeout: Duration) -> Result<(), String>;
    /// Opens a connection and closes it.
    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String>;
}
