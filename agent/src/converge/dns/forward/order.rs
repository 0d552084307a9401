//! Decides in which order upstream servers are asked: as they are listed, those that were silent lately
//! last. Pure.

use std::time::{Duration, Instant};

/// How long an upstream that was silent is asked last.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// What is known of each upstream.
#[derive(Debug)]
pub(super) struct UpstreamHealth {
    silent_until: Vec<Option<Instant>>,
    proven: Vec<bool>,
}

impl UpstreamHealth {
    /// `count` upstreams that answer.
    pub(super) fn new(count: usize) -> Self {
        Self { silent_until: vec![None; count], proven: vec![false; count] }
    }

    /// Indices in the order in which they are asked; all of them, always. Whose time of silence is over is
    /// tried by one question; the others go on without it until it answers.
    pub(super) fn order(&mut self, now: Instant) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.silent_until.len()).collect();
        // Stable: among equals the list decides.
        order.sort_by_key(|index| {
            self.silent_until.get(*index).copied().flatten().filter(|until| *until > now)
        });
        for until in self.silent_until.iter_mut().flatten().filter(|until| **until <= now) {
            *until = now + SILENT_FOR;
        }
        order
    }

    /// It answered when it was asked last; of one that was never asked, or was silent, that is not known.
    pub(super) fn is_proven(&self, index: usize) -> bool {
        self.proven.get(index).copied().unwrap_or_default()
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self, index: usize) {
        if let Some(until) = self.silent_until.get_mut(index) {
            *until = None;
        }
        if let Some(proven) = self.proven.get_mut(index) {
            *proven = true;
        }
    }

    /// It did not answer in time.
    pub(super) fn silent(&mut self, index: usize, now: Instant) {
        if let Some(until) = self.silent_until.get_mut(index) {
            *until = Some(now + SILENT_FOR);
        }
        if let Some(proven) = self.proven.get_mut(index) {
            *proven = false;
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
