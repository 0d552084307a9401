//! In-flight, queued and answered calls per function, and the choice of a replica for each call. Without I/O; [`Calls`]
//! is its lock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use schema::codec::VALUE_MAX_BYTES;
use schema::control::lock;
use schema::kinds::function::ImageState;
use schema::meta::NamespacedName;
use schema::records::{CallLimits, FunctionDemand, FunctionRecord, NodeDemand};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::beats::Beats;
use super::phases::{Failures, Phases, Tally};
use super::window::{Answers, PANIC_SECONDS, STABLE_SECONDS, Window};
use crate::metrics::{CallCounts, METRICS};

/// Time for which a replica that could not be reached comes last.
const SHUNNED: Duration = Duration::from_secs(5);

/// Outcome of asking for a replica.
#[derive(Debug)]
pub(super) enum Admission {
    /// A replica takes the call now.
    At(Lease),
    /// The call is queued; the receiver yields a replica or the reason for none.
    Waits(oneshot::Receiver<QueueOutcome>),
    /// The queue is full.
    Full,
}

/// Outcome of waiting in the queue.
#[derive(Debug)]
pub(super) enum QueueOutcome {
    Replica(Lease),
    /// No replica will take calls; the reason.
    NoReplica(String),
    /// The function no longer exists.
    Gone,
}

/// A place at a replica, released when dropped, even by a caller that left just as it got the place.
#[derive(Debug)]
pub(super) struct Lease {
    calls: Calls,
    id: NamespacedName,
    address: SocketAddr,
    is_held: bool,
}

impl Lease {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_held {
            self.calls.leave(&self.id, self.address);
        }
    }
}

/// A function with its calls.
#[derive(Debug)]
struct FunctionState {
    /// Calls of this node at each replica, including former replicas until their calls end.
    in_flight: BTreeMap<SocketAddr, u32>,
    /// Replicas that take calls.
    ready: Vec<SocketAddr>,
    /// Unreachable replicas, and the time until which they come last.
    shunned: BTreeMap<SocketAddr, Instant>,
    concurrency: u32,
    queue_length: usize,
    /// Number of picks, so that equal replicas take turns.
    turn: usize,
    queue: VecDeque<oneshot::Sender<QueueOutcome>>,
    hopeless: Option<String>,
    is_gone: bool,
    /// Replicas full with calls of other gateways as well, and the time until which they get no calls.
    full_until: BTreeMap<SocketAddr, Instant>,
    window: Window,
    answers: Answers,
    idle_since: Option<Timestamp>,
    /// Time at which the function became idle.
    idle_from: Instant,
    tally: Tally,
    failures: Failures,
    /// Series in the metrics, which go with the function.
    counts: CallCounts,
}

impl FunctionState {
    fn new(id: &NamespacedName, now: Instant) -> Self {
        Self {
            in_flight: BTreeMap::new(),
            ready: Vec::new(),
            shunned: BTreeMap::new(),
            concurrency: 1,
            queue_length: 0,
            turn: 0,
            queue: VecDeque::new(),
            hopeless: None,
            is_gone: false,
            full_until: BTreeMap::new(),
            window: Window::new(now),
            answers: Answers::new(now),
            idle_since: None,
            idle_from: now,
            tally: Tally::default(),
            failures: Failures::default(),
            counts: METRICS.add_function(id),
        }
    }

    fn update(&mut self, record: &FunctionRecord) {
        self.ready = record.replicas.iter().map(|replica| replica.address.into()).collect();
        self.concurrency = record.calls.concurrency.max(1);
        self.queue_length = usize::try_from(record.calls.queue_length).unwrap_or(usize::MAX);
        self.hopeless = unservable_reason(record);
        self.is_gone = false;
        let ready = &self.ready;
        self.in_flight.retain(|address, calls| *calls > 0 || ready.contains(address));
    }

    /// Picks the replica with the fewest calls and capacity for one more; not `except` if there is another.
    fn pick(&mut self, except: Option<SocketAddr>, now: Instant) -> Option<SocketAddr> {
        self.shunned.retain(|_, until| *until > now);
        self.full_until.retain(|_, until| *until > now);
        let count = self.ready.len();
        let order = (0..count).map(|step| self.ready[(self.turn + step) % count]);
        let load = |address: &SocketAddr| self.in_flight.get(address).copied().unwrap_or_default();
        let is_full = |address: &SocketAddr| self.full_until.contains_key(address);
        let free = order.filter(|address| load(address) < self.concurrency && !is_full(address));
        let is_shunned = |address: &SocketAddr| self.shunned.contains_key(address);
        let rank = |address: &SocketAddr| (is_shunned(address), Some(*address) == except, load(address));
        let picked = free.min_by_key(rank)?;
        self.turn = self.turn.wrapping_add(1) % count.max(1);
        *self.in_flight.entry(picked).or_default() += 1;
        Some(picked)
    }

    /// Returns the maximum number of waiting calls. Without a replica one call may always wait, or nothing would
    /// wake the function.
    fn queue_max(&self) -> usize {
        self.queue_length.max(usize::from(self.ready.is_empty()))
    }

    fn at_replicas(&self) -> u32 {
        self.in_flight.values().sum()
    }

    fn waiting(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    fn note(&mut self, now: Instant) {
        let calls = self.at_replicas() + self.waiting();
        self.window.set(calls, now);
        if calls > 0 {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(Timestamp::now());
            self.idle_from = now;
        }
    }

    /// Gives free places to waiting calls, in order.
    fn serve(&mut self, lease: impl Fn(SocketAddr) -> Lease, now: Instant) {
        while let Some(first) = self.queue.front() {
            if first.is_closed() {
                self.queue.pop_front();
                continue;
            }
            if self.is_gone {
                if let Some(first) = self.queue.pop_front() {
                    let _ = first.send(QueueOutcome::Gone);
                }
                continue;
            }
            if let Some(why) = self.hopeless.clone() {
                if let Some(first) = self.queue.pop_front() {
                    let _ = first.send(QueueOutcome::NoReplica(why));
                }
                continue;
            }
            let Some(address) = self.pick(None, now) else { break };
            let Some(first) = self.queue.pop_front() else { break };
            if let Err(QueueOutcome::Replica(mut returned)) =
                first.send(QueueOutcome::Replica(lease(address)))
            {
                // The book is locked, so `Lease::drop` can't release the place.
                returned.is_held = false;
                self.end(address);
            }
        }
    }

    fn end(&mut self, address: SocketAddr) {
        if let Some(calls) = self.in_flight.get_mut(&address) {
            *calls = calls.saturating_sub(1);
            if *calls == 0 && !self.ready.contains(&address) {
                self.in_flight.remove(&address);
            }
        }
    }
}

/// Returns the reason why no replica will take calls: none exists, and the code can't be built or loaded.
fn unservable_reason(record: &FunctionRecord) -> Option<String> {
    if !record.replicas.is_empty() {
        return None;
    }
    let failed = record.image().and_then(|image| match &image.state {
        ImageState::Failed { why } => Some(format!("its image can't be built: {why}")),
        ImageState::Waiting | ImageState::Building { .. } | ImageState::Ready => None,
    });
    let trouble = record.trouble.as_ref().map(|trouble| trouble.message.clone());
    failed.or(trouble).filter(|_| !record.has_good)
}

#[derive(Debug)]
struct Book {
    began: Timestamp,
    functions: HashMap<NamespacedName, FunctionState>,
}

/// Calls of all functions, shared by all callers of the node.
#[derive(Debug, Clone)]
pub struct Calls {
    book: Arc<Mutex<Book>>,
    /// Signals that a call waits for a function that had no calls, to be reported immediately.
    changed: watch::Sender<()>,
    pub(super) beats: Beats,
}

impl Calls {
    /// Creates an empty set of calls.
    pub fn new(began: Timestamp) -> Self {
        let book = Arc::new(Mutex::new(Book { began, functions: HashMap::new() }));
        let changed = watch::Sender::new(());
        Self { book, beats: Beats::new(changed.clone()), changed }
    }

    /// Returns the signal for the first call of an idle function, or a heartbeat.
    pub fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Each change is complete before anything can panic.
        lock(&self.book)
    }

    /// Accepts the current functions: waiting calls get the new replicas.
    pub(super) fn follow<'r>(&self, records: impl Iterator<Item = (&'r NamespacedName, &'r FunctionRecord)>) {
        let mut book = self.book();
        let now = Instant::now();
        let mut known = std::collections::BTreeSet::new();
        for (id, record) in records {
            known.insert(id);
            let entry = book.functions.entry(id.clone()).or_insert_with(|| FunctionState::new(id, now));
            entry.update(record);
            entry.serve(|address| self.lease(id, address), now);
            entry.note(now);
        }
        for (id, entry) in &mut book.functions {
            if !known.contains(id) {
                entry.ready.clear();
                entry.is_gone = true;
                entry.serve(|address| self.lease(id, address), now);
            }
        }
        book.functions.retain(|id, entry| {
            let stays = known.contains(id) || entry.at_replicas() > 0;
            if !stays {
                METRICS.remove_function(id);
            }
            stays
        });
    }

    /// Requests a replica. `except` has just refused this call.
    pub(super) fn enter(
        &self,
        id: &NamespacedName,
        limits: &CallLimits,
        except: Option<SocketAddr>,
    ) -> Admission {
        let mut book = self.book();
        let now = Instant::now();
        let entry = book.functions.entry(id.clone()).or_insert_with(|| FunctionState {
            // Until the next `follow`.
            queue_length: usize::try_from(limits.queue_length).unwrap_or(usize::MAX),
            ..FunctionState::new(id, now)
        });
        let place = match entry.pick(except, now) {
            Some(address) => Admission::At(self.lease(id, address)),
            None if except.is_none() && entry.queue.len() >= entry.queue_max() => Admission::Full,
            None => {
                let (given, wait) = oneshot::channel();
                // A call that a replica refused has already waited its turn.
                match except {
                    Some(_) => entry.queue.push_front(given),
                    None => entry.queue.push_back(given),
                }
                entry.serve(|address| self.lease(id, address), now);
                if entry.at_replicas() + entry.waiting() == 1 {
                    self.changed.send_replace(());
                }
                Admission::Waits(wait)
            }
        };
        entry.note(now);
        place
    }

    /// Ends a call at a replica.
    fn leave(&self, id: &NamespacedName, address: SocketAddr) {
        let mut book = self.book();
        let now = Instant::now();
        if let Some(entry) = book.functions.get_mut(id) {
            entry.end(address);
            entry.serve(|address| self.lease(id, address), now);
            entry.note(now);
        }
    }

    /// Records that a replica refused a call because calls of other gateways fill it.
    pub(super) fn mark_full(&self, id: &NamespacedName, address: SocketAddr, pause: Duration) {
        let mut book = self.book();
        if let Some(entry) = book.functions.get_mut(id) {
            entry.full_until.insert(address, Instant::now() + pause);
        }
    }

    /// Tries again to serve the waiting calls.
    pub(super) fn serve(&self, id: &NamespacedName) {
        let mut book = self.book();
        let now = Instant::now();
        if let Some(entry) = book.functions.get_mut(id) {
            entry.serve(|address| self.lease(id, address), now);
            entry.note(now);
        }
    }

    fn lease(&self, id: &NamespacedName, address: SocketAddr) -> Lease {
        Lease { calls: self.clone(), id: id.clone(), address, is_held: true }
    }

    /// Removes calls that have stopped waiting.
    pub(super) fn give_up(&self, id: &NamespacedName) {
        let mut book = self.book();
        if let Some(entry) = book.functions.get_mut(id) {
            entry.queue.retain(|one| !one.is_closed());
            entry.note(Instant::now());
        }
    }

    /// Marks a replica as unreachable: for a while it gets calls only if no other replica takes them.
    pub(super) fn shun(&self, id: &NamespacedName, address: SocketAddr) {
        let mut book = self.book();
        if let Some(entry) = book.functions.get_mut(id) {
            entry.shunned.insert(address, Instant::now() + SHUNNED);
        }
    }

    /// Counts an answered call.
    pub(super) fn count(&self, id: &NamespacedName, status: StatusCode, phases: &Phases) {
        if let Some(entry) = self.book().functions.get_mut(id) {
            entry.tally.add(status, phases);
            entry.answers.add(phases.total(), Instant::now());
            entry.counts.count(status.as_u16(), phases.total(), phases.cold_start());
        }
    }

    /// Records the failure of a call.
    pub(super) fn note_failure(&self, id: &NamespacedName, (kind, message): (&str, &str)) {
        if let Some(entry) = self.book().functions.get_mut(id) {
            entry.failures.add((kind, message), Timestamp::now());
        }
    }

    /// Returns the number of waiting calls, of calls at replicas, and the tally of answered calls.
    pub(super) fn state(&self, id: &NamespacedName) -> (u32, u32, Value) {
        let book = self.book();
        let state = |entry: &FunctionState| (entry.waiting(), entry.at_replicas(), entry.tally.to_json());
        book.functions.get(id).map_or_else(|| (0, 0, Tally::default().to_json()), state)
    }

    /// Returns the time since which calls are counted.
    pub(super) fn began(&self) -> Timestamp {
        self.book().began
    }

    /// Returns the node's demand report.
    pub fn demand(&self) -> NodeDemand {
        let mut book = self.book();
        let now = Instant::now();
        let (mut functions, mut failures) = (BTreeMap::new(), BTreeMap::new());
        for (id, entry) in &mut book.functions {
            let (answered_milli, mean_micros) = entry.answers.rate(now);
            let demand = FunctionDemand {
                answered_milli,
                mean_micros,
                waiting: entry.waiting(),
                in_flight: entry.at_replicas(),
                stable_milli: entry.window.mean_milli(STABLE_SECONDS, now),
                panic_milli: entry.window.mean_milli(PANIC_SECONDS, now),
                idle_since: entry.idle_since,
            };
            let recent = entry.failures.recent(Timestamp::now());
            if !recent.is_empty() {
                failures.insert(id.to_string(), recent);
            }
            let is_old = now.duration_since(entry.idle_from).as_secs() > STABLE_SECONDS as u64;
            let is_idle = demand.waiting + demand.in_flight == 0 && demand.stable_milli == 0;
            if !(is_idle && (is_old || entry.idle_since.is_none())) {
                functions.insert(id.to_string(), demand);
            }
        }
        fit_to_limit(NodeDemand {
            at: Some(Timestamp::now()),
            since: book.began,
            functions,
            beats: self.beats.counts(),
            failures,
        })
    }
}

/// Bytes of a demand besides its functions, failures and heartbeats.
const FRAME_BYTES: usize = 1024;
/// Bytes of an entry besides its key and value.
const ENTRY_BYTES: usize = 4;

/// Trims the demand to the size of an etcd value: functions with calls take precedence, then recently idle ones,
/// then the newest failures.
fn fit_to_limit(demand: NodeDemand) -> NodeDemand {
    fn kept<T: Serialize>(mut room: usize, entries: Vec<(String, T)>) -> (usize, BTreeMap<String, T>) {
        let fits = |(key, value): &(String, T)| {
            let bytes = serde_json::to_vec(value).map_or(room, |bytes| bytes.len());
            room.checked_sub(key.len() + bytes + ENTRY_BYTES).map(|left| room = left).is_some()
        };
        let kept = entries.into_iter().take_while(fits).collect();
        (room, kept)
    }
    let NodeDemand { at, since, functions, beats, failures } = demand;
    let (mut functions, mut failures) = (Vec::from_iter(functions), Vec::from_iter(failures));
    functions.sort_by_key(|(_, of)| (of.waiting + of.in_flight == 0, Reverse(of.idle_since)));
    failures.sort_by_key(|(_, of)| Reverse(of.first().map(|newest| newest.last)));
    let (room, beats) = kept(VALUE_MAX_BYTES - FRAME_BYTES, Vec::from_iter(beats));
    let (room, functions) = kept(room, functions);
    let (_, failures) = kept(room, failures);
    NodeDemand { at, since, functions, beats, failures }
}
