//! Bodies that pass through, frame by frame, and what hangs on them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use schema::control::lock;
use tokio::time::Instant;

use super::client::Driven;
use super::room::Room;

/// For whom a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// More of the body.
    Client,
    /// Room for more of the body, or the answer.
    Endpoint,
}

/// The body of a request on its way to an endpoint. Unread, it gives itself back for another endpoint.
#[derive(Debug)]
pub struct Upload {
    body: Option<Incoming>,
    read: bool,
    progress: Progress,
}

/// How far an [`Upload`] is, for the task that waits for the answer.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    returned: Option<Incoming>,
    /// Nothing reads it any more.
    ended: bool,
    moved_at: Instant,
    waits_for: WaitsFor,
}

impl Upload {
    /// `body`, and its progress.
    pub(crate) fn new(body: Incoming) -> (Self, Progress) {
        let state =
            State { returned: None, ended: false, moved_at: Instant::now(), waits_for: WaitsFor::Endpoint };
        let progress = Progress(Arc::new(Mutex::new(state)));
        (Self { body: Some(body), read: false, progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Since when nothing has moved, and for whom it waits.
    pub(crate) fn resting(&self) -> (Instant, WaitsFor) {
        let state = self.state();
        (state.moved_at, state.waits_for)
    }

    /// The body has been read to its end, or nobody reads it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// The body, if it has come back unread.
    pub(crate) fn take_back(&self) -> Option<Upload> {
        let mut state = self.state();
        let body = state.returned.take()?;
        state.ended = false;
        drop(state);
        Some(Upload { body: Some(body), read: false, progress: self.clone() })
    }

    fn moved(&self) {
        let mut state = self.state();
        state.moved_at = Instant::now();
        state.waits_for = WaitsFor::Endpoint;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole before anything can panic.
        lock(&self.0)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.read = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        match &polled {
            Poll::Ready(_) => self.progress.moved(),
            Poll::Pending => self.progress.state().waits_for = WaitsFor::Client,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut state = self.progress.state();
        state.ended = true;
        if !self.read {
            state.returned = self.body.take();
        }
    }
}

/// What a client gets: an endpoint's body as it comes, or one that is here whole.
#[derive(Debug)]
pub enum Answer {
    Endpoint(Driven),
    Whole { rest: Bytes, room: Room },
}

/// Bytes of a whole body that hyper is given at once: it takes more only when it has sent some, and until then the room
/// of the rest is held.
const PIECE: usize = 128 * 1024;

impl Answer {
    /// A few words.
    pub fn words(text: impl Into<Bytes>) -> Self {
        Self::whole(text.into(), Room::default())
    }

    /// A body, and its room.
    pub fn whole(rest: Bytes, room: Room) -> Self {
        Self::Whole { rest, room }
    }

    /// It is held here until the client has taken it.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole { .. })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Endpoint(body) => Pin::new(body).poll_frame(cx),
            Self::Whole { rest, .. } if rest.is_empty() => Poll::Ready(None),
            Self::Whole { rest, .. } => {
                let piece = rest.split_to(rest.len().min(PIECE));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Endpoint(body) => body.is_end_stream(),
            Self::Whole { rest, .. } => rest.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Endpoint(body) => body.size_hint(),
            Self::Whole { rest, .. } => SizeHint::with_exact(rest.len() as u64),
        }
    }
}

/// A body with something that is let go when it has passed, or will not.
#[derive(Debug)]
pub struct Holding<B, H> {
    body: B,
    held: Option<H>,
}

impl<B, H> Holding<B, H> {
    /// `body`, holding `held`.
    pub fn new(body: B, held: Option<H>) -> Self {
        Self { body, held }
    }

    /// The body.
    pub(super) fn body(&self) -> &B {
        &self.body
    }

    /// The body alone.
    pub fn into_body(self) -> B {
        self.body
    }
}

impl<B: Body + Unpin, H: Unpin> Body for Holding<B, H> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if polled.is_none() {
            self.held = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
