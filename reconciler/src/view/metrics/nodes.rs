//! Metrics of nodes.

use schema::metrics::{FamilyInfo, StateFamily};
use schema::quantity::Cpu;
use schema::snapshot::Snapshot;

use super::fill::fill;
use crate::view::nodes::{requested, takes_pods};

static NODES: [FamilyInfo; 7] = [
    FamilyInfo::gauge("minik8s_node_ready", "1 if the node has a heartbeat, else 0", &["node"]),
    FamilyInfo::gauge(
        "minik8s_node_unschedulable",
        "1 if the node's Node object keeps new pods away: unschedulable, drain; else 0",
        &["node"],
    ),
    FamilyInfo::gauge("minik8s_node_allocatable_cpu_cores", "CPU that pods may request", &["node"]),
    FamilyInfo::gauge("minik8s_node_allocatable_memory_bytes", "Memory that pods may request", &["node"]),
    FamilyInfo::gauge(
        "minik8s_node_requested_cpu_cores",
        "CPU requested by pods bound to the node",
        &["node"],
    ),
    FamilyInfo::gauge(
        "minik8s_node_requested_memory_bytes",
        "Memory requested by pods bound to the node",
        &["node"],
    ),
    FamilyInfo::gauge("minik8s_node_pods", "Pods bound to the node", &["node"]),
];

pub(super) fn families(snapshot: &Snapshot) -> Vec<StateFamily> {
    let rows = snapshot.nodes.iter().map(|(name, record)| {
        let record = &record.value;
        let (pods, cpu, memory) = requested(snapshot, name);
        let values = [
            Some(f64::from(snapshot.node_is_ready(name))),
            Some(f64::from(!takes_pods(snapshot, name))),
            Some(cores(record.cpu)),
            Some(record.memory.bytes as f64),
            Some(cores(cpu)),
            Some(memory.bytes as f64),
            Some(pods as f64),
        ];
        ([name.as_str()], values)
    });
    fill(&NODES, rows)
}

fn cores(cpu: Cpu) -> f64 {
    cpu.millis as f64 / 1000.0
}
