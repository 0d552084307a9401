//! Idle connections to endpoints, kept for the next request.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Idle connections by endpoint.
pub(super) struct Spares<L> {
    /// Connections with the time since which each is idle. Most recently used last; taken from the end.
    links: HashMap<SocketAddr, Vec<(Instant, L)>>,
    /// Maximum number kept for each endpoint.
    most: usize,
    keep_for: Duration,
    /// Time of the last sweep.
    swept_at: Instant,
}

impl<L> Spares<L> {
    /// Creates an empty set.
    pub(super) fn new(most: usize, keep_for: Duration) -> Self {
        Self { links: HashMap::new(), most, keep_for, swept_at: Instant::now() }
    }

    /// Takes the most recently used connection, unless it was idle for too long.
    pub(super) fn take(&mut self, to: SocketAddr) -> Option<L> {
        let (since, link) = self.links.get_mut(&to)?.pop()?;
        (since.elapsed() < self.keep_for).then_some(link)
    }

    /// Keeps the connection if there is room.
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

    /// Closes connections that have been idle for too long.
    pub(super) fn sweep(&mut self) {
        self.links.retain(|_, links| {
            links.retain(|(since, _)| since.elapsed() < self.keep_for);
            !links.is_empty()
        });
        self.swept_at = Instant::now();
    }

    /// Closes connections to endpoints that are not in `wanted`.
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
