//! Connections to endpoints that are kept for the next request.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Idle connections by endpoint.
pub(super) struct Spares<L> {
    /// With the time since when each is idle. Most recently used last; taken from the end.
    links: HashMap<SocketAddr, Vec<(Instant, L)>>,
    /// How many are kept for each endpoint.
    most: usize,
    keep_for: Duration,
    /// When those that were idle for too long were last closed.
    swept_at: Instant,
}

impl<L> Spares<L> {
    /// None yet.
    pub(super) fn new(most: usize, keep_for: Duration) -> Self {
        Self { links: HashMap::new(), most, keep_for, swept_at: Instant::now() }
    }

    /// The one that was used last, if it was not idle for too long.
    pub(super) fn take(&mut self, to: SocketAddr) -> Option<L> {
        let (since, link) = self.links.get_mut(&to)?.pop()?;
        (since.elapsed() < self.keep_for).then_some(link)
    }

    /// Keeps it, if there is room.
    pub(super) fn keep(&mut self, to: SocketAddr, link: L) {
        let now = Instant::now();
        if now - self.swept_at >= self.keep_for {
            self.sweep();
        }
        let links = self.links.entry(to).or_default();
        if links.len() < self.most {
            links.push((now, link));
        }
    }

    /// Closes those that were idle for too long.
    pub(super) fn sweep(&mut self) {
        self.links.retain(|_, links| {
            links.retain(|(since, _)| since.elapsed() < self.keep_for);
            !links.is_empty()
        });
        self.swept_at = Instant::now();
    }

    /// Closes those to other endpoints than these.
    pub(super) fn retain(&mut self, wanted: &BTreeSet<SocketAddr>) {
        self.links.retain(|to, _| wanted.contains(to));
    }
}

impl<L> fmt::Debug for Spares<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.links.iter().map(|(to, links)| (to, links.len()));
        f.debug_map().entries(counts).finish()
    }
}
