//! Views of nodes: liveness, pods, and requested resources.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use schema::condition::{Condition, ConditionStatus};
use schema::meta::{NamespacedName, StringMap};
use schema::quantity::{Cpu, Memory};
use schema::records::{Drain, NodeRecord};
use schema::snapshot::{Evictions, Snapshot};
use schema::violation::plural;
use serde::{Deserialize, Serialize};

use super::age::age;
use super::pods::{PodView, pods_where};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub name: String,
    /// Ready or NotReady; as in kubectl with `,SchedulingDisabled` for a node that accepts no new pods.
    pub status: String,
    pub is_ready: bool,
    /// Time at which a leader first saw the node; that of its own record if no leader has yet.
    pub registered_at: Timestamp,
    pub age: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_since: Option<Timestamp>,
    pub version: String,
    pub docker: String,
    pub kernel: String,
    pub os: String,
    pub arch: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// URL at which the node accepts calls of functions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub calls: String,
    #[serde(default, rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// Recipient of secrets that the node can decrypt: `age1…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_recipient: Option<String>,
    pub cluster_recipient: Option<String>,
    pub pods: u64,
    pub max_pods: u32,
    pub cpu: Cpu,
    pub cpu_requested: Cpu,
    pub memory: Memory,
    pub memory_requested: Memory,
    /// Number of NVIDIA GPUs; absent on a node without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_requested: Option<u64>,
    /// Labels of the agent, overridden by those of the Node object.
    pub labels: StringMap,
    /// `key=value:effect` each.
    #[serde(default)]
    pub taints: Vec<String>,
    /// `draining, 3 pods left`, with the disruption budget that it waits for, or `drained`; empty if no drain is
    /// requested.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drain: String,
    /// Reason that the node is not ready; empty if it is.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDetail {
    #[serde(flatten)]
    pub row: NodeView,
    /// Addresses of the node, the preferred one first.
    pub addresses: Vec<IpAddr>,
    pub api: String,
    #[serde(default)]
    pub conditions: Vec<Condition>,
    pub pod_list: Vec<PodView>,
}

pub fn nodes(snapshot: &Snapshot, now: Timestamp) -> Vec<NodeView> {
    let evictions = Evictions::of(snapshot);
    snapshot.nodes.values().map(|record| view(snapshot, &record.value, &evictions, now)).collect()
}

pub fn node(snapshot: &Snapshot, name: &str, now: Timestamp) -> Option<NodeDetail> {
    let record = &snapshot.nodes.get(name)?.value;
    let bound = snapshot.bindings_of(name).map(|(pod, _)| pod);
    let reported = snapshot.pod_status.range((name.to_owned(), NamespacedName::new("", ""))..);
    let reported = reported.map(|((node, pod), _)| (node, pod)).take_while(|(node, _)| *node == name);
    let names: BTreeSet<&NamespacedName> = bound.chain(reported.map(|(_, pod)| pod)).collect();
    let rows = pods_where(snapshot, |pod| names.contains(pod), now).into_iter();
    let pod_list = rows.filter(|pod| pod.node.as_deref() == Some(name)).collect();
    Some(NodeDetail {
        row: view(snapshot, record, &Evictions::of(snapshot), now),
        addresses: record.addresses.clone(),
        api: record.api.clone(),
        conditions: conditions(snapshot, name),
        pod_list,
    })
}

/// Conditions as recorded by the nodes controller.
pub(super) fn conditions(snapshot: &Snapshot, node: &str) -> Vec<Condition> {
    let Some(seen) = snapshot.node_conditions.get(node).map(|found| &found.value) else { return Vec::new() };
    let (reason, message) = match seen.ready {
        ConditionStatus::True => {
            ("AgentReady", "its agent sends heartbeats and the node has a range of pod addresses")
        }
        ConditionStatus::False => {
            ("NoPodRange", "its agent sends heartbeats; the node is waiting for a range of pod addresses")
        }
        ConditionStatus::Unknown => ("HeartbeatExpired", "its agent is stopped or can't reach etcd"),
    };
    let condition = |kind: &str, status, since, reason: &str, message: &str| Condition {
        kind: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since,
    };
    let evicted = seen.evicted_at.map(|at| {
        let message = "its pods are replaced on other nodes, except those that name it";
        condition("Evicted", ConditionStatus::True, at, "SilentForTooLong", message)
    });
    [Some(condition("Ready", seen.ready, seen.since, reason, message)), evicted]
        .into_iter()
        .flatten()
        .collect()
}

fn drain(snapshot: &Snapshot, node: &str, evictions: &Evictions) -> String {
    let drain = snapshot.conditions_of(node).and_then(|conditions| conditions.drain.as_ref());
    let left = match drain {
        None => return String::new(),
        Some(Drain::Drained) => return "drained".to_owned(),
        Some(Drain::Draining { left, .. }) => plural(left, "pod"),
    };
    let mut refused = evictions.refused.iter().filter(|refused| refused.node == node);
    let waits = match (refused.next(), refused.count()) {
        (None, _) => String::new(),
        (Some(first), 0) => format!("; {first}"),
        (Some(first), more) => format!("; {first} (and {more} more)"),
    };
    format!("draining, {left} left{waits}")
}

/// Returns the number of pods that are bound to a node, and the CPU and memory that they request.
pub(super) fn requested(snapshot: &Snapshot, node: &str) -> (u64, Cpu, Memory) {
    let (mut pods, mut cpu, mut memory) = (0, Cpu::default(), Memory::default());
    for (_, binding) in snapshot.bindings_of(node) {
        pods += 1;
        let spec = &binding.value.pod.spec;
        cpu.millis = cpu.millis.saturating_add(spec.total(|c| c.resources.requested_cpu().millis));
        memory.bytes = memory.bytes.saturating_add(spec.total(|c| c.resources.requested_memory().bytes));
    }
    (pods, cpu, memory)
}

/// Returns the number of GPUs that the pods of a node request.
fn gpus_requested(snapshot: &Snapshot, node: &str) -> u64 {
    let pods = snapshot.bindings_of(node).map(|(_, binding)| &binding.value.pod.spec);
    pods.map(|spec| spec.total(|container| container.resources.gpus())).sum()
}

/// True unless the Node object of a node keeps new pods away.
pub(super) fn takes_pods(snapshot: &Snapshot, node: &str) -> bool {
    !snapshot.node_spec(node).is_some_and(|node| node.unschedulable || node.drain)
}

fn view(snapshot: &Snapshot, record: &NodeRecord, evictions: &Evictions, now: Timestamp) -> NodeView {
    let name = &record.name;
    let is_ready = snapshot.node_is_ready(name);
    let first_seen_at =
        snapshot.node_conditions.get(name).and_then(|conditions| conditions.value.first_seen_at);
    let registered_at = first_seen_at.unwrap_or(record.registered_at);
    let subnet = snapshot.subnets.get(name).map(|s| s.value.cidr.to_string());
    let (pods, cpu, memory) = requested(snapshot, name);
    let wanted = snapshot.node_spec(name);
    let takes_pods = takes_pods(snapshot, name);
    let status = if is_ready { "Ready" } else { "NotReady" };
    let why = match (is_ready, &subnet) {
        (false, _) if snapshot.is_evicted(name) => "no heartbeat; its pods are replaced on other nodes",
        (false, _) => "no heartbeat: the agent is stopped or can't reach etcd",
        (true, None) => "waiting for a pod subnet",
        (true, Some(_)) => "",
    };
    NodeView {
        name: name.clone(),
        status: if takes_pods { status.to_owned() } else { format!("{status},SchedulingDisabled") },
        is_ready,
        registered_at,
        age: age(registered_at, now),
        heartbeat_since: snapshot.heartbeats.get(name).map(|h| h.value.since),
        version: record.versions.agent.clone(),
        docker: record.versions.docker.clone(),
        kernel: record.versions.kernel.clone(),
        os: record.versions.os.clone(),
        arch: record.versions.arch.clone(),
        address: record.addresses.first().copied(),
        calls: record.calls.clone(),
        pod_cidr: subnet,
        age_recipient: record.age_recipient.clone(),
        cluster_recipient: record.cluster_recipient.clone(),
        pods,
        max_pods: record.max_pods,
        cpu: record.cpu,
        cpu_requested: cpu,
        memory: record.memory,
        memory_requested: memory,
        gpus: (record.gpus > 0).then_some(record.gpus),
        gpus_requested: (record.gpus > 0).then(|| gpus_requested(snapshot, name)),
        labels: snapshot.node_labels(name).into_owned(),
        taints: wanted.map(|node| node.taints.iter().map(ToString::to_string).collect()).unwrap_or_default(),
        drain: drain(snapshot, name, evictions),
        why: why.to_owned(),
    }
}
