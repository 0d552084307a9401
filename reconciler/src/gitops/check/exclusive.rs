//! What only one object of the cluster can have: ports, addresses, routes, targets. Pure.

use std::collections::BTreeMap;
use std::fmt;

use schema::kinds::pod::{PodSpec, Protocol, TakenPort};
use schema::kinds::replica_set::LabelSelector;
use schema::kinds::service::{NODE_PORTS, ServiceSpec, ServiceType};
use schema::kinds::{Resource, field_path};
use schema::meta::{ObjectMeta, ObjectRef};
use schema::violation::{OwnedStep, Rule, rules};

use super::reference::indexed;

/// So many ports of external addresses are looked at: far more than a service has, and few enough where
/// it has thousands of both.
const EXTERNAL_MAX: usize = 1000;

/// Something that only one object can have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::gitops) enum Exclusive {
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
    pub(super) fn rule(&self) -> &'static Rule {
        match self {
            Exclusive::NodePort(..) | Exclusive::HostPort(..) => &rules::PORT_CLASH,
            Exclusive::ClusterIp(_) | Exclusive::External(..) => &rules::ADDRESS_CLASH,
            Exclusive::Route(..) => &rules::ROUTE_CLASH,
            Exclusive::Scale(_) => &rules::AUTOSCALER_CLASH,
            Exclusive::Selector(..) => &rules::SELECTOR_CLASH,
        }
    }

    /// What the one that loses should do, who may only share it or not.
    pub(super) fn help(&self, shares: bool) -> &'static str {
        match self {
            Exclusive::NodePort(..) if shares => "choose another hostPort; `hostPort: 0` takes a free one",
            Exclusive::NodePort(..) => "choose another nodePort, or leave it out to get a free one",
            Exclusive::HostPort(..) => "choose another hostPort or node; `hostPort: 0` takes a free one",
            Exclusive::ClusterIp(_) => "choose another clusterIP, or leave it out to get a free one",
            Exclusive::External(..) => "choose another port, or take the address out of one of the two",
            Exclusive::Route(..) => "keep one of the two paths",
            Exclusive::Scale(_) => "keep one of the two autoscalers",
            Exclusive::Selector(..) => "give each replica set a unique label in selector and template",
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
pub(in crate::gitops) struct Wish {
    pub(in crate::gitops) what: Exclusive,
    /// Others that only share it may have it, too: pods on different nodes a port that no service may have.
    pub(in crate::gitops) shares: bool,
    /// The field that says so.
    pub(super) path: Vec<OwnedStep>,
}

impl Wish {
    fn alone(what: Exclusive, path: Vec<OwnedStep>) -> Self {
        Self { what, shares: false, path }
    }
}

/// What an object has that another may not have, with the fields that say so.
pub(in crate::gitops) fn exclusives(metadata: &ObjectMeta, resource: &Resource) -> Vec<Wish> {
    match resource {
        Resource::Pod(pod) => host_ports(pod, &["spec"]),
        Resource::ReplicaSet(set) => {
            let key = Exclusive::Selector(metadata.namespace.clone(), selector(&set.selector));
            let mut found = vec![Wish::alone(key, field_path(&["spec", "selector"]))];
            if set.replicas > 0 {
                found.extend(host_ports(&set.template.spec, &["spec", "template", "spec"]));
            }
            found
        }
        Resource::Service(service) => of_service(service),
        Resource::Dns(dns) => {
            let host = dns.host.trim_end_matches('.').to_ascii_lowercase();
            let route = |path: &str| Exclusive::Route(host.clone(), format!("/{}", path.trim_matches('/')));
            let paths = dns.paths.iter().enumerate();
            let at = |index| indexed(&["spec", "paths"], index, &["path"]);
            paths.map(|(index, path)| Wish::alone(route(&path.path), at(index))).collect()
        }
        Resource::HorizontalPodAutoscaler(hpa) => {
            let target = &hpa.scale_target_ref;
            let kind = target.kind.kind();
            let (namespace, name) = (metadata.namespace.clone(), target.name.clone());
            let scale = Exclusive::Scale(ObjectRef { kind, namespace, name });
            vec![Wish::alone(scale, field_path(&["spec", "scaleTargetRef", "name"]))]
        }
        Resource::Cluster(_)
        | Resource::Node(_)
        | Resource::Function(_)
        | Resource::Workflow(_)
        | Resource::Job(_) => Vec::new(),
    }
}

fn of_service(service: &ServiceSpec) -> Vec<Wish> {
    let mut found = Vec::new();
    if let Some(address) = service.cluster_ip.as_deref().filter(|a| !a.is_empty() && *a != "None") {
        found.push(Wish::alone(Exclusive::ClusterIp(address.to_owned()), field_path(&["spec", "clusterIP"])));
    }
    for (index, port) in service.ports.iter().enumerate() {
        if let (ServiceType::NodePort, Some(node_port @ 1..)) = (service.kind, port.node_port) {
            let path = indexed(&["spec", "ports"], index, &["nodePort"]);
            found.push(Wish::alone(Exclusive::NodePort(node_port, port.protocol), path));
        }
    }
    let addresses: BTreeMap<&String, usize> =
        service.external_ips.iter().enumerate().map(|(index, address)| (address, index)).collect();
    let pairs = addresses.iter().flat_map(|(address, index)| {
        service.ports.iter().map(move |port| (*address, *index, (port.port, port.protocol)))
    });
    found.extend(pairs.take(EXTERNAL_MAX).map(|(address, index, (port, protocol))| {
        let what = Exclusive::External(address.clone(), port, protocol);
        Wish::alone(what, indexed(&["spec", "externalIPs"], index, &[]))
    }));
    found
}

/// Ports that a pod takes from its node. For one that names none, the scheduler finds a node; but a port
/// of a service is one of every node.
fn host_ports(pod: &PodSpec, at: &[&str]) -> Vec<Wish> {
    let mut found = Vec::new();
    for TakenPort { port, protocol, path } in pod.host_ports(at) {
        if let Some(node) = &pod.node_name {
            found.push(Wish::alone(Exclusive::HostPort(node.clone(), port, protocol), path.clone()));
        }
        // No service can have any other.
        if NODE_PORTS.contains(&port) {
            found.push(Wish { what: Exclusive::NodePort(port, protocol), shares: true, path });
        }
    }
    found
}

/// A selector as text, the same for selectors that are the same but for the order of their parts.
fn selector(selector: &LabelSelector) -> String {
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
