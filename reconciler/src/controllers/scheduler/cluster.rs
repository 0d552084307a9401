//! All nodes with what is taken of them, indexed so that the first node looked at is mostly the one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use schema::meta::NamespacedName;
use schema::records::Binding;
use schema::snapshot::{Snapshot, Versioned};

use super::fit::{Demand, NodeState, Unfit, node_failure, pod_failure};

/// Nodes and what is taken of them.
pub(super) struct Cluster<'a> {
    /// In order of name.
    nodes: Vec<NodeState<'a>>,
    by_name: HashMap<&'a str, usize>,
    /// Nodes that may take pods at all, by number of pods, then by name: the order of the strategy.
    by_pods: BTreeSet<(u32, usize)>,
}

impl<'a> Cluster<'a> {
    /// All registered nodes, nothing taken.
    pub(super) fn empty(snapshot: &'a Snapshot) -> Self {
        let nodes: Vec<NodeState<'a>> = snapshot
            .nodes
            .iter()
            .map(|(name, record)| NodeState {
                record: &record.value,
                ready: snapshot.node_is_ready(name),
                has_subnet: snapshot.subnets.contains_key(name),
                pods: 0,
                cpu_millis: 0,
                memory_bytes: 0,
                host_ports: BTreeMap::new(),
            })
            .collect();
        let by_name = snapshot.nodes.keys().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        let nothing = BTreeMap::new();
        let no_demand = Demand {
            node_name: None,
            node_selector: &nothing,
            cpu_millis: 0,
            memory_bytes: 0,
            host_ports: Vec::new(),
        };
        let open = |&(_, node): &(usize, &NodeState<'a>)| node_failure(node, &no_demand).is_none();
        let by_pods = nodes.iter().enumerate().filter(open).map(|(i, _)| (0, i)).collect();
        Self { nodes, by_name, by_pods }
    }

    /// Number of a node, if it has registered.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Name of a node.
    pub(super) fn name(&self, node: usize) -> &'a str {
        &self.nodes[node].record.name
    }

    /// Pods on a node.
    pub(super) fn pods_on(&self, node: usize) -> u32 {
        self.nodes[node].pods
    }

    /// Takes what `pod`, of that name, needs from a node.
    pub(super) fn charge(&mut self, node: usize, name: &NamespacedName, pod: &Demand<'_>) {
        let state = &mut self.nodes[node];
        let before = state.pods;
        state.pods += 1;
        state.cpu_millis = state.cpu_millis.saturating_add(pod.cpu_millis);
        state.memory_bytes = state.memory_bytes.saturating_add(pod.memory_bytes);
        for port in &pod.host_ports {
            state.host_ports.entry(*port).or_insert_with(|| name.clone());
        }
        self.reorder(node, before);
    }

    /// Gives back what `pod`, of that name, took from a node.
    pub(super) fn release(&mut self, node: usize, name: &NamespacedName, pod: &Demand<'_>) {
        let state = &mut self.nodes[node];
        let before = state.pods;
        state.pods = state.pods.saturating_sub(1);
        state.cpu_millis = state.cpu_millis.saturating_sub(pod.cpu_millis);
        state.memory_bytes = state.memory_bytes.saturating_sub(pod.memory_bytes);
        for port in &pod.host_ports {
            if state.host_ports.get(port) == Some(name) {
                state.host_ports.remove(port);
            }
        }
        self.reorder(node, before);
    }

    fn reorder(&mut self, node: usize, pods_before: u32) {
        if self.by_pods.remove(&(pods_before, node)) {
            self.by_pods.insert((self.nodes[node].pods, node));
        }
    }

    /// Why `pod` does not fit on this node, if it does not.
    pub(super) fn unfit_on(&self, node: usize, pod: &Demand<'_>) -> Option<Unfit> {
        Unfit::on(&self.nodes[node], pod)
    }

    /// The node that the strategy chooses for `pod`: of those that fit the one with fewest pods,
    /// of equals the first by name.
    pub(super) fn choose(&self, pod: &Demand<'_>) -> Option<usize> {
        let fits = |node: usize| pod_failure(&self.nodes[node], pod).is_none();
        if let Some(name) = pod.node_name {
            let node = self.find(name)?;
            return (self.by_pods.contains(&(self.nodes[node].pods, node)) && fits(node)).then_some(node);
        }
        self.by_pods.iter().map(|&(_, node)| node).find(|&node| fits(node))
    }

    /// Why `pod` fits nowhere.
    pub(super) fn unfit(&self, pod: &Demand<'_>) -> Unfit {
        Unfit::count(self.nodes.iter(), pod)
    }
}

/// What a bound pod takes: also the ports of the node that its agent gave it for `hostPort: 0`.
pub(super) fn taken<'a>(
    snapshot: &Snapshot,
    place: &(String, NamespacedName),
    binding: &'a Versioned<Binding>,
) -> Demand<'a> {
    let pod = &binding.value.pod;
    let mut demand = Demand::of(&pod.spec);
    let status = snapshot.pod_status.get(place).map(|status| &status.value);
    let given = status.filter(|status| status.uid == pod.uid).map_or(&[][..], |status| &status.host_ports);
    demand.host_ports.extend(given.iter().map(|port| (port.host_port, port.protocol)));
    demand.host_ports.sort_unstable();
    demand.host_ports.dedup();
    demand
}

/// The bound pod has ended for good, so it takes nothing but its place in the list.
pub(super) fn has_ended(
    snapshot: &Snapshot,
    place: &(String, NamespacedName),
    binding: &Versioned<Binding>,
) -> bool {
    snapshot
        .pod_status
        .get(place)
        .is_some_and(|status| status.value.uid == binding.value.pod.uid && status.value.has_ended())
}
