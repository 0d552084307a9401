//! Plain requests, without hyper: a GET without a body whose response has a length and soon arrives in full. For
//! such a request hyper's header maps and futures cost more than the necessary parsing and copying
//! (`docs/adr/0011-gateway.md`).
//!
//! This module only decides what is plain. Anything else, and whatever is slow or fails, goes to hyper with all
//! bytes received, as if they had just arrived. A client gets no byte of a response before all of it has arrived.
//! After that handover the client's connection stays with hyper.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut as _;
use tokio::io::{AsyncRead, AsyncWrite as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use self::answer::PassResult;
use self::request::PlainRequest;
use super::client::ReplayStream;
use super::patience::{Deadline, Phase, TimedStream};
use request::{Head, NO_HEADERS};

mod answer;
mod pool;
mod request;

pub(crate) use pool::PlainPool;
pub(super) use request::Client;
pub(crate) use request::is_about_clients;

/// Maximum size of a plain request's head in bytes. Larger ones are rare.
const REQUEST_MAX: usize = 8 * 1024;
/// Maximum size of a plain response in bytes, including its head: for larger ones moving the bytes dominates the
/// cost.
const ANSWER_MAX: usize = 16 * 1024;
/// Time for a plain response. Beyond it hyper's cost no longer matters; it is also the longest time for which the
/// first bytes of a response are held back.
const ANSWER_TIME: Duration = Duration::from_millis(200);

/// Minimum space for a read: enough for most heads and small responses.
const SPACE_BYTES: usize = 2 * 1024;
/// Larger buffers are freed between two requests, so that thousands of idle connections hold little.
const KEPT_BYTES: usize = 4 * 1024;

/// Destination of a plain request.
#[derive(Debug)]
pub struct PlainTarget<H> {
    pub to: SocketAddr,
    /// Path to request, without the query; `None` for the request's own.
    pub path: Option<String>,
    /// Dropped once the endpoint's response is complete.
    pub held: H,
    pub(crate) pool: PlainPool,
}

/// A request that was handed to hyper after it was sent, or after connecting failed.
#[derive(Debug)]
pub struct StartedRequest<H> {
    pub held: H,
    /// Time at which its head had arrived.
    pub(crate) since: Instant,
    /// Connection on which the response arrives, or the reason why there is none.
    pub(crate) link: io::Result<ReplayStream>,
}

/// Outcome of serving a connection.
#[derive(Debug)]
pub(super) enum ServeResult<H> {
    Closed,
    /// hyper must continue, with the bytes received of the next request and, if it was sent, of its response.
    ToHyper(Option<StartedRequest<H>>),
}

/// Serves a client's connection until an exchange on it is not plain. `target` returns the destination of a request
/// for a host and a path, if its other headers don't matter; `count` gets the status of each answer, and the time that
/// it took.
pub(super) async fn serve<H>(
    stream: &mut TimedStream,
    client: Client<'_>,
    target: impl Fn(&str, &str) -> Option<PlainTarget<H>>,
    count: impl Fn(u16, Duration),
) -> ServeResult<H> {
    let (phase, timer) = (stream.phase(), Deadline::after(ANSWER_TIME));
    let mut lane = Lane { stream, phase, read: Vec::new(), answer: Vec::new(), timer };
    let mut out = Vec::new();
    loop {
        let (target, length) = match next(&lane.read, client, &target, &mut out) {
            Next::Send(target, length) => (target, length),
            Next::Read if lane.read_more().await => continue,
            Next::Read if lane.read.is_empty() => return ServeResult::Closed,
            Next::Read | Next::Hyper => return lane.into_hyper(None),
        };
        let (turn, since) = (lane.phase.begin(), Instant::now());
        let PlainTarget { to, pool, held, .. } = target;
        let mut link = match pool.link(to).await {
            Ok(link) => link,
            Err(error) => return lane.into_hyper(Some(StartedRequest { held, since, link: Err(error) })),
        };
        let ExchangeResult::Whole { is_clean, status } = lane.exchange(&mut link, &mut out).await else {
            pool.avoid(to);
            let link = Ok(ReplayStream::new(link, std::mem::take(&mut lane.answer)));
            return lane.into_hyper(Some(StartedRequest { held, since, link }));
        };
        count(status, since.elapsed());
        let closes = lane.phase.closes();
        // The client proceeds while the rest is done here.
        let written = lane.write_some(&out).await;
        if is_clean {
            pool.keep(to, link);
        }
        drop(held);
        let Ok(written) = written else { return ServeResult::Closed };
        if written < out.len() {
            turn.is_held();
            if lane.stream.write_all(&out[written..]).await.is_err() {
                return ServeResult::Closed;
            }
        }
        if closes {
            return ServeResult::Closed;
        }
        lane.read.drain(..length);
        lane.answer.clear();
        out.clear();
        for buffer in [&mut lane.read, &mut lane.answer, &mut out] {
            if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

/// Next action for the bytes that a client has sent so far.
enum Next<H> {
    Read,
    Hyper,
    /// Send the head, of this length, which was rewritten for an endpoint.
    Send(PlainTarget<H>, usize),
}

fn next<H>(
    read: &[u8],
    client: Client<'_>,
    target: impl Fn(&str, &str) -> Option<PlainTarget<H>>,
    out: &mut Vec<u8>,
) -> Next<H> {
    if read.is_empty() {
        return Next::Read;
    }
    let mut space = NO_HEADERS;
    let request = match PlainRequest::parse(read, &mut space, client) {
        Head::Partial if read.len() < REQUEST_MAX => return Next::Read,
        Head::Partial | Head::Unusual => return Next::Hyper,
        Head::Plain(request) => request,
    };
    let Some(target) = target(request.host, request.path()) else { return Next::Hyper };
    match request.write(target.path.as_deref(), client, out) {
        true => Next::Send(target, request.length),
        false => Next::Hyper,
    }
}

/// Outcome of a request that was sent.
enum ExchangeResult {
    /// The response is ready for the client. A clean connection has no further bytes.
    Whole {
        is_clean: bool,
        status: u16,
    },
    NotPlain,
}

/// A client's connection.
struct Lane<'s> {
    stream: &'s mut TimedStream,
    phase: Phase,
    /// Unanswered bytes from the client.
    read: Vec<u8>,
    /// Bytes from the endpoint.
    answer: Vec<u8>,
    timer: Deadline,
}

impl Lane<'_> {
    /// Waits for more from the client. False at its end, and when the connection should close.
    async fn read_more(&mut self) -> bool {
        poll_fn(|cx| match fill(&mut *self.stream, &mut self.read, REQUEST_MAX, cx) {
            Poll::Pending if self.phase.closes() => Poll::Ready(false),
            polled => polled.map(|got| matches!(got, Ok(1..))),
        })
        .await
    }

    /// Sends `out` and waits for the response, which replaces it in `out`.
    async fn exchange(&mut self, link: &mut TcpStream, out: &mut Vec<u8>) -> ExchangeResult {
        if link.write_all(out).await.is_err() {
            return ExchangeResult::NotPlain;
        }
        out.clear();
        self.timer.set(ANSWER_TIME);
        poll_fn(|cx| self.poll_answer(link, out, cx)).await
    }

    /// Writes as much as the client's connection accepts now; returns the number of bytes.
    async fn write_some(&mut self, out: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| match Pin::new(&mut *self.stream).poll_write(cx, out) {
            Poll::Pending => Poll::Ready(Ok(0)),
            written => written,
        })
        .await
    }

    fn poll_answer(
        &mut self,
        link: &mut TcpStream,
        out: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Poll<ExchangeResult> {
        while let Poll::Ready(got) = fill(&mut *link, &mut self.answer, ANSWER_MAX, cx) {
            let Ok(1..) = got else { return Poll::Ready(ExchangeResult::NotPlain) };
            match answer::pass(&self.answer, ANSWER_MAX, self.phase.closes(), out) {
                PassResult::Partial => {}
                PassResult::Unusual => return Poll::Ready(ExchangeResult::NotPlain),
                PassResult::Whole { length, status } => {
                    let is_clean = length == self.answer.len();
                    return Poll::Ready(ExchangeResult::Whole { is_clean, status });
                }
            }
        }
        // Once the time is up, hyper checks that the client is still there.
        self.timer.poll_reached(cx).map(|()| ExchangeResult::NotPlain)
    }

    fn into_hyper<H>(self, begun: Option<StartedRequest<H>>) -> ServeResult<H> {
        self.stream.put_back(self.read);
        ServeResult::ToHyper(begun)
    }
}

/// Reads available bytes into `buffer`, up to `most` in all; returns the number of bytes, 0 at the end.
fn fill(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    most: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    debug_assert!(buffer.len() < most, "nothing would look like the end");
    if buffer.len() == buffer.capacity() {
        buffer.reserve(SPACE_BYTES);
    }
    let room = most - buffer.len();
    poll_read_buf(Pin::new(from), cx, &mut buffer.limit(room))
}
