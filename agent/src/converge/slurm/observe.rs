//! Sees what is ordered and what steps found, and keeps both on the disk before anything follows from it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::control::lock;

use super::SlurmLoop;
use super::book::login_secrets;
use super::machine::JobRecord;
use super::plan::{Observed, Slot, login_hash};

impl SlurmLoop {
    pub(super) fn look(&mut self, now: Timestamp) -> Observed {
        let snapshot = self.deps.snapshot.current();
        let own = snapshot.jobs.iter().filter(|((node, _), _)| *node == self.deps.node);
        let orders: std::collections::BTreeMap<_, _> =
            own.map(|((_, id), order)| (id.clone(), order.value.clone())).collect();
        let found = std::mem::take(&mut *lock(&self.found));
        for done in found {
            self.busy.remove(&done.slot);
            if let Slot::Poll(login) = done.slot {
                self.polled_at.insert(login, now);
            }
            for (id, uid, event) in done.events {
                self.change(&id, now, |record| {
                    if record.order.uid == uid {
                        record.apply(event, now);
                    }
                });
            }
        }
        for (id, order) in &orders {
            if !self.records.contains_key(id) {
                let record = JobRecord::first(id.clone(), order, Vec::new(), now);
                self.keep(record, now);
            }
        }
        let known: Vec<_> = self.records.keys().cloned().collect();
        for id in known {
            // While a step is under way, it is of the order that it began with.
            if !self.busy.contains(&Slot::Job(id.clone())) {
                self.change(&id, now, |record| record.follow(orders.get(&id), now));
            }
        }
        let is_whole = snapshot.synced && snapshot.settled.contains_key(&self.deps.node);
        for id in self.records.keys().filter(|id| is_whole && !orders.contains_key(id)) {
            self.unordered_since.entry(id.clone()).or_insert(now);
        }
        self.unordered_since.retain(|id, _| self.records.contains_key(id) && !orders.contains_key(id));
        let logins = self.records.values().map(|record| login_hash(&record.order.spec.login)).collect();
        self.polled_at.retain(|login, _| BTreeSet::contains(&logins, login));
        self.worker.forget_other_logins(&logins);
        self.deps.files.hold_for_jobs(login_secrets(self.records.values()));
        Observed {
            orders,
            records: self.records.clone(),
            unordered_since: self.unordered_since.clone(),
            is_whole,
            busy: self.busy.clone(),
            polled_at: self.polled_at.clone(),
        }
    }

    fn change(
        &mut self,
        id: &schema::meta::NamespacedName,
        now: Timestamp,
        change: impl FnOnce(&mut JobRecord),
    ) {
        let Some(before) = self.records.get(id) else { return };
        let mut record = before.clone();
        change(&mut record);
        if record != *before {
            self.tell(before, &record);
            self.keep(record, now);
        }
    }

    /// Writes a record before it counts: a submission follows only from an attempt that is on the disk.
    fn keep(&mut self, record: JobRecord, now: Timestamp) {
        let id = record.id.clone();
        match self.book.write(&record) {
            Ok(()) => {
                if self.records.get(&id).is_some_and(|before| before.results != record.results) {
                    self.book.sweep(&record);
                }
                self.records.insert(id, record);
            }
            Err(error) => {
                tracing::warn!(job = %id, %error, "cannot write the record of a job");
                let why = format!("cannot write to the node's disk: {error}");
                if let Some(before) = self.records.get_mut(&id) {
                    before.apply(super::machine::Event::Failed { why, unreachable: false }, now);
                }
            }
        }
    }
}
