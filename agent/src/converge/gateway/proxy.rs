//! Forwards a request to one of several endpoints, and its response back. Independent of the catalog.
//!
//! If an endpoint's connection breaks before it responds, the request goes to another one, once, provided that this
//! can't execute it twice. `TCP_USER_TIMEOUT` and keepalive detect that a machine is gone.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use schema::control::{causes, error_chain};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::balance::{Balancer, InFlight};
use super::headers;
use crate::http::body::{Answer, GuardedBody};
use crate::http::client::{DrivenBody, Options, Pool, SendError};
use crate::http::plain::{PlainPool, PlainTarget, StartedRequest};
use crate::http::server;
use crate::http::server::{Caller, Limits};
use crate::http::upload::{Progress, Upload, WaitsFor};

/// Largest body sent over a watched connection. `TCP_USER_TIMEOUT` also ends connections whose receiver has a full
/// buffer, which may be normal for a busy server; this much always fits.
const SMALL_BODY: u64 = 16 * 1024;

/// Response of the handler.
pub type ProxyResponse = Response<GuardedBody<Answer, InFlight>>;

/// Destination of a request.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub endpoints: &'a [SocketAddr],
    /// Path to request, without the query; `None` for the request's own.
    pub path: Option<&'a str>,
    pub host: &'a HeaderValue,
}

/// Error response of the gateway itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    pub status: StatusCode,
    pub why: String,
}

impl Refusal {
    /// Creates an error response with `why` as its message.
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    /// Converts the refusal to an HTTP response.
    pub fn answer(&self) -> ProxyResponse {
        let words = Answer::words(format!("{}: {}\n", self.status, self.why));
        let mut response = Response::new(GuardedBody::new(words, None));
        *response.status_mut() = self.status;
        // The message may contain text from the client: no browser must render it as a page.
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, plain);
        response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        response
    }
}

/// Reason why an attempt failed.
enum AttemptError {
    Connection(SendError),
    Stalled(WaitsFor),
}

impl AttemptError {
    /// True if the endpoint, or the route to it, seems to be gone.
    fn is_unreachable(&self) -> bool {
        match self {
            AttemptError::Connection(SendError::Connect(_)) => true,
            AttemptError::Connection(SendError::Exchange(error)) => is_gone(error),
            AttemptError::Stalled(_) => false,
        }
    }
}

/// True if the kernel gave up the connection because the other side stopped responding.
fn is_gone(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    for error in causes(error) {
        // A broken connection of the client arrives as an error of the body.
        if error.downcast_ref().is_some_and(hyper::Error::is_user) {
            return false;
        }
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable);
        }
    }
    false
}

/// Connection pools to endpoints.
#[derive(Debug)]
struct Pools {
    /// Connections that are given up soon if the other side stops responding.
    watched: Pool,
    /// Connections for large bodies and tunnels.
    patient: Pool,
    /// Connections for plain requests.
    plain: PlainPool,
}

impl Pools {
    fn new(limits: &Limits) -> Self {
        let (watched, patient) = (options(limits, Some(limits.gone)), options(limits, None));
        Self {
            plain: PlainPool::new(watched.clone()),
            watched: Pool::new(watched),
            patient: Pool::new(patient),
        }
    }
}

/// Forwards requests to endpoints.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Pools of each core, by `Caller::core`.
    pools: Arc<[Pools]>,
    balancer: Balancer,
    limits: Limits,
    tunnels: TaskTracker,
    shutdown: CancellationToken,
    cut: CancellationToken,
}

impl Proxy {
    /// Creates a proxy whose tunnels are tracked in `tunnels` and end at `shutdown`, as none ends by itself. The
    /// rest of a request that was answered early is tracked there too, and ends at `cut`.
    pub fn new(
        limits: Limits,
        tunnels: TaskTracker,
        shutdown: CancellationToken,
        cut: CancellationToken,
    ) -> Self {
        let pools = (0..server::count()).map(|_| Pools::new(&limits)).collect();
        Self { pools, balancer: Balancer::default(), limits, tunnels, shutdown, cut }
    }

    /// Closes connections to endpoints that have been idle for too long.
    pub fn sweep(&self) {
        for pools in &*self.pools {
            pools.watched.sweep();
            pools.patient.sweep();
            pools.plain.sweep();
        }
    }

    /// Forgets endpoints that no table has, and closes idle connections to them.
    pub fn retain(&self, wanted: &BTreeSet<SocketAddr>) {
        self.balancer.retain(wanted);
        for pools in &*self.pools {
            pools.watched.retain(wanted);
            pools.patient.retain(wanted);
            pools.plain.retain(wanted);
        }
    }

    /// Returns the target of a plain request, if all these endpoints give plain answers.
    pub(super) fn plain_target(
        &self,
        endpoints: &[SocketAddr],
        path: Option<String>,
        caller: &Caller,
    ) -> Option<PlainTarget<InFlight>> {
        let pool = &self.pools(caller).plain;
        let held = pool.are_all_plain(endpoints).then(|| self.balancer.pick(endpoints, None))??;
        Some(PlainTarget { to: held.address(), path, held, pool: pool.clone() })
    }

    /// Sends the request to one of the endpoints of `target`, and to another one if a retry makes sense. `begun`:
    /// the request was already sent to that endpoint.
    ///
    /// # Errors
    /// 502 without a connection or a response, 503 without endpoints, 504 or 408 when the endpoint or the client
    /// takes too long.
    pub async fn forward(
        &self,
        mut request: Request<Incoming>,
        caller: &Caller,
        target: Target<'_>,
        mut begun: Option<StartedRequest<InFlight>>,
    ) -> Result<ProxyResponse, Refusal> {
        let upgrade = headers::upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let who = headers::Client { address: &caller.address_header, is_node: caller.is_node };
        let path = match (target.path, head.uri.path_and_query()) {
            (None, Some(own)) => own.clone(),
            (path, _) => path_and_query(path.unwrap_or("/"), head.uri.query())?,
        };
        let is_small = body.size_hint().exact().is_some_and(|bytes| bytes <= SMALL_BODY);
        let pools = self.pools(caller);
        let pool = if is_small && upgrade.is_none() { &pools.watched } else { &pools.patient };
        let (upload, progress) = Upload::new(body);
        let (mut upload, mut except) = (upload, None);
        loop {
            let (place, link) = match begun.take() {
                Some(begun) => (Some(begun.held), Some(begun.link)),
                None => (self.balancer.pick(target.endpoints, except), None),
            };
            let Some(place) = place else {
                return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "there is no endpoint"));
            };
            let address = place.address();
            let headers = headers::to_endpoint(&head.headers, target.host, &who);
            let request = request_to(&path, &head.method, headers, upload);
            let sent = pin!(async {
                match link {
                    None => pool.send(address, request).await,
                    Some(link) => pool.resume(address, link.map_err(SendError::Connect)?, request).await,
                }
            });
            let failed = match self.answer(sent, &progress).await {
                Ok(response) => {
                    let is_sending = !progress.has_ended();
                    return self.respond(response, is_sending, (upgrade, place), caller);
                }
                Err(failed) => failed,
            };
            if failed.is_unreachable() {
                self.balancer.shun(address);
            }
            let unread = progress.take_back();
            match (unread, except) {
                (Some(body), None) if can_retry_elsewhere(&failed, &head.method, target, address) => {
                    (upload, except) = (body, Some(address));
                }
                _ => return Err(refusal(&failed, address)),
            }
        }
    }

    /// Waits for the head of the response as long as data flows.
    async fn answer(
        &self,
        mut sent: Pin<&mut impl Future<Output = Result<Response<DrivenBody>, SendError>>>,
        progress: &Progress,
    ) -> Result<Response<DrivenBody>, AttemptError> {
        loop {
            let (since, _) = progress.resting();
            match timeout_at(since + self.limits.answer, &mut sent).await {
                Ok(answered) => return answered.map_err(AttemptError::Connection),
                Err(_) if progress.resting().0 > since => {}
                Err(_) => return Err(AttemptError::Stalled(progress.resting().1)),
            }
        }
    }

    fn pools(&self, caller: &Caller) -> &Pools {
        &self.pools[caller.core % self.pools.len()]
    }

    fn respond(
        &self,
        mut response: Response<DrivenBody>,
        is_sending: bool,
        (upgrade, place): (Option<OnUpgrade>, InFlight),
        caller: &Caller,
    ) -> Result<ProxyResponse, Refusal> {
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        headers::to_client(response.headers_mut(), switches);
        *response.version_mut() = Version::HTTP_11;
        if !switches {
            // The endpoint answers while the client still sends: the rest must be delivered even if the client is
            // not reading, or a client that sends everything before it reads would hang or lose the response.
            if is_sending && let Some(driver) = response.body_mut().take_driver() {
                let cut = self.cut.clone();
                self.tunnels.spawn(async move { cut.run_until_cancelled(driver).await });
            }
            return Ok(response.map(|body| GuardedBody::new(Answer::Endpoint(body), Some(place))));
        }
        let Some(client) = upgrade else {
            let why = format!("{} switches protocols without being asked", place.address());
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, why));
        };
        let (endpoint, driver) = (hyper::upgrade::on(&mut response), response.body_mut().take_driver());
        let (shutdown, held) = (self.shutdown.clone(), (place, Arc::clone(&caller.place)));
        self.tunnels.spawn(async move {
            let tunnel = async {
                if let Some(driver) = driver {
                    driver.await?;
                }
                tunnel(client, endpoint).await
            };
            // Cancel-safe: a tunnel that is cut is closed on both sides.
            if let Some(Err(error)) = shutdown.run_until_cancelled(tunnel).await {
                tracing::debug!(%error, "tunnel through the gateway broke");
            }
            drop(held);
        });
        Ok(response.map(|body| GuardedBody::new(Answer::Endpoint(body), None)))
    }
}

/// True if the request may be sent to another endpoint. Without a connection nothing was sent; otherwise only an
/// idempotent method may be repeated, as the endpoint may have executed it before the connection broke.
fn can_retry_elsewhere(
    failed: &AttemptError,
    method: &Method,
    target: Target<'_>,
    tried: SocketAddr,
) -> bool {
    let AttemptError::Connection(error) = failed else { return false };
    // An endpoint that merely closed a kept-alive connection can be tried again.
    let can_be_reached = !failed.is_unreachable() || target.endpoints.iter().any(|other| *other != tried);
    can_be_reached && (matches!(error, SendError::Connect(_)) || method.is_idempotent())
}

/// Returns the options of a pool; its connections are given up after `gone` without any sign of the other side.
fn options(limits: &Limits, gone: Option<Duration>) -> Options {
    Options {
        connect: limits.connect,
        keepalive: gone.map_or(limits.idle, |gone| gone * 2 / 5),
        copies_bodies: gone.is_some(),
        gone,
        spare: limits.spare.div_ceil(server::count()),
        spare_for: limits.spare_for,
    }
}

/// Copies bytes both ways until both sides have ended.
async fn tunnel(
    client: OnUpgrade,
    endpoint: OnUpgrade,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (client, endpoint) = tokio::try_join!(client, endpoint)?;
    tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(endpoint)).await?;
    Ok(())
}

/// Returns the path to request, with the query if there is one.
fn path_and_query(path: &str, query: Option<&str>) -> Result<PathAndQuery, Refusal> {
    let asked = match query {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    asked.map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the path {path:?} can't be requested: {error}"))
    })
}

fn request_to(path: &PathAndQuery, method: &Method, headers: HeaderMap, body: Upload) -> Request<Upload> {
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = Uri::from(path.clone());
    *request.headers_mut() = headers;
    request
}

fn refusal(failed: &AttemptError, address: SocketAddr) -> Refusal {
    match failed {
        AttemptError::Connection(error @ SendError::Connect(_)) => {
            let why = format!("cannot connect to {address}: {}", error_chain(error));
            Refusal::new(StatusCode::BAD_GATEWAY, why)
        }
        AttemptError::Connection(error) => {
            let why = format!("{address} did not answer: {}", error_chain(error));
            Refusal::new(StatusCode::BAD_GATEWAY, why)
        }
        AttemptError::Stalled(WaitsFor::Endpoint) => {
            let why = format!("{address} did not answer in time");
            Refusal::new(StatusCode::GATEWAY_TIMEOUT, why)
        }
        AttemptError::Stalled(WaitsFor::Client) => {
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "the rest of the body did not arrive in time")
        }
    }
}
