//! What only one object of the cluster can have: ports, addresses, routes, targets. Pure.

use std::fmt;

use schema::kinds::pod::{PodSpec, Protocol};
use schema::kinds::replica_set::LabelSelector;
use schema::kinds::service::ServiceType;
use schema::kinds::{Resource, field_path};
use schema::meta::{ObjectMeta, ObjectRef};
use schema::violation::{OwnedStep, Rule, rules};

use super::reference::indexed;

/// Something that only one object can have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::gitops) enum Exclusive {
    /// A port of every node.
    NodePort(u16, Protocol),
    /// A port of one node.
    HostPort(String, u16, Protocol),
    /// An address of a service.
    ClusterIp(String),
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
            Exclusive::ClusterIp(_) => &rules::ADDRESS_CLASH,
            Exclusive::Route(..) => &rules::ROUTE_CLASH,
            Exclusive::Scale(_) => &rules::AUTOSCALER_CLASH,
            Exclusive::Selector(..) => &rules::SELECTOR_CLASH,
        }
    }

    /// What the one that loses should do.
    pub(super) fn help(&self) -> &'static str {
        match self {
            Exclusive::NodePort(..) => "choose another nodePort, or leave it out to get a free one",
            Exclusive::HostPort(..) => "choose another hostPort or node; `hostPort: 0` takes a free one",
            Exclusive::ClusterIp(_) => "choose another clusterIP, or leave it out to get a free one",
            Exclusive::Route(..) => "keep one of the two paths",
            Exclusive::Scale(_) => "keep one of the two autoscalers",
            Exclusive::Selector(..) => "give each replica set a label of its own in selector and template",
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
            Exclusive::Route(host, path) => write!(f, "route {host}{path}"),
            Exclusive::Scale(target) => write!(f, "scale of {target}"),
            Exclusive::Selector(_, selector) => write!(f, "selector {selector}"),
        }
    }
}

/// What an object has that no other may have, with the field that says so.
pub(in crate::gitops) fn exclusives(
    metadata: &ObjectMeta,
    resource: &Resource,
) -> Vec<(Exclusive, Vec<OwnedStep>)> {
    match resource {
        Resource::Pod(pod) => host_ports(pod),
        Resource::Service(service) => {
            let mut found = Vec::new();
            if let Some(address) = service.cluster_ip.as_deref().filter(|a| !a.is_empty() && *a != "None") {
                found.push((Exclusive::ClusterIp(address.to_owned()), field_path(&["spec", "clusterIP"])));
            }
            for (index, port) in service.ports.iter().enumerate() {
                if let (ServiceType::NodePort, Some(node_port @ 1..)) = (service.kind, port.node_port) {
                    let path = indexed(&["spec", "ports"], index, &["nodePort"]);
                    found.push((Exclusive::NodePort(node_port, port.protocol), path));
                }
            }
            found
        }
        Resource::Dns(dns) => {
            let host = dns.host.trim_end_matches('.').to_ascii_lowercase();
            let route = |path: &str| Exclusive::Route(host.clone(), format!("/{}", path.trim_matches('/')));
            let paths = dns.paths.iter().enumerate();
            paths
                .map(|(index, path)| (route(&path.path), indexed(&["spec", "paths"], index, &["path"])))
                .collect()
        }
        Resource::HorizontalPodAutoscaler(hpa) => {
            let target = &hpa.scale_target_ref;
            let kind = target.kind.kind();
            let (namespace, name) = (metadata.namespace.clone(), target.name.clone());
            let scale = Exclusive::Scale(ObjectRef { kind, namespace, name });
            vec![(scale, field_path(&["spec", "scaleTargetRef", "name"]))]
        }
        Resource::ReplicaSet(set) => {
            let key = Exclusive::Selector(metadata.namespace.clone(), selector(&set.selector));
            vec![(key, field_path(&["spec", "selector"]))]
        }
        Resource::Cluster(_)
        | Resource::Node(_)
        | Resource::Function(_)
        | Resource::Workflow(_)
        | Resource::Job(_) => Vec::new(),
    }
}

/// Ports that a pod takes from the one node that it names. For others, the scheduler finds a node.
fn host_ports(pod: &PodSpec) -> Vec<(Exclusive, Vec<OwnedStep>)> {
    let Some(node) = &pod.node_name else { return Vec::new() };
    let mut found = Vec::new();
    for (at, container) in pod.containers.iter().enumerate() {
        for (index, port) in container.ports.iter().enumerate() {
            let Some(host_port @ 1..) = port.host_port else { continue };
            let mut path = indexed(&["spec", "containers"], at, &["ports"]);
            path.push(OwnedStep::Index(index));
            path.extend(field_path(&["hostPort"]));
            found.push((Exclusive::HostPort(node.clone(), host_port, port.protocol), path));
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
