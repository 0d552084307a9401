//! Plain requests, without hyper: a GET without a body whose answer has a length and is soon here whole. For such a request
//! hyper's header maps and futures cost more than the parsing and copying that it needs (`docs/adr/0011-gateway.md`).
//!
//! This module only decides what is plain. Anything else, and whatever is slow or fails, goes to hyper with all bytes received,
//! as if they had just arrived. A client gets no byte of an answer before all of it has arrived. After that handover the
//! client's connection stays with hyper.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut as _;
use tokio::io::{AsyncRead, AsyncWrite as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use self::answer::Passed;
use self::head::{Head, NO_HEADERS};
use self::request::PlainRequest;
use super::patience::{Deadline, Patient, Phase};
use super::replayed::Replayed;

mod answer;
mod head;
mod pool;
mod request;

pub(crate) use pool::PlainPool;
pub(super) use request::Client;

/// Size of a plain request's head in bytes. Larger ones are rare.
const REQUEST_MAX: usize = 8 * 1024;
/// Size of a plain answer in bytes, with its head: of larger ones moving the bytes is what costs.
const ANSWER_MAX: usize = 16 * 1024;
/// Time for a plain answer. Beyond it hyper's cost no longer matters; it is also the longest that the first bytes of an answer
/// are held back.
const ANSWER_TIME: Duration = Duration::from_millis(200);

/// Space for what is read at once: most heads and small answers.
const SPACE_BYTES: usize = 2 * 1024;
/// Larger buffers are freed between two requests, so that thousands of idle connections hold little.
const KEPT_BYTES: usize = 4 * 1024;

/// Where a plain request goes.
#[derive(Debug)]
pub struct PlainTarget<H> {
    pub to: SocketAddr,
    /// The path to ask for, without the query; none: the request's own.
    pub path: Option<String>,
    /// Dropped once the endpoint's answer is complete.
    pub held: H,
    pub(crate) pool: PlainPool,
}

/// A request that was handed to hyper after it was sent, or after connecting failed.
#[derive(Debug)]
pub struct Begun<H> {
    pub held: H,
    /// The connection on which its answer comes; or why none was made.
    pub(crate) link: io::Result<Replayed>,
}

/// What became of a connection.
#[derive(Debug)]
pub(super) enum Served<H> {
    Closed,
    /// For hyper, with what has come of the next request, and what has come of its answer, if it was sent.
    ToHyper(Option<Begun<H>>),
}

/// Serves a client's connection until an exchange on it is not plain. `target` says where a request for a host and a path goes, if
/// its other headers don't matter.
pub(super) async fn serve<H>(
    stream: &mut Patient,
    client: Client<'_>,
    target: impl Fn(&str, &str) -> Option<PlainTarget<H>>,
) -> Served<H> {
    let (phase, timer) = (stream.phase(), Deadline::after(ANSWER_TIME));
    let mut lane = Lane { stream, phase, read: Vec::new(), answer: Vec::new(), timer };
    let mut out = Vec::new();
    loop {
        let (target, length) = match next(&lane.read, client, &target, &mut out) {
            Next::Send(target, length) => (target, length),
            Next::Read if lane.read_more().await => continue,
            Next::Read if lane.read.is_empty() => return Served::Closed,
            Next::Read | Next::Hyper => return lane.into_hyper(None),
        };
        let turn = lane.phase.begin();
        let PlainTarget { to, pool, held, .. } = target;
        let mut link = match pool.link(to).await {
            Ok(link) => link,
            Err(error) => return lane.into_hyper(Some(Begun { held, link: Err(error) })),
        };
        let Exchanged::Whole { is_clean } = lane.exchange(&mut link, &mut out).await else {
            pool.avoid(to);
            let received = std::mem::take(&mut lane.answer);
            return lane.into_hyper(Some(Begun { held, link: Ok(Replayed::new(link, received)) }));
        };
        let closes = lane.phase.closes();
        // The client goes on while the rest is done here.
        let written = lane.write_some(&out).await;
        if is_clean {
            pool.keep(to, link);
        }
        drop(held);
        let Ok(written) = written else { return Served::Closed };
        if written < out.len() {
            turn.is_held();
            if lane.stream.write_all(&out[written..]).await.is_err() {
                return Served::Closed;
            }
        }
        if closes {
            return Served::Closed;
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

/// What to do with what a client has sent so far.
enum Next<H> {
    Read,
    Hyper,
    /// The head, of this length, was written for an endpoint.
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

/// What became of a request that was sent.
enum Exchanged {
    /// Its answer is ready for the client. Nothing more is to come on a clean connection.
    Whole {
        is_clean: bool,
    },
    NotPlain,
}

/// A client's connection.
struct Lane<'s> {
    stream: &'s mut Patient,
    phase: Phase,
    /// What has come from the client and was not answered.
    read: Vec<u8>,
    /// What has come from the endpoint.
    answer: Vec<u8>,
    timer: Deadline,
}

impl Lane<'_> {
    /// Waits for more from the client. False at its end, and when the connection is to close.
    async fn read_more(&mut self) -> bool {
        poll_fn(|cx| match fill(&mut *self.stream, &mut self.read, REQUEST_MAX, cx) {
            Poll::Pending if self.phase.closes() => Poll::Ready(false),
            polled => polled.map(|got| matches!(got, Ok(1..))),
        })
        .await
    }

    /// Sends `out` and waits for the answer, which then is in `out`.
    async fn exchange(&mut self, link: &mut TcpStream, out: &mut Vec<u8>) -> Exchanged {
        if link.write_all(out).await.is_err() {
            return Exchanged::NotPlain;
        }
        out.clear();
        self.timer.set(ANSWER_TIME);
        poll_fn(|cx| self.poll_answer(link, out, cx)).await
    }

    /// Writes what the client's connection takes now: how many bytes.
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
    ) -> Poll<Exchanged> {
        while let Poll::Ready(got) = fill(&mut *link, &mut self.answer, ANSWER_MAX, cx) {
            let Ok(1..) = got else { return Poll::Ready(Exchanged::NotPlain) };
            match answer::pass(&self.answer, ANSWER_MAX, self.phase.closes(), out) {
                Passed::Partial => {}
                Passed::Unusual => return Poll::Ready(Exchanged::NotPlain),
                Passed::Whole(length) => {
                    return Poll::Ready(Exchanged::Whole { is_clean: length == self.answer.len() });
                }
            }
        }
        // hyper finds out whether the client is still there, once the time is up.
        self.timer.poll_reached(cx).map(|()| Exchanged::NotPlain)
    }

    fn into_hyper<H>(self, begun: Option<Begun<H>>) -> Served<H> {
        self.stream.put_back(self.read);
        Served::ToHyper(begun)
    }
}

/// Reads what there is into `buffer`, up to `most` bytes in all: how many bytes came, 0 at the end.
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
