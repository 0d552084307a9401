//! Whether a pod fits on a node: a list of small filters, and how many nodes failed which.
//!
//! A new filter is one function, one [`Failure`] and one line in a list.

use std::collections::BTreeMap;
use std::fmt;

use schema::kinds::pod::{Container, PodSpec, Protocol};
use schema::meta::{NamespacedName, StringMap};
use schema::quantity::{Cpu, Memory};
use schema::records::NodeRecord;
use schema::selector::matches_or_empty;

/// What a pod needs of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand<'a> {
    /// The only node it may run on.
    pub node_name: Option<&'a str>,
    /// Labels that the node must have.
    pub node_selector: &'a StringMap,
    /// CPU set aside, in thousandths of a core.
    pub cpu_millis: u64,
    /// Memory set aside.
    pub memory_bytes: u64,
    /// Ports of the node that it takes.
    pub host_ports: Vec<(u16, Protocol)>,
}

impl<'a> Demand<'a> {
    /// What `spec` needs: the sum over its containers, or the largest init container if that is
    /// more, as in Kubernetes.
    pub fn of(spec: &'a PodSpec) -> Self {
        let total = |amount: fn(&Container) -> u64| {
            let side_by_side = spec.containers.iter().map(amount).fold(0, u64::saturating_add);
            let one_by_one = spec.init_containers.iter().map(amount).max().unwrap_or(0);
            side_by_side.max(one_by_one)
        };
        Self {
            node_name: spec.node_name.as_deref(),
            node_selector: &spec.node_selector,
            cpu_millis: total(|c| c.resources.requested_cpu().millis),
            memory_bytes: total(|c| c.resources.requested_memory().bytes),
            host_ports: host_ports(spec),
        }
    }
}

/// Ports of the node that the pod takes. On the host's network every container port is one.
fn host_ports(spec: &PodSpec) -> Vec<(u16, Protocol)> {
    let mut ports: Vec<_> = spec
        .containers
        .iter()
        .flat_map(|container| &container.ports)
        .filter_map(|port| {
            let of_network = spec.host_network.then_some(port.container_port);
            // 0 asks for any free port; the agent says which it is.
            port.host_port.filter(|&p| p != 0).or(of_network).map(|p| (p, port.protocol))
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// A node with what is taken of it.
#[derive(Debug, Clone)]
pub(super) struct NodeState<'a> {
    pub(super) record: &'a NodeRecord,
    /// Its heartbeat has not expired.
    pub(super) ready: bool,
    /// It has a range of pod addresses.
    pub(super) has_subnet: bool,
    pub(super) pods: u32,
    pub(super) cpu_millis: u64,
    pub(super) memory_bytes: u64,
    /// Ports of the node that are taken, with the pod that has each.
    pub(super) host_ports: BTreeMap<(u16, Protocol), NamespacedName>,
}

impl NodeState<'_> {
    fn free_cpu(&self) -> u64 {
        self.record.cpu.millis.saturating_sub(self.cpu_millis)
    }

    fn free_memory(&self) -> u64 {
        self.record.memory.bytes.saturating_sub(self.memory_bytes)
    }
}

/// Why a node does not take a pod. Orders as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No heartbeat.
    NotReady,
    /// No range of pod addresses yet.
    NoSubnet,
    /// The pod names another node.
    OtherNode,
    /// A label of the selector is missing.
    SelectorMismatch,
    /// The node has as many pods as it takes.
    TooManyPods,
    /// Not enough CPU is left.
    Cpu,
    /// Not enough memory is left.
    Memory,
    /// Another pod has this port of the node.
    HostPort(u16, Protocol),
}

/// A filter: why the node does not take the pod, if it does not.
type Filter = fn(&NodeState<'_>, &Demand<'_>) -> Option<Failure>;

/// Filters that look at the node alone; nodes that fail one are not searched at all.
const NODE_FILTERS: &[Filter] = &[ready, subnet];

/// Filters that look at the pod as well. The first that fails is the one that is counted.
const POD_FILTERS: &[Filter] = &[node_name, node_selector, max_pods, cpu, memory, free_host_ports];

fn ready(node: &NodeState<'_>, _: &Demand<'_>) -> Option<Failure> {
    (!node.ready).then_some(Failure::NotReady)
}

fn subnet(node: &NodeState<'_>, _: &Demand<'_>) -> Option<Failure> {
    (!node.has_subnet).then_some(Failure::NoSubnet)
}

fn node_name(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    pod.node_name.is_some_and(|name| name != node.record.name).then_some(Failure::OtherNode)
}

fn node_selector(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    (!matches_or_empty(pod.node_selector, &node.record.labels)).then_some(Failure::SelectorMismatch)
}

fn max_pods(node: &NodeState<'_>, _: &Demand<'_>) -> Option<Failure> {
    (node.pods >= node.record.max_pods).then_some(Failure::TooManyPods)
}

fn cpu(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    (pod.cpu_millis > node.free_cpu()).then_some(Failure::Cpu)
}

fn memory(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    (pod.memory_bytes > node.free_memory()).then_some(Failure::Memory)
}

fn free_host_ports(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    let taken = pod.host_ports.iter().find(|port| node.host_ports.contains_key(port))?;
    Some(Failure::HostPort(taken.0, taken.1))
}

/// The first filter of the node itself that fails.
pub(super) fn node_failure(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    NODE_FILTERS.iter().find_map(|filter| filter(node, pod))
}

/// The first filter of the pod on a node that passed the others.
pub(super) fn pod_failure(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Failure> {
    POD_FILTERS.iter().find_map(|filter| filter(node, pod))
}

/// Why a pod fits nowhere: how many nodes failed which filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    nodes: usize,
    wants: Wants,
    failures: BTreeMap<Failure, Tally>,
}

/// The part of the demand that a message repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wants {
    node_name: Option<String>,
    node_selector: StringMap,
    cpu_millis: u64,
    memory_bytes: u64,
}

/// How many nodes failed a filter, and how near the best of them came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tally {
    nodes: usize,
    most_free: u64,
    /// The pod, and its node, that has the port on the first of them.
    holder: Option<(NamespacedName, String)>,
}

impl Unfit {
    /// Counts the failures of `pod` on all `nodes`.
    pub(super) fn count<'n, 'a: 'n>(
        nodes: impl ExactSizeIterator<Item = &'n NodeState<'a>>,
        pod: &Demand<'_>,
    ) -> Self {
        let wants = Wants {
            node_name: pod.node_name.map(ToOwned::to_owned),
            node_selector: pod.node_selector.clone(),
            cpu_millis: pod.cpu_millis,
            memory_bytes: pod.memory_bytes,
        };
        let mut unfit = Self { nodes: nodes.len(), wants, failures: BTreeMap::new() };
        for node in nodes {
            if let Some(failure) = node_failure(node, pod).or_else(|| pod_failure(node, pod)) {
                unfit.add(failure, node);
            }
        }
        unfit
    }

    /// Why the pod does not fit on this one node.
    pub(super) fn on(node: &NodeState<'_>, pod: &Demand<'_>) -> Option<Self> {
        let unfit = Self::count(std::iter::once(node), pod);
        (!unfit.failures.is_empty()).then_some(unfit)
    }

    fn add(&mut self, failure: Failure, node: &NodeState<'_>) {
        let free = match failure {
            Failure::Cpu => node.free_cpu(),
            Failure::Memory => node.free_memory(),
            _ => 0,
        };
        let holder = match &failure {
            Failure::HostPort(port, protocol) => node.host_ports.get(&(*port, *protocol)),
            _ => None,
        };
        let tally = self.failures.entry(failure).or_default();
        tally.holder =
            tally.holder.take().or_else(|| holder.map(|pod| (pod.clone(), node.record.name.clone())));
        tally.nodes += 1;
        tally.most_free = tally.most_free.max(free);
    }

    /// The failures with their counts, without amounts that move with every other pod.
    pub(crate) fn identity(&self) -> String {
        let counts: Vec<String> =
            self.failures.iter().map(|(failure, tally)| format!("{} {failure:?}", tally.nodes)).collect();
        format!("{} {}", self.nodes, counts.join(", "))
    }

    /// No node was looked at that has all that it needs to run pods: they may be on their way up.
    pub(crate) fn may_pass(&self) -> bool {
        let comes = |failure: &Failure| matches!(failure, Failure::NotReady | Failure::NoSubnet);
        self.failures.keys().all(comes)
    }

    /// The failures as a sentence part, without how many nodes there are.
    pub(super) fn reasons(&self) -> String {
        let parts: Vec<String> =
            self.failures.iter().map(|(failure, tally)| self.describe(failure, tally)).collect();
        parts.join(", ")
    }

    fn describe(&self, failure: &Failure, tally: &Tally) -> String {
        let n = tally.nodes;
        let free = if n == 1 { "free" } else { "at most free" };
        match failure {
            Failure::NotReady => format!("{n} not ready"),
            Failure::NoSubnet => format!("{n} without a pod range yet"),
            Failure::OtherNode => {
                let name = self.wants.node_name.as_deref().unwrap_or_default();
                format!("{n} not the node {name} that nodeName wants")
            }
            Failure::SelectorMismatch => {
                let pairs: Vec<String> =
                    self.wants.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("{n} without the labels of nodeSelector ({})", pairs.join(","))
            }
            Failure::TooManyPods => format!("{n} with as many pods as allowed"),
            Failure::Cpu => {
                let (wants, most) = (Cpu { millis: self.wants.cpu_millis }, Cpu { millis: tally.most_free });
                format!("{n} not enough cpu (wants {wants}, {free} {most})")
            }
            Failure::Memory => {
                let wants = Memory { bytes: self.wants.memory_bytes };
                let most = readable(tally.most_free);
                format!("{n} not enough memory (wants {wants}, {free} {most})")
            }
            Failure::HostPort(port, protocol) => {
                let protocol = match protocol {
                    Protocol::Tcp => "TCP",
                    Protocol::Udp => "UDP",
                };
                let by = match &tally.holder {
                    Some((pod, _)) if n == 1 => format!(" by pod {pod}"),
                    Some((pod, node)) => format!(", on {node} by pod {pod}"),
                    None => String::new(),
                };
                format!("{n} with host port {port}/{protocol} in use{by}")
            }
        }
    }
}

/// Whole mebibytes, rounded down: what is left of a node is seldom a round number of bytes.
fn readable(bytes: u64) -> Memory {
    const MEBIBYTE: u64 = 1 << 20;
    Memory { bytes: if bytes < MEBIBYTE { bytes } else { bytes / MEBIBYTE * MEBIBYTE } }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("0/0 nodes fit: no node has registered; start minik8s-agent on one");
        }
        write!(f, "0/{} nodes fit: {}", self.nodes, self.reasons())
    }
}
