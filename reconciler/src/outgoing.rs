//! Outgoing HTTP: the only file of this crate that builds clients, and URLs of addresses. TLS to other daemons will
//! begin here, that of clients in `listener.rs`.
//!
//! No client uses a proxy, and only that of a gateway named by a user follows redirects. Repositories are fetched by
//! libgit2, mail is sent by lettre, and etcd has the client in `schema/src/store/etcd/`.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use moka::sync::Cache;
use reqwest::{Body, Certificate, Response, redirect};
use schema::errors::error_chain;

/// Time for which an idle connection to a daemon is kept: daemons close theirs after 10 s.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Client for the APIs and gateways of nodes. Building it loads all CAs of the machine, which takes 45 ms.
pub(crate) fn to_nodes(connect: Duration) -> reqwest::Client {
    direct(reqwest::Client::builder().connect_timeout(connect))
}

/// Client for a gateway named by a user, which may be behind a proxy with TLS: it follows redirects.
///
/// # Errors
/// Those of TLS.
pub(crate) fn to_named_gateway(whole: Duration) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder().timeout(whole).no_proxy().build()
}

/// Client for probes of the processes that `minik8s up` starts; each request has its own time limit.
pub(crate) fn to_children() -> reqwest::Client {
    direct(reqwest::Client::builder())
}

/// Destination of notifications, with which a client is made and kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TargetServer {
    /// Name of the host, as in the URL.
    pub(crate) host: String,
    /// Addresses that were checked. The client connects to no other.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Certificates to trust in addition to the machine's, PEM.
    pub(crate) ca: Option<String>,
}

/// Clients of the last targets. Each has the machine's CAs, whose loading takes 45 ms.
static TARGETS: LazyLock<Cache<TargetServer, reqwest::Client>> =
    LazyLock::new(|| Cache::builder().max_capacity(64).time_to_idle(Duration::from_secs(300)).build());

/// Client for a target of notifications, with TLS.
///
/// # Errors
/// Those of TLS: `ca` is damaged, for example.
pub(crate) async fn to_target(server: TargetServer, connect: Duration) -> Result<reqwest::Client, String> {
    if let Some(client) = TARGETS.get(&server) {
        return Ok(client);
    }
    let key = server.clone();
    let build = move || {
        let ca = server.ca.as_deref().unwrap_or_default();
        reqwest::Client::builder()
            .user_agent(concat!("minik8s/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(connect)
            .pool_idle_timeout(IDLE_MAX)
            .resolve_to_addrs(&server.host, &server.addresses)
            .tls_certs_merge(Certificate::from_pem_bundle(ca.as_bytes())?)
            .build()
    };
    let built = tokio::task::spawn_blocking(build).await.map_err(|error| error.to_string())?;
    let client = built.map_err(|error: reqwest::Error| error_chain(&error))?;
    TARGETS.insert(key, client.clone());
    Ok(client)
}

/// Builds a client that uses no TLS, and neither a proxy nor redirects.
fn direct(builder: reqwest::ClientBuilder) -> reqwest::Client {
    // Only TLS or a resolver of the system can fail to load, and neither is used.
    builder
        .redirect(redirect::Policy::none())
        .no_proxy()
        .pool_idle_timeout(IDLE_MAX)
        .build()
        .unwrap_or_default()
}

/// Client without TLS and redirects, for commands.
pub(crate) type PlainClient = legacy::Client<HttpConnector, Body>;

/// Client for the API of a reconciler. Not reqwest's, because a command should not load all CAs of the machine.
pub(crate) fn to_reconciler(connect: Duration) -> PlainClient {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(connect));
    connector.set_nodelay(true);
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX).build(connector)
}

/// URL of a path, empty or with a leading `/`, at an address.
pub(crate) fn url(address: SocketAddr, path: &str) -> String {
    format!("http://{address}{path}")
}

/// URL as typed by a user: `host:port` alone means HTTP.
pub(crate) fn with_scheme(typed: &str) -> String {
    if typed.contains("://") { typed.to_owned() } else { format!("http://{typed}") }
}

/// Reads the body of a response; `None` if it is larger than `most` bytes.
pub(crate) async fn body(mut response: Response, most: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > most {
            return Ok(None);
        }
        body.extend_from_slice(&piece);
    }
    Ok(Some(body))
}
