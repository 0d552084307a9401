//! How many calls there were at once: means over the last seconds. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Seconds of the longer mean, Knative's stable window.
pub(super) const STABLE_SECONDS: usize = 60;
/// Seconds of the shorter mean, Knative's panic window.
pub(super) const PANIC_SECONDS: usize = 6;

/// The calls of the last [`STABLE_SECONDS`], a bucket for each second.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Since when it counts.
    began: Instant,
    /// Up to here everything is counted.
    counted: Instant,
    current: u32,
    /// Microseconds of calls in each second since `began`, round and round.
    buckets: [u64; STABLE_SECONDS],
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, counted: now, current: 0, buckets: [0; STABLE_SECONDS] }
    }

    /// There are this many calls from now on.
    pub(super) fn set(&mut self, current: u32, now: Instant) {
        self.count(now);
        self.current = current;
    }

    /// The mean over the last `seconds`, in thousandths of a call; over the time that was seen, if that is shorter.
    pub(super) fn mean_milli(&mut self, seconds: usize, now: Instant) -> u64 {
        self.count(now);
        let elapsed = self.counted.duration_since(self.began);
        let (second, part) = (elapsed.as_secs(), u64::from(elapsed.subsec_micros()));
        let seconds = seconds.clamp(1, STABLE_SECONDS) as u64;
        // The second that is not over yet, and as many whole ones as there are.
        let whole = seconds.saturating_sub(1).min(second);
        let sum: u64 = (second - whole..=second).map(|second| self.buckets[slot(second)]).sum();
        let seen = whole * 1_000_000 + part;
        sum.saturating_mul(1000).checked_div(seen).unwrap_or(u64::from(self.current) * 1000)
    }

    fn count(&mut self, now: Instant) {
        let now = now.max(self.counted);
        let oldest = Duration::from_secs(STABLE_SECONDS as u64);
        if now.duration_since(self.counted) > oldest {
            // Nothing that is older is looked at.
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

fn slot(second: u64) -> usize {
    usize::try_from(second % STABLE_SECONDS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    // Seen red without the reset of a bucket that begins anew.
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
