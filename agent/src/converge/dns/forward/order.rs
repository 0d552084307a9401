//! Order in which upstream servers are queried: as listed, with recently unresponsive ones last. Pure.

use std::time::{Duration, Instant};

/// Time for which an unresponsive upstream is queried last.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// Health of each upstream.
#[derive(Debug)]
pub(super) struct UpstreamHealth(Vec<Upstream>);

#[derive(Debug, Clone, Default)]
struct Upstream {
    silent_until: Option<Instant>,
    proven: bool,
}

impl UpstreamHealth {
    /// Creates the health of `count` upstreams, all presumed responsive.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![Upstream::default(); count])
    }

    /// Returns all indices in the order in which to query them. An upstream whose penalty has expired is tried by
    /// one question; other questions go on without it until it answers.
    pub(super) fn order(&mut self, now: Instant) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        let silent_until = |index: &usize| self.0.get(*index)?.silent_until;
        // Stable: among equals the list decides.
        order.sort_by_key(|index| silent_until(index).filter(|until| *until > now));
        let known = self.0.iter_mut().filter_map(|upstream| upstream.silent_until.as_mut());
        for until in known.filter(|until| **until <= now) {
            *until = now + SILENT_FOR;
        }
        order
    }

    /// True if the upstream answered when last queried; false if it did not, or was never queried.
    pub(super) fn is_proven(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|upstream| upstream.proven)
    }

    /// Records an answer, whatever its content.
    pub(super) fn answered(&mut self, index: usize) {
        self.note(index, Upstream { silent_until: None, proven: true });
    }

    /// Records that no answer came in time.
    pub(super) fn silent(&mut self, index: usize, now: Instant) {
        self.note(index, Upstream { silent_until: Some(now + SILENT_FOR), proven: false });
    }

    fn note(&mut self, index: usize, now: Upstream) {
        if let Some(upstream) = self.0.get_mut(index) {
            *upstream = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with `order` unsorted.
    #[test]
    fn the_silent_are_asked_last_and_come_back() {
        let start = Instant::now();
        let mut health = UpstreamHealth::new(3);
        assert_eq!(health.order(start), [0, 1, 2]);
        health.silent(0, start);
        assert_eq!(health.order(start), [1, 2, 0]);
        health.silent(1, start + Duration::from_secs(1));
        assert_eq!(health.order(start + Duration::from_secs(1)), [2, 0, 1]);
        // One question tries it again, and no other before it has answered.
        assert_eq!(health.order(start + SILENT_FOR), [0, 2, 1]);
        assert_eq!(health.order(start + SILENT_FOR), [2, 1, 0]);
        assert!(!health.is_proven(0));
        health.answered(0);
        assert!(health.is_proven(0));
        assert_eq!(health.order(start + SILENT_FOR), [0, 2, 1]);
    }
}
