//! Exclusive resources, each of which only one object of the cluster may have: ports, addresses, routes, targets.
//! Pure.

use std::fmt;

use super::pod::{HostPort, HostPortUse, PodSpec, Protocol};
use super::service::NODE_PORTS;
use crate::meta::ObjectRef;
use crate::violation::{OwnedStep, Rule, rules};

/// A resource that only one object may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExclusiveResource {
    /// A port of every node.
    NodePort(u16, Protocol),
    /// A port of one node, at one of its addresses or at all.
    HostPort(String, HostPort),
    /// A cluster IP of a service.
    ClusterIp(String),
    /// A port of an external IP.
    ExternalPort(String, u16, Protocol),
    /// A path of a host.
    Route(String, String),
    /// The replica count of an object.
    Scale(ObjectRef),
}

impl ExclusiveResource {
    /// Returns the rule that two users of the resource violate.
    pub fn rule(&self) -> &'static Rule {
        match self {
            ExclusiveResource::NodePort(..) | ExclusiveResource::HostPort(..) => &rules::PORT_CLASH,
            ExclusiveResource::ClusterIp(_) | ExclusiveResource::ExternalPort(..) => &rules::ADDRESS_CLASH,
            ExclusiveResource::Route(..) => &rules::ROUTE_CLASH,
            ExclusiveResource::Scale(_) => &rules::AUTOSCALER_CLASH,
        }
    }

    /// Returns advice for the object that loses the conflict. `shares`: the object only shares the resource.
    pub fn help(&self, shares: bool) -> &'static str {
        match self {
            ExclusiveResource::NodePort(..) if shares => {
                "choose another hostPort; `hostPort: 0` picks a free one"
            }
            ExclusiveResource::NodePort(..) => "choose another nodePort, or leave it out to get a free one",
            ExclusiveResource::HostPort(..) => {
                "choose another hostPort or node; `hostPort: 0` picks a free one"
            }
            ExclusiveResource::ClusterIp(_) => "choose another clusterIP, or leave it out to get a free one",
            ExclusiveResource::ExternalPort(..) => {
                "choose another port, or remove the address from one of the two"
            }
            ExclusiveResource::Route(..) => "keep one of the two paths",
            ExclusiveResource::Scale(_) => "keep one of the two autoscalers",
        }
    }
}

impl fmt::Display for ExclusiveResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |protocol: &Protocol| match protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        match self {
            ExclusiveResource::NodePort(port, protocol) => write!(f, "node port {port}/{}", word(protocol)),
            ExclusiveResource::HostPort(node, port) => write!(f, "host port {port} of node {node}"),
            ExclusiveResource::ClusterIp(address) => write!(f, "cluster IP {address}"),
            ExclusiveResource::ExternalPort(address, port, protocol) => {
                write!(f, "port {port}/{} of external IP {address}", word(protocol))
            }
            ExclusiveResource::Route(host, path) => write!(f, "route {host}{path}"),
            ExclusiveResource::Scale(target) => write!(f, "scale of {target}"),
        }
    }
}

/// Use of an exclusive resource by an object, actual or desired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExclusiveUse {
    /// Resource that is used.
    pub resource: ExclusiveResource,
    /// True if other sharing users are allowed: pods on different nodes may share a port that no service may take.
    pub shares: bool,
    /// Path of the field that requests the resource.
    pub path: Vec<OwnedStep>,
}

impl ExclusiveUse {
    /// Creates a use that is not shared.
    pub(super) fn unshared(resource: ExclusiveResource, path: Vec<OwnedStep>) -> Self {
        Self { resource, shares: false, path }
    }
}

/// Returns the uses of node ports by a pod. Without `nodeName` the pod takes no particular host port, because the
/// scheduler finds a node for it; but a service port exists on every node.
pub(super) fn host_ports(pod: &PodSpec, at: &[&str]) -> Vec<ExclusiveUse> {
    let mut found = Vec::new();
    for HostPortUse { port: at_address, path } in pod.host_ports(at) {
        let HostPort { port, protocol, address } = at_address;
        if let Some(node) = &pod.node_name {
            let on_node = |port| ExclusiveResource::HostPort(node.clone(), port);
            // Ports at different addresses share the number, which a port at all addresses takes alone.
            let everywhere = on_node(HostPort { address: None, ..at_address });
            found.push(ExclusiveUse { resource: everywhere, shares: address.is_some(), path: path.clone() });
            if address.is_some() {
                found.push(ExclusiveUse::unshared(on_node(at_address), path.clone()));
            }
        }
        // Services can only take ports of this range.
        if NODE_PORTS.contains(&port) {
            found.push(ExclusiveUse {
                resource: ExclusiveResource::NodePort(port, protocol),
                shares: true,
                path,
            });
        }
    }
    found
}
