//! An HTTP/1.1 server that no client can hold up: of hosts (`converge/gateway`) and of functions
//! (`converge/functions`).

pub mod body;
pub mod client;
pub mod connect;
pub mod cores;
pub mod limits;
mod patience;
pub mod plain;
pub mod replayed;
pub mod room;
pub mod server;
mod spares;
pub mod upload;

use std::sync::LazyLock;

/// A client that is made at its first request. For each client OpenSSL reads all CAs of the machine, which takes 40 ms: too
/// long for the start of an agent, above all for clients that only ask over plain HTTP.
pub type LazyClient = LazyLock<reqwest::Client>;

/// A client for the cluster's own daemons and containers: it uses no proxy and follows no redirect.
pub fn cluster_client(builder: reqwest::ClientBuilder) -> reqwest::Client {
    let built = builder.redirect(reqwest::redirect::Policy::none()).no_proxy().build();
    // Only TLS or a resolver of the system can fail to load, and neither is used.
    built.unwrap_or_default()
}
