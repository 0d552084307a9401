//! Decides in which order upstream servers are asked: as they are listed, those that were silent lately
//! last. Pure.

use std::time::{Duration, Instant};

/// How long an upstream that was silent is asked last.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// What is known of each upstream.
#[derive(Debug)]
pub(super) struct UpstreamHealth(Vec<Upstream>);

#[derive(Debug, Clone, Default)]
struct Upstream {
    silent_until: Option<Instant>,
    proven: bool,
}

impl UpstreamHealth {
    /// `count` upstreams that answer.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![Upstream::default(); count])
    }

    /// Indices in the order in which they are asked; all of them, always. Whose time of silence is over is
    /// tried by one question; the others go on without it until it answers.
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

    /// It answered when it was asked last; of one that was never asked, or was silent, that is not known.
    pub(super) fn is_proven(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|upstream| upstream.proven)
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self, index: usize) {
        self.note(index, Upstream { silent_until: None, proven: true });
    }

    /// It did not answer in time.
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
