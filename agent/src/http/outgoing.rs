//! Outgoing HTTP: the only file of this crate that builds clients, and URLs of addresses. TLS to other daemons begins
//! here, that of clients in `acceptor.rs`.
//!
//! No client uses a proxy, and only probes follow redirects. The gateway's connections to endpoints (`client.rs`,
//! `plain/`) are separate: their requests drive them, and they lead to pods, never to daemons.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::LazyLock;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use reqwest::{Body, Certificate, Client, ClientBuilder, Request, Response, StatusCode, Url, redirect};
use schema::trust::{Role, TrustConnector, TrustReader};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;

/// A client that is created at its first request. For each of reqwest's clients OpenSSL reads all CAs of the machine,
/// which takes 40 ms: too long for the start of an agent, especially for clients that only use plain HTTP.
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

/// Client for daemons of a role: the reconcilers or other nodes' agents. A URL may name the only one that may answer
/// ([`schema::trust::url_of`]). Without `trust` it reaches only servers without TLS, as in tests.
pub fn to_daemons(timeouts: Timeouts, trust: Option<TrustReader>, role: Role) -> DaemonClient {
    let connector = TrustConnector::new(trust, role, timeouts.connect);
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    let http = builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX).build(connector);
    DaemonClient { http, timeouts }
}

/// Client of other daemons, with TLS by the cluster's own authorities.
#[derive(Clone)]
pub struct DaemonClient {
    http: legacy::Client<TrustConnector, Body>,
    timeouts: Timeouts,
}

/// Failure to get a response from a daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The request can't be sent as it is, or the body of its response can't be read.
    #[error(transparent)]
    Request(#[from] reqwest::Error),
    /// The URL can't be sent.
    #[error("cannot write the request")]
    Write(#[from] hyper::http::Error),
    /// No connection, or it ended before the response.
    #[error("no response")]
    Connection(#[from] legacy::Error),
    /// The connection ended before the response.
    #[error("no response")]
    Exchange(#[from] hyper::Error),
    /// No byte in time.
    #[error("no answer within {0:?}")]
    Silence(Duration),
    /// The response is larger than it should be.
    #[error("the response has more than {0} bytes")]
    Size(usize),
}

impl DaemonClient {
    /// Sends a request. The time limits also apply to the body of the response.
    ///
    /// # Errors
    /// [`DaemonError`]
    pub async fn send(&self, request: Request) -> Result<Response, DaemonError> {
        let Timeouts { silence, whole, .. } = self.timeouts;
        let end = whole.map(|whole| (Instant::now() + whole, whole));
        let request: hyper::Request<Body> = request.try_into()?;
        let (until, limit) = next_limit(silence, end);
        let response = timeout_at(until, self.http.request(request)).await;
        let (head, body) = response.map_err(|_| DaemonError::Silence(limit))??.into_parts();
        // Only reqwest's type of a response has a stream of its body.
        let pieces = Response::from(hyper::Response::new(Body::wrap(body))).bytes_stream();
        let body = Body::wrap_stream(limited(pieces, silence, end));
        Ok(Response::from(hyper::Response::from_parts(head, body)))
    }
}

/// Returns the time by which the next byte must be there, and the limit from which that follows.
fn next_limit(silence: Duration, end: Option<(Instant, Duration)>) -> (Instant, Duration) {
    let next = Instant::now() + silence;
    end.filter(|(end, _)| *end < next).unwrap_or((next, silence))
}

/// Ends a body with an error if it takes too long.
fn limited<B: Send + 'static>(
    pieces: impl Stream<Item = reqwest::Result<B>> + Send + 'static,
    silence: Duration,
    end: Option<(Instant, Duration)>,
) -> impl Stream<Item = Result<B, DaemonError>> + Send + 'static {
    stream::try_unfold(pieces.boxed(), move |mut pieces| async move {
        let (until, limit) = next_limit(silence, end);
        match timeout_at(until, pieces.next()).await {
            Ok(Some(piece)) => Ok(Some((piece?, pieces))),
            Ok(None) => Ok(None),
            Err(_) => Err(DaemonError::Silence(limit)),
        }
    })
}

/// A response, read whole.
#[derive(Debug)]
pub struct WholeResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Largest response that [`exchange`] reads.
const WHOLE_MAX_BYTES: usize = 256 * 1024;

/// Sends one request on a connection of its own: `POST` with this JSON, or `GET` without any. The caller bounds the
/// time.
///
/// # Errors
/// [`DaemonError`]
pub async fn exchange<S>(stream: S, url: &Url, json: Option<Vec<u8>>) -> Result<WholeResponse, DaemonError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let method = if json.is_some() { hyper::Method::POST } else { hyper::Method::GET };
    let host = url.host_str().unwrap_or_default();
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let request = hyper::Request::builder().method(method).uri(url.path()).header(HOST, host);
    let request = request.header(CONTENT_TYPE, "application/json");
    let request = request.body(json.map_or_else(Body::default, Body::from))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut answering = pin!(async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let mut response = Response::from(hyper::Response::new(Body::wrap(body)));
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            if body.len() + piece.len() > WHOLE_MAX_BYTES {
                return Err(DaemonError::Size(WHOLE_MAX_BYTES));
            }
            body.extend_from_slice(&piece);
        }
        Ok(WholeResponse { status: head.status, headers: head.headers, body })
    });
    tokio::select! {
        biased;
        // Both are polled until the response is there, and are not needed after it.
        answer = &mut answering => return answer,
        // A connection that has ended has passed on all that it received.
        _ = connection => {}
    }
    answering.await
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

/// Client for one gRPC probe of a container, without TLS and with a new connection, as with the kubelet. The caller bounds
/// the time.
///
/// # Errors
/// The connection can't be opened.
pub async fn to_probed_grpc(
    address: SocketAddr,
    user_agent: &'static str,
) -> Result<HealthClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(url(address, ""))?.user_agent(user_agent)?;
    Ok(HealthClient::new(endpoint.connect().await?))
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
