//! Data of the in-memory store and etcd's rules for it: revisions, history, guards, leases.
//!
//! No waiting and no clock; time is an argument.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::store::{Guard, KeyValue, LeaseId, Listing, Op, StoreError, TxnOutcome, WatchEvent};

/// Revisions kept for watches; older ones are compacted as if by an operator. Far more than a test writes.
const HISTORY_MAX: usize = 200_000;

#[derive(Debug)]
pub(super) struct State {
    revision: i64,
    /// Highest compacted revision: watches can't start at or below it.
    compacted: i64,
    keys: BTreeMap<String, Entry>,
    /// Events of each revision, ascending.
    history: VecDeque<(i64, Vec<WatchEvent>)>,
    leases: BTreeMap<i64, Lease>,
    next_lease: i64,
}

#[derive(Debug)]
struct Entry {
    value: Bytes,
    create_revision: i64,
    mod_revision: i64,
    lease: Option<LeaseId>,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    end: Instant,
    keys: BTreeSet<String>,
}

impl Default for State {
    fn default() -> Self {
        // A new etcd is at revision 1.
        Self {
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            history: VecDeque::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
        }
    }
}

impl State {
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn get(&self, key: &str) -> Option<KeyValue> {
        self.keys.get(key).map(|entry| entry.key_value(key))
    }

    pub(super) fn list(&self, prefix: &str) -> Listing {
        let items = self
            .keys
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| entry.key_value(key))
            .collect();
        Listing { items, revision: self.revision }
    }

    /// Applies all operations or none, at a single revision.
    pub(super) fn txn(&mut self, guards: &[Guard], ops: Vec<Op>) -> Result<TxnOutcome, StoreError> {
        if !guards.iter().all(|guard| self.holds(guard)) {
            return Ok(TxnOutcome::Conflict);
        }
        for op in &ops {
            if let Op::Put { lease: Some(LeaseId(id)), .. } = op
                && !self.leases.contains_key(id)
            {
                return Err(StoreError::LeaseLost(*id));
            }
        }
        let revision = self.revision + 1;
        let events: Vec<WatchEvent> = ops
            .into_iter()
            .filter_map(|op| match op {
                Op::Put { key, value, lease } => Some(self.put(key, value, lease, revision)),
                Op::Delete { key } => self.delete(key, revision),
            })
            .collect();
        self.record(events);
        Ok(TxnOutcome::Committed(self.revision))
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Absent(key) => !self.keys.contains_key(key),
            Guard::ModRevision(key, revision) => {
                self.keys.get(key).map_or(0, |entry| entry.mod_revision) == *revision
            }
            Guard::CreateRevision(key, revision) => {
                self.keys.get(key).map_or(0, |entry| entry.create_revision) == *revision
            }
        }
    }

    fn put(&mut self, key: String, value: Bytes, lease: Option<LeaseId>, revision: i64) -> WatchEvent {
        let create_revision = self.keys.get(&key).map_or(revision, |entry| entry.create_revision);
        let entry = Entry { value, create_revision, mod_revision: revision, lease };
        let event = WatchEvent::Put(entry.key_value(&key));
        let before = self.keys.get(&key).and_then(|entry| entry.lease);
        if let Some(before) = before {
            self.detach(before, &key);
        }
        if let Some(lease) = lease.and_then(|LeaseId(id)| self.leases.get_mut(&id)) {
            lease.keys.insert(key.clone());
        }
        self.keys.insert(key, entry);
        event
    }

    fn delete(&mut self, key: String, revision: i64) -> Option<WatchEvent> {
        let entry = self.keys.remove(&key)?;
        if let Some(lease) = entry.lease {
            self.detach(lease, &key);
        }
        Some(WatchEvent::Delete { key, mod_revision: revision })
    }

    fn detach(&mut self, LeaseId(id): LeaseId, key: &str) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    /// Adds events to the history. Without a change there is no new revision.
    fn record(&mut self, events: Vec<WatchEvent>) {
        if events.is_empty() {
            return;
        }
        self.revision += 1;
        self.history.push_back((self.revision, events));
        if self.history.len() > HISTORY_MAX {
            self.compact(self.revision - i64::try_from(HISTORY_MAX / 2).unwrap_or(0));
        }
    }

    pub(super) fn compact(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision.min(self.revision));
        while self.history.front().is_some_and(|(at, _)| *at <= self.compacted) {
            self.history.pop_front();
        }
    }

    /// Returns the events below `prefix` from `from` on.
    pub(super) fn since(&self, prefix: &str, from: i64) -> Result<Vec<WatchEvent>, StoreError> {
        // etcd keeps the compacted revision itself readable, so a watch may start at it; here the events of that
        // revision are gone, so it may not. A watch starts at the revision after a listing, so the difference never
        // matters.
        if from <= self.compacted {
            return Err(StoreError::Compacted(from));
        }
        let events = self
            .history
            .range(self.history.partition_point(|(at, _)| *at < from)..)
            .flat_map(|(_, events)| events)
            .filter(|event| key_of(event).starts_with(prefix));
        Ok(events.cloned().collect())
    }

    pub(super) fn lease_grant(&mut self, ttl: Duration, now: Instant) -> LeaseId {
        let id = self.next_lease;
        self.next_lease += 1;
        self.leases.insert(id, Lease { ttl, end: now + ttl, keys: BTreeSet::new() });
        LeaseId(id)
    }

    pub(super) fn lease_keep_alive(&mut self, LeaseId(id): LeaseId, now: Instant) -> Result<(), StoreError> {
        let lease = self.leases.get_mut(&id).ok_or(StoreError::LeaseLost(id))?;
        lease.end = now + lease.ttl;
        Ok(())
    }

    pub(super) fn lease_end(&self, LeaseId(id): LeaseId) -> Option<Instant> {
        self.leases.get(&id).map(|lease| lease.end)
    }

    /// Ends the lease if it has expired; returns whether it had.
    pub(super) fn lease_expire(&mut self, lease: LeaseId, now: Instant) -> bool {
        let over = self.lease_end(lease).is_some_and(|end| end <= now);
        if over {
            self.lease_revoke(lease);
        }
        over
    }

    pub(super) fn lease_revoke(&mut self, LeaseId(id): LeaseId) {
        let Some(lease) = self.leases.remove(&id) else { return };
        let revision = self.revision + 1;
        let events = lease.keys.into_iter().filter_map(|key| self.delete(key, revision)).collect();
        self.record(events);
    }
}

impl Entry {
    fn key_value(&self, key: &str) -> KeyValue {
        KeyValue {
            key: key.to_owned(),
            value: self.value.clone(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
        }
    }
}

fn key_of(event: &WatchEvent) -> &str {
    match event {
        WatchEvent::Put(kv) => &kv.key,
        WatchEvent::Delete { key, .. } => key,
    }
}
