//! Memory reservations for bodies held completely: one budget of bytes for all users.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

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
