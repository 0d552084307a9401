//! Connections to endpoints, kept for the next request.
//!
//! The task of a request drives the connection that it uses, so no other task is woken for it; in a proxy these
//! wake-ups cost more than the parsing.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use schema::control::lock;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};

use super::upload::Upload;

/// Maximum number of lines in the head of a request or an answer, instead of hyper's 100: proxies in a row and single
/// sign-on add dozens. Bytes bound the memory.
pub(super) const HEADER_LINES_MAX: usize = 1_000;

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// Nothing was sent.
    #[error(transparent)]
    Connect(io::Error),
    /// The request may have reached the endpoint.
    #[error(transparent)]
    Exchange(hyper::Error),
}

/// Future that reads from and writes to a connection. It completes when the connection closes.
pub(crate) type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// A connection and its request sender.
struct Link {
    to: SocketAddr,
    sender: SendRequest<Upload>,
    /// `None` when the connection is over.
    driver: Option<Driver>,
    /// Set if the task that last drove the connection is woken on more data.
    has_waker: bool,
}

/// Returns a context with a no-op waker: for a response and a body, which progress only through a connection that
/// this task drives, and for a connection that is driven again with a waker if nothing arrived.
fn noop_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Link {
    /// Reads and writes without blocking, and without a waker for more.
    fn advance(&mut self) {
        self.drive(&mut noop_context());
        self.has_waker = false;
    }

    /// Reads and writes without blocking; the task of the context is woken when there is more.
    fn drive(&mut self, cx: &mut Context<'_>) {
        self.has_waker = true;
        if self.driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
            self.driver = None;
        }
    }

    /// Sends the request and waits for the head of the response.
    async fn exchange(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        // Outside tokio's budget: when that is exhausted, only the waker resumes the task, and here the waker does
        // nothing.
        let mut answer = pin!(unconstrained(self.sender.try_send_request(request)));
        let mut is_sent = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut is_sent, true) {
                // A waker is registered only if nothing arrived.
                self.advance();
                if let Poll::Ready(answered) = answer.as_mut().poll(&mut noop_context()) {
                    return Poll::Ready(answered);
                }
            }
            self.drive(cx);
            answer.as_mut().poll(&mut noop_context())
        })
        .await
    }
}

/// Idle connections to all endpoints.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    options: Options,
    idle: Mutex<Spares<Link>>,
}

impl Pool {
    /// Creates an empty pool.
    pub(crate) fn new(options: Options) -> Self {
        let idle = Mutex::new(Spares::new(options.spare, options.spare_for));
        Self(Arc::new(PoolInner { options, idle }))
    }

    /// Closes idle connections to endpoints that are not in `wanted`.
    pub(crate) fn retain(&self, wanted: &BTreeSet<SocketAddr>) {
        self.0.idle().retain(wanted);
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self) {
        self.0.idle().sweep();
    }

    /// Sends a request, whose URI is a path, and waits for the head of the response. A request that could not be
    /// sent, because the endpoint had closed a kept connection, is sent over another one.
    ///
    /// # Errors
    /// [`SendError`].
    pub(crate) async fn send(
        &self,
        to: SocketAddr,
        mut request: Request<Upload>,
    ) -> Result<Response<DrivenBody>, SendError> {
        loop {
            let kept = self.0.idle().take(to);
            let was_kept = kept.is_some();
            let mut link = match kept {
                Some(link) => link,
                None => self.connect(to).await.map_err(SendError::Connect)?,
            };
            match link.exchange(request).await {
                Ok(answer) => return Ok(self.driven(answer, link)),
                Err(mut unsent) => match unsent.take_message() {
                    Some(same) if was_kept => request = same,
                    _ => return Err(SendError::Exchange(unsent.into_error())),
                },
            }
        }
    }

    /// Waits for the head of the response to a request that was already sent.
    ///
    /// # Errors
    /// [`SendError`].
    pub(crate) async fn resume(
        &self,
        to: SocketAddr,
        begun: ReplayStream,
        request: Request<Upload>,
    ) -> Result<Response<DrivenBody>, SendError> {
        let mut link = self.link(to, begun).await.map_err(SendError::Connect)?;
        let answer = link.exchange(request).await;
        answer
            .map(|answer| self.driven(answer, link))
            .map_err(|error| SendError::Exchange(error.into_error()))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Link> {
        self.link(to, connect(to, &self.0.options).await?).await
    }

    async fn link(
        &self,
        to: SocketAddr,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<Link> {
        let mut builder = http1::Builder::new();
        builder.writev(!self.0.options.copies_bodies).max_headers(HEADER_LINES_MAX);
        let handshake = builder.handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        let driver: Driver = Box::pin(connection.with_upgrades());
        Ok(Link { to, sender, driver: Some(driver), has_waker: false })
    }

    fn driven(&self, answer: Response<Incoming>, link: Link) -> Response<DrivenBody> {
        answer.map(|body| DrivenBody::new(body, link, Arc::downgrade(&self.0)))
    }
}

impl PoolInner {
    fn idle(&self) -> MutexGuard<'_, Spares<Link>> {
        // Each change is complete before anything can panic.
        lock(&self.idle)
    }
}

/// Body of a response, which drives its connection and returns it to the pool once it has been read to the end.
pub struct DrivenBody {
    body: Incoming,
    link: Option<Link>,
    pool: Weak<PoolInner>,
    /// Set if the last poll returned a frame.
    gave_frame: bool,
    /// Error to return from the next poll.
    pending_error: Option<hyper::Error>,
}

impl DrivenBody {
    fn new(body: Incoming, link: Link, pool: Weak<PoolInner>) -> Self {
        Self { body, link: Some(link), pool, gave_frame: false, pending_error: None }
    }

    /// Takes the connection, for another task to drive until it closes: it is not reused.
    pub(crate) fn take_driver(&mut self) -> Option<Driver> {
        self.link.take()?.driver
    }
}

impl Body for DrivenBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        if let Some(error) = this.pending_error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let polled = match &mut this.link {
            None => Pin::new(&mut this.body).poll_frame(cx),
            Some(link) => {
                let mut look = || Pin::new(&mut this.body).poll_frame(&mut noop_context());
                let mut polled = look();
                if polled.is_pending() {
                    link.advance();
                    polled = look();
                }
                if polled.is_pending() {
                    link.drive(cx);
                    polled = look();
                }
                polled
            }
        };
        match polled {
            // hyper drops the unsent part of the last frame if an error follows immediately.
            Poll::Ready(Some(Err(error))) if this.gave_frame => {
                this.pending_error = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => {
                this.gave_frame = matches!(polled, Poll::Ready(Some(Ok(_))));
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pending_error.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for DrivenBody {
    fn drop(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        // Lets the connection finish the response and drop the waker of this task, which is done with it.
        if link.has_waker || !link.sender.is_ready() {
            link.advance();
        }
        if link.driver.is_some()
            && link.sender.is_ready()
            && let Some(pool) = self.pool.upgrade()
        {
            pool.idle().keep(link.to, link);
        }
    }
}

impl fmt::Debug for DrivenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").field("body", &self.body).finish_non_exhaustive()
    }
}

// Establishes connections to endpoints.

/// Options for connecting and keeping connections.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Connect timeout.
    pub connect: Duration,
    /// Time without a packet after which the kernel probes the endpoint's machine.
    pub keepalive: Duration,
    /// Time without an acknowledgement after which the connection is given up; `None` for the kernel's default,
    /// which is long.
    pub gone: Option<Duration>,
    /// Set if request bodies are small: each is copied behind its head, so that one write sends both.
    pub copies_bodies: bool,
    /// Maximum number of idle connections kept for each endpoint.
    pub spare: usize,
    pub spare_for: Duration,
}

/// Connects with these options.
pub(super) async fn connect(to: SocketAddr, options: &Options) -> io::Result<TcpStream> {
    let connect = options.connect;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {connect:?}"));
    let stream = timeout(connect, TcpStream::connect(to)).await.map_err(late)??;
    // Best effort: without these options connections are slower, and a dead machine is detected later.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let mut keepalive = TcpKeepalive::new().with_time(options.keepalive);
    if let Some(gone) = options.gone {
        // More than one probe within the time: one may be lost.
        keepalive = keepalive.with_interval(gone / 5);
        let _ = socket.set_tcp_user_timeout(Some(gone));
    }
    let _ = socket.set_tcp_keepalive(&keepalive);
    Ok(stream)
}

// Idle connections to endpoints, kept for the next request.

/// Idle connections by endpoint.
pub(super) struct Spares<L> {
    /// Connections with the time since which each is idle. Most recently used last; taken from the end.
    links: HashMap<SocketAddr, Vec<(Instant, L)>>,
    /// Maximum number kept for each endpoint.
    most: usize,
    keep_for: Duration,
    /// Time of the last sweep.
    swept_at: Instant,
}

impl<L> Spares<L> {
    /// Creates an empty set.
    pub(super) fn new(most: usize, keep_for: Duration) -> Self {
        Self { links: HashMap::new(), most, keep_for, swept_at: Instant::now() }
    }

    /// Takes the most recently used connection, unless it was idle for too long.
    pub(super) fn take(&mut self, to: SocketAddr) -> Option<L> {
        let (since, link) = self.links.get_mut(&to)?.pop()?;
        (since.elapsed() < self.keep_for).then_some(link)
    }

    /// Keeps the connection if there is room.
    pub(super) fn keep(&mut self, to: SocketAddr, link: L) {
        let now = Instant::now();
        if now - self.swept_at >= self.keep_for {
            self.sweep();
        }
        let links = self.links.entry(to).or_default();
        if links.len() < self.most {
            links.push((now, link));
        }
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn sweep(&mut self) {
        self.links.retain(|_, links| {
            links.retain(|(since, _)| since.elapsed() < self.keep_for);
            !links.is_empty()
        });
        self.swept_at = Instant::now();
    }

    /// Closes connections to endpoints that are not in `wanted`.
    pub(super) fn retain(&mut self, wanted: &BTreeSet<SocketAddr>) {
        self.links.retain(|to, _| wanted.contains(to));
    }
}

impl<L> fmt::Debug for Spares<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.links.iter().map(|(to, links)| (to, links.len()));
        f.debug_map().entries(counts).finish()
    }
}

// A connection to an endpoint that is handed from one client to another while it waits for the response.

/// A connection on which a request was already sent, wrapped for an HTTP client that will send it again: that copy
/// is discarded, and the response received so far is replayed.
#[derive(Debug)]
pub(crate) struct ReplayStream {
    link: TcpStream,
    /// Bytes received.
    received: Vec<u8>,
    /// Number of bytes replayed.
    read: usize,
    sent: SendProgress,
}

/// Progress of the repeated request.
#[derive(Debug, PartialEq, Eq)]
enum SendProgress {
    Nothing,
    /// At least part of it.
    Some,
    /// The whole request: a client flushes after sending.
    All,
}

impl ReplayStream {
    /// Wraps `link`, on which `received` is the response so far.
    pub(super) fn new(link: TcpStream, received: Vec<u8>) -> Self {
        Self { link, received, read: 0, sent: SendProgress::Nothing }
    }
}

impl AsyncRead for ReplayStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.sent != SendProgress::All {
            // A response before its request would be an error. The task is woken once the request is sent.
            return Poll::Pending;
        }
        if self.read < self.received.len() {
            let end = self.received.len().min(self.read + buf.remaining());
            buf.put_slice(&self.received[self.read..end]);
            self.read = end;
            if end == self.received.len() {
                // The connection may be kept for long.
                (self.received, self.read) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.link).poll_read(cx, buf)
    }
}

impl AsyncWrite for ReplayStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.sent == SendProgress::All {
            return Pin::new(&mut self.link).poll_write(cx, buf);
        }
        self.sent = SendProgress::Some;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sent == SendProgress::Some {
            self.sent = SendProgress::All;
            cx.waker().wake_by_ref();
        }
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}
