//! The scheduler's model of a node: its state and its load.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use schema::kinds::Kind;
use schema::kinds::node::Taint;
use schema::kinds::pod::{PodSpec, Protocol, Toleration};
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
    /// Host ports in use, with the pod that has each.
    pub(super) host_ports: BTreeMap<(u16, Protocol), NamespacedName>,
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
            host_ports: BTreeMap::new(),
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

    /// Allocates what a pod needs.
    pub(super) fn take(&mut self, pod_needs: &PodNeeds<'_>) {
        let needs = &pod_needs.needs;
        self.pods += 1;
        self.cpu_millis = self.cpu_millis.saturating_add(needs.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_add(needs.memory_bytes);
        for port in &needs.host_ports {
            self.host_ports.entry(*port).or_insert_with(|| pod_needs.pod.reference());
        }
    }

    /// Frees what a pod took.
    pub(super) fn give_back(&mut self, pod_needs: &PodNeeds<'_>) {
        let needs = &pod_needs.needs;
        self.pods = self.pods.saturating_sub(1);
        self.cpu_millis = self.cpu_millis.saturating_sub(needs.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_sub(needs.memory_bytes);
        if !needs.host_ports.is_empty() {
            let name = pod_needs.pod.reference();
            self.host_ports.retain(|port, holder| *holder != name || !needs.host_ports.contains(port));
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
    /// Returns the needs of `spec`.
    pub fn of(spec: &'a PodSpec) -> Self {
        Self {
            node_name: spec.node_name.as_deref(),
            node_selector: &spec.node_selector,
            tolerations: &spec.tolerations,
            cpu_millis: spec.total(|c| c.resources.requested_cpu().millis),
            memory_bytes: spec.total(|c| c.resources.requested_memory().bytes),
            host_ports: host_ports(spec),
        }
    }
}

/// Returns the host ports that the pod takes. On the host's network, every container port is one.
fn host_ports(spec: &PodSpec) -> Vec<(u16, Protocol)> {
    let mut ports: Vec<_> = spec
        .side_by_side()
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
