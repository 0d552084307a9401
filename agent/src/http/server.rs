//! Accepts connections and passes their requests to a handler, until shutdown and a while longer.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;
use std::{future, io, thread};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use schema::control::lock;
use schema::trust::{Peer, TrustReader};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::acceptor::{AcceptedConnection, Acceptor, ConnectionPlace, accept_tls};
use super::body::{Answer, GuardedBody};
use super::client::HEADER_LINES_MAX;
use super::patience::{Clock, Phase, TimedStream};
use super::plain;
use super::plain::{Client, PlainTarget, ServeResult, StartedRequest};

/// Connections that may wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// Open files that the rest of the agent needs: DNS (up to 640), idle connections to endpoints, etcd, Docker's
/// streams, files.
const OTHER_FILES: u64 = 2048;

/// Evidence of who sends the requests of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// The address alone.
    Plain,
    /// The certificate shown over TLS; `None` if there is none, or its key was revoked.
    Tls(Option<Arc<Peer>>),
}

/// Client of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub address: IpAddr,
    pub channel: Channel,
    /// Set if the request comes from the node itself: a proxy there may terminate TLS, and its claims about clients
    /// are trusted.
    pub is_node: bool,
    /// Place of the connection among all; a tunnel keeps it.
    pub place: Arc<ConnectionPlace>,
    /// Core that serves the connection, below [`count`].
    pub core: usize,
    /// Address as a header value, created once per connection.
    pub address_header: HeaderValue,
}

impl Caller {
    /// Creates a caller without TLS whose connection has this place and core.
    pub fn new(address: IpAddr, is_node: bool, place: Arc<ConnectionPlace>, core: usize) -> Self {
        let address_header =
            HeaderValue::try_from(address.to_string()).expect("an IP address is a valid header value");
        Self { address, channel: Channel::Plain, is_node, place, core, address_header }
    }
}

/// Handles requests.
pub trait Handler: Send + Sync + 'static {
    /// Resource that a response holds until it has been sent.
    type ResponseGuard: Send + Unpin + 'static;

    /// Returns the destination of a GET from this caller for this host and path, if nothing else in the request
    /// matters: it may then bypass [`Self::handle`]. `None` if it must not.
    fn plain_target(
        &self,
        _host: &str,
        _path: &str,
        _caller: &Caller,
    ) -> Option<PlainTarget<Self::ResponseGuard>> {
        None
    }

    /// Counts an answered request by its status, with the time from its head to the head of its response.
    fn count(&self, _status: u16, _took: Duration) {}

    /// Returns the response; failures are responses too. `begun`: the request was already sent to the result of
    /// [`Self::plain_target`], or connecting there failed.
    fn handle(
        &self,
        request: Request<Incoming>,
        caller: Caller,
        begun: Option<StartedRequest<Self::ResponseGuard>>,
    ) -> impl Future<Output = Response<GuardedBody<Answer, Self::ResponseGuard>>> + Send;
}

/// Creates a listener on an address that no link needs to have yet, as the network loop may add it later.
///
/// # Errors
/// The kernel's, `AddrInUse` if another program listens there or on the port of all addresses.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    // Connections of an agent that has just ended must not block the port.
    socket.set_reuse_address(true)?;
    socket.set_freebind_v4(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Returns the number of connections possible with this process's limit of open files; raises the limit if it is
/// too low.
pub fn affordable(connections: usize) -> usize {
    let wanted = OTHER_FILES + 2 * connections as u64;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return connections };
    let files = match soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard).is_ok() {
        true => wanted.min(hard),
        false => soft,
    };
    // With few files, each side gets half.
    let others = OTHER_FILES.min(files / 2);
    let affordable = usize::try_from((files - others) / 2).unwrap_or(usize::MAX);
    connections.min(affordable).max(1)
}

/// HTTP server.
#[derive(Debug)]
pub struct Server<H> {
    handler: Arc<H>,
    limits: Limits,
    acceptor: Acceptor,
    /// Set if clients may speak TLS.
    trust: Option<TrustReader>,
    connections: TaskTracker,
    cut: CancellationToken,
}

impl<H: Handler> Server<H> {
    /// Creates a server whose connections are tracked in `connections` and end immediately when `cut` is cancelled.
    pub fn new(handler: H, limits: Limits, connections: TaskTracker, cut: CancellationToken) -> Self {
        let acceptor = Acceptor::new("the gateway", affordable(limits.connections));
        Self { handler: Arc::new(handler), limits, acceptor, trust: None, connections, cut }
    }

    /// Serves clients that speak TLS too, at the same port.
    pub fn with_tls(self, trust: Option<TrustReader>) -> Self {
        Self { trust, ..self }
    }

    /// Serves the newest of `listeners` until `shutdown`; then lets requests under way finish, for a while.
    /// Connections of a former listener continue.
    pub async fn run(self, mut listeners: mpsc::Receiver<TcpListener>, shutdown: CancellationToken) {
        let mut listener = None;
        let cores = Cores::of_process();
        let core = || cores.map_or_else(|| (0, Handle::current()), Cores::next);
        loop {
            tokio::select! {
                biased;
                // Cancel-safe: a cancelled token stays cancelled.
                () = shutdown.cancelled() => break,
                // Cancel-safe: a listener that is not returned stays in the channel.
                Some(newest) = listeners.recv() => listener = Some(newest),
                // Cancel-safe: a connection that is not returned stays in the kernel's queue, and an unused place
                // is released.
                accepted = self.next(listener.as_ref()) => self.start(accepted, core(), shutdown.clone()),
            }
        }
        drop(listener);
        self.connections.close();
        if timeout(self.limits.drain, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "connections cut at shutdown");
        }
        self.cut.cancel();
        self.connections.wait().await;
    }

    /// Accepts the next connection, once there is a listener and a place.
    async fn next(&self, listener: Option<&TcpListener>) -> AcceptedConnection {
        match listener {
            Some(listener) => self.acceptor.accept(listener).await,
            None => future::pending().await,
        }
    }

    fn start(
        &self,
        AcceptedConnection { stream, client, is_node, place }: AcceptedConnection,
        (core, runtime): (usize, Handle),
        shutdown: CancellationToken,
    ) {
        let caller = Caller::new(client, is_node, Arc::new(place), core);
        let (handler, limits, trust) = (Arc::clone(&self.handler), self.limits.clone(), self.trust.clone());
        let endings = endings(shutdown, self.cut.clone());
        // The core's runtime must poll the socket.
        let Ok(stream) = stream.into_std() else { return };
        let connection = async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            serve(handler, &limits, (stream, trust), caller, endings).await;
        };
        self.connections.spawn_on(connection, &runtime);
    }
}

/// Reason for ending a connection from our side.
enum Ending {
    /// Gracefully, after the request under way.
    Shutdown,
    /// Immediately.
    Cut,
}

/// Pending endings. Polling a token takes locks that all connections share, and a connection is polled more than
/// once per request: here each token is polled once, and again only after it was cancelled.
type Endings = FuturesUnordered<BoxFuture<'static, Ending>>;

fn endings(shutdown: CancellationToken, cut: CancellationToken) -> Endings {
    let shutdown = shutdown.cancelled_owned().map(|()| Ending::Shutdown);
    let cut = cut.cancelled_owned().map(|()| Ending::Cut);
    [shutdown.boxed(), cut.boxed()].into_iter().collect()
}

async fn serve<H: Handler>(
    handler: Arc<H>,
    limits: &Limits,
    (stream, trust): (TcpStream, Option<TrustReader>),
    caller: Caller,
    mut endings: Endings,
) {
    // Best effort: without these options connections are slower, and a dead client is detected later.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(limits.idle));
    let first_byte_due = Instant::now() + limits.first_byte;
    let stream = TimedStream::new(stream, limits.answer);
    let phase = stream.phase();
    let mut clock = Clock::new(phase.clone(), limits.head, limits.idle);
    let mut connection = pin!(serve_requests(handler, limits, (stream, trust), caller));
    // Set from shutdown on, until the connection closes: hyper would close a connection from which nothing has
    // arrived yet.
    let mut grace = None;
    let ended = future::poll_fn(|cx| {
        // First: a request that arrived before the shutdown is answered.
        let mut polled = connection.as_mut().poll(cx);
        while polled.is_pending()
            && let Poll::Ready(Some(ending)) = endings.poll_next_unpin(cx)
        {
            match ending {
                Ending::Shutdown => grace = Some(Box::pin(sleep_until(first_byte_due))),
                Ending::Cut => return Poll::Ready(Ok(())),
            }
        }
        if polled.is_pending()
            && let Some(timer) = &mut grace
            && (!phase.is_new() || timer.as_mut().poll(cx).is_ready())
        {
            grace = None;
            phase.close();
            polled = connection.as_mut().poll(cx);
        }
        if polled.is_pending() { clock.poll_timeout(cx).map(Ok) } else { polled }
    });
    let ended = ended.await;
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Serves a connection: plain requests first, and from the first other one on through hyper; over TLS all through hyper.
/// Ends soon after its phase is closed.
async fn serve_requests<H: Handler>(
    handler: Arc<H>,
    limits: &Limits,
    (mut stream, trust): (TimedStream, Option<TrustReader>),
    caller: Caller,
) -> hyper::Result<()> {
    if let Some(trust) = trust {
        match stream.begins_tls().await {
            // Boxed: plain connections, which are many, stay small.
            Some(true) => return Box::pin(serve_tls(handler, limits, (stream, trust), caller)).await,
            Some(false) => {}
            None => return Ok(()),
        }
    }
    let client = Client { address: caller.address_header.as_bytes(), is_node: caller.is_node };
    let target = |host: &str, path: &str| handler.plain_target(host, path, &caller);
    let count = |status, took| handler.count(status, took);
    let begun = match plain::serve(&mut stream, client, target, count).await {
        ServeResult::Closed => return Ok(()),
        ServeResult::ToHyper(begun) => begun,
    };
    let phase = stream.phase();
    serve_by_hyper(handler, limits, (stream, phase), move || caller.clone(), begun).await
}

/// Serves a connection over TLS.
async fn serve_tls<H: Handler>(
    handler: Arc<H>,
    limits: &Limits,
    (stream, trust): (TimedStream, TrustReader),
    caller: Caller,
) -> hyper::Result<()> {
    let phase = stream.phase();
    let Some((stream, peer)) = accept_tls(stream, trust.clone(), caller.address).await else {
        return Ok(());
    };
    phase.end_handshake();
    let peer = peer.map(Arc::new);
    // A key may be revoked while the connection lasts.
    let caller = move || {
        let peer = peer.clone().filter(|peer| !trust.current().is_revoked(&peer.key));
        Caller { channel: Channel::Tls(peer), ..caller.clone() }
    };
    serve_by_hyper(handler, limits, (stream, phase), caller, None).await
}

/// Serves a connection through hyper, with the caller of each request and, if the first was sent already, what became of
/// it.
async fn serve_by_hyper<H: Handler>(
    handler: Arc<H>,
    limits: &Limits,
    (stream, phase): (impl AsyncRead + AsyncWrite + Unpin + Send + 'static, Phase),
    caller: impl Fn() -> Caller,
    begun: Option<StartedRequest<H::ResponseGuard>>,
) -> hyper::Result<()> {
    let (begun, phase_of_service) = (Mutex::new(begun), phase.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, caller, turn) = (Arc::clone(&handler), caller(), phase_of_service.begin());
        let begun = lock(&begun).take();
        // A request that was not plain after all counts from its beginning.
        let since = begun.as_ref().map_or_else(Instant::now, |begun| begun.since);
        async move {
            let response = handler.handle(request, caller, begun).await;
            handler.count(response.status().as_u16(), since.elapsed());
            let turn = match response.status() {
                StatusCode::SWITCHING_PROTOCOLS => {
                    turn.into_tunnel();
                    None
                }
                _ => {
                    if response.body().body().is_whole() {
                        turn.is_held();
                    }
                    Some(turn)
                }
            };
            Ok::<_, Infallible>(response.map(|body| GuardedBody::new(body, turn)))
        }
    });
    let connection = http1::Builder::new()
        // The clock enforces the timeouts.
        .header_read_timeout(None)
        .max_header_size(limits.head_bytes)
        .max_headers(HEADER_LINES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut is_closing = false;
    future::poll_fn(|cx| {
        // First: hyper would close a connection from which it has read nothing, but a request may have arrived
        // already.
        let polled = connection.as_mut().poll(cx);
        if polled.is_ready() || !phase.closes() || std::mem::replace(&mut is_closing, true) {
            return polled;
        }
        connection.as_mut().graceful_shutdown();
        connection.as_mut().poll(cx)
    })
    .await
}

// A thread with its own runtime for each core: a client's connection and the endpoint connections that it uses
// stay on one core, so requests wake no other thread.

/// Upper bound on threads, so that a large machine does not keep hundreds of idle connections per endpoint.
const MAX_THREADS: usize = 8;

/// Returns the number of cores that serve connections; core numbers are below it.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS))
}

/// Threads shared by all servers of the process, for its lifetime: a client of one server may use a connection
/// whose task runs where another server's connection opened it.
#[derive(Debug, Default)]
pub(super) struct Cores {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
}

impl Cores {
    /// Returns the threads of this process; `None` in a current-thread runtime, where a test may pause the clock.
    pub(super) fn of_process() -> Option<&'static Self> {
        static CORES: OnceLock<Cores> = OnceLock::new();
        (Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread)
            .then(|| CORES.get_or_init(Self::start))
    }

    fn start() -> Self {
        let started = (0..count()).map(start).filter_map(|started| {
            started.inspect_err(|error| tracing::warn!(%error, "thread for connections not started")).ok()
        });
        Self { runtimes: started.collect(), next: AtomicUsize::new(0) }
    }

    /// Returns the core for the next connection: its number and its runtime.
    pub(super) fn next(&self) -> (usize, Handle) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        match self.runtimes.len() {
            0 => (0, Handle::current()),
            threads => (turn % threads, self.runtimes[turn % threads].clone()),
        }
    }
}

fn start(number: usize) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let name = format!("connections-{number}");
    thread::Builder::new().name(name).spawn(move || runtime.block_on(future::pending::<()>()))?;
    Ok(handle)
}

// Limits of the gateway, and the reasons for their values.

/// Limits of an HTTP server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of concurrent client connections; further ones wait in the kernel's queue. With their
    /// connections to endpoints they need twice as many open files. One client may hold a quarter of them: beyond
    /// that it gets a 503.
    pub connections: usize,
    /// Maximum size of a request's head in bytes; beyond it the response is 431. nginx allows 32 KiB in all.
    pub head_bytes: usize,
    /// Time for a request's head once its first byte has arrived, and for the first byte of a new connection: a
    /// client that sends a byte now and then must not hold connections.
    pub head: Duration,
    /// Time for the first byte of a connection that was made just before shutdown, which its client can't know of.
    /// Clients that open a connection for a request send it immediately.
    pub first_byte: Duration,
    /// Idle time of a connection between two requests; browsers and nginx use similar values.
    pub idle: Duration,
    /// Time to connect to an endpoint: two of TCP's tries.
    pub connect: Duration,
    /// Time without an acknowledgement from an endpoint's machine until its connection is given up. The kernel of a
    /// slow server acknowledges on its behalf. At least 5 s, as keepalive counts seconds.
    pub gone: Duration,
    /// Time without progress until an endpoint starts its response (504), until a client continues its body (408),
    /// or until it reads on in a response held in memory (which is then cut). A response streamed from an endpoint
    /// has no limit once started: a stream may pause as long as both ends want.
    pub answer: Duration,
    /// Time without a byte in either direction after which a tunnel (an upgraded connection) ends: the default of
    /// Envoy's TCP proxy, and what HAProxy and nginx-ingress advise for WebSockets. Clients that rest longer send
    /// pings.
    pub tunnel_idle: Duration,
    /// Maximum number of idle connections kept for each endpoint, shared out among the cores, and as many again for
    /// plain requests. Of more concurrent requests than this some open a connection each and close it: with 16
    /// kept, 32 concurrent requests got three to seven times less throughput.
    pub spare: usize,
    /// Idle time for which they are kept: less than the 60 s and more after which servers close them.
    pub spare_for: Duration,
    /// Time for requests under way when the agent stops: half of the agent's limit for all its tasks.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            head_bytes: 64 * 1024,
            head: Duration::from_secs(10),
            first_byte: Duration::from_secs(1),
            idle: Duration::from_secs(60),
            connect: Duration::from_secs(2),
            gone: Duration::from_secs(5),
            answer: Duration::from_secs(60),
            tunnel_idle: Duration::from_secs(60 * 60),
            spare: 64,
            spare_for: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}
