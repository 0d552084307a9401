//! Reads what the services loop decides on: renders what changed in the catalog, and looks at the
//! kernel's rules.
//!
//! All rules of a large cluster take a second of CPU to read. Where the kernel counts their changes
//! they are read when somebody else has changed some, and what we write is known without looking.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schema::control::LoopError;
use schema::meta::NamespacedName;
use schema::records::Subnet;
use tokio::time::Instant;

use super::plan::{Observed, Wanted};
use super::present::{Present, present};
use super::render::{Place, service_rules};
use super::{Rendered, ServicesLoop};
use crate::catalog::Catalog;
use crate::desired::Source;
use crate::worlds::iptables::IptablesError;

/// All rules are read this often though nothing says that they changed: should the count be wrong,
/// they are right again within this time.
const AUDIT: Duration = Duration::from_secs(60);

/// An audit of very many rules comes later: one hundredth of a core is enough for it.
const AUDIT_SHARE: u32 = 100;

/// Between two reads that others cause by changing rules without end: a quarter of a core at most.
const READ_SHARE: u32 = 3;
/// But not more than this, which with the rules of 1,000 services is a third of a core: what others flush is
/// back within 5 s.
const READ_WAIT_MAX: Duration = Duration::from_secs(2);

/// What is known of the kernel's rules.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// What is there; none when nobody knows.
    pub(super) present: Option<Arc<Present>>,
    /// The kernel's count at which that was so.
    pub(super) generation: Option<u32>,
    /// When all was read, and how long it took.
    last: Option<(Instant, Duration)>,
    /// Since when it is known that others have changed something, or may have.
    owed: Option<Instant>,
}

/// A read waits this long at most for services that changed: their rules are written by what is known.
const OWED_MAX: Duration = Duration::from_secs(1);

impl Reading {
    /// In which time all rules are to be read, if the kernel's count is this.
    fn due_in(&self, generation: Option<u32>, now: Instant) -> Duration {
        let (Some(_), Some((at, took))) = (&self.present, self.last) else { return Duration::ZERO };
        let wait = match self.is_of(generation) {
            true => AUDIT.max(took * AUDIT_SHARE),
            false => READ_WAIT_MAX.min(took * READ_SHARE),
        };
        wait.saturating_sub(now.duration_since(at))
    }

    /// A change of services may be written before the read that is due: should somebody have taken away
    /// what it leads to, the read that follows shows it.
    fn may_wait(&self, now: Instant) -> bool {
        self.owed.is_none_or(|since| now.duration_since(since) < OWED_MAX)
    }

    fn is_of(&self, generation: Option<u32>) -> bool {
        generation.is_some() && generation == self.generation
    }
}

impl ServicesLoop {
    pub(super) async fn look(
        &mut self,
        subnet: &Subnet,
        catalog: &Arc<Catalog>,
    ) -> Result<Observed, LoopError> {
        let random_fully = self.random_fully().await?;
        let place = Place {
            names: self.names.clone(),
            node: self.deps.node.clone(),
            cluster_cidr: subnet.cluster_cidr,
            random_fully,
        };
        let changed = self.rendered.render(place, catalog, Instant::now());
        let present = self.read(changed).await?;
        Ok(Observed {
            names: self.names.clone(),
            wanted: Arc::clone(&self.rendered.wanted),
            present,
            spellings: self.spellings.known(),
            node: self.deps.address.v4(),
            udp_settled: self.udp_settled.clone(),
            revision: (catalog.source == Source::Etcd).then_some(catalog.revision),
        })
    }

    async fn random_fully(&mut self) -> Result<bool, LoopError> {
        if let Some(known) = self.random_fully {
            return Ok(known);
        }
        let has = self.deps.iptables.has_random_fully().await;
        let has = has.map_err(|e| LoopError::new("cannot ask iptables for its version", e))?;
        Ok(*self.random_fully.insert(has))
    }

    /// What is there; `changed`: there is something to write that should not wait.
    async fn read(&mut self, changed: bool) -> Result<Arc<Present>, LoopError> {
        let generation = self.deps.iptables.generation().await;
        let begun = Instant::now();
        let due_in = self.reading.due_in(generation, begun);
        if !self.reading.is_of(generation) {
            self.reading.owed.get_or_insert(begun);
        }
        self.read_again = (!due_in.is_zero() && !self.reading.is_of(generation)).then_some(due_in);
        if let Some(known) = self.reading.present.clone() {
            if !due_in.is_zero() {
                return Ok(known);
            }
            if changed && generation.is_some() && self.reading.may_wait(begun) {
                self.read_again = Some(Duration::ZERO);
                return Ok(known);
            }
        }
        let read = self.read_all(generation).await;
        read.map_err(|e| LoopError::new("cannot read the packet rules", e))
    }

    /// Reads all rules; `generation` is the kernel's count of before: should somebody have changed a
    /// rule meanwhile, it shows the next time.
    pub(super) async fn read_all(&mut self, generation: Option<u32>) -> Result<Arc<Present>, IptablesError> {
        let begun = Instant::now();
        let text = self.deps.iptables.save().await?;
        let present = Arc::new(present(&text, &self.names));
        let ended = Instant::now();
        self.reading = Reading {
            present: Some(Arc::clone(&present)),
            generation,
            last: Some((ended, ended.duration_since(begun))),
            owed: None,
        };
        Ok(present)
    }
}

impl Rendered {
    /// Leaves a service out from the next run on. True if the reason is news.
    pub(super) fn refuse(&mut self, id: &NamespacedName, why: &str, now: Instant) -> bool {
        let Some((record, _)) = self.services.get(id) else { return false };
        let is_news = self.refused.refuse(id, Arc::clone(record), why, now);
        self.catalog = None;
        is_news
    }

    /// As [`Refusals::put_back`](super::refused::Refusals::put_back), from the next run on.
    pub(super) fn put_back(&mut self, now: Instant) {
        if self.refused.put_back(now) {
            self.catalog = None;
        }
    }

    /// Brings the rules up to the catalog's services, without those that are refused. True if there was
    /// anything to bring up.
    fn render(&mut self, place: Place, catalog: &Arc<Catalog>, now: Instant) -> bool {
        let same_place = self.place.as_ref() == Some(&place);
        let seen = self.catalog.as_ref().filter(|_| same_place && !self.refused.is_due(now));
        if seen.is_some_and(|seen| seen.services.ptr_eq(&catalog.services)) {
            self.catalog = Some(Arc::clone(catalog));
            return false;
        }
        let mut former = std::mem::take(&mut self.services);
        if !same_place {
            former.clear();
        }
        let mut services = BTreeMap::new();
        for (id, record) in &catalog.services {
            let known = former.remove(id).filter(|(rendered, _)| Arc::ptr_eq(rendered, record));
            let rules = match known {
                Some((_, rules)) => rules,
                None => Arc::new(service_rules(&place, id, &record.value)),
            };
            services.insert(id.clone(), (Arc::clone(record), rules));
        }
        self.refused.forget_changed(|id| services.get(id).map(|(record, _)| &record.value));
        self.refused.try_again(now);
        let rules = services.iter().filter(|(id, _)| !self.refused.leaves_out(id));
        let rules = rules.map(|(id, (_, rules))| (id.clone(), Arc::clone(rules)));
        self.wanted = Arc::new(Wanted::new(&place, rules.collect()));
        self.services = services;
        self.catalog = Some(Arc::clone(catalog));
        self.place = Some(place);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(took_ms: u64, at: Instant) -> Reading {
        let last = Some((at, Duration::from_millis(took_ms)));
        Reading { present: Some(Arc::default()), generation: Some(7), last, owed: None }
    }

    #[test]
    fn all_rules_are_read_when_they_changed_or_may_have_and_else_rarely() {
        let at = Instant::now();
        let due = |took: u64, generation: Option<u32>, after_ms: u64| {
            reading(took, at).due_in(generation, at + Duration::from_millis(after_ms)).is_zero()
        };
        assert!(Reading::default().due_in(Some(7), at).is_zero(), "nothing is known yet");
        assert!(!due(10, Some(7), 59_000) && due(10, Some(7), 60_000), "an audit each minute");
        assert!(!due(1_100, Some(7), 100_000) && due(1_100, Some(7), 110_000), "of many rules later");
        assert!(due(10, Some(8), 30) && !due(10, Some(8), 29), "somebody changed a rule");
        assert!(due(1_100, Some(8), 2_000), "a flush of many rules is seen in less than 5 s");
        assert!(due(10, None, 3_000), "where nothing counts all is read each time");
    }
}
