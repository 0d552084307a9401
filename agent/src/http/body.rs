//! Response bodies, and the resources they hold until they have been sent.

use std::collections::HashMap;
use std::future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use schema::control::lock;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::client::DrivenBody;
use crate::clients::SHARE_DIVISOR;

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

// Memory for bodies held completely: one budget of bytes for all clients, taken as bytes arrive.

/// Bodies up to this size need no room: there are at most as many as connections.
pub const SMALL: u64 = 16 * 1024;
/// Longest wait for others to release room.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of one permit.
const UNIT: u64 = 1024;

/// A budget of bytes, of which one client may hold a quarter. The last quarter is kept for one body at a time that
/// must wait otherwise: it gets to its end and releases what it held, so bodies that hold room never all wait for
/// each other.
#[derive(Debug, Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    /// The kept quarter.
    last: Arc<Semaphore>,
    /// Permits of each client that holds some.
    shares: Arc<Mutex<HashMap<Option<IpAddr>, Weak<Semaphore>>>>,
    /// Permits of a quarter.
    quarter: usize,
}

/// Part of a budget, released when dropped.
#[derive(Debug, Default)]
pub struct Room {
    /// Permits of the client's share, and as many of the budget.
    held: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    /// Set if the body may also use the kept quarter.
    last: Option<OwnedSemaphorePermit>,
}

impl Room {
    fn permits(&self) -> usize {
        self.held.as_ref().map_or(0, |(_, of_budget)| of_budget.num_permits())
    }

    fn add(&mut self, of_client: OwnedSemaphorePermit, of_budget: OwnedSemaphorePermit) {
        match &mut self.held {
            Some((client, budget)) => {
                client.merge(of_client);
                budget.merge(of_budget);
            }
            held => *held = Some((of_client, of_budget)),
        }
    }
}

impl Budget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let all = usize::try_from(bytes / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let quarter = all / SHARE_DIVISOR;
        let (free, last) = (Arc::new(Semaphore::new(all - quarter)), Arc::new(Semaphore::new(1)));
        Self { free, last, shares: Arc::default(), quarter }
    }

    /// Extends the room of a client's body to `bytes`, in the order of requests. The client is `None` for the node
    /// itself, which has twice the share, as a proxy there may stand for many. False if there is no room for 10 s,
    /// or never.
    pub async fn extend(&self, room: &mut Room, client: Option<IpAddr>, bytes: u64) -> bool {
        let wanted = usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(usize::MAX);
        let missing = wanted.saturating_sub(room.permits());
        if bytes <= SMALL || missing == 0 {
            return true;
        }
        if room.last.is_some() {
            return missing <= self.quarter;
        }
        let Ok(permits) = u32::try_from(missing) else { return false };
        let share = self.share(client);
        let shared = async {
            let of_client = share.acquire_many_owned(permits).await?;
            let of_budget = Arc::clone(&self.free).acquire_many_owned(permits).await?;
            Ok::<_, AcquireError>((of_client, of_budget))
        };
        let extended = async {
            tokio::select! {
                biased;
                // Cancel-safe: permits that are not returned are free again. No semaphore is ever closed.
                Ok((of_client, of_budget)) = shared => room.add(of_client, of_budget),
                // Cancel-safe in the same way.
                Ok(last) = Arc::clone(&self.last).acquire_owned(), if missing <= self.quarter => {
                    room.last = Some(last);
                }
                else => future::pending().await,
            }
        };
        timeout(WAIT_MAX, extended).await.is_ok()
    }

    fn share(&self, client: Option<IpAddr>) -> Arc<Semaphore> {
        let mut shares = lock(&self.shares);
        if let Some(share) = shares.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        // Clients without room are removed: the table has no more entries than there are bodies with room.
        shares.retain(|_, share| share.strong_count() > 0);
        let quarters = if client.is_none() { 2 } else { 1 };
        let share = Arc::new(Semaphore::new(self.quarter * quarters));
        shares.insert(client, Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn client(number: u8) -> Option<IpAddr> {
        Some([10, 244, 0, number].into())
    }

    async fn room(budget: &Budget, client: Option<IpAddr>, bytes: u64) -> Option<Room> {
        let mut room = Room::default();
        budget.extend(&mut room, client, bytes).await.then_some(room)
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_room_in_turn_and_small_ones_need_none() {
        let budget = Budget::new(400 * KIB);
        let most = room(&budget, client(1), 100 * KIB).await;
        let last = room(&budget, client(1), 50 * KIB).await;
        assert!(most.is_some() && last.is_some(), "its share, and the quarter that is kept");
        assert!(room(&budget, client(1), SMALL).await.is_some());
        assert!(room(&budget, client(1), SMALL + 1).await.is_none(), "all of its share is held");
        let waits = room(&budget, client(1), 60 * KIB);
        let (got, ()) = tokio::join!(waits, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(most);
        });
        assert!(got.is_some());
        drop((got, last));
        assert!(room(&budget, client(1), 101 * KIB).await.is_none(), "more than there ever is for one");
        let kept: Vec<_> = lock(&budget.shares).values().filter_map(Weak::upgrade).collect();
        assert!(kept.is_empty(), "nobody holds anything");
    }

    // Seen red without the shares: the first client holds all, and the second gets nothing.
    #[tokio::test(start_paused = true)]
    async fn what_one_client_holds_takes_no_room_from_others() {
        let budget = Budget::new(400 * KIB);
        let began = tokio::time::Instant::now();
        let held = futures::future::join_all((0..20).map(|_| room(&budget, client(1), 20 * KIB))).await;
        assert_eq!(held.iter().flatten().count(), 6, "a quarter is five, and one has the kept quarter");
        let waited = began.elapsed();
        for other in [client(2), None, client(3)] {
            assert!(room(&budget, other, 100 * KIB).await.is_some(), "{other:?}");
        }
        let of_node = room(&budget, None, 200 * KIB).await;
        assert!(of_node.is_some(), "the node has half, for a proxy there");
        assert_eq!(began.elapsed(), waited, "nobody else waited");
    }

    // Seen red without the kept quarter: each holds a part and waits for the others, until all are refused.
    #[tokio::test(start_paused = true)]
    async fn bodies_that_hold_room_and_need_more_get_to_their_end_one_after_another() {
        let budget = Budget::new(400 * KIB);
        let began = tokio::time::Instant::now();
        let body = async |number: u8| {
            let mut room = Room::default();
            for piece in 1..=10 {
                if !budget.extend(&mut room, client(number % 5), piece * 10 * KIB).await {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            true
        };
        let ended = futures::future::join_all((0..30).map(body)).await;
        assert!(ended.iter().all(|is_whole| *is_whole), "{ended:?}");
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody waited for a timeout");
    }
}
