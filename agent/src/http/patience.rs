//! A client's connection that is given up when the client does not get on.
//!
//! hyper has one time for a head and for the rest between requests; here they differ. What a client
//! does is marked by [`Turn`]: during a request nothing here ends but an answer that is held whole and not read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

const HEAD: u8 = 0;
const REQUEST: u8 = 1;
const IDLE: u8 = 2;
/// In a request whose answer is held here until the client has read it.
const HELD: u8 = 3;

/// Where a connection is: in a head, in a request, in a held answer, or between two requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    phase: AtomicU8,
    /// Who reads: its clock begins when a request ends.
    reader: AtomicWaker,
}

impl Phase {
    /// A request begins; it ends when the turn is dropped.
    pub(super) fn begin(&self) -> Turn {
        self.0.phase.store(REQUEST, Ordering::Release);
        Turn(Some(self.clone()))
    }

    fn now(&self) -> u8 {
        self.0.phase.load(Ordering::Acquire)
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Turn(Option<Phase>);

impl Turn {
    /// The answer is held until the client has read it: it may not rest for ever.
    pub(super) fn is_held(&self) {
        if let Some(Phase(shared)) = &self.0 {
            shared.phase.store(HELD, Ordering::Release);
        }
    }

    /// The connection is a tunnel from now on.
    pub(super) fn never_ends(mut self) {
        self.0 = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(Phase(shared)) = self.0.take() {
            shared.phase.store(IDLE, Ordering::Release);
            shared.reader.wake();
        }
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct Patient {
    stream: TcpStream,
    phase: Phase,
    head: Duration,
    idle: Duration,
    /// The phase that ends at `due`, if it is a head or idle.
    seen: u8,
    due: Instant,
    /// Ends at `due` or before. It is set anew only when it ends, or if it would end too late: hardly ever, where setting
    /// it for each request would show.
    over: Pin<Box<Sleep>>,
    /// Longest time in which a client reads nothing of a held answer.
    unread: Duration,
    /// When that is over, while it reads nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// A new connection: its first head has `head`, the time between requests is `idle`, a held answer may go unread for
    /// `unread`.
    pub(super) fn new(stream: TcpStream, head: Duration, idle: Duration, unread: Duration) -> Self {
        let (phase, over) = (Phase::default(), Box::pin(sleep(head)));
        let due = over.deadline();
        Self { stream, phase, head, idle, seen: HEAD, due, over, unread, stuck: None }
    }

    /// Where it is.
    pub(super) fn phase(&self) -> Phase {
        self.phase.clone()
    }

    fn enter(&mut self, phase: u8) {
        self.seen = phase;
        let time = if phase == HEAD { self.head } else { self.idle };
        self.due = Instant::now() + time;
        if self.due < self.over.deadline() {
            self.over.as_mut().reset(self.due);
        }
    }

    /// Whether `due` has passed; if not, the task is woken then.
    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        while self.over.as_mut().poll(cx).is_ready() {
            if self.over.deadline() >= self.due {
                return true;
            }
            self.over.as_mut().reset(self.due);
        }
        false
    }

    /// Nothing to read: is that in order?
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Before the look: who changes the phase after it wakes us.
        self.phase.0.reader.register(cx.waker());
        let phase = self.phase.now();
        if phase != self.seen {
            self.enter(phase);
        }
        match ![REQUEST, HELD].contains(&phase) && self.is_due(cx) {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => Poll::Pending,
        }
    }

    /// What came of a write; an error if the client has read nothing of a held answer for too long.
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

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_pending() {
            return self.wait(cx);
        }
        if buf.filled().len() > before {
            // The first byte of the next head; a request under way stays one.
            let phase = &self.phase.0.phase;
            if phase.compare_exchange(IDLE, HEAD, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.enter(HEAD);
            }
        }
        polled
    }
}

impl AsyncWrite for Patient {
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
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
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
        let mut patient = Patient::new(stream, seconds(10), seconds(60), seconds(30));
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
}
