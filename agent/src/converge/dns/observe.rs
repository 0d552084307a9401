//! Observes the inputs of the DNS loop: the node's range, `resolv.conf`, systemd-resolved, our server.

use std::sync::Arc;

use schema::records::dns_address;

use super::plan::{Observed, Resolved};
use super::{DnsLoop, host, hosts, resolv};

impl DnsLoop {
    pub(super) async fn look(&mut self) -> Observed {
        let subnet = self.deps.subnet.borrow_and_update().clone();
        let catalog = Arc::clone(&self.deps.catalog.borrow_and_update());
        let (hosts, cluster) = (hosts(&catalog), &catalog.settings.spec.dns);
        let (machine, former, link) = self.files.read();
        let node_dns = self.deps.settings.node_dns;
        let bound = self.running.as_ref().and_then(|running| running.address());
        // Without the flag one answer is enough: leftovers of a former agent are undone once.
        let has_use = if node_dns { bound.is_some() } else { !self.asked_resolved };
        let former_link = former.as_ref().and_then(|former| former.link.as_deref());
        let resolved = match has_use && resolv::asks_resolved(&machine, link.as_deref(), former_link) {
            true => host::split_by(host::RESOLVECTL, &host::link(&self.deps.instance)).await,
            false => Resolved::NotAsked,
        };
        let address = subnet.map(|subnet| dns_address(subnet.service_cidr));
        // Without our address, ownership of the configured servers is unknown.
        self.asked_resolved |= address.is_some() && !matches!(resolved, Resolved::Silent(_));
        Observed {
            instance: self.deps.instance.clone(),
            domain: self.deps.settings.domain_text(cluster),
            address,
            bound,
            given: self.deps.settings.upstream(cluster),
            asked: self.forwarders.borrow().upstreams().to_vec(),
            machine,
            link,
            path: self.files.path(),
            former,
            node_dns,
            resolved,
            hosts,
        }
    }
}
