//! An HTTP/1.1 server that no client can block: for hosts (`converge/gateway`) and for functions
//! (`converge/functions`).

pub mod body;
pub mod client;
mod patience;
pub mod plain;
pub mod replayed;
pub mod server;
pub mod upload;

use std::sync::LazyLock;

/// A client that is created at its first request. For each client OpenSSL reads all CAs of the machine, which takes
/// 40 ms: too long for the start of an agent, especially for clients that only use plain HTTP.
pub type LazyClient = LazyLock<reqwest::Client>;

/// Builds a client for the cluster's own daemons and containers: it uses no proxy and follows no redirect.
pub fn cluster_client(builder: reqwest::ClientBuilder) -> reqwest::Client {
    let built = builder.redirect(reqwest::redirect::Policy::none()).no_proxy().build();
    // Only TLS or the system's resolver can fail to load, and neither is used.
    built.unwrap_or_default()
}
