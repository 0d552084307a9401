//! Response bodies, and the resources they hold until they have been sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::client::Driven;
use super::room::Room;

/// Body of a response: streamed from an endpoint, or complete in memory.
#[derive(Debug)]
pub enum Answer {
    Endpoint(Driven),
    Whole { rest: Bytes, room: Room },
}

/// Bytes of a body in memory that hyper gets per poll: it takes more only after sending some, and until then the
/// room of the rest is held.
const PIECE: usize = 128 * 1024;

impl Answer {
    /// Creates a short body.
    pub fn words(text: impl Into<Bytes>) -> Self {
        Self::whole(text.into(), Room::default())
    }

    /// Creates a body with its room.
    pub fn whole(rest: Bytes, room: Room) -> Self {
        Self::Whole { rest, room }
    }

    /// True if the body stays in memory until the client has read it.
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

/// A body with a resource that is released once the body has been sent, or never will be.
#[derive(Debug)]
pub struct Holding<B, H> {
    body: B,
    held: Option<H>,
}

impl<B, H> Holding<B, H> {
    /// Wraps `body`, holding `held`.
    pub fn new(body: B, held: Option<H>) -> Self {
        Self { body, held }
    }

    pub(super) fn body(&self) -> &B {
        &self.body
    }

    /// Unwraps the body.
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
