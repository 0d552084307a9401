//! Explains why a pod has no node, for views: the scheduler's own filters on the same snapshot.
//!
//! Nothing of this is stored: pod status belongs to the agents, and a pod without a node has none.

use std::cell::RefCell;
use std::collections::BTreeMap;

use schema::meta::NamespacedName;
use schema::records::PodInstance;
use schema::snapshot::Snapshot;

use super::cluster::Cluster;
use super::node::Needs;

/// Returns why `pod` is not bound; `None` if it is bound or does not exist. For many pods of one snapshot, create
/// one [`Explainer`].
pub fn explain(snapshot: &Snapshot, pod: &NamespacedName) -> Option<String> {
    Explainer::new(snapshot).explain(pod)
}

/// Answers [`explain`] for many pods of one snapshot.
pub struct Explainer<'a> {
    snapshot: &'a Snapshot,
    /// Nodes, kept in order for the pod that was explained last.
    cluster: RefCell<Cluster<'a>>,
    /// Node and uid of each bound pod.
    bound: BTreeMap<&'a NamespacedName, (&'a str, &'a str)>,
    /// Answers of [`Explainer::obstacle`], so that a thousand equal pods are counted once.
    obstacles: RefCell<BTreeMap<Needs<'a>, Option<&'static str>>>,
}

impl<'a> Explainer<'a> {
    /// Creates an explainer, and counts the load of every node.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let mut cluster = Cluster::empty(snapshot);
        let mut bound = BTreeMap::new();
        for one in snapshot.bound_pods() {
            let (place, binding) = (one.key, one.binding);
            bound.insert(&place.1, (place.0.as_str(), binding.value.pod.uid.as_str()));
            if let Some(node) = cluster.find(&place.0) {
                let pod_needs = cluster.bound_needs(&one);
                cluster.charge_bound(node, binding.create_revision, pod_needs.as_ref());
            }
        }
        Self { snapshot, cluster: RefCell::new(cluster), bound, obstacles: RefCell::default() }
    }

    /// Returns why `pod` is not bound; `None` if it is bound or does not exist.
    pub fn explain(&self, pod: &NamespacedName) -> Option<String> {
        let instance = &self.snapshot.pods.get(pod)?.value;
        let before = self.bound.get(pod);
        if before.is_some_and(|(_, uid)| *uid == instance.uid) {
            return None;
        }
        let mut cluster = self.cluster.borrow_mut();
        let pod_needs = cluster.needs(instance);
        let why = match cluster.choose(&pod_needs) {
            Some(node) => format!("fits on {}, waits for the scheduler", cluster.name(node)),
            None => cluster.unfit(&pod_needs.needs).to_string(),
        };
        Some(match before {
            None => why,
            Some((node, _)) => format!("{why}; the former pod keeps running on {node}"),
        })
    }

    /// Returns the filter that keeps the pod from most nodes, in one word; `None` if it fits on a node.
    pub fn obstacle(&self, pod: &'a PodInstance) -> Option<&'static str> {
        let needs = self.cluster.borrow_mut().needs(pod).needs;
        if let Some(known) = self.obstacles.borrow().get(&needs) {
            return *known;
        }
        let found = self.cluster.borrow().unfit(&needs).obstacle();
        self.obstacles.borrow_mut().insert(needs, found);
        found
    }
}
