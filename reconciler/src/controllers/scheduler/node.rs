//! The scheduler's model of a node: its state and its load.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use schema::kinds::Kind;
use schema::kinds::node::Taint;
use schema::kinds::pod::{HostPort, NodeSelector, PodAffinityTerm, PodSpec, Toleration};
use schema::meta::{NamespacedName, StringMap};
use schema::records::{NodeConditions, NodeRecord, PodInstance};
use schema::snapshot::Snapshot;

/// A node with its load.
#[derive(Debug, Clone)]
pub(super) struct NodeLoad<'a> {
    pub(super) record: &'a NodeRecord,
    /// The node's own labels and those of its Node object.
    pub(super) labels: Cow<'a, StringMap>,
    pub(super) taints: &'a [Taint],
    /// Conditions of the node, among them the age of its taints.
    pub(super) conditions: Option<&'a NodeConditions>,
    /// Set if the Node object says `unschedulable`.
    pub(super) is_cordoned: bool,
    /// Set if the Node object says `drain`.
    pub(super) is_draining: bool,
    /// True until the heartbeat expires.
    pub(super) ready: bool,
    /// Set once the node has a range of pod addresses.
    pub(super) has_subnet: bool,
    pub(super) pods: u32,
    pub(super) cpu_millis: u64,
    pub(super) memory_bytes: u64,
    pub(super) gpus: u64,
    /// Host ports in use, with the pod that has each.
    pub(super) host_ports: BTreeMap<HostPort, NamespacedName>,
    /// Number of pods that each rule between pods concerns here.
    pub(super) rules: BTreeMap<RuleId, RuleCounts>,
    /// Namespace and workload of pods that are gone and still end here.
    pub(super) ending: BTreeSet<(&'a str, &'a str)>,
    /// Revision at which the newest binding appeared, and the number of bindings that appeared with it.
    pub(super) newest: (i64, u32),
    /// Hash for drawing lots.
    pub(super) name_hash: u64,
}

impl<'a> NodeLoad<'a> {
    /// Creates a registered node without load.
    pub(super) fn empty(snapshot: &'a Snapshot, record: &'a NodeRecord) -> Self {
        let name = &record.name;
        let wanted = snapshot.node_spec(name);
        Self {
            record,
            labels: snapshot.node_labels(name),
            taints: wanted.map_or(&[][..], |node| &node.taints),
            conditions: snapshot.conditions_of(name),
            is_cordoned: wanted.is_some_and(|node| node.unschedulable),
            is_draining: wanted.is_some_and(|node| node.drain),
            ready: snapshot.node_is_ready(name),
            has_subnet: snapshot.subnets.contains_key(name),
            pods: 0,
            cpu_millis: 0,
            memory_bytes: 0,
            gpus: 0,
            host_ports: BTreeMap::new(),
            rules: BTreeMap::new(),
            ending: BTreeSet::new(),
            newest: (0, 0),
            name_hash: name_hash(name),
        }
    }
}

impl NodeLoad<'_> {
    pub(super) fn free_cpu(&self) -> u64 {
        self.record.cpu.millis.saturating_sub(self.cpu_millis)
    }

    pub(super) fn free_memory(&self) -> u64 {
        self.record.memory.bytes.saturating_sub(self.memory_bytes)
    }

    /// Returns the number of GPUs that a pod may have: all or none, because Docker gives each container the first ones.
    pub(super) fn free_gpus(&self) -> u64 {
        if self.gpus > 0 { 0 } else { self.record.gpus }
    }

    /// Returns a port in use that clashes with this one, with the pod that has it.
    pub(super) fn holder_of(&self, port: &HostPort) -> Option<&NamespacedName> {
        let mut holders = self.host_ports.range(port.at_any_address());
        holders.find(|(taken, _)| taken.clashes(port)).map(|(_, holder)| holder)
    }

    /// Allocates what a pod needs.
    pub(super) fn take(&mut self, pod_needs: &PodNeeds<'_>) {
        let needs = &pod_needs.needs;
        self.pods += 1;
        self.cpu_millis = self.cpu_millis.saturating_add(needs.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_add(needs.memory_bytes);
        self.gpus = self.gpus.saturating_add(needs.gpus);
        for port in &needs.host_ports {
            self.host_ports.entry(*port).or_insert_with(|| pod_needs.pod.reference());
        }
        for rule in &needs.neighbours.matched {
            self.rules.entry(*rule).or_default().matching += 1;
        }
        for rule in &needs.neighbours.excluded {
            self.rules.entry(*rule).or_default().excluding += 1;
        }
    }

    /// Frees what a pod took.
    pub(super) fn give_back(&mut self, pod_needs: &PodNeeds<'_>) {
        let needs = &pod_needs.needs;
        self.pods = self.pods.saturating_sub(1);
        self.cpu_millis = self.cpu_millis.saturating_sub(needs.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_sub(needs.memory_bytes);
        self.gpus = self.gpus.saturating_sub(needs.gpus);
        if !needs.host_ports.is_empty() {
            let name = pod_needs.pod.reference();
            self.host_ports.retain(|port, holder| *holder != name || !needs.host_ports.contains(port));
        }
        for rule in &needs.neighbours.matched {
            let counts = self.rules.entry(*rule).or_default();
            counts.matching = counts.matching.saturating_sub(1);
        }
        for rule in &needs.neighbours.excluded {
            let counts = self.rules.entry(*rule).or_default();
            counts.excluding = counts.excluding.saturating_sub(1);
        }
    }

    /// Counts a binding that appeared at this revision.
    pub(super) fn count_binding(&mut self, create_revision: i64) {
        match create_revision.cmp(&self.newest.0) {
            Ordering::Greater => self.newest = (create_revision, 1),
            Ordering::Equal => self.newest.1 += 1,
            Ordering::Less => {}
        }
    }
}

/// Returns a hash of the node's name that is the same everywhere (FNV-1a).
fn name_hash(node: &str) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    node.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

// Needs of a pod: resources, ports and constraints on its node.

/// Needs of a pod that its node must satisfy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needs<'a> {
    /// The only node that the pod may run on.
    pub node_name: Option<&'a str>,
    /// Labels that the node must have.
    pub node_selector: &'a StringMap,
    /// Nodes that the pod's affinity requires.
    pub required_nodes: Option<&'a NodeSelector>,
    /// Tolerations for the node's taints.
    pub tolerations: &'a [Toleration],
    /// Requested CPU, in thousandths of a core.
    pub cpu_millis: u64,
    /// Requested memory.
    pub memory_bytes: u64,
    /// Number of GPUs.
    pub gpus: u64,
    /// Host ports that the pod takes.
    pub host_ports: Vec<HostPort>,
    /// Rules about the other pods of its node.
    pub(super) neighbours: Neighbours<'a>,
}

impl<'a> Needs<'a> {
    /// Returns the needs of `spec`, without rules about other pods.
    pub fn of(spec: &'a PodSpec) -> Self {
        Self {
            node_name: spec.node_name.as_deref(),
            node_selector: &spec.node_selector,
            required_nodes: spec.required_nodes(),
            tolerations: &spec.tolerations,
            cpu_millis: spec.total(|c| c.resources.requested_cpu().millis),
            memory_bytes: spec.total(|c| c.resources.requested_memory().bytes),
            gpus: spec.total(|c| c.resources.gpus()),
            host_ports: host_ports(spec),
            neighbours: Neighbours::default(),
        }
    }
}

/// Returns the host ports that the pod takes. On the host's network, every container port is one.
fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let mut ports: Vec<_> = spec
        .side_by_side()
        .flat_map(|container| &container.ports)
        .filter_map(|port| {
            let of_network = spec.host_network.then_some(port.container_port);
            // 0 asks for any free port; the agent reports which one.
            let number = port.host_port.filter(|&p| p != 0).or(of_network)?;
            Some(HostPort { protocol: port.protocol, port: number, address: port.host_address() })
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
    pub(super) fn of(pod: &'a PodInstance, rules: &mut PodRules<'a>) -> Self {
        Self { pod, needs: Needs { neighbours: rules.neighbours(pod), ..Needs::of(&pod.spec) } }
    }

    pub(super) fn owner(&self) -> Owner<'a> {
        (&self.pod.namespace, self.pod.owner.kind, &self.pod.owner.name)
    }
}

// Rules between pods: required pod affinity and anti-affinity. Each node is a topology of its own.

/// Index of a rule in [`PodRules`].
type RuleId = usize;

/// Terms of the pods of a namespace; a pod that matches all of them matches the rule.
type Rule<'a> = (&'a str, &'a [PodAffinityTerm]);

/// Pods of one node that a rule concerns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RuleCounts {
    /// Pods that match the rule.
    pub(super) matching: u32,
    /// Pods that exclude those that match it.
    pub(super) excluding: u32,
}

/// Rules about a pod and the other pods of its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Neighbours<'a> {
    /// Rule that another pod on the node must match.
    pub(super) required: Option<RuleId>,
    /// Rules that no other pod on the node may match.
    pub(super) excluded: Vec<RuleId>,
    /// Rules that the pod matches itself.
    pub(super) matched: Vec<RuleId>,
    /// Namespace and workload of the pod if it excludes pods like itself: as in Kubernetes, a pod excludes others
    /// until it has ended.
    pub(super) siblings: Option<(&'a str, &'a str)>,
}

/// The distinct rules between pods. Empty, and without any cost, in a cluster without required pod affinity.
#[derive(Default)]
pub(super) struct PodRules<'a> {
    ids: BTreeMap<Rule<'a>, RuleId>,
    /// Rules that name namespaces: of those of other namespaces, only these can match a pod.
    across: Vec<(Rule<'a>, RuleId)>,
    /// Number of pods on all nodes that match each rule.
    matching: Vec<u32>,
    /// Rules that pods of this namespace with these labels match. Pods of a workload have equal labels.
    matched: HashMap<(&'a str, &'a StringMap), Vec<RuleId>>,
}

impl<'a> PodRules<'a> {
    /// Collects the rules of all pods that are wanted or bound.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let bound = snapshot.bindings.values().map(|binding| &binding.value.pod);
        let mut rules = Self::default();
        for pod in snapshot.pods.values().map(|pod| &pod.value).chain(bound) {
            if pod.spec.affinity.is_none() {
                continue;
            }
            let excluded = pod.spec.excluded_pods().chunks(1);
            let required = Some(pod.spec.required_pods()).filter(|terms| !terms.is_empty());
            for terms in excluded.chain(required) {
                let next = rules.ids.len();
                rules.ids.entry((pod.namespace.as_str(), terms)).or_insert(next);
            }
        }
        let names_some = |(_, terms): &Rule<'_>| terms.iter().any(|term| !term.namespaces.is_empty());
        let across = rules.ids.iter().filter(|(rule, _)| names_some(rule));
        rules.across = across.map(|(rule, id)| (*rule, *id)).collect();
        rules.matching = vec![0; rules.ids.len()];
        rules
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the rules about the pod as things are now. As in Kubernetes, a pod that matches its own required
    /// terms may be the first that does.
    fn neighbours(&mut self, pod: &'a PodInstance) -> Neighbours<'a> {
        if self.is_empty() {
            return Neighbours::default();
        }
        let (namespace, labels) = (pod.namespace.as_str(), &pod.labels);
        let (ids, across) = (&self.ids, &self.across);
        let find = || {
            let first: Rule<'_> = (namespace, &[]);
            let own = ids.range(first..).take_while(|((own, _), _)| *own == namespace);
            let others = across.iter().filter(|((own, _), _)| *own != namespace);
            let rules = own.map(|(rule, id)| (*rule, *id)).chain(others.copied());
            let is_met =
                |(own, terms): Rule<'_>| terms.iter().all(|term| term.matches(own, namespace, labels));
            rules.filter(|(rule, _)| is_met(*rule)).map(|(_, id)| id).collect()
        };
        let matched: Vec<RuleId> = self.matched.entry((namespace, labels)).or_insert_with(find).clone();
        let id = |terms: &'a [PodAffinityTerm]| ids.get(&(namespace, terms)).copied();
        let required =
            id(pod.spec.required_pods()).filter(|rule| self.matching[*rule] > 0 || !matched.contains(rule));
        let excluded: Vec<RuleId> = pod.spec.excluded_pods().chunks(1).filter_map(id).collect();
        let excludes_its_own = excluded.iter().any(|rule| matched.contains(rule));
        let siblings = excludes_its_own.then_some((namespace, pod.owner.name.as_str()));
        Neighbours { required, excluded, matched, siblings }
    }

    /// Counts a pod that a node takes.
    pub(super) fn take(&mut self, neighbours: &Neighbours<'_>) {
        neighbours.matched.iter().for_each(|rule| self.matching[*rule] += 1);
    }

    /// Uncounts a pod that leaves a node.
    pub(super) fn give_back(&mut self, neighbours: &Neighbours<'_>) {
        for rule in &neighbours.matched {
            self.matching[*rule] = self.matching[*rule].saturating_sub(1);
        }
    }
}
