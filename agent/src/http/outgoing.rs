//! Outgoing HTTP: the only file of this crate that builds clients, and URLs of addresses. TLS to other daemons will
//! begin here, that of clients in `acceptor.rs`.
//!
//! No client uses a proxy, and only probes follow redirects. The gateway's connections to endpoints (`client.rs`,
//! `plain/`) are separate: their requests drive them, and they lead to pods, never to daemons.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, redirect};

/// A client that is created at its first request. For each client OpenSSL reads all CAs of the machine, which takes
/// 40 ms: too long for the start of an agent, especially for clients that only use plain HTTP.
pub type LazyClient = LazyLock<Client>;

/// Time limits of requests to a daemon.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Longest time to connect.
    pub connect: Duration,
    /// Longest time without a byte of the response.
    pub silence: Duration,
    /// Longest time for a request and its whole response, unless its caller limits it.
    pub whole: Option<Duration>,
}

/// Time for which an idle connection to a daemon is kept: daemons close theirs after 10 s.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Client for the reconcilers and other nodes' agents.
pub fn to_daemons(timeouts: Timeouts) -> Client {
    let builder = within(timeouts.connect).read_timeout(timeouts.silence).pool_idle_timeout(IDLE_MAX);
    plain(match timeouts.whole {
        Some(whole) => builder.timeout(whole),
        None => builder,
    })
}

/// Client for replicas of functions, with the maximum number and age of idle connections to each. Each request has
/// its own time limit.
pub fn to_functions(connect: Duration, spare: usize, spare_for: Duration) -> Client {
    plain(within(connect).tcp_nodelay(true).pool_max_idle_per_host(spare).pool_idle_timeout(spare_for))
}

/// Client for a registry that also trusts these CAs.
///
/// # Errors
/// Those of TLS.
pub fn to_registry(connect: Duration, whole: Duration, cas: Vec<Certificate>) -> reqwest::Result<Client> {
    within(connect).timeout(whole).tls_certs_merge(cas).build()
}

/// Client for probes of containers, which need no valid certificate. Each request has its own time limit and a new
/// connection: a server that accepts no more connections has failed.
///
/// # Errors
/// Those of TLS.
pub fn to_probed(user_agent: &str, redirects: redirect::Policy) -> reqwest::Result<Client> {
    base()
        .user_agent(user_agent)
        .tls_danger_accept_invalid_certs(true)
        .tls_danger_accept_invalid_hostnames(true)
        .pool_max_idle_per_host(0)
        .redirect(redirects)
        .build()
}

/// URL of a path, empty or with a leading `/`, at an address.
pub fn url(address: SocketAddr, path: &str) -> String {
    format!("http://{address}{path}")
}

fn base() -> ClientBuilder {
    Client::builder().redirect(redirect::Policy::none()).no_proxy()
}

fn within(connect: Duration) -> ClientBuilder {
    base().connect_timeout(connect)
}

/// Builds a client that uses no TLS.
fn plain(builder: ClientBuilder) -> Client {
    // Only TLS or the system's resolver can fail to load, and neither is used.
    builder.build().unwrap_or_default()
}
