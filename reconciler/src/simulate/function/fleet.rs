//! Replicas in virtual time, and the calls that run in them. Times are in microseconds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of a replica, in start order.
type ReplicaNumber = u32;

/// The replicas of one function.
pub(super) struct Fleet {
    /// Maximum number of concurrent calls per replica.
    concurrency: u32,
    cold_start: i64,
    handling: i64,
    /// Starting replicas with their time of readiness, in order because all take equally long to start.
    starting: VecDeque<(i64, ReplicaNumber)>,
    /// Number of calls of each replica that takes calls; fewest first.
    serving: BTreeSet<(u32, ReplicaNumber)>,
    /// Number of calls of each replica that only finishes its calls.
    draining: BTreeMap<ReplicaNumber, u32>,
    /// Ends of calls, in order because all calls take equally long.
    ends: VecDeque<(i64, ReplicaNumber)>,
    /// Number of calls of each serving replica.
    in_flight: BTreeMap<ReplicaNumber, u32>,
    next: ReplicaNumber,
}

impl Fleet {
    pub(super) fn new(concurrency: u32, cold_start: i64, handling: i64) -> Self {
        Self {
            concurrency,
            cold_start,
            handling,
            starting: VecDeque::new(),
            serving: BTreeSet::new(),
            draining: BTreeMap::new(),
            ends: VecDeque::new(),
            in_flight: BTreeMap::new(),
            next: 0,
        }
    }

    /// Number of replicas that take calls.
    pub(super) fn ready(&self) -> usize {
        self.serving.len()
    }

    /// Number of replicas, including starting and draining ones.
    pub(super) fn all(&self) -> usize {
        self.starting.len() + self.serving.len() + self.draining.len()
    }

    /// Number of running calls.
    pub(super) fn in_flight(&self) -> usize {
        self.ends.len()
    }

    /// Time at which the next replica becomes ready or the next call ends.
    pub(super) fn next_event(&self) -> Option<i64> {
        let ready = self.starting.front().map(|(at, _)| *at);
        let end = self.ends.front().map(|(at, _)| *at);
        ready.into_iter().chain(end).min()
    }

    /// Starts or removes replicas. Removes those that are not ready yet first, then those with the fewest calls, each
    /// time the newest. A removed replica finishes its calls.
    pub(super) fn scale(&mut self, wanted: u32, now: i64) {
        let wanted = wanted as usize;
        while self.starting.len() + self.serving.len() < wanted {
            self.starting.push_back((now + self.cold_start, self.next));
            self.next += 1;
        }
        while self.starting.len() + self.serving.len() > wanted {
            if self.starting.pop_back().is_some() {
                continue;
            }
            let Some(&(fewest, _)) = self.serving.first() else { return };
            let newest = self.serving.range(..=(fewest, ReplicaNumber::MAX)).next_back().copied();
            let Some((calls, number)) = newest else { return };
            self.serving.remove(&(calls, number));
            self.in_flight.remove(&number);
            if calls > 0 {
                self.draining.insert(number, calls);
            }
        }
    }

    /// Processes every due event: calls end, replicas become ready.
    pub(super) fn pass(&mut self, now: i64) {
        while let Some(&(at, number)) = self.ends.front()
            && at <= now
        {
            self.ends.pop_front();
            if let Some(calls) = self.draining.get_mut(&number) {
                *calls -= 1;
                if *calls == 0 {
                    self.draining.remove(&number);
                }
            } else if let Some(calls) = self.in_flight.get_mut(&number) {
                self.serving.remove(&(*calls, number));
                *calls -= 1;
                self.serving.insert((*calls, number));
            }
        }
        while let Some(&(at, number)) = self.starting.front()
            && at <= now
        {
            self.starting.pop_front();
            self.serving.insert((0, number));
            self.in_flight.insert(number, 0);
        }
    }

    /// Gives a call to the replica with the fewest calls; returns false if all are full.
    pub(super) fn take(&mut self, now: i64) -> bool {
        let Some(&(calls, number)) = self.serving.first() else { return false };
        if calls >= self.concurrency {
            return false;
        }
        self.serving.remove(&(calls, number));
        self.serving.insert((calls + 1, number));
        self.in_flight.insert(number, calls + 1);
        self.ends.push_back((now + self.handling, number));
        true
    }
}
