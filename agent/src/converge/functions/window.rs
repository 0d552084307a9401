//! Mean number of concurrent calls over the last seconds, and rate of answered calls. Pure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schema::control::lock;
use tokio::time::Instant;

/// Length of the longer mean in seconds, Knative's stable window.
pub(super) const STABLE_SECONDS: usize = 60;
/// Length of the shorter mean in seconds, Knative's panic window.
pub(super) const PANIC_SECONDS: usize = 6;

/// Concurrent calls over the last [`STABLE_SECONDS`], one bucket per second.
#[derive(Debug, Clone)]
pub(super) struct Window {
    began: Instant,
    /// Time up to which everything is counted.
    counted: Instant,
    current: u32,
    /// Ring buffer of call microseconds in each second since `began`.
    buckets: [u64; STABLE_SECONDS],
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, counted: now, current: 0, buckets: [0; STABLE_SECONDS] }
    }

    /// Sets the number of concurrent calls from `now` on.
    pub(super) fn set(&mut self, current: u32, now: Instant) {
        self.count(now);
        self.current = current;
    }

    /// Returns the mean over the last `seconds`, in thousandths of a call; over the observed time if that is shorter.
    pub(super) fn mean_milli(&mut self, seconds: usize, now: Instant) -> u64 {
        self.count(now);
        let elapsed = self.counted.duration_since(self.began);
        let (second, part) = (elapsed.as_secs(), u64::from(elapsed.subsec_micros()));
        let seconds = seconds.clamp(1, STABLE_SECONDS) as u64;
        // The current, unfinished second, and as many whole ones as there are.
        let whole = seconds.saturating_sub(1).min(second);
        let sum: u64 = (second - whole..=second).map(|second| self.buckets[slot(second)]).sum();
        let seen = whole * 1_000_000 + part;
        sum.saturating_mul(1000).checked_div(seen).unwrap_or(u64::from(self.current) * 1000)
    }

    fn count(&mut self, now: Instant) {
        let now = now.max(self.counted);
        let oldest = Duration::from_secs(STABLE_SECONDS as u64);
        if now.duration_since(self.counted) > oldest {
            // Older buckets are never read.
            let filled = u64::from(self.current) * 1_000_000;
            self.buckets = [filled; STABLE_SECONDS];
            let elapsed = now.duration_since(self.began);
            self.buckets[slot(elapsed.as_secs())] =
                u64::from(self.current) * u64::from(elapsed.subsec_micros());
            self.counted = now;
            return;
        }
        while self.counted < now {
            let second = self.counted.duration_since(self.began).as_secs();
            let end = (self.began + Duration::from_secs(second + 1)).min(now);
            let micros = u64::try_from(end.duration_since(self.counted).as_micros()).unwrap_or(u64::MAX);
            self.buckets[slot(second)] += micros * u64::from(self.current);
            self.counted = end;
            let next = self.counted.duration_since(self.began).as_secs();
            if next != second {
                self.buckets[slot(next)] = 0;
            }
        }
    }
}

/// Calls answered in the last [`STABLE_SECONDS`], one bucket per second.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    began: Instant,
    /// Second since `began` up to which the buckets are current.
    newest: u64,
    /// Number of calls, and their total microseconds.
    buckets: [(u64, u64); STABLE_SECONDS],
}

impl Answers {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, newest: 0, buckets: [(0, 0); STABLE_SECONDS] }
    }

    /// Adds a call.
    pub(super) fn add(&mut self, took: Duration, now: Instant) {
        self.turn(now);
        let (calls, micros) = &mut self.buckets[slot(self.newest)];
        *calls += 1;
        *micros += u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 1_000_000);
    }

    /// Returns thousandths of a call per second, over the observed time if that is shorter, and the mean duration
    /// of a call in microseconds.
    pub(super) fn rate(&mut self, now: Instant) -> (u64, u64) {
        self.turn(now);
        let sums = self.buckets.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let seen = (self.newest + 1).min(STABLE_SECONDS as u64);
        (sums.0 * 1000 / seen, sums.1.checked_div(sums.0).unwrap_or_default())
    }

    fn turn(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.began).as_secs();
        for old in (self.newest + 1..=second).take(STABLE_SECONDS) {
            self.buckets[slot(old)] = (0, 0);
        }
        self.newest = self.newest.max(second);
    }
}

fn slot(second: u64) -> usize {
    usize::try_from(second % STABLE_SECONDS as u64).unwrap_or_default()
}

// Limit on calls per minute and namespace through this node: the Cluster object's `functions.callsPerMinute`. A
// minute begins with a call.

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Minute {
    began: Instant,
    calls: u32,
}

/// Counters by namespace, shared by all calls of the node.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates(Arc<Mutex<HashMap<String, Minute>>>);

impl Rates {
    /// Counts a call, or returns the seconds until the next minute begins.
    pub(super) fn count(&self, namespace: &str, most: u32, now: Instant) -> Result<(), u32> {
        // Each change is complete before anything can panic.
        let mut minutes = lock(&self.0);
        minutes.retain(|_, minute| now.duration_since(minute.began) < MINUTE);
        let first = || Minute { began: now, calls: 0 };
        let minute = minutes.entry(namespace.to_owned()).or_insert_with(first);
        if minute.calls >= most {
            let rest = MINUTE.saturating_sub(now.duration_since(minute.began));
            return Err(u32::try_from(rest.as_secs() + 1).unwrap_or(u32::MAX));
        }
        minute.calls += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_counted_per_second_and_forgotten_after_the_window() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        assert_eq!(answers.rate(start), (0, 0));
        for call in 0..20 {
            answers.add(Duration::from_millis(10 + call), after(start, call * 500));
        }
        assert_eq!(answers.rate(after(start, 9_999)), (2000, 19_500));
        assert_eq!(answers.rate(after(start, 59_999)), (333, 19_500));
        assert_eq!(answers.rate(after(start, 64_500)), (166, 24_500), "the second half of them");
        assert_eq!(answers.rate(after(start, 500_000)), (0, 0));
    }

    // Seen red without the reset of a reused bucket.
    #[tokio::test(start_paused = true)]
    async fn means_are_over_the_time_that_was_seen_and_then_over_the_window() {
        let start = Instant::now();
        let mut window = Window::new(start);
        window.set(4, start);
        assert_eq!(window.mean_milli(PANIC_SECONDS, start), 4000);
        assert_eq!(window.mean_milli(STABLE_SECONDS, after(start, 2_000)), 4000);
        window.set(0, after(start, 2_000));
        assert_eq!(window.mean_milli(STABLE_SECONDS, after(start, 4_000)), 2000);
        assert_eq!(window.mean_milli(PANIC_SECONDS, after(start, 8_000)), 0);
        assert!((131..=136).contains(&window.mean_milli(STABLE_SECONDS, after(start, 59_999))));
        assert_eq!(window.mean_milli(STABLE_SECONDS, after(start, 70_000)), 0);
        window.set(1, after(start, 200_500));
        assert_eq!(window.mean_milli(PANIC_SECONDS, after(start, 210_500)), 1000);
        assert_eq!(window.mean_milli(STABLE_SECONDS, after(start, 400_000)), 1000);
    }
}

#[cfg(test)]
mod rates_tests {
    use super::*;

    #[test]
    fn each_namespace_has_its_calls_and_a_new_minute_has_new_ones() {
        let (rates, began) = (Rates::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(rates.count("a", 2, at(0)), Ok(()));
        assert_eq!(rates.count("a", 2, at(30)), Ok(()));
        assert_eq!(rates.count("a", 2, at(40)), Err(21));
        assert_eq!(rates.count("b", 2, at(40)), Ok(()));
        assert_eq!(rates.count("a", 2, at(60)), Ok(()));
        assert_eq!(rates.count("a", 1, at(61)), Err(60), "a smaller bound counts at once");
    }
}
