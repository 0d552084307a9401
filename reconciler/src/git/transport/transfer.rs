//! A fetch under way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A transfer under way: its signs of life, and how to end it.
#[derive(Debug, Default)]
pub struct Transfer {
    /// Counts packets and messages of the server.
    pub(in crate::git) signs: AtomicUsize,
    pub(in crate::git) cancelled: AtomicBool,
}

impl Transfer {
    /// Counts a sign of life; `false`: the transfer is to end.
    pub(in crate::git) fn lives(&self) -> bool {
        self.signs.fetch_add(1, Ordering::Relaxed);
        !self.cancelled.load(Ordering::Relaxed)
    }
}
