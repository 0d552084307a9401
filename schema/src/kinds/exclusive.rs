//! What only one object of the cluster can have: ports, addresses, routes, targets. Pure.

use std::fmt;

use super::pod::{PodSpec, Protocol, TakenPort};
use super::replica_set::LabelSelector;
use super::service::NODE_PORTS;
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::{OwnedStep, Rule, field_path, rules};

/// Something that only one object can have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusive {
    /// A port of every node.
    NodePort(u16, Protocol),
    /// A port of one node.
    HostPort(String, u16, Protocol),
    /// An address of a service.
    ClusterIp(String),
    /// A port of an address outside of the cluster.
    External(String, u16, Protocol),
    /// A path of a host.
    Route(String, String),
    /// The number of pods of an object.
    Scale(ObjectRef),
    /// The pods of a namespace that a selector names.
    Selector(String, String),
}

impl Exclusive {
    /// Which rule two that have it break.
    pub fn rule(&self) -> &'static Rule {
        match self {
            Exclusive::NodePort(..) | Exclusive::HostPort(..) => &rules::PORT_CLASH,
            Exclusive::ClusterIp(_) | Exclusive::External(..) => &rules::ADDRESS_CLASH,
            Exclusive::Route(..) => &rules::ROUTE_CLASH,
            Exclusive::Scale(_) => &rules::AUTOSCALER_CLASH,
            Exclusive::Selector(..) => &rules::SELECTOR_CLASH,
        }
    }

    /// What the one that loses should do, who may only share it or not.
    pub fn help(&self, shares: bool) -> &'static str {
        match self {
            Exclusive::NodePort(..) if shares => "choose another hostPort; `hostPort: 0` takes a free one",
            Exclusive::NodePort(..) => "choose another nodePort, or leave it out to get a free one",
            Exclusive::HostPort(..) => "choose another hostPort or node; `hostPort: 0` takes a free one",
            Exclusive::ClusterIp(_) => "choose another clusterIP, or leave it out to get a free one",
            Exclusive::External(..) => "choose another port, or take the address out of one of the two",
            Exclusive::Route(..) => "keep one of the two paths",
            Exclusive::Scale(_) => "keep one of the two autoscalers",
            Exclusive::Selector(..) => "give each workload a unique label in selector and template",
        }
    }
}

impl fmt::Display for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |protocol: &Protocol| match protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        match self {
            Exclusive::NodePort(port, protocol) => write!(f, "node port {port}/{}", word(protocol)),
            Exclusive::HostPort(node, port, protocol) => {
                write!(f, "host port {port}/{} of node {node}", word(protocol))
            }
            Exclusive::ClusterIp(address) => write!(f, "cluster IP {address}"),
            Exclusive::External(address, port, protocol) => {
                write!(f, "port {port}/{} of external IP {address}", word(protocol))
            }
            Exclusive::Route(host, path) => write!(f, "route {host}{path}"),
            Exclusive::Scale(target) => write!(f, "scale of {target}"),
            Exclusive::Selector(_, selector) => write!(f, "selector {selector}"),
        }
    }
}

/// What an object has, or would have, that another may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExclusiveUse {
    /// What.
    pub what: Exclusive,
    /// Others that only share it may have it, too: pods on different nodes a port that no service may have.
    pub shares: bool,
    /// The field that says so.
    pub path: Vec<OwnedStep>,
}

impl ExclusiveUse {
    /// Its holder does not share it.
    pub(super) fn alone(what: Exclusive, path: Vec<OwnedStep>) -> Self {
        Self { what, shares: false, path }
    }
}

/// Ports that a pod takes from its node. For one that names none, the scheduler finds a node; but a port
/// of a service is one of every node.
pub(super) fn host_ports(pod: &PodSpec, at: &[&str]) -> Vec<ExclusiveUse> {
    let mut found = Vec::new();
    for TakenPort { port, protocol, path } in pod.host_ports(at) {
        if let Some(node) = &pod.node_name {
            found.push(ExclusiveUse::alone(Exclusive::HostPort(node.clone(), port, protocol), path.clone()));
        }
        // No service can have any other.
        if NODE_PORTS.contains(&port) {
            found.push(ExclusiveUse { what: Exclusive::NodePort(port, protocol), shares: true, path });
        }
    }
    found
}

/// A workload's selector: no other workload of the namespace may have it.
pub(super) fn of_selector(selector: &LabelSelector, metadata: &ObjectMeta) -> Vec<ExclusiveUse> {
    let what = Exclusive::Selector(metadata.namespace.clone(), selector_text(selector));
    vec![ExclusiveUse::alone(what, field_path(&["spec", "selector"]))]
}

/// A selector as text, the same for selectors that are the same but for the order of their parts.
fn selector_text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().map(|expression| {
        let mut values: Vec<&str> = expression.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        format!("{} {:?} ({})", expression.key, expression.operator, values.join(","))
    });
    let mut parts: Vec<String> = labels.chain(expressions).collect();
    parts.sort_unstable();
    parts.join(",")
}
