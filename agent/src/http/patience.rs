//! A client's connection that is closed when the client makes no progress.
//!
//! hyper has a single timeout for a head and for the pause between requests; here they differ. [`Turn`] marks a
//! request: during a request nothing times out here except a response held in memory that is not being read.
//!
//! A phase changes only while the connection is polled, so [`Clock`] need only check it after each poll.
//!
//! The bytes of a TLS connection are encrypted here: its handshake counts as part of the first head.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// Nothing has arrived yet.
const NEW: u8 = 0;
const HEAD: u8 = 1;
const REQUEST: u8 = 2;
const IDLE: u8 = 3;
/// In a request whose response is held in memory until the client has read it.
const HELD: u8 = 4;
/// In a TLS handshake: nothing of a request has arrived yet.
const HANDSHAKE: u8 = 5;

/// First byte of a TLS connection: the type of a record with a handshake (RFC 8446, 5.1). No HTTP request begins with it.
const TLS_FIRST_BYTE: u8 = 22;

/// Phase of a connection: new, in a handshake, in a head, in a request, in a held response, or between two requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase(Arc<PhaseState>);

/// Shared state; a single task uses all of it.
#[derive(Debug, Default)]
struct PhaseState {
    phase: AtomicU8,
    /// Number of changes: a whole request may pass between two checks of the phase.
    changes: AtomicU32,
    /// Set if the last read found nothing: the connection waits for the client.
    waits: AtomicBool,
    /// Set if no request may follow the one under way.
    closes: AtomicBool,
}

impl Phase {
    /// Begins a request; it ends when the turn is dropped.
    pub(super) fn begin(&self) -> Turn {
        self.change(REQUEST);
        Turn(Some(self.clone()))
    }

    /// True if nothing of a request has arrived from the client yet.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.now(), NEW | HANDSHAKE)
    }

    /// Marks the end of a TLS handshake. The time of the first head goes on.
    pub(super) fn end_handshake(&self) {
        self.0.phase.store(NEW, Ordering::Relaxed);
    }

    /// Ends the connection with the request under way, or now.
    pub(super) fn close(&self) {
        self.0.closes.store(true, Ordering::Relaxed);
    }

    /// True once [`Self::close`] has been called.
    pub(super) fn closes(&self) -> bool {
        self.0.closes.load(Ordering::Relaxed)
    }

    fn change(&self, to: u8) {
        self.0.phase.store(to, Ordering::Relaxed);
        self.0.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u8 {
        self.0.phase.load(Ordering::Relaxed)
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Turn(Option<Phase>);

impl Turn {
    /// Marks the response as held until the client has read it: it must not stall forever.
    pub(super) fn is_held(&self) {
        if let Some(phase) = &self.0 {
            phase.change(HELD);
        }
    }

    /// Turns the connection into a tunnel, without timeouts.
    pub(super) fn into_tunnel(mut self) {
        self.0 = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(phase) = self.0.take() {
            phase.change(IDLE);
        }
    }
}

/// Times out a connection that stays too long in a head or between requests.
#[derive(Debug)]
pub(super) struct Clock {
    phase: Phase,
    head: Duration,
    idle: Duration,
    /// Last known change count of the phase.
    seen: u32,
    /// End of the phase, if it is a head or idle.
    deadline: Deadline,
}

/// A deadline that changes often and is rarely reached.
#[derive(Debug)]
pub(super) struct Deadline {
    due: Instant,
    /// Timer that fires at `due` or earlier. It is reset only when it fires, or if it would fire too late: that is
    /// rare, whereas a reset for each request would be measurable.
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    /// Creates a deadline `time` from now.
    pub(super) fn after(time: Duration) -> Self {
        let timer = Box::pin(sleep(time));
        Self { due: timer.deadline(), timer }
    }

    /// Moves the deadline to `time` from now.
    pub(super) fn set(&mut self, time: Duration) {
        self.due = Instant::now() + time;
        if self.due < self.timer.deadline() {
            self.timer.as_mut().reset(self.due);
        }
    }

    /// Ready when the deadline is reached; otherwise the task is woken then.
    pub(super) fn poll_reached(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.timer.deadline() >= self.due {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.due);
        }
        Poll::Pending
    }
}

impl Clock {
    /// Creates the clock of a new connection: its first head has `head`, the time between requests is `idle`.
    pub(super) fn new(phase: Phase, head: Duration, idle: Duration) -> Self {
        Self { phase, head, idle, seen: 0, deadline: Deadline::after(head) }
    }

    /// Ready when a head or the pause between two requests has taken too long; otherwise the task is woken then.
    /// The clock stops while the connection does not wait for the client, for example while its bytes wait for an
    /// endpoint.
    pub(super) fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time = match self.phase.now() {
            NEW | HANDSHAKE | HEAD => self.head,
            IDLE => self.idle,
            _ => return Poll::Pending,
        };
        let changes = self.phase.0.changes.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.seen, changes) != changes {
            self.deadline.set(time);
        }
        match self.phase.0.waits.load(Ordering::Relaxed) {
            true => self.deadline.poll_reached(cx),
            false => Poll::Pending,
        }
    }
}

/// Largest write whose parts are copied together, which costs the kernel less than several parts: a head and a few
/// words.
const JOINED_MAX: usize = 1024;

/// A client's connection.
#[derive(Debug)]
pub(super) struct TimedStream {
    stream: TcpStream,
    /// Bytes put back, to be read again.
    returned: Vec<u8>,
    phase: Phase,
    /// Longest time in which a client may read nothing of a held response.
    unread: Duration,
    /// Timer for that, while the client reads nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    /// Creates a new connection: a held response may go unread for `unread`.
    pub(super) fn new(stream: TcpStream, unread: Duration) -> Self {
        Self { stream, returned: Vec::new(), phase: Phase::default(), unread, stuck: None }
    }

    /// Waits for the first byte, which stays unread: true if it begins a TLS handshake. [`Phase::end_handshake`] must
    /// follow that. `None` at the end of the connection, and when it should close.
    pub(super) async fn begins_tls(&mut self) -> Option<bool> {
        let mut first = [0];
        let peeked = poll_fn(|cx| {
            let polled = self.stream.poll_peek(cx, &mut ReadBuf::new(&mut first));
            self.phase.0.waits.store(polled.is_pending(), Ordering::Relaxed);
            match polled {
                Poll::Pending if self.phase.closes() => Poll::Ready(Ok(0)),
                polled => polled,
            }
        });
        if !matches!(peeked.await, Ok(1..)) {
            return None;
        }
        let is_tls = first == [TLS_FIRST_BYTE];
        if is_tls {
            self.phase.0.phase.store(HANDSHAKE, Ordering::Relaxed);
        }
        Some(is_tls)
    }

    /// Puts bytes back to be read again.
    pub(super) fn put_back(&mut self, read: Vec<u8>) {
        self.returned = read;
    }

    /// Returns a handle to the phase.
    pub(super) fn phase(&self) -> Phase {
        self.phase.clone()
    }

    /// Checks the result of a write; an error if the client has read nothing of a held response for too long.
    fn written(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if polled.is_ready() || self.phase.now() != HELD {
            self.stuck = None;
            return polled;
        }
        let unread = self.unread;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(unread)));
        stuck.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = if self.returned.is_empty() {
            Pin::new(&mut self.stream).poll_read(cx, buf)
        } else {
            let again = self.returned.len().min(buf.remaining());
            buf.put_slice(&self.returned[..again]);
            self.returned.drain(..again);
            if self.returned.is_empty() {
                // Free the buffer: the connection may last long.
                self.returned = Vec::new();
            }
            Poll::Ready(Ok(()))
        };
        self.phase.0.waits.store(polled.is_pending(), Ordering::Relaxed);
        if buf.filled().len() > before {
            match self.phase.now() {
                // The timeout of the first head began with the connection.
                NEW => self.phase.0.phase.store(HEAD, Ordering::Relaxed),
                IDLE => self.phase.change(HEAD),
                // A request under way stays one.
                _ => {}
            }
        }
        polled
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(polled, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let polled = if length <= JOINED_MAX {
            let mut joined = [0; JOINED_MAX];
            let mut end = 0;
            for buf in bufs {
                joined[end..end + buf.len()].copy_from_slice(buf);
                end += buf.len();
            }
            Pin::new(&mut self.stream).poll_write(cx, &joined[..end])
        } else {
            Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
        };
        self.written(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    // Seen red without the clock in `written`.
    #[tokio::test(start_paused = true)]
    async fn a_held_answer_that_nobody_reads_is_given_up_and_a_stream_may_rest() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let seconds = Duration::from_secs;
        let mut patient = TimedStream::new(stream, seconds(30));
        let turn = patient.phase().begin();
        let piece = vec![0; 64 * 1024];
        let mut fill = async || loop {
            if let Err(error) = patient.write(&piece).await {
                break error.kind();
            }
        };
        assert!(timeout(seconds(3600), fill()).await.is_err(), "an endpoint's answer");
        turn.is_held();
        let given_up = timeout(seconds(40), fill()).await;
        assert_eq!(given_up.ok(), Some(io::ErrorKind::TimedOut));
    }

    async fn is_over_within(clock: &mut Clock, time: Duration) -> bool {
        timeout(time, poll_fn(|cx| clock.poll_timeout(cx))).await.is_ok()
    }

    // Seen red with the phase in place of the count of its changes.
    #[tokio::test(start_paused = true)]
    async fn each_request_begins_a_rest_anew_also_one_that_is_over_at_the_next_look() {
        let (phase, seconds) = (Phase::default(), Duration::from_secs);
        phase.0.waits.store(true, Ordering::Relaxed);
        let mut clock = Clock::new(phase.clone(), seconds(10), seconds(60));
        for _ in 0..5 {
            drop(phase.begin());
            assert!(!is_over_within(&mut clock, seconds(40)).await);
        }
        assert!(is_over_within(&mut clock, seconds(30)).await);
    }

    // Seen red without `waits`.
    #[tokio::test(start_paused = true)]
    async fn no_time_is_up_while_the_client_is_not_waited_for() {
        let (phase, seconds) = (Phase::default(), Duration::from_secs);
        let mut clock = Clock::new(phase.clone(), seconds(10), seconds(60));
        assert!(!is_over_within(&mut clock, seconds(3600)).await);
        phase.0.waits.store(true, Ordering::Relaxed);
        assert!(is_over_within(&mut clock, seconds(1)).await);
    }
}
