//! Calls in virtual time: arrivals, waiting times and outcomes. Times are in microseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::trace::Arrival;
use super::{CallCounts, WaitPercentiles};
use crate::simulate::trace::number;

/// Microseconds per second.
pub(super) const SECOND: f64 = 1e6;

/// Calls that arrive at even intervals, in several concurrent rows.
pub(super) struct Arrivals {
    rows: Vec<ArrivalRow>,
    /// Time of the next call of each row, with the row.
    next: BinaryHeap<Reverse<(i64, usize)>>,
}

struct ArrivalRow {
    at: i64,
    per_second: f64,
    all: u64,
    gone: u64,
}

impl ArrivalRow {
    /// Time of the row's next call.
    fn next(&self) -> Option<i64> {
        // Computed from the start, so that errors don't accumulate.
        let later = || (self.gone as f64 / self.per_second * SECOND).round() as i64;
        (self.gone < self.all).then(|| self.at + later())
    }
}

impl Arrivals {
    pub(super) fn new(arrivals: &[Arrival]) -> Self {
        let row = |arrival: &Arrival| ArrivalRow {
            at: micros(arrival.at),
            per_second: arrival.per_second,
            all: count(arrival),
            gone: 0,
        };
        let rows: Vec<ArrivalRow> = arrivals.iter().map(row).collect();
        let next = rows.iter().enumerate().filter_map(|(index, row)| Some(Reverse((row.next()?, index))));
        Self { next: next.collect(), rows }
    }

    /// Time of the next call.
    pub(super) fn next_event(&self) -> Option<i64> {
        self.next.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the next call if it is due.
    pub(super) fn take(&mut self, now: i64) -> bool {
        let Some(Reverse((_, index))) = self.next.peek().copied().filter(|Reverse((at, _))| *at <= now)
        else {
            return false;
        };
        self.next.pop();
        let row = &mut self.rows[index];
        row.gone += 1;
        self.next.extend(row.next().map(|at| Reverse((at, index))));
        true
    }
}

/// Number of calls in a row of arrivals.
pub(super) fn count(arrival: &Arrival) -> u64 {
    // A call at the very start and none at the end; the error of the product must not add a call.
    (arrival.per_second * arrival.for_seconds - 1e-6).ceil().max(0.0) as u64
}

/// Converts seconds to microseconds.
pub(super) fn micros(seconds: f64) -> i64 {
    (seconds * SECOND).round() as i64
}

/// Waiting calls, and the outcomes of all calls.
pub(super) struct Queue {
    /// Maximum number of waiting calls.
    pub(super) length: usize,
    /// Time that a call waits before it is answered with 503.
    pub(super) timeout: i64,
    /// Arrival times of the waiting calls.
    pub(super) waiting: VecDeque<i64>,
    pub(super) counts: CallCounts,
    /// Waiting times of the calls that waited and were answered.
    pub(super) waits: Vec<u32>,
}

impl Queue {
    /// Time at which the first waiting call gives up.
    pub(super) fn next_event(&self) -> Option<i64> {
        self.waiting.front().map(|came| came + self.timeout)
    }

    /// Records an arriving call, which a replica has taken or not.
    pub(super) fn arrive(&mut self, now: i64, is_taken: bool) {
        self.counts.arrived += 1;
        if is_taken {
            self.counts.answered += 1;
        } else if self.waiting.len() < self.length {
            self.waiting.push_back(now);
        } else {
            self.counts.refused += 1;
        }
    }

    /// Removes the first waiting call, which a replica has taken.
    pub(super) fn leave(&mut self, now: i64) {
        let Some(came) = self.waiting.pop_front() else { return };
        self.counts.answered += 1;
        if now > came {
            self.counts.waited += 1;
            self.waits.push(u32::try_from(now - came).unwrap_or(u32::MAX));
        }
    }

    /// Drops the calls that have waited too long.
    pub(super) fn expire(&mut self, now: i64) {
        while self.next_event().is_some_and(|at| at <= now) {
            self.waiting.pop_front();
            self.counts.timed_out += 1;
        }
    }

    /// Percentiles of the waiting times.
    pub(super) fn waits(&mut self) -> Option<WaitPercentiles> {
        self.waits.sort_unstable();
        let of = |percent: usize| {
            let rank = (self.waits.len() * percent).div_ceil(100);
            let wait = self.waits.get(rank.checked_sub(1)?)?;
            Some(rounded(f64::from(*wait) / SECOND))
        };
        Some(WaitPercentiles { p50: of(50)?, p95: of(95)?, max: of(100)? })
    }
}

/// Rounds seconds to the millisecond.
pub(super) fn rounded(seconds: f64) -> serde_json::Number {
    number((seconds * 1000.0).round() / 1000.0)
}
