//! Observes the inputs of the services loop: renders the changed parts of the catalog, and reads the kernel's rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use schema::control::LoopError;
use schema::meta::NamespacedName;
use schema::records::Subnet;
use tokio::time::Instant;

use super::plan::{DesiredRules, Observed};
use super::render::{RenderContext, WithheldAddresses, service_rules};
use super::state::{RenderCache, ServicesLoop};
use crate::catalog::Catalog;
use crate::desired::StateOrigin;
use crate::worlds::host::own_addresses;

impl ServicesLoop {
    pub(super) async fn read_inputs(
        &mut self,
        subnet: &Subnet,
        catalog: &Arc<Catalog>,
    ) -> Result<Observed, LoopError> {
        let random_fully = self.deps.iptables.has_random_fully().await;
        let random_fully =
            random_fully.map_err(|e| LoopError::new("cannot ask iptables for its version", e))?;
        let mut own: BTreeSet<IpAddr> = self.deps.address.known().into_iter().collect();
        // Every pod has a link, so they are listed only where the answer counts.
        if catalog.services.values().any(|service| !service.value.external_ips.is_empty()) {
            let links = own_addresses();
            own.extend(links.map_err(|e| LoopError::new("cannot list the machine's addresses", e))?);
        }
        let control = self.deps.control.borrow().clone();
        let withheld = WithheldAddresses {
            all: self.deps.forbids_external_ips,
            subnet,
            own: &own,
            control: &control,
            catalog,
        };
        let place = RenderContext {
            names: self.names.clone(),
            node: self.deps.node.clone(),
            cluster_cidr: subnet.cluster_cidr,
            random_fully,
            withheld: withheld.named(),
        };
        let changed = self.rendered.render(place, catalog, Instant::now());
        let present = self.rules.read(changed).await;
        let present = present.map_err(|e| LoopError::new("cannot read the packet rules", e))?;
        Ok(Observed {
            names: self.names.clone(),
            wanted: Arc::clone(&self.rendered.wanted),
            present,
            spellings: self.spellings.known(),
            node: self.deps.address.v4(),
            udp_settled: self.udp_settled.clone(),
            revision: (catalog.known_from == StateOrigin::Etcd).then_some(catalog.revision),
        })
    }
}

impl RenderCache {
    /// Leaves a service out from the next run on. True if the reason is new.
    pub(super) fn refuse(&mut self, id: &NamespacedName, why: &str, now: Instant) -> bool {
        let Some((record, _)) = self.services.get(id) else { return false };
        let is_news = self.refused.refuse(id, Arc::clone(record), why, now);
        self.catalog = None;
        is_news
    }

    /// Does [`Refusals::put_back`](super::refused::Refusals::put_back), from the next run on.
    pub(super) fn put_back(&mut self, now: Instant) {
        if self.refused.put_back(now) {
            self.catalog = None;
        }
    }

    /// Updates the rules for the catalog's services, without the refused ones. True if anything changed.
    fn render(&mut self, place: RenderContext, catalog: &Arc<Catalog>, now: Instant) -> bool {
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
        self.wanted = Arc::new(DesiredRules::new(&place, rules.collect()));
        self.services = services;
        self.catalog = Some(Arc::clone(catalog));
        self.place = Some(place);
        true
    }
}
