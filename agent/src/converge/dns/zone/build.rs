//! Builds the index: all names of the specification, and the hosts of Dns objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

use hickory_proto::rr::rdata::{CNAME, NS, SOA, SRV, TXT};
use hickory_proto::rr::{LowerName, Name, RData, Record};
use ipnet::Ipv4Net;
use schema::kinds::pod::Protocol;
use schema::meta::NamespacedName;
use schema::records::{Endpoint, ServiceRecord, dns_address, gateway_address};

use super::{NameRecords, TTL, VERSION, Zone, ZoneSettings, address_record, pointer, reverse_name};
use crate::catalog::Catalog;
use crate::desired::StateOrigin;

/// Weight of every SRV record: all targets are equal.
const SRV_WEIGHT: u16 = 100;

impl Zone {
    /// Builds the zone of a catalog. Names that can't be spelled in DNS are left out.
    pub fn build(settings: &ZoneSettings, catalog: &Catalog) -> Self {
        let domain = &settings.domain;
        let serial = u32::try_from(catalog.revision & i64::from(u32::MAX)).unwrap_or_default();
        let server = below(domain, &["ns", "dns"]).unwrap_or_else(|| domain.clone());
        let soa = |owner: &Name| start_of_authority(owner, domain, &server, serial);
        let mut index = Index { domain: domain.clone(), entries: HashMap::new() };
        let dns = dns_address(settings.service_cidr);
        index.add(soa(domain));
        index.add(Record::from_rdata(domain.clone(), TTL, RData::NS(NS(server.clone()))));
        index.add_address(&server, dns);
        index.add(pointer(dns, &server));
        if let Some(name) = below(domain, &["dns-version"]) {
            index.add(Record::from_rdata(name, TTL, RData::TXT(TXT::new(vec![VERSION.to_owned()]))));
        }
        let pods = below(domain, &["pod"]).unwrap_or_else(|| domain.clone());
        for fixed in [Some(pods.clone()), below(domain, &["svc"])].into_iter().flatten() {
            index.entry(&fixed);
        }
        let known = catalog.known_from != StateOrigin::Unknown;
        for (id, record) in &catalog.services {
            index.add_service(id, &record.value);
        }
        let gateway = gateway_address(settings.service_cidr);
        for host in catalog.routes.values().map(|route| &route.value.host).collect::<BTreeSet<_>>() {
            index.add_host(host, gateway, &soa);
        }
        let ranges = [settings.service_cidr, settings.cluster_cidr];
        Self {
            origin: LowerName::new(domain),
            pods: LowerName::new(&pods),
            cluster_cidr: settings.cluster_cidr,
            nodes: catalog
                .peers
                .values()
                .filter_map(|peer| peer.address)
                .chain(catalog.own_address)
                .collect(),
            reverse: ranges.map(|range| (range, soa(&reverse_zone(range)))).into(),
            soa: soa(domain),
            entries: index.entries,
            known,
        }
    }
}

struct Index {
    domain: Name,
    entries: HashMap<LowerName, NameRecords>,
}

impl Index {
    /// Returns the entry of a name, creating it and the empty names between it and the zone.
    fn entry(&mut self, name: &Name) -> &mut NameRecords {
        let mut above = name.base_name();
        while self.domain.zone_of(&above) && above.num_labels() > self.domain.num_labels() {
            if self.entries.contains_key(&LowerName::new(&above)) {
                break;
            }
            self.entries.insert(LowerName::new(&above), NameRecords::default());
            above = above.base_name();
        }
        self.entries.entry(LowerName::new(name)).or_default()
    }

    fn add(&mut self, record: Record) {
        let kind = record.record_type();
        let entry = self.entry(&record.name);
        match entry.sets.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, records)) if records.contains(&record) => {}
            Some((_, records)) => records.push(record),
            None => entry.sets.push((kind, vec![record])),
        }
    }

    fn add_address(&mut self, name: &Name, address: Ipv4Addr) {
        self.add(address_record(name, address));
    }

    fn add_service(&mut self, id: &NamespacedName, record: &ServiceRecord) {
        let Some(name) = below(&self.domain, &[&id.name, &id.namespace, "svc"]) else { return };
        if let Some(target) = &record.external_name {
            return self.add_alias(name, target);
        }
        match record.cluster_ip {
            Some(address) => self.add_clustered(&name, address, record),
            None => self.add_headless(&name, record),
        }
    }

    fn add_alias(&mut self, name: Name, target: &str) {
        let Ok(mut target) = Name::from_ascii(target) else { return };
        target.set_fqdn(true);
        self.add(Record::from_rdata(name, TTL, RData::CNAME(CNAME(target))));
    }

    fn add_clustered(&mut self, name: &Name, address: Ipv4Addr, record: &ServiceRecord) {
        self.add_address(name, address);
        self.add(pointer(address, name));
        for port in &record.ports {
            let of_port = port.name.as_deref().and_then(|of| port_name(name, of, port.protocol));
            if let Some(of_port) = of_port {
                self.add(service_record(of_port, port.port, name));
            }
        }
    }

    /// Adds a headless service. Without endpoints the name does not exist, as the specification demands.
    fn add_headless(&mut self, name: &Name, record: &ServiceRecord) {
        // Each address of a service is added once, however many endpoints share it; so are host names.
        let mut addresses = Vec::with_capacity(record.endpoints.len());
        let mut named: BTreeMap<String, Vec<&Endpoint>> = BTreeMap::new();
        for endpoint in &record.endpoints {
            addresses.push(endpoint.address);
            let own = endpoint.hostname.clone().filter(|hostname| !hostname.is_empty());
            let own = own.unwrap_or_else(|| endpoint.address.to_string().replace('.', "-"));
            named.entry(own).or_default().push(endpoint);
        }
        addresses.sort_unstable();
        addresses.dedup();
        self.add_all(addresses.into_iter().map(|address| address_record(name, address)).collect());
        let mut of_ports: BTreeMap<Name, BTreeSet<(Name, u16)>> = BTreeMap::new();
        for (hostname, endpoints) in named {
            let Some(target) = below(name, &[&hostname]) else { continue };
            for endpoint in endpoints {
                self.add_address(&target, endpoint.address);
                self.add(pointer(endpoint.address, &target));
                for (port, number) in record.ports.iter().zip(&endpoint.ports).filter(|(_, n)| **n != 0) {
                    let of_port = port.name.as_deref().and_then(|of| port_name(name, of, port.protocol));
                    if let Some(of_port) = of_port {
                        of_ports.entry(of_port).or_default().insert((target.clone(), *number));
                    }
                }
            }
        }
        for (of_port, targets) in of_ports {
            let records = targets.into_iter().map(|(to, port)| service_record(of_port.clone(), port, &to));
            self.add_all(records.collect());
        }
    }

    /// Adds records of one name and type that are known to differ: comparing thousands takes too long.
    fn add_all(&mut self, records: Vec<Record>) {
        let Some(first) = records.first() else { return };
        let kind = first.record_type();
        let entry = self.entry(&first.name.clone());
        entry.sets.retain(|(of, _)| *of != kind);
        entry.sets.push((kind, records));
    }

    /// Adds a host. A service's own name wins over a host of the same name.
    fn add_host(&mut self, host: &str, gateway: Ipv4Addr, soa: &impl Fn(&Name) -> Record) {
        let Ok(mut name) = Name::from_ascii(host) else { return };
        name.set_fqdn(true);
        if self.entries.get(&LowerName::new(&name)).is_some_and(|entry| !entry.sets.is_empty()) {
            return;
        }
        let outside = !self.domain.zone_of(&name);
        self.add_address(&name, gateway);
        if outside {
            let own = soa(&name);
            self.entry(&name).soa = Some(Box::new(own));
        }
    }
}

/// Returns `parent` with `labels` prepended.
fn below(parent: &Name, labels: &[&str]) -> Option<Name> {
    labels.iter().rev().try_fold(parent.clone(), |name, label| name.prepend_label(label.as_bytes()).ok())
}

/// Returns `_port._proto.<service>`.
fn port_name(service: &Name, port: &str, protocol: Protocol) -> Option<Name> {
    let protocol = match protocol {
        Protocol::Tcp => "_tcp",
        Protocol::Udp => "_udp",
    };
    below(service, &[&format!("_{port}"), protocol])
}

fn service_record(name: Name, port: u16, target: &Name) -> Record {
    Record::from_rdata(name, TTL, RData::SRV(SRV::new(0, SRV_WEIGHT, port, target.clone())))
}

/// Creates an SOA record. No server transfers the zone, so refresh, retry and expire are CoreDNS's; negative
/// answers are kept as long as positive ones.
fn start_of_authority(owner: &Name, domain: &Name, server: &Name, serial: u32) -> Record {
    let contact = below(domain, &["hostmaster"]).unwrap_or_else(|| domain.clone());
    let soa = SOA::new(server.clone(), contact, serial, 7200, 1800, 86_400, TTL);
    Record::from_rdata(owner.clone(), TTL, RData::SOA(soa))
}

/// Returns the smallest reverse zone that holds the whole range.
fn reverse_zone(range: Ipv4Net) -> Name {
    let octets = usize::from(range.prefix_len() / 8);
    reverse_name(range.network()).trim_to(octets + 2)
}
