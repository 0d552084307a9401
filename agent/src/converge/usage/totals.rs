//! Resource figures for metrics, among them totals of each pod that only grow although its containers come and go.
//! Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::plan::{ContainerSample, Observed};
use crate::metrics::{PodResources, Resources, Traffic};
use crate::worlds::cgroups::Sample;
use crate::worlds::netlink::host_link_name;

/// Time by which a container may seem to be older than the previous sample although it began after it.
const SLACK: Duration = Duration::from_secs(2);

/// Use of resources by pods since this agent began to count, by uid.
#[derive(Debug, Default)]
pub(super) struct Totals(BTreeMap<String, PodTotal>);

/// Total of a pod.
#[derive(Debug, Default)]
struct PodTotal {
    cpu_ns: u64,
    disk: Option<Traffic>,
    /// Last sample of each of its containers, by Docker id.
    last: BTreeMap<String, Sample>,
}

impl PodTotal {
    fn grow(&mut self, before: Sample, now: Sample) {
        // A counter never decreases, except where a container was started again by hand.
        self.cpu_ns = self.cpu_ns.saturating_add(now.cpu_ns.saturating_sub(before.cpu_ns));
        if let Some(now) = now.io {
            let (total, before) = (self.disk.get_or_insert_default(), before.io.unwrap_or_default());
            total.input = total.input.saturating_add(now.input.saturating_sub(before.input));
            total.output = total.output.saturating_add(now.output.saturating_sub(before.output));
        }
    }
}

impl Totals {
    /// Adds what was used since the previous sample. A container that is older counts from now on: a former agent
    /// counted the rest. The total of a pod stays as long as it has containers, even if none of them runs.
    pub(super) fn add(&mut self, observed: &Observed, now: Timestamp) {
        let window = observed.former.as_ref().map(|(_, window)| *window);
        for (id, counted) in &observed.containers {
            let total = self.0.entry(counted.uid.clone()).or_default();
            let first = if is_new(counted, window, now) { Sample::default() } else { counted.sample };
            let before = total.last.insert(id.clone(), counted.sample).unwrap_or(first);
            total.grow(before, counted.sample);
        }
        self.0.retain(|uid, total| {
            total.last.retain(|id, _| observed.containers.contains_key(id));
            observed.uids.contains(uid)
        });
    }

    /// Returns the figures of a sample that has been added. `memory_total_bytes`: memory of the machine.
    pub(super) fn resources(
        &self,
        observed: &Observed,
        instance: &str,
        memory_total_bytes: u64,
    ) -> Resources {
        let traffic = |link: &String| observed.traffic.links.get(link).copied();
        let mut pods: BTreeMap<_, (&str, PodResources)> = BTreeMap::new();
        for counted in observed.containers.values() {
            let (uid, of) = pods.entry(counted.pod.clone()).or_default();
            // While one pod replaces another of that name, both may run: the larger uid wins, as in the record.
            if *uid < counted.uid.as_str() {
                *uid = &counted.uid;
                *of = self.pod(&counted.uid, observed);
                // The host's end receives what the pod transmits.
                let link = traffic(&host_link_name(instance, &counted.uid));
                of.network = link.map(|link| Traffic { input: link.output, output: link.input });
            }
            if *uid == counted.uid {
                of.memory_bytes = of.memory_bytes.saturating_add(counted.sample.memory_bytes);
            }
        }
        Resources {
            cpu_ns: observed.machine.cpu_ns,
            memory_bytes: observed.machine.memory_bytes,
            memory_total_bytes,
            network: observed.traffic.uplink.as_ref().and_then(traffic),
            disk: observed.disk,
            containers: observed.running,
            pods: pods.into_iter().map(|(pod, (_, of))| (pod, of)).collect(),
        }
    }

    /// Returns the total of a pod and the size of its volumes.
    fn pod(&self, uid: &str, observed: &Observed) -> PodResources {
        let (cpu_ns, disk) = self.0.get(uid).map_or((0, None), |total| (total.cpu_ns, total.disk));
        let volumes = observed.volumes.get(uid).filter(|volumes| !volumes.bytes.is_empty());
        let volume_bytes =
            volumes.map(|volumes| volumes.bytes.values().copied().fold(0, u64::saturating_add));
        PodResources { cpu_ns, disk, volume_bytes, ..PodResources::default() }
    }
}

/// True if the container began after the previous sample, `window` ago; false without one.
fn is_new(counted: &ContainerSample, window: Option<Duration>, now: Timestamp) -> bool {
    let (Some(window), Some(started_at)) = (window, counted.started_at) else { return false };
    let window = SignedDuration::try_from(window + SLACK).unwrap_or(SignedDuration::MAX);
    now.duration_since(started_at) <= window
}
