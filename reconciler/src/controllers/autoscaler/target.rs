//! Targets of autoscalers in the snapshot: the number in Git, the present number, and the pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::SignedDuration;
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::pod::{PodPhase, PodSpec, RestartPolicy};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{AutoscalerRecord, PodInstance};
use schema::snapshot::{BoundPod, Snapshot};
use tokio::time::Instant;

use super::model::{PerResource, Pod, Sample};
use crate::last_known::LastKnown;

/// Age from which a sample is ignored: nodes measure every 15 s.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(60);

/// Ages of the nodes' samples since this reconciler first read them: a node's clock may differ from its own.
#[derive(Debug, Clone, Default)]
pub(in crate::controllers) struct SampleAges(BTreeMap<String, (i64, Instant)>);

impl SampleAges {
    /// Notes new samples, and returns the nodes without a current one.
    pub(in crate::controllers) fn observe(&mut self, snapshot: &Snapshot, now: Instant) -> BTreeSet<String> {
        self.0.retain(|node, _| snapshot.usage.contains_key(node));
        let mut outdated = BTreeSet::new();
        for (node, usage) in &snapshot.usage {
            let (revision, since) = self.0.entry(node.clone()).or_insert((usage.mod_revision, now));
            if *revision != usage.mod_revision {
                (*revision, *since) = (usage.mod_revision, now);
            }
            if now.duration_since(*since) >= SAMPLE_AGE_MAX {
                outdated.insert(node.clone());
            }
        }
        outdated
    }
}

/// Data that all targets are read from, looked up once.
pub(super) struct Targets<'a> {
    snapshot: &'a Snapshot,
    last_known: &'a LastKnown,
    /// Nodes without a current sample.
    outdated: &'a BTreeSet<String>,
    bound: HashMap<&'a NamespacedName, BoundPod<'a>>,
    pods: BTreeMap<ObjectRef, Vec<&'a PodInstance>>,
    survivors: BTreeMap<NamespacedName, BTreeSet<&'a str>>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        last_known: &'a LastKnown,
        outdated: &'a BTreeSet<String>,
        wanted: &BTreeSet<&ObjectRef>,
    ) -> Self {
        let mut pods: BTreeMap<ObjectRef, Vec<&PodInstance>> = BTreeMap::new();
        for pod in snapshot.pods.values().map(|pod| &pod.value).filter(|_| !wanted.is_empty()) {
            let owner = ObjectRef {
                kind: pod.owner.kind,
                namespace: pod.namespace.clone(),
                name: pod.owner.name.clone(),
            };
            if wanted.contains(&owner) {
                pods.entry(owner).or_default().push(pod);
            }
        }
        let bound = if pods.is_empty() { HashMap::new() } else { snapshot.bound_by_pod() };
        Self { snapshot, last_known, outdated, bound, pods, survivors: survivors(snapshot) }
    }

    /// Returns the number of pods in Git.
    ///
    /// # Errors
    /// The reason why the target can't be scaled.
    pub(super) fn replicas_in_git(&self, target: &ObjectRef) -> Result<u32, String> {
        let keys = [Key::Object(target.clone()), Key::Scale(target.clone())].map(|key| key.to_string());
        if let Some(key) = keys.iter().find(|key| self.snapshot.malformed.contains_key(*key)) {
            return Err(format!("the value of {key} can't be read"));
        }
        match self.snapshot.objects.get(target).map(|object| &object.value.resource) {
            Some(Resource::ReplicaSet(set)) => Ok(set.replicas),
            // A bare pod counts as one.
            Some(Resource::Pod(pod)) if pod.restart_policy == RestartPolicy::Always => Ok(1),
            Some(Resource::Pod(pod)) => Err(format!(
                "{target} can't be scaled: its restartPolicy is {:?}, not Always",
                pod.restart_policy
            )),
            Some(_) => Err(format!("a {} can't be scaled", target.kind)),
            None => Err(format!("there is no {target}")),
        }
    }

    /// Returns the number of pods that the target should have so far: the last decision, else the number in Git.
    /// While a lost etcd is being refilled, at least the number of pods that still run: neither Git nor an older
    /// file on disk knows that there are more.
    pub(super) fn current(&self, target: &ObjectRef, seed: u32, record: Option<&AutoscalerRecord>) -> u32 {
        if seed == 0 {
            return 0;
        }
        let stored = self.snapshot.scales.get(target).map(|scale| scale.value.replicas);
        let has_scaled = record.is_some_and(|record| record.status.last_scale_time.is_some());
        if let Some(decided) = stored.filter(|_| has_scaled) {
            return decided;
        }
        let decided = stored.or_else(|| self.last_known.replicas(target));
        let id = NamespacedName::new(&target.namespace, &target.name);
        // A pod without a record is attributed by its name; a record names the owner's kind.
        let is_of_target = |pod: &&&str| {
            let record = self.snapshot.pods.get(&NamespacedName::new(&target.namespace, **pod));
            let kind = record.map(|record| record.value.owner.kind);
            kind.map_or(target.kind == Kind::Pod || ***pod != target.name, |kind| kind == target.kind)
        };
        let survivors = self.survivors.get(&id).map_or(0, |pods| pods.iter().filter(is_of_target).count());
        decided.unwrap_or(seed).max(u32::try_from(survivors).unwrap_or(u32::MAX))
    }

    pub(super) fn pods(&self, target: &ObjectRef) -> Vec<Pod> {
        let pods = self.pods.get(target).into_iter().flatten();
        pods.map(|instance| self.pod(instance)).collect()
    }

    /// Builds a pod from its node's reports.
    fn pod(&self, instance: &PodInstance) -> Pod {
        let id = instance.reference();
        let bound = self.bound.get(&id);
        let status = bound.and_then(|bound| bound.status_of(&instance.uid));
        let node = bound.map(BoundPod::node);
        let ready =
            status.and_then(|status| status.conditions.iter().find(|condition| condition.kind == "Ready"));
        let current = node.filter(|node| !self.outdated.contains(*node));
        let measured = current.and_then(|node| self.snapshot.usage.get(node)).map(|usage| &usage.value);
        let usage = measured.and_then(|measured| {
            let used = measured.pod(&id, &instance.uid).filter(|used| !used.containers.is_empty())?.total();
            Some(Sample {
                used: PerResource { cpu: Some(used.cpu), memory: Some(used.memory) },
                at: measured.at,
                window: SignedDuration::from_secs(i64::try_from(measured.window_seconds).unwrap_or(i64::MAX)),
            })
        });
        Pod {
            name: instance.name.clone(),
            phase: status.map_or(PodPhase::Pending, |status| status.phase),
            ready: ready.map(|condition| condition.status != ConditionStatus::False),
            started: status.and_then(|status| status.start_time),
            ready_since: ready.map(|condition| condition.last_transition_time),
            is_deleted: status.is_some_and(|status| status.is_terminating()),
            requests: requests(&instance.spec),
            usage,
        }
    }
}

/// Returns the pods that run on unsettled nodes, by the workload in their name. On a settled node, a pod without a
/// binding is being removed.
fn survivors(snapshot: &Snapshot) -> BTreeMap<NamespacedName, BTreeSet<&str>> {
    let mut survivors: BTreeMap<NamespacedName, BTreeSet<&str>> = BTreeMap::new();
    for node in snapshot.nodes.keys().filter(|node| !snapshot.settled.contains_key(*node)) {
        for (pod, status) in snapshot.pod_status_of(node) {
            let runs = matches!(status.value.phase, PodPhase::Pending | PodPhase::Running);
            if runs && !status.value.is_terminating() {
                let workload = PodInstance::workload_in_name(&pod.name).unwrap_or(&pod.name);
                let id = NamespacedName::new(&pod.namespace, workload);
                survivors.entry(id).or_default().insert(&pod.name);
            }
        }
    }
    survivors
}

/// Returns the sum of the requests of all containers and sidecars, whose use is summed, too; a limit without a request
/// counts as one.
fn requests(spec: &PodSpec) -> PerResource<Option<u64>> {
    let resources = || spec.side_by_side().map(|container| &container.resources);
    PerResource {
        cpu: resources().map(|of| of.requests.cpu.or(of.limits.cpu).map(|cpu| cpu.millis)).sum(),
        memory: resources()
            .map(|of| of.requests.memory.or(of.limits.memory).map(|memory| memory.bytes))
            .sum(),
    }
}
