//! Plans for nodes: pod address ranges, conditions, and cleanup of nodes that are gone.
//!
//! A node keeps its range forever, even when its record is gone: the record comes back when the machine does, and
//! its pods still have their addresses. A range is free again once the node has left (`minik8s-agent reset
//! --leave`), or Git declares it gone.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::keys::{Key, prefix};
use schema::records::Subnet;
use schema::snapshot::Snapshot;

use super::conditions::{self, is_gone_and_silent};
use crate::controllers::Observed;
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};

/// Prefix length of a node's range: 254 addresses, of which the first is the bridge's.
pub(crate) const NODE_PREFIX_LEN: u8 = 24;

/// Returns the writes below `subnets/` and `nodestate/`, and the deletions of the keys of gone nodes.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> Writes {
    let mut out = Writes::default();
    plan_subnets(seen, &mut out);
    conditions::plan(seen, now, &mut out);
    conditions::remove_gone(&seen.snapshot, &mut out);
    out
}

/// Plans the writes below `subnets/`.
pub(super) fn plan_subnets(seen: &Observed, out: &mut Writes) {
    let cluster = seen.settings.cluster_cidr;
    let unreadable = unreadable_subnets(&seen.snapshot);
    for node in &unreadable {
        let key = Key::Subnet(node.clone()).to_string();
        out.note(Note::about_node(node, NoteKind::Unreadable { key }));
    }
    let rivals = duplicate_holders(&seen.snapshot);
    publish_cluster_ranges(seen, &rivals, out);
    // An unreadable range may be any range: assign nothing until it is repaired.
    if unreadable.is_empty() {
        let mut pool = Pool::new(cluster, seen.snapshot.subnets.values().map(|subnet| subnet.value.cidr));
        reassign_duplicates(seen, &rivals, &mut pool, out);
        assign(seen, &mut pool, out);
    }
}

/// The free ranges, lowest first.
struct Pool {
    cluster: Ipv4Net,
    taken: BTreeSet<Ipv4Net>,
    /// Taken ranges of another size, which a lookup in the set does not find.
    odd: Vec<Ipv4Net>,
    next: u32,
}

impl Pool {
    fn new(cluster: Ipv4Net, taken: impl Iterator<Item = Ipv4Net>) -> Self {
        let (taken, odd): (Vec<_>, Vec<_>) = taken.partition(|cidr| cidr.prefix_len() == NODE_PREFIX_LEN);
        let taken = taken.into_iter().collect();
        Self { cluster, taken, odd, next: 0 }
    }

    /// Takes this range if it is in the cluster's and free; returns false otherwise.
    fn take_exactly(&mut self, cidr: Ipv4Net) -> bool {
        let fits =
            cidr.prefix_len() == NODE_PREFIX_LEN && cidr == cidr.trunc() && self.cluster.contains(&cidr);
        fits && !self.overlaps_other_size(&cidr) && self.taken.insert(cidr)
    }

    /// True if the range overlaps a taken range of another size.
    fn overlaps_other_size(&self, cidr: &Ipv4Net) -> bool {
        self.odd.iter().any(|other| other.contains(cidr) || cidr.contains(other))
    }

    /// Takes the lowest free range. Inspects every range once, however many are requested.
    fn take(&mut self) -> Option<Ipv4Net> {
        let ranges = self.cluster.subnets(NODE_PREFIX_LEN).ok()?;
        let skip = usize::try_from(self.next).ok()?;
        for cidr in ranges.skip(skip) {
            self.next += 1;
            if !self.taken.contains(&cidr) && !self.overlaps_other_size(&cidr) {
                self.taken.insert(cidr);
                return Some(cidr);
            }
        }
        None
    }
}

fn unreadable_subnets(snapshot: &Snapshot) -> Vec<String> {
    let keys = snapshot.malformed.keys().filter(|text| text.starts_with(prefix::SUBNETS));
    keys.filter_map(|text| match text.parse() {
        Ok(Key::Subnet(node)) => Some(node),
        _ => None,
    })
    .collect()
}

/// Returns the nodes whose range another node had first, with that node. Comes only from a write believed lost, or
/// from manual changes; the earlier holder keeps the range.
fn duplicate_holders(snapshot: &Snapshot) -> BTreeMap<&str, &str> {
    let mut order: Vec<_> = snapshot.subnets.iter().collect();
    order.sort_by_key(|(node, subnet)| (subnet.create_revision, *node));
    let mut holders: BTreeMap<Ipv4Net, &str> = BTreeMap::new();
    let mut rivals = BTreeMap::new();
    for (node, subnet) in order {
        match holders.get(&subnet.value.cidr) {
            Some(holder) => {
                rivals.insert(node.as_str(), *holder);
            }
            None => {
                holders.insert(subnet.value.cidr, node);
            }
        }
    }
    rivals
}

fn reassign_duplicates(seen: &Observed, rivals: &BTreeMap<&str, &str>, pool: &mut Pool, out: &mut Writes) {
    for (node, holder) in rivals {
        let Some(present) = seen.snapshot.subnets.get(*node) else { continue };
        let Some(cidr) = pool.take() else {
            out.note(exhausted(seen, node));
            continue;
        };
        let value = subnet(seen, cidr, pool.cluster);
        let reason = Reason::SubnetReassigned { holder: (*holder).to_owned(), cidr };
        let expect = Precondition::ModRevision(present.mod_revision);
        out.put(Key::Subnet((*node).to_owned()), &value, expect, reason);
    }
}

/// Assigns a range to each node without one: the range that its pods have, as the node reports, if that is free,
/// else the lowest.
fn assign(seen: &Observed, pool: &mut Pool, out: &mut Writes) {
    let snapshot = &seen.snapshot;
    let is_without =
        |node: &String| !snapshot.subnets.contains_key(node) && !is_gone_and_silent(snapshot, node);
    let without = || snapshot.nodes.iter().filter(|(node, _)| is_without(node));
    let mut given: BTreeMap<&str, Ipv4Net> = BTreeMap::new();
    for (node, record) in without() {
        if let Some(cidr) = record.value.pod_cidr.filter(|cidr| pool.take_exactly(*cidr)) {
            given.insert(node, cidr);
        }
    }
    for (node, _) in without() {
        let (cidr, reason) = match given.get(node.as_str()) {
            Some(cidr) => (*cidr, Reason::SubnetKept { cidr: *cidr }),
            None => match pool.take() {
                Some(cidr) => (cidr, Reason::SubnetAssigned { cidr }),
                None => {
                    out.note(exhausted(seen, node));
                    continue;
                }
            },
        };
        let value = subnet(seen, cidr, pool.cluster);
        out.put(Key::Subnet(node.clone()), &value, Precondition::Absent, reason);
    }
}

fn subnet(seen: &Observed, cidr: Ipv4Net, cluster_cidr: Ipv4Net) -> Subnet {
    Subnet { cidr, cluster_cidr, service_cidr: seen.settings.service_cidr }
}

fn exhausted(seen: &Observed, node: &str) -> Note {
    let holders = seen.snapshot.subnets.len();
    let cluster_cidr = seen.settings.cluster_cidr;
    Note::about_node(node, NoteKind::SubnetsExhausted { cluster_cidr, holders })
}

/// Publishes a grown cluster range or a changed service range to the nodes. Leaves a node unchanged whose range is
/// outside the new cluster range, and notes it.
fn publish_cluster_ranges(seen: &Observed, rivals: &BTreeMap<&str, &str>, out: &mut Writes) {
    let cluster_cidr = seen.settings.cluster_cidr;
    for (node, subnet) in &seen.snapshot.subnets {
        let cidr = subnet.value.cidr;
        let settled = subnet.value.cluster_cidr == cluster_cidr
            && subnet.value.service_cidr == seen.settings.service_cidr;
        if settled || rivals.contains_key(node.as_str()) {
            continue;
        }
        if cluster_cidr.contains(&cidr) {
            let expect = Precondition::ModRevision(subnet.mod_revision);
            let value = self::subnet(seen, cidr, cluster_cidr);
            let service_cidr = seen.settings.service_cidr;
            let reason = Reason::ClusterCidrChanged { cluster_cidr, service_cidr };
            out.put(Key::Subnet(node.clone()), &value, expect, reason);
        } else {
            out.note(Note::about_node(node, NoteKind::SubnetOutside { cidr, cluster_cidr }));
        }
    }
}
