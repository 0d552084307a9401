//! A fetch in progress.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Transfer in progress: counts signs of life and can be cancelled.
#[derive(Debug, Default)]
pub struct Transfer {
    /// Number of packets and messages from the server.
    pub(in crate::git) signs: AtomicUsize,
    pub(in crate::git) cancelled: AtomicBool,
}

impl Transfer {
    /// Counts a sign of life; returns `false` if the transfer must end.
    pub(in crate::git) fn lives(&self) -> bool {
        self.signs.fetch_add(1, Ordering::Relaxed);
        !self.cancelled.load(Ordering::Relaxed)
    }
}
