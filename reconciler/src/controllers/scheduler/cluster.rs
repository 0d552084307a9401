//! All nodes with what is taken of them, in the order of the strategy, so that the first node looked at is mostly
//! the one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use schema::snapshot::{BoundPod, Snapshot};

use super::fit::{Unfit, is_avoided, node_failure, pod_failure};
use super::needs::{Needs, Owner, PodNeeds};
use super::node::NodeLoad;
use super::strategy::{Rank, Ranking, Strategy, lot, seed};

use crate::plural::plural;

/// Nodes and what is taken of them.
pub(super) struct Cluster<'a> {
    /// In order of name.
    nodes: Vec<NodeLoad<'a>>,
    by_name: HashMap<&'a str, usize>,
    strategy: Strategy,
    /// How many pods of each owner are on which nodes.
    owners: HashMap<Owner<'a>, BTreeMap<usize, u32>>,
    queue: Queue<'a>,
    /// Revision of the newest binding: what is bound now is newer, one after the other.
    revision: i64,
}

/// The nodes that have room for one more pod, as they rank for pods of one owner. From one owner to the next only
/// nodes with pods of either change their place. Empty until a pod asks.
#[derive(Default)]
struct Queue<'a> {
    is_filled: bool,
    owner: Option<Owner<'a>>,
    order: BTreeSet<(Rank, usize)>,
    /// The rank in `order` of each node that is there.
    ranks: Vec<Option<Rank>>,
}

impl<'a> Cluster<'a> {
    /// All registered nodes, nothing taken.
    pub(super) fn empty(snapshot: &'a Snapshot) -> Self {
        let records = snapshot.nodes.values().map(|record| &record.value);
        let nodes: Vec<NodeLoad<'a>> = records.map(|record| NodeLoad::empty(snapshot, record)).collect();
        let by_name = snapshot.nodes.keys().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        let queue = Queue { ranks: vec![None; nodes.len()], ..Queue::default() };
        let strategy = Strategy::of(snapshot.cluster().scheduler_strategy);
        Self { nodes, by_name, strategy, owners: HashMap::new(), queue, revision: snapshot.revision }
    }

    /// Number of a node, if it has registered.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Name of a node.
    pub(super) fn name(&self, node: usize) -> &'a str {
        &self.nodes[node].record.name
    }

    /// Takes in a binding that appeared at this revision, and what its pod needs, if anything.
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

    /// Gives the node a pod that is new to it.
    pub(super) fn bind(&mut self, node: usize, pod_needs: &PodNeeds<'a>) {
        self.revision = self.revision.saturating_add(1);
        self.charge_bound(node, self.revision, Some(pod_needs));
    }

    /// Takes what a pod needs from a node.
    pub(super) fn charge(&mut self, node: usize, pod_needs: &PodNeeds<'a>) {
        self.nodes[node].take(pod_needs);
        *self.owners.entry(pod_needs.owner()).or_default().entry(node).or_default() += 1;
        self.reorder(node);
    }

    /// Gives back what a pod took from a node.
    pub(super) fn release(&mut self, node: usize, pod_needs: &PodNeeds<'a>) {
        self.nodes[node].give_back(pod_needs);
        if let Some(pods) = self.owners.get_mut(&pod_needs.owner()).and_then(|nodes| nodes.get_mut(&node)) {
            *pods = pods.saturating_sub(1);
        }
        self.reorder(node);
    }

    fn pods_of(&self, owner: Option<Owner<'a>>, node: usize) -> u32 {
        let nodes = owner.and_then(|owner| self.owners.get(&owner));
        nodes.and_then(|nodes| nodes.get(&node)).copied().unwrap_or_default()
    }

    /// Puts a node where it ranks now.
    fn reorder(&mut self, node: usize) {
        let Ranking::By(rank) = self.strategy.ranking else { return };
        if !self.queue.is_filled {
            return;
        }
        let state = &self.nodes[node];
        // What the node alone decides; a pod of any size fails on the others.
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
    fn turn_to(&mut self, owner: Owner<'a>) {
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

    /// Why the pod does not fit on this node, if it does not.
    pub(super) fn unfit_on(&self, node: usize, pod: &Needs<'_>) -> Option<Unfit> {
        Unfit::on(&self.nodes[node], pod)
    }

    fn fits(&self, node: usize, pod: &Needs<'_>) -> bool {
        is_open(&self.nodes[node]) && pod_failure(&self.nodes[node], pod).is_none()
    }

    /// The node that the strategy chooses: the first that fits, and of all that fit one that the pod need not
    /// avoid, if there is one.
    pub(super) fn choose(&mut self, pod_needs: &PodNeeds<'a>) -> Option<usize> {
        if let Some(name) = pod_needs.needs.node_name {
            return self.find(name).filter(|&node| self.fits(node, &pod_needs.needs));
        }
        match self.strategy.ranking {
            Ranking::By(_) => {
                self.turn_to(pod_needs.owner());
                self.first(pod_needs, self.queue.order.iter().map(|&(_, node)| node))
            }
            Ranking::Drawn => self.draw(pod_needs),
        }
    }

    /// The least lot of all nodes that fit, or of those that are not avoided.
    fn draw(&self, pod_needs: &PodNeeds<'a>) -> Option<usize> {
        let seed = seed(&pod_needs.pod.uid);
        let mut best = None;
        for (node, state) in self.nodes.iter().enumerate() {
            let lot = lot(seed, state.name_hash);
            // Most nodes are out by their lot alone.
            if best.is_some_and(|best| best < (false, lot, node)) || !self.fits(node, &pod_needs.needs) {
                continue;
            }
            let drawn = (is_avoided(state, &pod_needs.needs), lot, node);
            best = Some(best.map_or(drawn, |best| drawn.min(best)));
        }
        best.map(|(.., node)| node)
    }

    /// The first of the nodes that fits and is not avoided, else the first that fits.
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

    /// Why `node` was chosen for the pod, in a sentence.
    pub(super) fn choice(&self, node: usize, pod_needs: &PodNeeds<'a>) -> String {
        if pod_needs.needs.node_name.is_some() {
            return "the pod names it".to_owned();
        }
        let pods = self.nodes[node].pods;
        let lot = match self.strategy.ranking {
            Ranking::By(_) => String::new(),
            Ranking::Drawn => format!(" with the seed {:016x}", seed(&pod_needs.pod.uid)),
        };
        format!("it {}{lot}, of the nodes that fit; it has {}", self.strategy.words, plural(pods, "pod"))
    }

    /// Why the pod fits nowhere.
    pub(super) fn unfit(&self, pod: &Needs<'_>) -> Unfit {
        Unfit::count(self.nodes.iter(), pod)
    }
}

/// The node may take pods at all.
fn is_open(node: &NodeLoad<'_>) -> bool {
    node_failure(node).is_none()
}

/// What a bound pod takes: also the ports of the node that its agent gave it for `hostPort: 0`. Nothing once it has
/// ended for good.
pub(super) fn taken<'a>(bound: &BoundPod<'a>) -> Option<PodNeeds<'a>> {
    let pod = &bound.binding.value.pod;
    let mut pod_needs = PodNeeds::of(pod);
    if let Some(status) = bound.status_of(&pod.uid) {
        if status.has_ended() {
            return None;
        }
        let ports = &mut pod_needs.needs.host_ports;
        ports.extend(status.host_ports.iter().map(|port| (port.host_port, port.protocol)));
        ports.sort_unstable();
        ports.dedup();
    }
    Some(pod_needs)
}
