//! Calls in virtual time: when they come, how long they wait, what becomes of them. Times are microseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::trace::Arrival;
use super::{CallCounts, Waits};
use crate::simulate::trace::number;

/// Microseconds of a second.
pub(super) const SECOND: f64 = 1e6;

/// Calls that come at even distances, several rows of them at once.
pub(super) struct Arrivals {
    rows: Vec<Row>,
    /// When the next call of each row comes, and its row.
    next: BinaryHeap<Reverse<(i64, usize)>>,
}

struct Row {
    at: i64,
    per_second: f64,
    all: u64,
    gone: u64,
}

impl Row {
    /// When its next call comes.
    fn next(&self) -> Option<i64> {
        // Counted from the beginning, so that no error adds up.
        let later = || (self.gone as f64 / self.per_second * SECOND).round() as i64;
        (self.gone < self.all).then(|| self.at + later())
    }
}

impl Arrivals {
    pub(super) fn new(arrivals: &[Arrival]) -> Self {
        let row = |arrival: &Arrival| Row {
            at: micros(arrival.at),
            per_second: arrival.per_second,
            all: count(arrival),
            gone: 0,
        };
        let rows: Vec<Row> = arrivals.iter().map(row).collect();
        let next = rows.iter().enumerate().filter_map(|(index, row)| Some(Reverse((row.next()?, index))));
        Self { next: next.collect(), rows }
    }

    /// When the next call comes.
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

/// How many calls there are of it.
pub(super) fn count(arrival: &Arrival) -> u64 {
    // One at the very beginning and none at the end; what the product is off by makes no call.
    (arrival.per_second * arrival.for_seconds - 1e-6).ceil().max(0.0) as u64
}

/// Seconds as microseconds.
pub(super) fn micros(seconds: f64) -> i64 {
    (seconds * SECOND).round() as i64
}

/// Calls that wait, and what became of all.
pub(super) struct Queue {
    /// Most that wait at once.
    pub(super) length: usize,
    /// How long one waits before it is answered with 503.
    pub(super) patience: i64,
    /// When each of those that wait came.
    pub(super) waiting: VecDeque<i64>,
    pub(super) counts: CallCounts,
    /// How long each call waited that was answered and waited.
    pub(super) waits: Vec<u32>,
}

impl Queue {
    /// When the first of them gives up.
    pub(super) fn next_event(&self) -> Option<i64> {
        self.waiting.front().map(|came| came + self.patience)
    }

    /// A call comes, and a replica has taken it or not.
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

    /// A replica has taken the first of them.
    pub(super) fn leave(&mut self, now: i64) {
        let Some(came) = self.waiting.pop_front() else { return };
        self.counts.answered += 1;
        if now > came {
            self.counts.waited += 1;
            self.waits.push(u32::try_from(now - came).unwrap_or(u32::MAX));
        }
    }

    /// Those give up that have waited too long.
    pub(super) fn expire(&mut self, now: i64) {
        while self.next_event().is_some_and(|at| at <= now) {
            self.waiting.pop_front();
            self.counts.timed_out += 1;
        }
    }

    /// How long they waited.
    pub(super) fn waits(&mut self) -> Option<Waits> {
        self.waits.sort_unstable();
        let of = |percent: usize| {
            let rank = (self.waits.len() * percent).div_ceil(100);
            let wait = self.waits.get(rank.checked_sub(1)?)?;
            Some(rounded(f64::from(*wait) / SECOND))
        };
        Some(Waits { p50: of(50)?, p95: of(95)?, max: of(100)? })
    }
}

/// Seconds to the millisecond.
pub(super) fn rounded(seconds: f64) -> serde_json::Number {
    number((seconds * 1000.0).round() / 1000.0)
}
