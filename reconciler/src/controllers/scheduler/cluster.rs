//! Nodes with their load, in the order of the strategy, so that the first node tried usually is the one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use schema::kinds::pod::HostPortStatus;
use schema::records::PodInstance;
use schema::snapshot::{BoundPod, Snapshot};

use super::fit::{FitFailures, is_avoided, node_failure, pod_failure};
use super::node::{Needs, NodeLoad, Owner, PodNeeds, PodRules};
use super::strategy::{Rank, Ranking, Strategy, lot, seed};

use schema::violation::plural;

pub(super) struct Cluster<'a> {
    /// Sorted by name.
    nodes: Vec<NodeLoad<'a>>,
    by_name: HashMap<&'a str, usize>,
    strategy: Strategy,
    /// Number of pods of each owner, by node.
    owners: HashMap<Owner<'a>, BTreeMap<usize, u32>>,
    /// Rules between pods.
    rules: PodRules<'a>,
    queue: NodeQueue<'a>,
    /// Revision of the newest binding; bindings of this plan count as newer, one after the other.
    revision: i64,
}

/// Nodes with room for one more pod, ranked for pods of one owner. A change of owner moves only nodes with pods of
/// either owner. Empty until the first pod is placed.
#[derive(Default)]
struct NodeQueue<'a> {
    is_filled: bool,
    owner: Option<Owner<'a>>,
    order: BTreeSet<(Rank, usize)>,
    /// Rank of each node in `order`; `None` if the node is not in it.
    ranks: Vec<Option<Rank>>,
}

impl<'a> Cluster<'a> {
    /// Creates a cluster of all registered nodes, without load.
    pub(super) fn empty(snapshot: &'a Snapshot) -> Self {
        let records = snapshot.nodes.values().map(|record| &record.value);
        let mut nodes: Vec<NodeLoad<'a>> = records.map(|record| NodeLoad::empty(snapshot, record)).collect();
        let by_name: HashMap<&str, usize> =
            snapshot.nodes.keys().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        let rules = PodRules::of(snapshot);
        if !rules.is_empty() {
            for (node, namespace, workload) in ending_pods(snapshot) {
                by_name.get(node).map(|&node| nodes[node].ending.insert((namespace, workload)));
            }
        }
        let queue = NodeQueue { ranks: vec![None; nodes.len()], ..NodeQueue::default() };
        let strategy = Strategy::of(snapshot.cluster().scheduler_strategy);
        Self { nodes, by_name, strategy, owners: HashMap::new(), rules, queue, revision: snapshot.revision }
    }

    /// Returns what the pod needs as things are now.
    pub(super) fn needs(&mut self, pod: &'a PodInstance) -> PodNeeds<'a> {
        PodNeeds::of(pod, &mut self.rules)
    }

    /// Returns what a bound pod takes, including the host ports that its agent chose for `hostPort: 0`. `None` once
    /// the pod has ended for good.
    pub(super) fn bound_needs(&mut self, bound: &BoundPod<'a>) -> Option<PodNeeds<'a>> {
        let pod = &bound.binding.value.pod;
        let mut pod_needs = self.needs(pod);
        if let Some(status) = bound.status_of(&pod.uid) {
            if status.has_ended() {
                return None;
            }
            let ports = &mut pod_needs.needs.host_ports;
            ports.extend(status.host_ports.iter().map(HostPortStatus::port));
            ports.sort_unstable();
            ports.dedup();
        }
        Some(pod_needs)
    }

    /// Returns the index of a node if it has registered.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn name(&self, node: usize) -> &'a str {
        &self.nodes[node].record.name
    }

    /// Accounts for a binding that appeared at this revision, and for the needs of its pod, if any.
    pub(super) fn charge_bound(
        &mut self,
        node: usize,
        create_revision: i64,
        pod_needs: Option<&PodNeeds<'a>>,
    ) {
        self.nodes[node].count_binding(create_revision);
        match pod_needs {
            Some(pod_needs) => self.charge(node, pod_needs),
            None => self.reorder(node),
        }
    }

    /// Accounts for a pod that is new to the node.
    pub(super) fn bind(&mut self, node: usize, pod_needs: &PodNeeds<'a>) {
        self.revision = self.revision.saturating_add(1);
        self.charge_bound(node, self.revision, Some(pod_needs));
    }

    /// Allocates what a pod needs on a node.
    pub(super) fn charge(&mut self, node: usize, pod_needs: &PodNeeds<'a>) {
        self.nodes[node].take(pod_needs);
        self.rules.take(&pod_needs.needs.neighbours);
        *self.owners.entry(pod_needs.owner()).or_default().entry(node).or_default() += 1;
        self.reorder(node);
    }

    /// Frees what a pod took on a node.
    pub(super) fn release(&mut self, node: usize, pod_needs: &PodNeeds<'a>) {
        self.nodes[node].give_back(pod_needs);
        self.rules.give_back(&pod_needs.needs.neighbours);
        if let Some(pods) = self.owners.get_mut(&pod_needs.owner()).and_then(|nodes| nodes.get_mut(&node)) {
            *pods = pods.saturating_sub(1);
        }
        self.reorder(node);
    }

    fn pods_of(&self, owner: Option<Owner<'a>>, node: usize) -> u32 {
        let nodes = owner.and_then(|owner| self.owners.get(&owner));
        nodes.and_then(|nodes| nodes.get(&node)).copied().unwrap_or_default()
    }

    /// Moves a node to its present rank.
    fn reorder(&mut self, node: usize) {
        let Ranking::By(rank) = self.strategy.ranking else { return };
        if !self.queue.is_filled {
            return;
        }
        let state = &self.nodes[node];
        // Checks that depend on the node alone; a node that fails them takes no pod of any size.
        let is_open = is_open(state) && state.pods < state.record.max_pods;
        let rank = is_open.then(|| rank(state, self.pods_of(self.queue.owner, node)));
        let before = std::mem::replace(&mut self.queue.ranks[node], rank);
        if before == rank {
            return;
        }
        before.map(|before| self.queue.order.remove(&(before, node)));
        rank.map(|rank| self.queue.order.insert((rank, node)));
    }

    /// Ranks the nodes for pods of this owner.
    fn rank_for(&mut self, owner: Owner<'a>) {
        if !self.queue.is_filled {
            (self.queue.is_filled, self.queue.owner) = (true, Some(owner));
            (0..self.nodes.len()).for_each(|node| self.reorder(node));
        }
        if self.queue.owner == Some(owner) {
            return;
        }
        let before = self.queue.owner.replace(owner);
        let nodes = [before, Some(owner)].into_iter().flatten().filter_map(|owner| self.owners.get(&owner));
        let moved: Vec<usize> = nodes.flat_map(BTreeMap::keys).copied().collect();
        moved.into_iter().for_each(|node| self.reorder(node));
    }

    /// Returns why the pod does not fit on this node; `None` if it fits.
    pub(super) fn unfit_on(&self, node: usize, pod: &Needs<'_>) -> Option<FitFailures> {
        FitFailures::on_node(&self.nodes[node], pod)
    }

    fn fits(&self, node: usize, pod: &Needs<'_>) -> bool {
        is_open(&self.nodes[node]) && pod_failure(&self.nodes[node], pod).is_none()
    }

    /// Returns the node that the strategy chooses: the first that fits and that the pod need not avoid, else the
    /// first that fits.
    pub(super) fn choose(&mut self, pod_needs: &PodNeeds<'a>) -> Option<usize> {
        if let Some(name) = pod_needs.needs.node_name {
            return self.find(name).filter(|&node| self.fits(node, &pod_needs.needs));
        }
        match self.strategy.ranking {
            Ranking::By(_) => {
                self.rank_for(pod_needs.owner());
                self.first(pod_needs, self.queue.order.iter().map(|&(_, node)| node))
            }
            Ranking::ByLot => self.draw(pod_needs),
        }
    }

    /// Returns the node with the lowest lot of all that fit, preferring nodes that are not avoided.
    fn draw(&self, pod_needs: &PodNeeds<'a>) -> Option<usize> {
        let seed = seed(&pod_needs.pod.uid);
        let mut best = None;
        for (node, state) in self.nodes.iter().enumerate() {
            let lot = lot(seed, state.name_hash);
            // The lot alone rules out most nodes.
            if best.is_some_and(|best| best < (false, lot, node)) || !self.fits(node, &pod_needs.needs) {
                continue;
            }
            let drawn = (is_avoided(state, &pod_needs.needs), lot, node);
            best = Some(best.map_or(drawn, |best| drawn.min(best)));
        }
        best.map(|(.., node)| node)
    }

    /// Returns the first of the nodes that fits and is not avoided, else the first that fits.
    fn first(&self, pod_needs: &PodNeeds<'a>, nodes: impl Iterator<Item = usize>) -> Option<usize> {
        let mut avoided = None;
        for node in nodes.filter(|&node| self.fits(node, &pod_needs.needs)) {
            if !is_avoided(&self.nodes[node], &pod_needs.needs) {
                return Some(node);
            }
            avoided = avoided.or(Some(node));
        }
        avoided
    }

    /// Returns a sentence on why `node` was chosen for the pod.
    pub(super) fn choice(&self, node: usize, pod_needs: &PodNeeds<'a>) -> String {
        if pod_needs.needs.node_name.is_some() {
            return "the pod names it".to_owned();
        }
        let pods = self.nodes[node].pods;
        let lot = match self.strategy.ranking {
            Ranking::By(_) => String::new(),
            Ranking::ByLot => format!(" with the seed {:016x}", seed(&pod_needs.pod.uid)),
        };
        format!(
            "of the nodes that fit, it {}{lot}; it has {}",
            self.strategy.rank_reason,
            plural(pods, "pod")
        )
    }

    /// Returns why the pod fits nowhere.
    pub(super) fn unfit(&self, pod: &Needs<'_>) -> FitFailures {
        FitFailures::count(self.nodes.iter(), pod)
    }
}

/// True if the node may take pods at all.
fn is_open(node: &NodeLoad<'_>) -> bool {
    node_failure(node).is_none()
}

/// Returns the pods of workloads that are gone, bound or not, and still end on a node: node, namespace and workload.
fn ending_pods(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &str, &str)> {
    let gone = snapshot.pod_status.keys().filter(|(_, pod)| !snapshot.pods.contains_key(pod));
    gone.filter_map(|(node, pod)| {
        Some((node.as_str(), pod.namespace.as_str(), PodInstance::workload_in_name(&pod.name)?))
    })
}
