//! Reads what the DNS loop decides on: the node's range, `resolv.conf`, systemd-resolved, our server.

use schema::records::dns_address;

use super::plan::Observed;
use super::{DnsLoop, host, hosts};

impl DnsLoop {
    pub(super) async fn look(&mut self) -> Observed {
        let subnet = self.deps.subnet.borrow_and_update().clone();
        let hosts = hosts(&self.deps.catalog.borrow_and_update());
        let (machine, former, link) = self.files.read();
        let node_dns = self.deps.settings.node_dns;
        // Without the flag one look is enough: what a former agent left is taken back once.
        let ask = machine.resolved.is_some() && machine.own_is_stub() && (node_dns || !self.asked_resolved);
        let split = match ask {
            true => host::split(&host::bridge(&self.deps.instance)).await,
            false => None,
        };
        self.asked_resolved = true;
        Observed {
            instance: self.deps.instance.clone(),
            domain: self.deps.settings.domain_text(),
            address: subnet.map(|subnet| dns_address(subnet.service_cidr)),
            bound: self.running.as_ref().and_then(|running| running.address()),
            given: self.deps.settings.upstream.clone(),
            asked: self.forwarders.borrow().upstreams().to_vec(),
            machine,
            link,
            path: self.files.path(),
            former,
            node_dns,
            split,
            hosts,
        }
    }
}
