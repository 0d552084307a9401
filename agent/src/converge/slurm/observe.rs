//! Observes the orders and the results of steps.

use jiff::Timestamp;
use schema::control::lock;

use super::SlurmLoop;
use super::plan::{Observed, Slot};

impl SlurmLoop {
    pub(super) fn look(&mut self, now: Timestamp) -> Observed {
        let snapshot = self.deps.snapshot.current();
        let own = snapshot.jobs.iter().filter(|((node, _), _)| *node == self.deps.node);
        let orders: std::collections::BTreeMap<_, _> =
            own.map(|((_, id), order)| (id.clone(), order.value.clone())).collect();
        let mut findings = Vec::new();
        for done in std::mem::take(&mut *lock(&self.found)) {
            self.busy.remove(&done.slot);
            if let Slot::Poll(login) = done.slot {
                self.polled_at.insert(*login, now);
            }
            findings.extend(done.findings);
        }
        let is_whole = snapshot.synced && snapshot.settled.contains_key(&self.deps.node);
        for id in self.records.keys().filter(|id| is_whole && !orders.contains_key(id)) {
            self.unordered_since.entry(id.clone()).or_insert(now);
        }
        self.unordered_since.retain(|id, _| self.records.contains_key(id) && !orders.contains_key(id));
        Observed {
            orders,
            records: self.records.clone(),
            findings,
            unordered_since: self.unordered_since.clone(),
            is_whole,
            busy: self.busy.clone(),
            polled_at: self.polled_at.clone(),
        }
    }
}
