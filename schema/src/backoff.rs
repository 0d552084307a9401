//! Waits after failures: doubling, bounded, jittered. Pure: randomness is an argument.

use std::time::Duration;

/// Counts consecutive failures and computes the wait after each.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff that waits about `min` after the first failure and never longer than `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), failures: 0 }
    }

    /// Records a failure and returns the wait after it. `random` is in `0.0..1.0` and shortens the wait by up to
    /// half, so that clients that failed together do not retry together.
    pub fn after_failure(&mut self, random: f64) -> Duration {
        // 2^20 times any sensible minimum is beyond any sensible maximum.
        let doubled = self.min.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        doubled.min(self.max).mul_f64(1.0 - 0.5 * random.clamp(0.0, 1.0))
    }

    /// Resets the count after a success: the next failure is a first one.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_longest_wait_and_starts_over_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let waits: Vec<u128> = (0..6).map(|_| backoff.after_failure(0.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.after_failure(0.0).as_millis(), 100);
    }

    #[test]
    fn jitter_takes_away_at_most_half_and_never_adds() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        assert_eq!(backoff.after_failure(1.0).as_millis(), 50);
        assert_eq!(backoff.after_failure(7.0).as_millis(), 100);
    }

    #[test]
    fn a_million_failures_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        backoff.failures = u32::MAX;
        assert_eq!(backoff.after_failure(0.0), Duration::from_secs(30));
    }
}
