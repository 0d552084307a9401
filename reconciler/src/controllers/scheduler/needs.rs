//! Needs of a pod: resources, ports and constraints on its node.

use schema::kinds::Kind;
use schema::kinds::pod::{Container, PodSpec, Protocol, Toleration};
use schema::meta::StringMap;
use schema::records::PodInstance;

/// Needs of a pod that its node must satisfy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needs<'a> {
    /// The only node that the pod may run on.
    pub node_name: Option<&'a str>,
    /// Labels that the node must have.
    pub node_selector: &'a StringMap,
    /// Tolerations for the node's taints.
    pub tolerations: &'a [Toleration],
    /// Requested CPU, in thousandths of a core.
    pub cpu_millis: u64,
    /// Requested memory.
    pub memory_bytes: u64,
    /// Host ports that the pod takes.
    pub host_ports: Vec<(u16, Protocol)>,
}

impl<'a> Needs<'a> {
    /// Returns the needs of `spec`: the sum over its containers, or the largest init container if that is more, as
    /// in Kubernetes.
    pub fn of(spec: &'a PodSpec) -> Self {
        let total = |amount: fn(&Container) -> u64| {
            let side_by_side = spec.containers.iter().map(amount).fold(0, u64::saturating_add);
            let one_by_one = spec.init_containers.iter().map(amount).max().unwrap_or(0);
            side_by_side.max(one_by_one)
        };
        Self {
            node_name: spec.node_name.as_deref(),
            node_selector: &spec.node_selector,
            tolerations: &spec.tolerations,
            cpu_millis: total(|c| c.resources.requested_cpu().millis),
            memory_bytes: total(|c| c.resources.requested_memory().bytes),
            host_ports: host_ports(spec),
        }
    }
}

/// Returns the host ports that the pod takes. On the host's network, every container port is one.
fn host_ports(spec: &PodSpec) -> Vec<(u16, Protocol)> {
    let mut ports: Vec<_> = spec
        .containers
        .iter()
        .flat_map(|container| &container.ports)
        .filter_map(|port| {
            let of_network = spec.host_network.then_some(port.container_port);
            // 0 asks for any free port; the agent reports which one.
            port.host_port.filter(|&p| p != 0).or(of_network).map(|p| (p, port.protocol))
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Namespace, kind and name of the owner of a pod.
pub(super) type Owner<'a> = (&'a str, Kind, &'a str);

/// A pod with its needs.
#[derive(Clone)]
pub(super) struct PodNeeds<'a> {
    pub(super) pod: &'a PodInstance,
    pub(super) needs: Needs<'a>,
}

impl<'a> PodNeeds<'a> {
    pub(super) fn of(pod: &'a PodInstance) -> Self {
        Self { pod, needs: Needs::of(&pod.spec) }
    }

    pub(super) fn owner(&self) -> Owner<'a> {
        (&self.pod.namespace, self.pod.owner.kind, &self.pod.owner.name)
    }
}
