//! Forwards a request to one of several endpoints, and its response back. Independent of the catalog.
//!
//! If an endpoint's connection breaks before it responds, the request goes to another one, once, provided that this
//! can't execute it twice. `TCP_USER_TIMEOUT` and keepalive detect that a machine is gone.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use schema::control::{causes, error_chain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::balance::{Balancer, InFlight};
use super::headers;
use crate::clients::Clients;
use crate::http::acceptor::ConnectionPlace;
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
        if let Some(error) = error.downcast_ref::<io::Error>() {
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

/// Places of tunnels: half of those of connections, as tunnels last, and other clients need a place only for a while.
#[derive(Debug, Clone)]
struct TunnelPlaces {
    free: Arc<Semaphore>,
    clients: Clients,
}

impl TunnelPlaces {
    fn new(limits: &Limits) -> Self {
        let places = (server::affordable(limits.connections) / 2).max(1);
        Self { free: Arc::new(Semaphore::new(places)), clients: Clients::sharing(places) }
    }

    /// Takes a place among all tunnels, and among those of the client unless that is the node itself.
    fn take(&self, caller: &Caller) -> Result<ConnectionPlace, Refusal> {
        let full = |why: String| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why);
        let of_client = match caller.is_node {
            true => None,
            false => Some(self.clients.admit(caller.address).ok_or_else(|| {
                let (client, most) = (caller.address, self.clients.limit());
                full(format!(
                    "tunnel limit reached: {client} already has {most} tunnels through this gateway"
                ))
            })?),
        };
        let among_all = Arc::clone(&self.free).try_acquire_owned();
        let among_all = among_all
            .map_err(|_| full("tunnel limit reached: this gateway has no place for another".into()))?;
        Ok(ConnectionPlace::new(among_all, of_client))
    }
}

/// A switch of protocols that a client asked for, with the place of the tunnel.
struct Upgrade {
    client: OnUpgrade,
    place: ConnectionPlace,
}

/// Forwards requests to endpoints.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Pools of each core, by `Caller::core`.
    pools: Arc<[Pools]>,
    balancer: Balancer,
    limits: Limits,
    tunnel_places: TunnelPlaces,
    tunnels: TaskTracker,
    shutdown: CancellationToken,
    cut: CancellationToken,
}

impl Proxy {
    /// Creates a proxy whose tunnels are tracked in `tunnels` and end at `shutdown`, as they may last. The rest of a
    /// request that was answered early is tracked there too, and ends at `cut`.
    pub fn new(
        limits: Limits,
        tunnels: TaskTracker,
        shutdown: CancellationToken,
        cut: CancellationToken,
    ) -> Self {
        let pools = (0..server::count()).map(|_| Pools::new(&limits)).collect();
        let tunnel_places = TunnelPlaces::new(&limits);
        Self { pools, balancer: Balancer::default(), limits, tunnel_places, tunnels, shutdown, cut }
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
    /// 502 without a connection or a response, 503 without endpoints or a place for a tunnel, 504 or 408 when the
    /// endpoint or the client takes too long.
    pub async fn forward(
        &self,
        mut request: Request<Incoming>,
        caller: &Caller,
        target: Target<'_>,
        mut begun: Option<StartedRequest<InFlight>>,
    ) -> Result<ProxyResponse, Refusal> {
        let mut upgrade = None;
        if headers::upgrade(request.headers()).is_some() {
            let place = self.tunnel_places.take(caller)?;
            upgrade = Some(Upgrade { client: hyper::upgrade::on(&mut request), place });
        }
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
        (upgrade, place): (Option<Upgrade>, InFlight),
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
        let Some(Upgrade { client, place: of_tunnel }) = upgrade else {
            let why = format!("{} switches protocols without being asked", place.address());
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, why));
        };
        let (endpoint, driver) = (hyper::upgrade::on(&mut response), response.body_mut().take_driver());
        let (shutdown, held) = (self.shutdown.clone(), (place, of_tunnel, Arc::clone(&caller.place)));
        let idle = self.limits.tunnel_idle;
        self.tunnels.spawn(async move {
            let tunnel = async {
                if let Some(driver) = driver {
                    driver.await?;
                }
                tunnel(client, endpoint, idle).await
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

/// Copies bytes both ways until both sides have ended, or nothing has moved for `idle`.
async fn tunnel(
    client: OnUpgrade,
    endpoint: OnUpgrade,
    idle: Duration,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (client, endpoint) = tokio::try_join!(client, endpoint)?;
    copy_until_idle(TokioIo::new(client), TokioIo::new(endpoint), idle).await?;
    Ok(())
}

async fn copy_until_idle(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut endpoint: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
) -> io::Result<()> {
    let mut copied = pin!(tokio::io::copy_bidirectional(&mut client, &mut endpoint));
    let mut rest = pin!(sleep(idle));
    poll_fn(|cx| {
        if rest.as_mut().poll(cx).is_ready() {
            let why = format!("nothing moved through it for {idle:?}");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        let polled = copied.as_mut().poll(cx).map_ok(drop);
        if polled.is_pending() {
            // Apart from `rest`, only one of the sides wakes this task.
            rest.as_mut().reset(Instant::now() + idle);
            let _ = rest.as_mut().poll(cx);
        }
        polled
    })
    .await
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    // Seen red without the reset, and without the look at `rest`: it does not end.
    #[tokio::test(start_paused = true)]
    async fn a_tunnel_lasts_while_one_side_sends_and_ends_an_hour_after_the_last_byte() {
        let (idle, (mut client, ours), (theirs, mut endpoint)) =
            (Limits::default().tunnel_idle, duplex(64), duplex(64));
        let tunnel = tokio::spawn(copy_until_idle(ours, theirs, idle));
        let mut read = [0; 4];
        for _ in 0..3 {
            sleep(idle * 3 / 4).await;
            client.write_all(b"ping").await.unwrap();
            endpoint.read_exact(&mut read).await.unwrap();
        }
        sleep(idle * 3 / 4).await;
        endpoint.write_all(b"pong").await.unwrap();
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"pong");
        let last = Instant::now();
        let ended = tokio::time::timeout(idle * 3, client.read(&mut read)).await;
        assert_eq!(ended.expect("it ends by itself").unwrap(), 0);
        assert_eq!(last.elapsed().as_secs(), idle.as_secs());
        assert_eq!(tunnel.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    // Seen red without `admit`, and with as many places as connections.
    #[test]
    fn tunnels_have_half_of_all_places_and_one_client_an_eighth() {
        let places = TunnelPlaces::new(&Limits { connections: 32, ..Limits::default() });
        let all = Arc::new(Semaphore::new(1));
        let connection = Arc::new(ConnectionPlace::new(all.try_acquire_owned().unwrap(), None));
        let caller =
            |number, is_node| Caller::new([10, 244, 0, number].into(), is_node, Arc::clone(&connection), 0);
        let why = |refused: Result<ConnectionPlace, Refusal>| refused.unwrap_err().to_string();
        let mut held: Vec<_> = (0..4).map(|_| places.take(&caller(1, false)).unwrap()).collect();
        assert_eq!(
            why(places.take(&caller(1, false))),
            "tunnel limit reached: 10.244.0.1 already has 4 tunnels through this gateway"
        );
        held.extend((0..12).map(|_| places.take(&caller(2, true)).unwrap()));
        let full = "tunnel limit reached: this gateway has no place for another";
        assert_eq!(why(places.take(&caller(3, false))), full);
        held.pop();
        places.take(&caller(3, false)).unwrap();
    }
}
