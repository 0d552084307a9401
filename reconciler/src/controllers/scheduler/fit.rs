//! Filters that decide if a pod fits on a node, and a count of the nodes that failed each.
//!
//! A new filter is one function, one [`Failure`] and one line in a list.

use std::collections::BTreeMap;
use std::fmt;

use schema::kinds::node::Taint;
use schema::kinds::pod::{HostPort, TaintEffect};
use schema::meta::{NamespacedName, StringMap, matches_node_selector};
use schema::quantity::{Cpu, Memory};
use schema::snapshot::elapsed_seconds;

use super::node::{Needs, NodeLoad};

/// Reason why a node does not take a pod. Ordered as printed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No heartbeat.
    NotReady,
    /// No range of pod addresses yet.
    NoSubnet,
    /// The pod names another node.
    OtherNode,
    /// The node takes no new pods.
    Cordoned,
    /// The node is being drained.
    Draining,
    /// The pod does not tolerate this taint of the node, in its written form.
    Taint(String),
    /// A label of the selector is missing.
    SelectorMismatch,
    /// The node matches no term of the pod's node affinity.
    NodeAffinity,
    /// The node has as many pods as it may have.
    TooManyPods,
    /// Not enough CPU is left.
    Cpu,
    /// Not enough memory is left.
    Memory,
    /// Not enough GPUs are left.
    Gpu,
    /// Another pod has this host port.
    HostPort(HostPort),
    /// A pod on the node matches the pod's anti-affinity.
    PodAntiAffinity,
    /// The pod matches the anti-affinity of a pod on the node.
    ExistingAntiAffinity,
    /// No pod on the node matches the pod's affinity.
    PodAffinity,
}

impl Failure {
    /// Returns the name of the failed filter, without details.
    fn word(&self) -> &'static str {
        match self {
            Failure::NotReady => "NotReady",
            Failure::NoSubnet => "NoSubnet",
            Failure::OtherNode => "OtherNode",
            Failure::Cordoned => "Cordoned",
            Failure::Draining => "Draining",
            Failure::Taint(_) => "Taint",
            Failure::SelectorMismatch => "SelectorMismatch",
            Failure::NodeAffinity => "NodeAffinity",
            Failure::TooManyPods => "TooManyPods",
            Failure::Cpu => "Cpu",
            Failure::Memory => "Memory",
            Failure::Gpu => "Gpu",
            Failure::HostPort(..) => "HostPort",
            Failure::PodAntiAffinity | Failure::ExistingAntiAffinity => "PodAntiAffinity",
            Failure::PodAffinity => "PodAffinity",
        }
    }
}

/// A filter of the node alone: returns why the node takes no pod, or `None`.
type NodeFilter = fn(&NodeLoad<'_>) -> Option<Failure>;

/// A filter: returns why the node does not take the pod, or `None`.
type Filter = fn(&NodeLoad<'_>, &Needs<'_>) -> Option<Failure>;

/// Filters that depend on the node alone; nodes that fail one are not searched at all.
const NODE_FILTERS: &[NodeFilter] = &[ready, subnet];

/// Filters that depend on the pod as well. Only the first failure counts.
const POD_FILTERS: &[Filter] = &[
    node_name,
    cordon,
    drain,
    taints,
    node_selector,
    node_affinity,
    max_pods,
    cpu,
    memory,
    gpus,
    free_host_ports,
    pod_anti_affinity,
    existing_anti_affinity,
    pod_affinity,
];

fn ready(node: &NodeLoad<'_>) -> Option<Failure> {
    (!node.ready).then_some(Failure::NotReady)
}

fn subnet(node: &NodeLoad<'_>) -> Option<Failure> {
    (!node.has_subnet).then_some(Failure::NoSubnet)
}

fn node_name(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    pod.node_name.is_some_and(|name| name != node.record.name).then_some(Failure::OtherNode)
}

/// Fails on a cordoned node. As in Kubernetes, neither cordon nor any taint but `NoExecute` keeps away a pod that
/// names its node.
fn cordon(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    (node.is_cordoned && pod.node_name.is_none()).then_some(Failure::Cordoned)
}

fn drain(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    (node.is_draining && pod.node_name.is_none()).then_some(Failure::Draining)
}

fn taints(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    let keeps_away = |taint: &&Taint| match taint.effect {
        TaintEffect::NoSchedule => pod.node_name.is_none(),
        TaintEffect::PreferNoSchedule => false,
        TaintEffect::NoExecute => true,
    };
    let mut taints = node.taints.iter().filter(keeps_away);
    let elapsed = |taint: &Taint| elapsed_seconds(node.conditions, taint);
    let taint = taints.find(|taint| !taint.is_tolerated_by(pod.tolerations, elapsed(taint)))?;
    Some(Failure::Taint(taint.to_string()))
}

/// True if the node has a `PreferNoSchedule` taint that the pod does not tolerate: it gets the pod only if no other
/// node fits.
pub(super) fn is_avoided(node: &NodeLoad<'_>, pod: &Needs<'_>) -> bool {
    let mut taints = node.taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
    taints.any(|taint| !taint.is_tolerated_by(pod.tolerations, 0))
}

fn node_selector(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    (!matches_node_selector(pod.node_selector, &node.labels)).then_some(Failure::SelectorMismatch)
}

fn node_affinity(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    let nodes = pod.required_nodes?;
    (!nodes.matches(&node.record.name, &node.labels)).then_some(Failure::NodeAffinity)
}

fn max_pods(node: &NodeLoad<'_>, _: &Needs<'_>) -> Option<Failure> {
    (node.pods >= node.record.max_pods).then_some(Failure::TooManyPods)
}

fn cpu(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    (pod.cpu_millis > node.free_cpu()).then_some(Failure::Cpu)
}

fn memory(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    (pod.memory_bytes > node.free_memory()).then_some(Failure::Memory)
}

fn gpus(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    (pod.gpus > node.free_gpus()).then_some(Failure::Gpu)
}

fn free_host_ports(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    let taken = pod.host_ports.iter().find(|port| node.holder_of(port).is_some())?;
    Some(Failure::HostPort(*taken))
}

fn pod_anti_affinity(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    let has_match = |rule| node.rules.get(rule).is_some_and(|counts| counts.matching > 0);
    let ends_sibling = || pod.neighbours.siblings.is_some_and(|workload| node.ending.contains(&workload));
    let is_kept_away = pod.neighbours.excluded.iter().any(has_match) || ends_sibling();
    is_kept_away.then_some(Failure::PodAntiAffinity)
}

fn existing_anti_affinity(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    let is_excluded = |rule| node.rules.get(rule).is_some_and(|counts| counts.excluding > 0);
    pod.neighbours.matched.iter().any(is_excluded).then_some(Failure::ExistingAntiAffinity)
}

fn pod_affinity(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    let rule = pod.neighbours.required?;
    let has_match = node.rules.get(&rule).is_some_and(|counts| counts.matching > 0);
    (!has_match).then_some(Failure::PodAffinity)
}

/// Returns the first failure among the filters of the node alone.
pub(super) fn node_failure(node: &NodeLoad<'_>) -> Option<Failure> {
    NODE_FILTERS.iter().find_map(|filter| filter(node))
}

/// Returns the first failure among the filters of the pod, on a node that passed the others.
pub(super) fn pod_failure(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Failure> {
    POD_FILTERS.iter().find_map(|filter| filter(node, pod))
}

/// Explanation of why a pod fits nowhere: the number of nodes per failed filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FitFailures {
    nodes: usize,
    wants: ReportedNeeds,
    failures: BTreeMap<Failure, Tally>,
}

/// Needs that a message repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportedNeeds {
    node_name: Option<String>,
    node_selector: StringMap,
    cpu_millis: u64,
    memory_bytes: u64,
    gpus: u64,
}

/// Number of nodes that failed a filter, and the most that any of them has free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tally {
    nodes: usize,
    most_free: u64,
    /// The pod that has the port on the first of the nodes, and that node.
    holder: Option<(NamespacedName, String)>,
}

impl FitFailures {
    /// Counts the failures of `pod` on all `nodes`.
    pub(super) fn count<'n, 'a: 'n>(
        nodes: impl ExactSizeIterator<Item = &'n NodeLoad<'a>>,
        pod: &Needs<'_>,
    ) -> Self {
        let wants = ReportedNeeds {
            node_name: pod.node_name.map(ToOwned::to_owned),
            node_selector: pod.node_selector.clone(),
            cpu_millis: pod.cpu_millis,
            memory_bytes: pod.memory_bytes,
            gpus: pod.gpus,
        };
        let mut unfit = Self { nodes: nodes.len(), wants, failures: BTreeMap::new() };
        for node in nodes {
            if let Some(failure) = node_failure(node).or_else(|| pod_failure(node, pod)) {
                unfit.add(failure, node);
            }
        }
        unfit
    }

    /// Returns why the pod does not fit on this one node; `None` if it fits.
    pub(super) fn on_node(node: &NodeLoad<'_>, pod: &Needs<'_>) -> Option<Self> {
        let unfit = Self::count(std::iter::once(node), pod);
        (!unfit.failures.is_empty()).then_some(unfit)
    }

    fn add(&mut self, failure: Failure, node: &NodeLoad<'_>) {
        let free = match failure {
            Failure::Cpu => node.free_cpu(),
            Failure::Memory => node.free_memory(),
            Failure::Gpu => node.free_gpus(),
            _ => 0,
        };
        let holder = match &failure {
            Failure::HostPort(port) => node.holder_of(port),
            _ => None,
        };
        let tally = self.failures.entry(failure).or_default();
        tally.holder =
            tally.holder.take().or_else(|| holder.map(|pod| (pod.clone(), node.record.name.clone())));
        tally.nodes += 1;
        tally.most_free = tally.most_free.max(free);
    }

    /// Returns the filter that most nodes failed, in one word; of several the last, which is closest to a fit.
    /// `OtherNode` only if no node failed another filter: the pod's own node is the one that counts. `NoNodes` without
    /// any node, `None` if a node passed all filters.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        if self.nodes == 0 {
            return Some("NoNodes");
        }
        let failed: usize = self.failures.values().map(|tally| tally.nodes).sum();
        let most = self
            .failures
            .iter()
            .max_by_key(|(failure, tally)| (**failure != Failure::OtherNode, tally.nodes));
        most.filter(|_| failed == self.nodes).map(|(failure, _)| failure.word())
    }

    /// Returns the failures with their counts, without amounts that change with every other pod.
    pub(crate) fn identity(&self) -> String {
        let counts: Vec<String> =
            self.failures.iter().map(|(failure, tally)| format!("{} {failure:?}", tally.nodes)).collect();
        format!("{} {}", self.nodes, counts.join(", "))
    }

    /// True if every node still lacks a heartbeat or a range: the nodes may be starting up.
    pub(crate) fn may_be_starting(&self) -> bool {
        let comes = |failure: &Failure| matches!(failure, Failure::NotReady | Failure::NoSubnet);
        self.failures.keys().all(comes)
    }

    /// Returns the failures as part of a sentence, without the number of nodes.
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
                format!("{n} other than nodeName {name}")
            }
            Failure::Cordoned => format!("{n} cordoned"),
            Failure::Draining => format!("{n} being drained"),
            Failure::Taint(taint) => format!("{n} with the taint {taint} that the pod does not tolerate"),
            Failure::SelectorMismatch => {
                let pairs: Vec<String> =
                    self.wants.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("{n} without the labels of nodeSelector ({})", pairs.join(","))
            }
            Failure::NodeAffinity => format!("{n} node(s) didn't match Pod's node affinity/selector"),
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
            Failure::Gpu => {
                format!(
                    "{n} Insufficient nvidia.com/gpu (wants {}, {free} {})",
                    self.wants.gpus, tally.most_free
                )
            }
            Failure::HostPort(port) => {
                let by = match &tally.holder {
                    Some((pod, _)) if n == 1 => format!(" by pod {pod}"),
                    Some((pod, node)) => format!(", on {node} by pod {pod}"),
                    None => String::new(),
                };
                format!("{n} with host port {port} in use{by}")
            }
            Failure::PodAntiAffinity => format!("{n} node(s) didn't match pod anti-affinity rules"),
            Failure::ExistingAntiAffinity => {
                format!("{n} node(s) didn't satisfy existing pods anti-affinity rules")
            }
            Failure::PodAffinity => format!("{n} node(s) didn't match pod affinity rules"),
        }
    }
}

/// Rounds down to whole mebibytes: the free memory of a node is seldom a round number of bytes.
fn readable(bytes: u64) -> Memory {
    const MEBIBYTE: u64 = 1 << 20;
    Memory { bytes: if bytes < MEBIBYTE { bytes } else { bytes / MEBIBYTE * MEBIBYTE } }
}

impl fmt::Display for FitFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("0/0 nodes fit: no node has registered yet; a node registers a few seconds after minik8s-agent starts on it");
        }
        write!(f, "0/{} nodes fit: {}", self.nodes, self.reasons())
    }
}
