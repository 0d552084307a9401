//! Plans the writes below `services/` and `routes/`, and the one to `programmed`.
//!
//! Services keep their addresses and ports; then come the manifests that name theirs, then the rest.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use schema::keys::{Key, prefix};
use schema::kinds::pod::PortReference;
use schema::kinds::service::{ServicePort, ServiceSpec, ServiceType, TrafficPolicy};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{ProgrammedRules, ServicePortRecord, ServiceRecord};
use schema::snapshot::Snapshot;

use super::allocate::{Addresses, NodePorts};
use super::endpoints::{EndpointLookup, ServiceEndpoints};
use super::hosts;
use crate::controllers::Observed;
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::Writes;

/// Returns the writes below `services/` and `routes/`.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> Writes {
    let snapshot = &*seen.snapshot;
    let mut out = Writes::default();
    for text in snapshot.malformed.keys().filter(|text| is_ours(text)) {
        if let Ok(key) = text.parse::<Key>() {
            out.note(Note::about_key(&key, NoteKind::Unreadable { key: text.clone() }));
        }
    }
    plan_services(seen, now, &mut out);
    plan_routes(snapshot, &mut out);
    out
}

/// Returns the write to `programmed`. A live node without a report programs nothing; one whose report can't be read
/// may have the oldest rules.
pub(super) fn plan_programmed(snapshot: &Snapshot) -> Writes {
    let mut out = Writes::default();
    if is_malformed(snapshot, &Key::Programmed) {
        let kind = NoteKind::Unreadable { key: Key::Programmed.to_string() };
        out.note(Note::about_key(&Key::Programmed, kind));
        return out;
    }
    let reported = snapshot.rules.iter().map(|(node, rules)| (node.clone(), rules.value.revision));
    let unreadable = snapshot.malformed.keys().filter_map(|text| match text.parse() {
        Ok(Key::Rules(node)) => Some((node, 0)),
        _ => None,
    });
    let live = reported.chain(unreadable).filter(|(node, _)| snapshot.node_is_ready(node));
    if let Some(revision) = live.map(|(_, revision)| revision).min() {
        let wanted = ProgrammedRules { revision };
        out.put_if_changed(Key::Programmed, snapshot.programmed.get(&()), &wanted, Reason::RulesReported);
    }
    out
}

fn is_ours(key: &str) -> bool {
    [prefix::SERVICES, prefix::ROUTES].iter().any(|prefix| key.starts_with(prefix))
}

fn object_reference(kind: Kind, id: &NamespacedName) -> ObjectRef {
    ObjectRef { kind, namespace: id.namespace.clone(), name: id.name.clone() }
}

fn object_key(kind: Kind, id: &NamespacedName) -> Key {
    Key::Object(object_reference(kind, id))
}

/// True if the key's value is unreadable: its content is unknown, and what depends on it stays as it is.
fn is_malformed(snapshot: &Snapshot, key: &Key) -> bool {
    snapshot.malformed.contains_key(&key.to_string())
}

fn plan_services(seen: &Observed, now: Timestamp, out: &mut Writes) {
    let snapshot = &*seen.snapshot;
    let wanted: BTreeMap<NamespacedName, &ServiceSpec> = snapshot
        .objects
        .values()
        .filter_map(|object| match &object.value.resource {
            Resource::Service(spec) => Some((reference(&object.value.metadata), &**spec)),
            _ => None,
        })
        .collect();
    let gone = |id: &NamespacedName| {
        !wanted.contains_key(id) && !is_malformed(snapshot, &object_key(Kind::Service, id))
    };
    for (id, record) in snapshot.services.iter().filter(|(id, _)| gone(id)) {
        out.delete(Key::Service(id.clone()), record.mod_revision, Reason::OwnerGone);
    }
    // An unreadable address may be any address: allocate nothing until it is repaired.
    let blind = snapshot.malformed.keys().any(|key| key.starts_with(prefix::SERVICES));
    let given = allocate_all(seen, &wanted, blind, out);
    let lookup = EndpointLookup::new(snapshot, &wanted, now);
    if let Some(at) = lookup.changes_at() {
        out.plan_again_by(at);
    }
    for (id, spec) in &wanted {
        let key = Key::Service(id.clone());
        let present = snapshot.services.get(id).filter(|_| !is_malformed(snapshot, &key));
        let record = match (given.get(id), present) {
            _ if is_malformed(snapshot, &key) => continue,
            (Some(given), _) => {
                let mut record = record(spec, given, lookup.endpoints_of(id, spec));
                let object = snapshot.objects.get(&object_reference(Kind::Service, id));
                record.hash = object.map(|object| object.value.hash.clone()).unwrap_or_default();
                record
            }
            (None, Some(former)) => held_record(spec, &former.value, |spec| lookup.endpoints_of(id, spec)),
            (None, None) => continue,
        };
        out.put_if_changed(key, present, &record, Reason::Published);
    }
}

fn reference(metadata: &schema::meta::ObjectMeta) -> NamespacedName {
    NamespacedName::new(&metadata.namespace, &metadata.name)
}

/// Address and node ports allocated to a service.
#[derive(Debug, Default)]
struct Allocation {
    address: Option<Ipv4Addr>,
    node_ports: Vec<Option<u16>>,
}

/// Allocates addresses and ports. A service that can't have its own is missing from the result and gets a note; it
/// keeps what it had, and no other service gets that.
fn allocate_all(
    seen: &Observed,
    wanted: &BTreeMap<NamespacedName, &ServiceSpec>,
    blind: bool,
    out: &mut Writes,
) -> BTreeMap<NamespacedName, Allocation> {
    let mut holding: BTreeMap<NamespacedName, NoteKind> = BTreeMap::new();
    loop {
        let (given, failed) = allocate_except(seen, wanted, blind, &holding);
        let (with_record, without): (BTreeMap<_, _>, BTreeMap<_, _>) =
            failed.into_iter().partition(|(id, _)| seen.snapshot.services.contains_key(id));
        let is_settled = with_record.is_empty();
        // What these hold may have been allocated to another: try again, each time with more holders.
        holding.extend(with_record);
        if is_settled {
            for (id, why) in holding.into_iter().chain(without) {
                out.note(Note::about_key(&Key::Service(id), why));
            }
            return given;
        }
    }
}

/// Allocates addresses and ports to all services but those that are `holding` what they had. Also returns the
/// services that can't have their own, with the reason.
fn allocate_except(
    seen: &Observed,
    wanted: &BTreeMap<NamespacedName, &ServiceSpec>,
    blind: bool,
    holding: &BTreeMap<NamespacedName, NoteKind>,
) -> (BTreeMap<NamespacedName, Allocation>, BTreeMap<NamespacedName, NoteKind>) {
    let mut addresses = Addresses::new(seen.settings.service_cidr);
    let mut ports = NodePorts::default();
    let present = |id: &NamespacedName| seen.snapshot.services.get(id).map(|record| &record.value);
    for (id, record) in holding.keys().filter_map(|id| Some((id, present(id)?))) {
        if let Some(address) = record.cluster_ip {
            let _ = addresses.take(address, id);
        }
        for (port, node_port) in record.ports.iter().filter_map(|port| Some((port, port.node_port?))) {
            let _ = ports.take(port.protocol, node_port, id);
        }
    }
    // First what services have and their manifests still want; then what manifests name; then the rest.
    for (id, spec) in wanted.iter().filter(|(id, _)| !holding.contains_key(*id)) {
        let Some(record) = present(id) else { continue };
        if let Some(address) = record.cluster_ip.filter(|has| keeps_address(spec, *has, &addresses)) {
            let _ = addresses.take(address, id);
        }
        for (port, node_port) in kept_ports(spec, record) {
            let _ = ports.take(spec.ports[port].protocol, node_port, id);
        }
    }
    let (mut given, mut failed) = (BTreeMap::new(), BTreeMap::new());
    for named in [true, false] {
        for (id, spec) in wanted.iter().filter(|(_, spec)| names_address_or_port(spec) == named) {
            if (blind && present(id).is_none()) || holding.contains_key(id) {
                continue;
            }
            match allocate_service(id, spec, present(id), &mut addresses, &mut ports) {
                Ok(one) => {
                    given.insert(id.clone(), one);
                }
                Err(why) => drop(failed.insert(id.clone(), why)),
            }
        }
    }
    (given, failed)
}

/// True if the manifest names the address or a port.
fn names_address_or_port(spec: &ServiceSpec) -> bool {
    (spec.cluster_ip.is_some() && spec.has_cluster_ip()) || spec.ports.iter().any(|p| p.node_port.is_some())
}

fn keeps_address(spec: &ServiceSpec, has: Ipv4Addr, addresses: &Addresses) -> bool {
    let wanted = spec.cluster_ip.as_deref();
    spec.has_cluster_ip() && addresses.is_usable(has) && wanted.is_none_or(|wanted| wanted.parse() == Ok(has))
}

/// Returns the node ports in the record that the manifest still wants, by the port's index in the manifest.
fn kept_ports(spec: &ServiceSpec, record: &ServiceRecord) -> Vec<(usize, u16)> {
    let node_port = |wanted: &ServicePort| {
        let same = record.ports.iter().find(|p| p.port == wanted.port && p.protocol == wanted.protocol);
        same.and_then(|p| p.node_port).filter(|has| wanted.node_port.is_none_or(|named| named == *has))
    };
    let ports = spec.ports.iter().enumerate().filter(|_| spec.kind == ServiceType::NodePort);
    ports.filter_map(|(index, port)| Some((index, node_port(port)?))).collect()
}

fn allocate_service(
    id: &NamespacedName,
    spec: &ServiceSpec,
    record: Option<&ServiceRecord>,
    addresses: &mut Addresses,
    ports: &mut NodePorts,
) -> Result<Allocation, NoteKind> {
    let mut given = Allocation { address: None, node_ports: vec![None; spec.ports.len()] };
    if spec.has_cluster_ip() {
        let kept = record.and_then(|r| r.cluster_ip).filter(|has| keeps_address(spec, *has, addresses));
        let kept = kept.filter(|has| addresses.take(*has, id).is_ok());
        given.address = Some(match (kept, spec.cluster_ip.as_deref()) {
            (Some(kept), _) => kept,
            (None, None) => addresses.take_any(id).ok_or(NoteKind::AddressesExhausted)?,
            (None, Some(named)) => {
                let taken = |why: String| NoteKind::AddressTaken { address: named.to_owned(), why };
                let address: Ipv4Addr =
                    named.parse().map_err(|_| taken("it is not an IPv4 address".to_owned()))?;
                if !addresses.is_usable(address) {
                    let why = "it is outside of --service-cidr or reserved for DNS and gateway";
                    return Err(taken(why.to_owned()));
                }
                let held = addresses.take(address, id);
                held.map_err(|holder| taken(format!("service {holder} has it")))?;
                address
            }
        });
    }
    if spec.kind == ServiceType::NodePort {
        let kept: BTreeMap<usize, u16> =
            record.map(|record| kept_ports(spec, record)).unwrap_or_default().into_iter().collect();
        for (index, port) in spec.ports.iter().enumerate() {
            let own = kept.get(&index).copied().or(port.node_port);
            let own = own.map(|own| match ports.take(port.protocol, own, id) {
                Ok(()) => Ok(own),
                Err(holder) => Err(NoteKind::NodePortTaken { port: own, holder: holder.to_string() }),
            });
            given.node_ports[index] = Some(match own {
                Some(own) => own?,
                None => ports.take_any(port.protocol, id, index).ok_or(NoteKind::NodePortsExhausted)?,
            });
        }
    }
    Ok(given)
}

fn record(spec: &ServiceSpec, given: &Allocation, behind: ServiceEndpoints) -> ServiceRecord {
    if let Some(name) = spec.alias_target() {
        return ServiceRecord { external_name: Some(name.to_owned()), ..ServiceRecord::default() };
    }
    let affinity = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let ports = spec.ports.iter().zip(&given.node_ports).map(|(port, node_port)| ServicePortRecord {
        name: port.name.clone(),
        protocol: port.protocol,
        port: port.port,
        node_port: *node_port,
    });
    ServiceRecord {
        hash: String::new(),
        cluster_ip: given.address,
        external_name: None,
        external_ips: spec.external_ips.iter().filter_map(|text| text.parse().ok()).collect(),
        ports: ports.collect(),
        endpoints: behind.endpoints,
        affinity_seconds: affinity.and_then(|client| client.timeout_seconds),
        internal_local: spec.internal_traffic_policy == TrafficPolicy::Local,
        external_local: spec.external_traffic_policy == TrafficPolicy::Local,
        left_out: behind.left_out,
        left_out_count: behind.left_out_count,
    }
}

/// Returns the record of a service that can't have its new address or port: the former record, which keeps serving
/// clients of the former address, with the present endpoints.
fn held_record(
    spec: &ServiceSpec,
    former: &ServiceRecord,
    behind: impl Fn(&ServiceSpec) -> ServiceEndpoints,
) -> ServiceRecord {
    let target = |at: usize, port: &ServicePortRecord| {
        let same = spec.ports.iter().find(|p| p.port == port.port && p.protocol == port.protocol);
        // The manifest may no longer have the port: use the former number.
        let before = || former.endpoints.iter().find_map(|e| e.ports.get(at).filter(|number| **number != 0));
        same.map_or_else(|| before().copied().map(PortReference::Number), |port| port.target_port.clone())
    };
    let ports = former.ports.iter().enumerate().map(|(at, port)| ServicePort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: port.port,
        target_port: target(at, port),
        node_port: port.node_port,
    });
    let behind = behind(&ServiceSpec { ports: ports.collect(), ..spec.clone() });
    ServiceRecord {
        endpoints: behind.endpoints,
        left_out: behind.left_out,
        left_out_count: behind.left_out_count,
        ..former.clone()
    }
}

fn plan_routes(snapshot: &Snapshot, out: &mut Writes) {
    let mut wanted = BTreeMap::new();
    for object in snapshot.objects.values() {
        if let Resource::Dns(spec) = &object.value.resource {
            let id = reference(&object.value.metadata);
            let mut record = hosts::route(snapshot, &id, spec);
            record.hash.clone_from(&object.value.hash);
            wanted.insert(id, record);
        }
    }
    for (id, route) in &snapshot.routes {
        if !wanted.contains_key(id) && !is_malformed(snapshot, &object_key(Kind::Dns, id)) {
            out.delete(Key::Route(id.clone()), route.mod_revision, Reason::OwnerGone);
        }
    }
    for (id, record) in &wanted {
        let key = Key::Route(id.clone());
        if !is_malformed(snapshot, &key) {
            out.put_if_changed(key, snapshot.routes.get(id), record, Reason::Published);
        }
    }
}
