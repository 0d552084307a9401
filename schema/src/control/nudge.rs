//! Nudges: signals that make a loop run again. A nudge carries no data, and several count as one.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// Wakes a loop. Clones wake the same loop.
#[derive(Debug, Clone, Default)]
pub struct Nudge(Arc<Notify>);

impl Nudge {
    /// Creates a nudge and the receiving end that a driver waits on.
    pub fn new() -> (Self, NudgeReceiver) {
        let nudge = Self::default();
        let nudged = NudgeReceiver(Arc::clone(&nudge.0));
        (nudge, nudged)
    }

    /// Wakes the loop now, or as soon as its current run ends. Never lost.
    pub fn nudge(&self) {
        self.0.notify_one();
    }
}

/// Receiving end of a [`Nudge`], which a driver waits on.
#[derive(Debug)]
pub struct NudgeReceiver(Arc<Notify>);

impl NudgeReceiver {
    /// Waits for the next nudge; returns immediately if one came since the last return.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}

/// Publishes a value and wakes its receivers, but only if it differs. Returns true if it did.
pub fn publish<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|known| {
        let differs = *known != value;
        *known = value;
        differs
    })
}
