//! Usage of pods and nodes next to their requests: the rows of `minik8s top`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::{PodPhase, PodSpec, PodStatus};
use schema::meta::NamespacedName;
use schema::quantity::{Cpu, Memory};
use schema::records::{ContainerUsage, NodeUsage, PodUsage};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::age::age;
use super::nodes::nodes;
use super::pods::{PodView, pods};

/// Samples older than this get a remark: three were missed.
const OLD: SignedDuration = SignedDuration::from_secs(60);

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceUsage {
    /// CPU in use, the mean of the sample's window; `None` without a sample.
    pub cpu: Option<Cpu>,
    pub cpu_requested: Option<Cpu>,
    pub cpu_limit: Option<Cpu>,
    /// Percentage of the node's CPU.
    pub cpu_percent: Option<u64>,
    pub memory: Option<Memory>,
    pub memory_requested: Option<Memory>,
    pub memory_limit: Option<Memory>,
    /// Percentage of the node's memory.
    pub memory_percent: Option<u64>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsageView {
    pub namespace: String,
    pub name: String,
    pub node: Option<String>,
    /// Sum of all containers; a limit only if every container has one.
    #[serde(flatten)]
    pub total: ResourceUsage,
    pub containers: BTreeMap<String, ResourceUsage>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, Memory>,
    /// Volumes with too many files to count; their sizes are lower bounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_least: Vec<String>,
    pub at: Option<Timestamp>,
    pub sample_age: String,
    /// Reason for a missing, old or partial sample; empty if all is well.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsageView {
    pub name: String,
    pub cpu_capacity: Cpu,
    pub memory_capacity: Memory,
    /// Usage of everything on the node, and the requests of its pods; the limit is the node itself.
    #[serde(flatten)]
    pub total: ResourceUsage,
    pub pods: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    pub sample_age: String,
    /// Reason for a missing or old sample; empty if all is well.
    pub why: String,
}

/// Usage of pods that run or should, in one namespace if given, by namespace and name.
pub fn pod_usage(snapshot: &Snapshot, namespace: Option<&str>, now: Timestamp) -> Vec<PodUsageView> {
    let rows = pods(snapshot, namespace, now).into_iter();
    let done = |row: &PodView| matches!(row.phase, PodPhase::Succeeded | PodPhase::Failed);
    rows.filter(|row| !done(row)).map(|row| usage_of(snapshot, &row, now)).collect()
}

/// Returns the CPU and memory that are in use on a node, if it has reported them.
pub fn used_of(snapshot: &Snapshot, node: &str) -> Option<(Cpu, Memory)> {
    let sample = &snapshot.usage.get(node)?.value;
    Some((Cpu { millis: sample.cpu }, Memory { bytes: sample.memory }))
}

pub fn node_usage(snapshot: &Snapshot, now: Timestamp) -> Vec<NodeUsageView> {
    nodes(snapshot, now)
        .into_iter()
        .map(|node| {
            let sample = snapshot.usage.get(&node.name).map(|usage| &usage.value);
            let (cpu, memory) = (sample.map(|s| s.cpu), sample.map(|s| s.memory));
            let why = match sample {
                None if !node.is_ready => format!("it has never reported its usage; {}", node.why),
                None => "it has not reported its usage yet".to_owned(),
                Some(sample) => staleness(sample, node.is_ready, now),
            };
            NodeUsageView {
                total: ResourceUsage {
                    cpu: cpu.map(|millis| Cpu { millis }),
                    cpu_requested: Some(node.cpu_requested),
                    cpu_limit: None,
                    cpu_percent: cpu.and_then(|cpu| percent(cpu, node.cpu.millis)),
                    memory: memory.map(|bytes| Memory { bytes }),
                    memory_requested: Some(node.memory_requested),
                    memory_limit: None,
                    memory_percent: memory.and_then(|memory| percent(memory, node.memory.bytes)),
                },
                pods: sample.map_or(0, |sample| sample.pods.len() as u64),
                at: sample.map(|sample| sample.at),
                sample_age: sample.map(|sample| age(sample.at, now)).unwrap_or_default(),
                why,
                name: node.name,
                cpu_capacity: node.cpu,
                memory_capacity: node.memory,
            }
        })
        .collect()
}

pub(super) fn usage_of(snapshot: &Snapshot, row: &PodView, now: Timestamp) -> PodUsageView {
    let pod = NamespacedName::new(&row.namespace, &row.name);
    let spec = snapshot.pods.get(&pod).map(|p| &*p.value.spec);
    let node = row.node.as_deref();
    let sample = node.and_then(|node| snapshot.usage.get(node)).map(|usage| &usage.value);
    let used = sample.and_then(|sample| sample.pod(&pod, &row.uid));
    let capacity = node.and_then(|node| snapshot.nodes.get(node)).map(|node| &node.value);
    let capacity = capacity.map(|node| (node.cpu, node.memory)).unwrap_or_default();
    let mut containers: BTreeMap<String, ResourceUsage> = BTreeMap::new();
    for container in spec.into_iter().flat_map(PodSpec::side_by_side) {
        let resources = &container.resources;
        let wanted = ResourceUsage {
            cpu_requested: resources.requests.cpu.or(resources.limits.cpu),
            cpu_limit: resources.limits.cpu,
            memory_requested: resources.requests.memory.or(resources.limits.memory),
            memory_limit: resources.limits.memory,
            ..ResourceUsage::default()
        };
        containers.insert(container.name.clone(), wanted);
    }
    let mut total = sum(spec, &containers);
    if let Some(used) = used {
        set_usage(&mut total, used.total(), capacity);
        // An entry without a name is the sum of all containers.
        for (name, usage) in used.containers.iter().filter(|(name, _)| !name.is_empty()) {
            set_usage(containers.entry(name.clone()).or_default(), *usage, capacity);
        }
    }
    let volumes = used.map(|used| &used.volumes).into_iter().flatten();
    PodUsageView {
        namespace: row.namespace.clone(),
        name: row.name.clone(),
        node: row.node.clone(),
        total,
        containers,
        volumes: volumes.map(|(name, bytes)| (name.clone(), Memory { bytes: *bytes })).collect(),
        at_least: used.map(|used| used.at_least.clone()).unwrap_or_default(),
        at: used.and(sample).map(|sample| sample.at),
        sample_age: used.and(sample).map(|sample| age(sample.at, now)).unwrap_or_default(),
        why: why(snapshot, row, sample, used, now),
    }
}

fn why(
    snapshot: &Snapshot,
    row: &PodView,
    sample: Option<&NodeUsage>,
    used: Option<&PodUsage>,
    now: Timestamp,
) -> String {
    let Some(node) = &row.node else { return format!("on no node yet: {}", row.why) };
    match (sample, used) {
        (None, _) => format!("node {node} has not reported its usage yet"),
        (Some(sample), Some(_)) => {
            let old = staleness(sample, snapshot.node_is_ready(node), now);
            if old.is_empty() { sample.left_out.clone() } else { old }
        }
        (Some(sample), None) => {
            let status =
                snapshot.pod_status.get(&(node.clone(), NamespacedName::new(&row.namespace, &row.name)));
            let started = status.and_then(|status| started(&status.value));
            match started {
                Some(then) if then > sample.at => {
                    "started after the last sample; the next one is due within 17s".to_owned()
                }
                _ => format!("no container of it was running {} ago: {}", age(sample.at, now), row.status),
            }
        }
    }
}

/// Start time of the running container that started first.
fn started(status: &PodStatus) -> Option<Timestamp> {
    use schema::kinds::pod::ContainerState;
    let running = status.container_statuses.iter().filter_map(|container| match &container.state {
        ContainerState::Running(running) => Some(running.started_at),
        _ => None,
    });
    running.min()
}

fn staleness(sample: &NodeUsage, ready: bool, now: Timestamp) -> String {
    let since = age(sample.at, now);
    match now.duration_since(sample.at) > OLD {
        true if !ready => format!("as of {since} ago: the node has no heartbeat"),
        true => format!("as of {since} ago: the node has not reported since"),
        false => String::new(),
    }
}

fn set_usage(into: &mut ResourceUsage, used: ContainerUsage, (cpu, memory): (Cpu, Memory)) {
    into.cpu = Some(Cpu { millis: used.cpu });
    into.cpu_percent = percent(used.cpu, cpu.millis);
    into.memory = Some(Memory { bytes: used.memory });
    into.memory_percent = percent(used.memory, memory.bytes);
}

/// Sums the requests of all containers; a limit only if each has one.
fn sum(spec: Option<&PodSpec>, containers: &BTreeMap<String, ResourceUsage>) -> ResourceUsage {
    let all = || containers.values();
    let any = |sum: u64| (sum > 0).then_some(sum);
    let cpu = any(all().filter_map(|c| c.cpu_requested).map(|cpu| cpu.millis).sum());
    let memory = any(all().filter_map(|c| c.memory_requested).map(|memory| memory.bytes).sum());
    let cpu_limit = all().map(|c| c.cpu_limit.map(|cpu| cpu.millis)).sum::<Option<u64>>();
    let memory_limit = all().map(|c| c.memory_limit.map(|memory| memory.bytes)).sum::<Option<u64>>();
    ResourceUsage {
        cpu_requested: cpu.map(|millis| Cpu { millis }),
        cpu_limit: cpu_limit.filter(|_| spec.is_some()).map(|millis| Cpu { millis }),
        memory_requested: memory.map(|bytes| Memory { bytes }),
        memory_limit: memory_limit.filter(|_| spec.is_some()).map(|bytes| Memory { bytes }),
        ..ResourceUsage::default()
    }
}

/// Percentage, rounded to the nearest; `None` if `whole` is zero.
fn percent(part: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| {
        let hundredths = (u128::from(part) * 100 + u128::from(whole) / 2) / u128::from(whole);
        u64::try_from(hundredths).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests;
