//! The cluster's zone: answers derived from the known services and routes. Pure.
//!
//! Names, record types and negative answers follow the Kubernetes DNS specification 1.1.0
//! (`kubernetes/dns:docs/specification.md`); hosts of Dns objects are added, inside the zone or not. The index is
//! built once per catalog; a lookup is one access to a hash table.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use hickory_proto::rr::rdata::{A, PTR};
use hickory_proto::rr::{LowerName, Name, RData, Record, RecordType};
use ipnet::{IpNet, Ipv4Net};
use schema::records::Subnet;

mod build;
#[cfg(test)]
mod tests;

/// Seconds for which an answer may be kept, the same as CoreDNS: a change of endpoints reaches every client within
/// that time.
pub const TTL: u32 = 5;

/// Version of the specification, for `dns-version.<zone>`.
pub const VERSION: &str = "1.1.0";

/// Maximum number of SRV target addresses to include: more would only truncate the answer.
const ADDITIONALS_MAX: usize = 16;

/// Name and address ranges of the zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneSettings {
    /// Zone, for example `cluster.local.`.
    pub domain: Name,
    pub service_cidr: Ipv4Net,
    pub cluster_cidr: Ipv4Net,
}

impl ZoneSettings {
    /// Returns the settings of a node with this range.
    pub fn new(domain: &Name, subnet: &Subnet) -> Self {
        let Subnet { service_cidr, cluster_cidr, .. } = *subnet;
        Self { domain: domain.clone(), service_cidr, cluster_cidr }
    }
}

/// Answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer<'a> {
    /// Records, with the addresses of their targets.
    Found { answers: Vec<&'a Record>, additionals: Vec<&'a Record> },
    /// A single record, made for this question.
    Synthesized(Box<Record>),
    /// The name is an alias: the question must be repeated for the target.
    Alias { record: &'a Record, target: LowerName },
    /// The name exists, without records of that type. Comes with the zone's SOA.
    NoData(&'a Record),
    /// The name does not exist. Comes with the zone's SOA.
    NoName(&'a Record),
    /// The name is in the zone, but nothing is known of the cluster yet.
    Unknown,
    /// The name is outside the zone.
    Elsewhere,
}

/// Records of a name.
#[derive(Debug, Default)]
struct NameRecords {
    /// Records by type; a name without any exists nevertheless.
    sets: Vec<(RecordType, Vec<Record>)>,
    /// SOA of negative answers, if it differs from the zone's.
    soa: Option<Box<Record>>,
}

/// Index of all names.
#[derive(Debug)]
pub struct Zone {
    origin: LowerName,
    pods: LowerName,
    cluster_cidr: Ipv4Net,
    /// Addresses of nodes, which pods with `hostNetwork` share.
    nodes: BTreeSet<Ipv4Addr>,
    /// Ranges for which this zone is the only source of reverse names, each with its SOA.
    reverse: Vec<(Ipv4Net, Record)>,
    soa: Record,
    entries: HashMap<LowerName, NameRecords>,
    /// Set if the catalog is known.
    known: bool,
}

impl Zone {
    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Answers a question of class IN.
    pub fn answer(&self, name: &LowerName, kind: RecordType) -> Answer<'_> {
        if let Some(entry) = self.entries.get(name) {
            return self.answer_for_entry(entry, kind);
        }
        if self.origin.zone_of(name) {
            return match self.known {
                true => self.answer_for_pod(name, kind).unwrap_or(Answer::NoName(&self.soa)),
                false => Answer::Unknown,
            };
        }
        self.answer_for_reverse(name)
    }

    fn answer_for_entry<'a>(&'a self, entry: &'a NameRecords, kind: RecordType) -> Answer<'a> {
        let wanted = entry.sets.iter().filter(|(of, _)| *of == kind || kind == RecordType::ANY);
        let answers: Vec<&Record> = wanted.flat_map(|(_, records)| records).collect();
        if answers.is_empty() {
            let records = entry.sets.iter().flat_map(|(_, records)| records);
            let alias = records.filter_map(|record| match &record.data {
                RData::CNAME(to) => Some(Answer::Alias { record, target: LowerName::new(&to.0) }),
                _ => None,
            });
            if let Some(alias) = alias.into_iter().next() {
                return alias;
            }
            return Answer::NoData(entry.soa.as_deref().unwrap_or(&self.soa));
        }
        let targets = answers.iter().filter_map(|record| match &record.data {
            RData::SRV(srv) => self.entries.get(&LowerName::from(&srv.target)),
            _ => None,
        });
        let addresses = targets.flat_map(|entry| &entry.sets).filter(|(of, _)| *of == RecordType::A);
        let additionals = addresses.flat_map(|(_, records)| records).take(ADDITIONALS_MAX).collect();
        Answer::Found { answers, additionals }
    }

    /// Answers for `a-b-c-d.<namespace>.pod.<zone>` and the names above it. Pods are not looked up, which is
    /// CoreDNS's default, and of other nodes' pods on the host's network only their node's address is known;
    /// addresses that can't be a pod's are denied.
    fn answer_for_pod(&self, name: &LowerName, kind: RecordType) -> Option<Answer<'_>> {
        if !self.pods.zone_of(name) {
            return None;
        }
        match name.num_labels() - self.pods.num_labels() {
            1 => Some(Answer::NoData(&self.soa)),
            2 => {
                let address: Ipv4Addr = name
                    .iter()
                    .next()
                    .and_then(|label| std::str::from_utf8(label).ok())
                    .filter(|label| !label.contains('.'))
                    .and_then(|label| label.replace('-', ".").parse().ok())
                    .filter(|address| self.cluster_cidr.contains(address) || self.nodes.contains(address))?;
                Some(match kind {
                    RecordType::A | RecordType::ANY => {
                        let record = Record::from_rdata(name.into(), TTL, RData::A(A(address)));
                        Answer::Synthesized(Box::new(record))
                    }
                    _ => Answer::NoData(&self.soa),
                })
            }
            _ => None,
        }
    }

    /// Answers for reverse names of the cluster's ranges: a name unknown here is unknown everywhere.
    fn answer_for_reverse(&self, name: &LowerName) -> Answer<'_> {
        let Ok(IpNet::V4(net)) = name.parse_arpa_name() else { return Answer::Elsewhere };
        for (range, soa) in &self.reverse {
            if range.contains(&net) {
                return match (self.known, net.prefix_len()) {
                    (false, _) => Answer::Unknown,
                    (true, 32) => Answer::NoName(soa),
                    (true, _) => Answer::NoData(soa),
                };
            }
        }
        Answer::Elsewhere
    }
}

/// Returns the reverse name of an address.
fn reverse_name(address: Ipv4Addr) -> Name {
    Name::from(IpAddr::V4(address))
}

fn address_record(name: &Name, address: Ipv4Addr) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::A(A(address)))
}

fn pointer(address: Ipv4Addr, to: &Name) -> Record {
    Record::from_rdata(reverse_name(address), TTL, RData::PTR(PTR(to.clone())))
}
