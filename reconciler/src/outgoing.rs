//! Outgoing HTTP: the only file of this crate that builds clients, and URLs of addresses.
//!
//! No client uses a proxy, and only that of a gateway named by a user follows redirects. Repositories are fetched by
//! libgit2, mail is sent by lettre, and etcd has the client in `schema/src/store/etcd/`.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Uri, header};
use hyper_util::client::legacy::{self, connect::Connect};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use moka::sync::Cache;
use reqwest::{Body, Certificate, Method, Request, Response, StatusCode, Url, redirect};
use schema::errors::error_chain;
use schema::trust::{Role, TrustConnector, TrustReader, connect_pinned};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tower_service::Service;

/// Time for which an idle connection to a daemon is kept: daemons close theirs after 10 s.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// HTTP client to daemons of the cluster, which must show who they are. Callers bound the time.
#[derive(Clone)]
pub(crate) struct DaemonClient(legacy::Client<TrustConnector, Body>);

/// Request to a daemon that was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] reqwest::Error),
    /// The URL is invalid.
    #[error("{0}")]
    Url(String),
    /// No connection, or no answer on it.
    #[error(transparent)]
    Answer(#[from] legacy::Error),
}

impl DaemonClient {
    /// Sends a request. Redirects are not followed.
    pub(crate) async fn send(&self, request: Request) -> Result<Response, DaemonError> {
        let answer = self.0.request(request.try_into()?).await?;
        Ok(Response::from(answer.map(Body::wrap)))
    }

    /// Sends a GET.
    pub(crate) async fn get(&self, url: &str) -> Result<Response, DaemonError> {
        let url = Url::parse(url).map_err(|error| DaemonError::Url(format!("{url}: {error}")))?;
        self.send(Request::new(Method::GET, url)).await
    }
}

/// Client for the APIs and gateways of nodes, with the longest time to connect. `trust` is `None` in tests only.
pub(crate) fn to_nodes(trust: Option<TrustReader>, connect: Duration) -> DaemonClient {
    to_daemons(TrustConnector::new(trust, Role::Node, connect))
}

/// Client for members of etcd, with the longest time to connect. Without `trust`, for those that speak no TLS.
pub(crate) fn to_etcd(trust: Option<TrustReader>, connect: Duration) -> DaemonClient {
    to_daemons(TrustConnector::new(trust, Role::Etcd, connect))
}

fn to_daemons(connector: TrustConnector) -> DaemonClient {
    DaemonClient(pooled(connector))
}

/// Client for a gateway named by a user, which may be behind a proxy with TLS: it follows redirects.
///
/// # Errors
/// Those of TLS.
pub(crate) fn to_named_gateway(whole: Duration) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder().timeout(whole).no_proxy().build()
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

/// Client of a command for one daemon, without redirects. Not reqwest's, because a command should not load all CAs of the
/// machine.
pub(crate) struct CommandClient(CommandRoute);

enum CommandRoute {
    Socket(legacy::Client<SocketConnector, Body>),
    Tcp(legacy::Client<TrustConnector, Body>),
}

impl CommandClient {
    /// Creates a client that connects to a Unix socket, whatever the URL; [`SOCKET_URL`] is one.
    pub(crate) fn through_socket(path: PathBuf) -> Self {
        Self(CommandRoute::Socket(pooled(SocketConnector(Arc::new(path)))))
    }

    /// Creates a client for servers with this role. `https` needs `trust`, `http` is not encrypted.
    pub(crate) fn over_tcp(trust: Option<TrustReader>, role: Role, connect: Duration) -> Self {
        Self(CommandRoute::Tcp(pooled(TrustConnector::new(trust, role, connect))))
    }

    /// Sends a request. The caller bounds the time.
    ///
    /// # Errors
    /// No connection, or it was lost before the head of the answer.
    pub(crate) async fn send(
        &self,
        request: hyper::Request<Body>,
    ) -> Result<hyper::Response<Incoming>, legacy::Error> {
        match &self.0 {
            CommandRoute::Socket(client) => client.request(request).await,
            CommandRoute::Tcp(client) => client.request(request).await,
        }
    }
}

fn pooled<C: Connect + Clone>(connector: C) -> legacy::Client<C, Body> {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX).build(connector)
}

/// URL of the server behind a Unix socket.
pub(crate) const SOCKET_URL: &str = "http://localhost";

/// Connector to a Unix socket.
#[derive(Clone)]
struct SocketConnector(Arc<PathBuf>);

impl Service<Uri> for SocketConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<UnixStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = Arc::clone(&self.0);
        Box::pin(async move { UnixStream::connect(path.as_path()).await.map(TokioIo::new) })
    }
}

/// Largest answer to a request of a machine that joins.
const JOIN_ANSWER_MAX_BYTES: usize = 1 << 20;

/// Posts JSON to a reconciler that is known by the digest of its authority only. `body` is made of the own address of the
/// connection. Returns the status and the body of the answer. The caller bounds the time.
///
/// # Errors
/// No connection, another authority, or no whole answer.
pub(crate) async fn post_pinned(
    url: &Url,
    pin: &str,
    body: impl FnOnce(IpAddr) -> Vec<u8>,
) -> anyhow::Result<(StatusCode, Vec<u8>)> {
    let host = url.host_str().context("the URL has no host")?;
    let port = url.port_or_known_default().context("the URL has no port")?;
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    let own = stream.local_addr()?.ip().to_canonical();
    let tls = connect_pinned(stream, pin).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    // Ends with this function.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let request = hyper::Request::post(url.path())
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body(own)))?;
    let answer = Response::from(sender.send_request(request).await?.map(Body::wrap));
    let status = answer.status();
    let body = self::body(answer, JOIN_ANSWER_MAX_BYTES).await?;
    Ok((status, body.with_context(|| format!("an answer of more than {JOIN_ANSWER_MAX_BYTES} bytes"))?))
}

/// URL of a path, empty or with a leading `/`, at an address.
pub(crate) fn url(address: SocketAddr, path: &str) -> String {
    format!("http://{address}{path}")
}

/// URL of a server with TLS, by an address or a name.
pub(crate) fn tls_url(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("https://[{address}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    }
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

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use schema::trust::{Authority, Credentials, KeyPair, LeafRequest, accept};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Credentials of a reconciler, and the digest of its authority.
    fn reconciler() -> (Credentials, String) {
        let (now, week) = (Timestamp::now(), SignedDuration::from_hours(7 * 24));
        let authority = Authority::create(week, now).unwrap();
        let (key, identity) = (KeyPair::generate().unwrap(), "reconciler-r1".parse().unwrap());
        let public = key.public_key().unwrap();
        let leaf = LeafRequest { identity: &identity, key: &public, addresses: &[], lifetime: week };
        let certificate = authority.sign(&leaf, now).unwrap();
        let trusted = vec![authority.certificate().clone()];
        let credentials = Credentials::new(&key, certificate, trusted, Default::default()).unwrap();
        (credentials, authority.certificate().digest().unwrap())
    }

    #[tokio::test]
    async fn a_reconciler_is_posted_to_only_if_its_authority_is_the_pinned_one() {
        let ((credentials, pin), (_, foreign)) = (reconciler(), reconciler());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let mut requests = Vec::new();
            for _ in 0..2 {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok((mut tls, _)) = accept(stream, &credentials).await else { continue };
                let (mut request, mut part) = (String::new(), [0; 4096]);
                while !request.ends_with('}') {
                    let Ok(bytes @ 1..) = tls.read(&mut part).await else { break };
                    request.push_str(std::str::from_utf8(&part[..bytes]).unwrap());
                }
                let answer = b"HTTP/1.1 401 X\r\ncontent-length: 2\r\n\r\n{}";
                let _ = tls.write_all(answer).await;
                requests.push(request);
            }
            requests
        });
        let url: Url = format!("https://{address}/v1/join").parse().unwrap();
        let body = |own: IpAddr| format!("{{\"own\": \"{own}\"}}").into_bytes();
        let error = post_pinned(&url, &foreign, body).await.unwrap_err().to_string();
        assert!(error.contains("right cluster"), "{error}");
        let (status, answer) = post_pinned(&url, &pin, body).await.unwrap();
        assert_eq!((status.as_u16(), answer.as_slice()), (401, &b"{}"[..]));
        let requests = serving.await.unwrap();
        let request = requests.last().unwrap();
        assert!(request.starts_with("POST /v1/join HTTP/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
        assert!(request.ends_with("{\"own\": \"127.0.0.1\"}"), "{request}");
        assert!(!requests[..requests.len() - 1].iter().any(|request| request.contains("own")));
    }
}
