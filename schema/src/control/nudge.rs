//! A nudge: "look again". It carries nothing, and many are as one.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes a loop. Clones wake the same loop.
#[derive(Debug, Clone, Default)]
pub struct Nudge(Arc<Notify>);

impl Nudge {
    /// A nudge and the end that a driver waits on.
    pub fn new() -> (Self, Nudged) {
        let nudge = Self::default();
        let nudged = Nudged(Arc::clone(&nudge.0));
        (nudge, nudged)
    }

    /// Wakes the loop now, or as soon as its present run is over. Never lost.
    pub fn nudge(&self) {
        self.0.notify_one();
    }
}

/// The end that a driver waits on.
#[derive(Debug)]
pub struct Nudged(Arc<Notify>);

impl Nudged {
    /// Returns at the next nudge, at once if one came since the last return.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}
