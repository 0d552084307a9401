//! Response bodies, and the resources they hold until they have been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::client::DrivenBody;

/// Body of a response: streamed from an endpoint, or complete in memory.
#[derive(Debug)]
pub enum Answer {
    Endpoint(DrivenBody),
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
pub struct GuardedBody<B, H> {
    body: B,
    held: Option<H>,
}

impl<B, H> GuardedBody<B, H> {
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

impl<B: Body + Unpin, H: Unpin> Body for GuardedBody<B, H> {
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

// Memory reservations for bodies held completely: one budget of bytes for all users.

/// Bodies up to this size need no room: there are at most as many as connections.
pub const SMALL: u64 = 16 * 1024;
/// Longest wait for others to release room.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of one permit.
const UNIT: u64 = 1024;

/// A budget of bytes. Callers that wait for room must not hold other room, so that all of them get some in turn.
#[derive(Debug, Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    all: usize,
}

/// Part of a budget, released when dropped.
#[derive(Debug, Default)]
pub struct Room {
    _held: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let all = usize::try_from(bytes / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(all)), all }
    }

    /// Reserves room for a body, in the order of requests. `None` if the budget stays full for 10 s, or is smaller
    /// than the body.
    pub async fn room(&self, bytes: u64) -> Option<Room> {
        if bytes <= SMALL {
            return Some(Room::default());
        }
        let permits =
            u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|permits| *permits as usize <= self.all)?;
        let taken = timeout(WAIT_MAX, Arc::clone(&self.free).acquire_many_owned(permits)).await;
        // The semaphore is never closed.
        taken.ok()?.ok().map(|permit| Room { _held: Some(permit) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_room_in_turn_and_small_ones_need_none() {
        let budget = Budget::new(64 * 1024);
        let most = budget.room(60 * 1024).await;
        assert!(most.is_some());
        assert!(budget.room(SMALL).await.is_some());
        assert!(budget.room(SMALL + 1).await.is_none(), "all of it is held");
        let waits = budget.room(20 * 1024);
        let (room, ()) = tokio::join!(waits, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(most);
        });
        assert!(room.is_some());
        assert!(budget.room(64 * 1024).await.is_none(), "more than is left");
    }
}
