//! Averages for the decider: calls in a function over the stable and the panic window.
//!
//! The sum over a window that is not full yet is divided by the time observed, as in Knative.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

/// Divisor of the stable window that gives the panic window: Knative's 10 percent.
const PANIC_PART: i32 = 10;

/// Longest stable window, and so the longest time kept; Knative's is an hour.
pub const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Parts of a call to which averages are rounded, as in Knative: an error of addition must not ask for a replica.
const PARTS: f64 = 1e6;

/// Number of calls in a function during each of the last seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Windows {
    /// Seconds since 1970 in which there were calls, with the sum of these calls times their duration in that second.
    seconds: VecDeque<(i64, f64)>,
    /// Start of the first recorded span.
    begun: Option<Timestamp>,
}

impl Windows {
    /// Records the number of calls in the function from one time to another. Spans follow each other; between two
    /// spans there were no calls.
    pub fn record(&mut self, from: Timestamp, to: Timestamp, calls: f64) {
        if to <= from {
            return;
        }
        self.begun.get_or_insert(from);
        if calls == 0.0 {
            return;
        }
        let oldest = to.checked_sub(WINDOW_MAX).unwrap_or(from);
        let mut from = from.max(oldest);
        while from < to {
            let second = from.as_second().saturating_add(1);
            let end = Timestamp::from_second(second).unwrap_or(to).min(to);
            let area = calls * end.duration_since(from).as_secs_f64();
            match self.seconds.back_mut() {
                Some((last, sum)) if *last == from.as_second() => *sum += area,
                _ => self.seconds.push_back((from.as_second(), area)),
            }
            from = end;
        }
        let oldest = oldest.as_second();
        while self.seconds.front().is_some_and(|(second, _)| *second < oldest) {
            self.seconds.pop_front();
        }
    }

    /// Returns the averages over the stable and the panic window that end at `now`; `None` while nothing is recorded.
    pub fn averages(&self, now: Timestamp, stable_window: SignedDuration) -> (Option<f64>, Option<f64>) {
        (self.average(now, stable_window), self.average(now, stable_window / PANIC_PART))
    }

    fn average(&self, now: Timestamp, window: SignedDuration) -> Option<f64> {
        // A window shorter than a second has no average.
        let first = now.as_second() - window.as_secs().max(1);
        let begun = self.begun?.max(Timestamp::from_second(first).ok()?);
        let seen = now.duration_since(begun).as_secs_f64();
        let recent = self.seconds.iter().rev().take_while(|(second, _)| *second >= first);
        let area: f64 = recent.map(|(_, area)| area).sum();
        (seen > 0.0).then(|| (area / seen * PARTS).round() / PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: SignedDuration = SignedDuration::from_secs(60);

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap()
    }

    fn windows(spans: &[(f64, f64, f64)]) -> Windows {
        let mut windows = Windows::default();
        for (from, to, calls) in spans {
            windows.record(at(*from), at(*to), *calls);
        }
        windows
    }

    #[test]
    fn a_window_that_is_not_full_is_divided_by_what_was_seen() {
        let windows = windows(&[(0.5, 1.5, 4.0), (1.5, 3.5, 1.0)]);
        assert_eq!(windows.averages(at(3.5), WINDOW), (Some(2.0), Some(2.0)));
        assert_eq!(windows.averages(at(6.5), WINDOW), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn windows_end_now_and_forget_what_was_before_them() {
        let windows = windows(&[(0.0, 54.0, 0.0), (54.0, 57.0, 10.0), (57.0, 60.0, 0.0)]);
        assert_eq!(windows.averages(at(60.0), WINDOW), (Some(0.5), Some(5.0)));
        assert_eq!(windows.averages(at(63.0), WINDOW), (Some(0.5), Some(0.0)));
        assert_eq!(windows.averages(at(114.0), WINDOW), (Some(0.5), Some(0.0)));
        assert_eq!(windows.averages(at(117.0), WINDOW), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn nothing_seen_is_not_no_calls() {
        assert_eq!(Windows::default().averages(at(9.0), WINDOW), (None, None));
        assert_eq!(windows(&[(9.0, 9.0, 3.0)]).averages(at(9.0), WINDOW), (None, None));
        assert_eq!(windows(&[(8.0, 9.0, 0.0)]).averages(at(9.0), WINDOW), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn errors_of_addition_ask_for_nothing() {
        let tenths: Vec<_> =
            (0..600_u32).map(|n| (f64::from(n) / 10.0, f64::from(n + 1) / 10.0, 0.7)).collect();
        assert_eq!(windows(&tenths).averages(at(60.0), WINDOW), (Some(0.7), Some(0.7)));
    }

    #[test]
    fn no_more_is_kept_than_the_longest_window() {
        let windows = windows(&[(0.0, 400_000.0, 1.0), (400_000.0, 400_001.0, 1.0)]);
        assert!(windows.seconds.len() <= 86_402, "{}", windows.seconds.len());
    }
}
