//! Computes usage from two samples of the kernel's counters. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use schema::codec::{CodecError, encode};
use schema::meta::NamespacedName;
use schema::records::{ContainerUsage, DiskSpace, NodeUsage, PodUsage};

use crate::worlds::cgroups::{LinkTraffic, Sample};

/// Minimum window: shorter ones say little, because the kernel counts the machine's time in steps of 10 ms.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Note in the record when volumes do not fit.
const WITHOUT_VOLUMES: &str = "the sizes of volumes are left out because there are too many";
/// Note in the record when containers do not fit either.
const WITHOUT_CONTAINERS: &str =
    "the sizes of volumes are left out and the containers of a pod added up because there are too many";

/// A running container with its current counters.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSample {
    pub pod: NamespacedName,
    pub uid: String,
    pub container: String,
    pub started_at: Option<Timestamp>,
    pub sample: Sample,
}

/// Sizes of the volumes of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeSizes {
    pub bytes: BTreeMap<String, u64>,
    /// Volumes that were not counted completely.
    pub at_least: Vec<String>,
}

/// CPU counters of the previous sample, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreviousSample {
    pub machine: u64,
    /// CPU counters by container id.
    pub containers: BTreeMap<String, u64>,
}

/// Observed state of the usage loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub machine: Sample,
    /// Number of running containers, those that could not be measured included.
    pub running: usize,
    /// Containers by Docker id.
    pub containers: BTreeMap<String, ContainerSample>,
    /// Uids of all pods with containers, ended ones included.
    pub uids: BTreeSet<String>,
    pub traffic: LinkTraffic,
    /// Volume sizes by pod uid.
    pub volumes: BTreeMap<String, VolumeSizes>,
    /// File system of the state directory; `None` if it can't be read.
    pub disk: Option<DiskSpace>,
    /// The previous sample and its age; `None` at the start.
    pub former: Option<(PreviousSample, Duration)>,
}

/// Plan of the usage loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsagePlan {
    Write(NodeUsage),
    /// Nothing to write: CPU needs two samples.
    SecondLook,
    /// Nothing to write: the record does not fit, however it is shortened.
    TooLarge(usize),
}

impl schema::control::Plan for UsagePlan {
    fn is_empty(&self) -> bool {
        !matches!(self, UsagePlan::Write(_))
    }
}

/// Computes the record to write.
pub fn plan(observed: &Observed, now: Timestamp) -> UsagePlan {
    let Some((former, window)) = observed.former.as_ref().filter(|(_, window)| *window >= WINDOW_MIN) else {
        return UsagePlan::SecondLook;
    };
    let mut usage = NodeUsage {
        at: now,
        window_seconds: window.as_secs_f64().round() as u64,
        cpu: millicores(observed.machine.cpu_ns.saturating_sub(former.machine), *window),
        memory: observed.machine.memory_bytes,
        disk: observed.disk,
        pods: BTreeMap::new(),
        left_out: String::new(),
    };
    for (id, counted) in &observed.containers {
        let pod = usage.pods.entry(counted.pod.to_string()).or_default();
        if pod.uid != counted.uid {
            // While one pod replaces another of that name, both may run: the larger uid wins, so that it is always
            // the same one.
            if pod.uid > counted.uid {
                continue;
            }
            *pod = PodUsage { uid: counted.uid.clone(), ..PodUsage::default() };
            if let Some(volumes) = observed.volumes.get(&counted.uid) {
                pod.volumes.clone_from(&volumes.bytes);
                pod.at_least.clone_from(&volumes.at_least);
            }
        }
        let cpu = container_cpu(counted, former.containers.get(id).copied(), *window, now);
        let memory = counted.sample.memory_bytes;
        pod.containers.insert(counted.container.clone(), ContainerUsage { cpu, memory });
    }
    fitting(usage)
}

/// Returns a container's CPU usage. A container that is new since the previous sample counts from its start.
fn container_cpu(counted: &ContainerSample, former: Option<u64>, window: Duration, now: Timestamp) -> u64 {
    let used = counted.sample.cpu_ns.saturating_sub(former.unwrap_or(0));
    let since_start = || {
        let ran = now.duration_since(counted.started_at?);
        Duration::try_from(ran).ok().map(|ran| ran.clamp(WINDOW_MIN, window))
    };
    let window = if former.is_some() { window } else { since_start().unwrap_or(window) };
    millicores(used, window)
}

/// Converts CPU time to thousandths of a core, to the nearest.
fn millicores(used_ns: u64, window: Duration) -> u64 {
    let window_ns = window.as_nanos().max(1);
    let millis = (u128::from(used_ns) * 1000 + window_ns / 2) / window_ns;
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// Steps that shorten the record, one after another.
const STEPS: [fn(&mut NodeUsage); 3] = [|_| {}, without_volumes, without_containers];

/// Fits the record into the limit of a key: volumes go first, as they matter least.
fn fitting(mut usage: NodeUsage) -> UsagePlan {
    let mut too_large = 0;
    for shorten in STEPS {
        shorten(&mut usage);
        match encode(&usage) {
            Ok(_) => return UsagePlan::Write(usage),
            Err(CodecError::TooLarge { bytes }) => too_large = bytes,
            // A record of numbers and names has a JSON form.
            Err(_) => {}
        }
    }
    UsagePlan::TooLarge(too_large)
}

fn without_volumes(usage: &mut NodeUsage) {
    WITHOUT_VOLUMES.clone_into(&mut usage.left_out);
    for pod in usage.pods.values_mut() {
        pod.volumes.clear();
        pod.at_least.clear();
    }
}

fn without_containers(usage: &mut NodeUsage) {
    WITHOUT_CONTAINERS.clone_into(&mut usage.left_out);
    for pod in usage.pods.values_mut().filter(|pod| pod.containers.len() > 1) {
        pod.containers = BTreeMap::from([(String::new(), pod.total())]);
    }
}
