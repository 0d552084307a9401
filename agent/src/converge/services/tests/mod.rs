//! The services loop: golden rules, laws that hold for all rules, decisions, and everything on the real kernel.

mod fakes;
mod golden;
mod kernel;
mod laws;
mod parts;
mod spellings;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use schema::kinds::pod::Protocol;
use schema::meta::NamespacedName;
use schema::records::{Endpoint, ServicePortRecord, ServiceRecord};

use super::names::ServiceNames;
use super::plan::{DesiredRules, Observed, UdpCheck, plan};
use super::present::{ExistingRules, present};
use super::render::{RenderContext, service_rules};
use crate::packet_rules::restore::restore_input;
use crate::packet_rules::testing::{BARE, after_restore};

fn place() -> RenderContext {
    RenderContext {
        names: ServiceNames::for_instance("mk8s"),
        node: "here".to_owned(),
        cluster_cidr: "10.244.0.0/16".parse().unwrap(),
        random_fully: true,
        withheld: Default::default(),
    }
}

fn port(protocol: Protocol, number: u16, node_port: Option<u16>) -> ServicePortRecord {
    ServicePortRecord { name: None, protocol, port: number, node_port }
}

/// Parses an endpoint such as `10.244.3.5:8080`; it is on the node `here` if its address begins with `10.244.3.`.
fn endpoint(text: &str) -> Endpoint {
    let address: SocketAddrV4 = text.parse().unwrap();
    let node = if text.starts_with("10.244.3.") { "here" } else { "there" };
    Endpoint {
        address: *address.ip(),
        ports: vec![address.port()],
        node: Some(node.to_owned()),
        pod: None,
        hostname: None,
    }
}

/// A service at 10.96.0.5 with the single port 80.
fn service(endpoints: &[&str]) -> ServiceRecord {
    ServiceRecord {
        cluster_ip: Some("10.96.0.5".parse().unwrap()),
        ports: vec![port(Protocol::Tcp, 80, None)],
        endpoints: endpoints.iter().map(|text| endpoint(text)).collect(),
        ..ServiceRecord::default()
    }
}

/// The node's own address.
const HERE: Option<Ipv4Addr> = Some(Ipv4Addr::new(192, 0, 2, 1));

fn id(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

fn wanted(services: &[(&str, &ServiceRecord)]) -> DesiredRules {
    let place = place();
    let rules =
        services.iter().map(|(name, record)| (id(name), Arc::new(service_rules(&place, &id(name), record))));
    DesiredRules::new(&place, rules.collect())
}

fn observed(wanted: DesiredRules, saved: &str) -> Observed {
    seen(wanted, present(saved, &place().names))
}

fn seen(wanted: DesiredRules, present: ExistingRules) -> Observed {
    Observed {
        names: place().names,
        node: HERE,
        udp_settled: Some(UdpCheck { serving: Arc::clone(&wanted.udp), node: HERE }),
        wanted: Arc::new(wanted),
        present: Arc::new(present),
        spellings: Arc::default(),
        revision: Some(1),
    }
}

/// The input for `iptables-restore`.
fn input(observed: &Observed) -> String {
    let changes: Vec<_> = plan(observed).rules.into_iter().map(|(change, _)| change).collect();
    restore_input(&changes)
}

/// State of a node that had no rules after these services are programmed.
fn programmed(services: &[(&str, &ServiceRecord)]) -> String {
    after_restore(BARE, &input(&observed(wanted(services), BARE)))
}
