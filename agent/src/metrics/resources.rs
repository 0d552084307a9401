//! Families of what the usage loop samples: CPU, memory, network and disk of the node and its pods, as cAdvisor gives
//! them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use schema::meta::NamespacedName;
use schema::metrics::{FamilyInfo, StateFamily};
use schema::records::DiskSpace;

/// Bytes that came in, from a network or a disk, and bytes that went out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub input: u64,
    pub output: u64,
}

/// Resource use of the node and its pods at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU time since the machine's start, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory in use, without the page cache that is not in active use.
    pub memory_bytes: u64,
    /// Memory of the machine; 0 if unknown.
    pub memory_total_bytes: u64,
    /// Traffic of the link of the default route; `None` without one.
    pub network: Option<Traffic>,
    /// File system of the state directory; `None` if it can't be read.
    pub disk: Option<DiskSpace>,
    /// Running containers of pods.
    pub containers: usize,
    pub pods: BTreeMap<NamespacedName, PodResources>,
}

/// Resource use of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodResources {
    /// CPU time that this agent counted, in nanoseconds.
    pub cpu_ns: u64,
    pub memory_bytes: u64,
    /// Traffic of the pod's link; `None` on the host's network.
    pub network: Option<Traffic>,
    /// Bytes read from and written to disks that this agent counted; `None` if the kernel does not count them.
    pub disk: Option<Traffic>,
    /// Bytes in the pod's own volumes; `None` without any.
    pub volume_bytes: Option<u64>,
}

/// A family of the node with its figure.
type NodeFamily = (FamilyInfo, fn(&Resources) -> Option<f64>);

static NODE_FAMILIES: [NodeFamily; 8] = [
    (
        FamilyInfo::counter("minik8s_node_cpu_seconds", "CPU time used on the machine since it booted", &[]),
        |of| Some(seconds(of.cpu_ns)),
    ),
    (
        FamilyInfo::gauge(
            "minik8s_node_memory_working_set_bytes",
            "Memory in use on the machine, without inactive page cache",
            &[],
        ),
        |of| Some(of.memory_bytes as f64),
    ),
    (FamilyInfo::gauge("minik8s_node_memory_total_bytes", "Total memory of the machine", &[]), |of| {
        (of.memory_total_bytes > 0).then_some(of.memory_total_bytes as f64)
    }),
    (
        FamilyInfo::counter(
            "minik8s_node_network_receive_bytes",
            "Bytes received on the link of the default route",
            &[],
        ),
        |of| Some(of.network?.input as f64),
    ),
    (
        FamilyInfo::counter(
            "minik8s_node_network_transmit_bytes",
            "Bytes transmitted on the link of the default route",
            &[],
        ),
        |of| Some(of.network?.output as f64),
    ),
    (
        FamilyInfo::gauge(
            "minik8s_node_filesystem_free_bytes",
            "Free space on the disk of the state directory, without what is reserved for root",
            &[],
        ),
        |of| Some(of.disk?.free_bytes as f64),
    ),
    (
        FamilyInfo::gauge(
            "minik8s_node_filesystem_total_bytes",
            "Size of the disk of the state directory, without what is reserved for root",
            &[],
        ),
        |of| Some(of.disk?.total_bytes as f64),
    ),
    (FamilyInfo::gauge("minik8s_containers_running", "Running containers of pods", &[]), |of| {
        Some(of.containers as f64)
    }),
];

/// Labels of a pod's figures.
const OF_POD: &[&str] = &["namespace", "pod"];

/// A family of pods with the figure of each.
type PodFamily = (FamilyInfo, fn(&PodResources) -> Option<f64>);

static POD_FAMILIES: [PodFamily; 7] = [
    (
        FamilyInfo::counter(
            "minik8s_pod_cpu_seconds",
            "CPU time used by the pod's containers, former ones included, since the agent started",
            OF_POD,
        ),
        |of| Some(seconds(of.cpu_ns)),
    ),
    (
        FamilyInfo::gauge(
            "minik8s_pod_memory_working_set_bytes",
            "Memory in use by the pod's containers, without inactive page cache",
            OF_POD,
        ),
        |of| Some(of.memory_bytes as f64),
    ),
    (
        FamilyInfo::counter(
            "minik8s_pod_network_receive_bytes",
            "Bytes received by the pod; absent for pods on the host's network",
            OF_POD,
        ),
        |of| Some(of.network?.input as f64),
    ),
    (
        FamilyInfo::counter(
            "minik8s_pod_network_transmit_bytes",
            "Bytes transmitted by the pod; absent for pods on the host's network",
            OF_POD,
        ),
        |of| Some(of.network?.output as f64),
    ),
    (
        FamilyInfo::counter(
            "minik8s_pod_disk_read_bytes",
            "Bytes read from disks by the pod's containers, former ones included, since the agent started",
            OF_POD,
        ),
        |of| Some(of.disk?.input as f64),
    ),
    (
        FamilyInfo::counter(
            "minik8s_pod_disk_written_bytes",
            "Bytes written to disks by the pod's containers, former ones included, since the agent started",
            OF_POD,
        ),
        |of| Some(of.disk?.output as f64),
    ),
    (FamilyInfo::gauge("minik8s_pod_volume_bytes", "Bytes in the pod's own volumes", OF_POD), |of| {
        of.volume_bytes.map(|bytes| bytes as f64)
    }),
];

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// Descriptions of the families of [`resource_families`].
pub(super) fn infos() -> impl Iterator<Item = &'static FamilyInfo> {
    let node = NODE_FAMILIES.iter().map(|(info, _)| info);
    node.chain(POD_FAMILIES.iter().map(|(info, _)| info))
}

/// Returns the families of the node's resources and of its pods'.
pub(super) fn resource_families(of: &Resources) -> Vec<StateFamily> {
    let node = NODE_FAMILIES.iter().filter_map(|(info, figure)| Some(StateFamily::single(info, figure(of)?)));
    let pods = POD_FAMILIES.iter().map(|(info, figure)| {
        let mut family = StateFamily::new(info);
        for (pod, resources) in &of.pods {
            if let Some(value) = figure(resources) {
                family.add([pod.namespace.as_str(), pod.name.as_str()], value);
            }
        }
        family
    });
    node.chain(pods).collect()
}
