//! The pods of a workload, with their nodes and status.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Kind;
use schema::kinds::node::{NodeSpec, Taint};
use schema::kinds::pod::{PodPhase, PodSpec, PodStatus};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{NodeConditions, PodInstance};
use schema::snapshot::{BoundPod, Snapshot, VersionedValue, elapsed_seconds};

/// A pod of a workload.
#[derive(Clone, Copy)]
pub(super) struct OwnedPod<'a> {
    pub(super) record: &'a Arc<VersionedValue<PodInstance>>,
    /// Node of the pod, once it has one.
    pub(super) node: Option<&'a str>,
    /// Report of the node on this very pod.
    pub(super) status: Option<&'a PodStatus>,
    /// True while the node beats.
    pub(super) node_is_ready: bool,
    /// Set if the pod must leave its node, because of a drain or a taint that it does not tolerate.
    pub(super) must_move: bool,
    /// Set, and `must_move` not, if the pod would have to leave its drained node, but a disruption budget keeps it.
    pub(super) awaits_budget: bool,
    /// Set if the node is gone for good, or the pod ended by itself.
    pub(super) is_lost: bool,
}

impl<'a> OwnedPod<'a> {
    fn of(
        snapshot: &'a Snapshot,
        nodes: &mut HashMap<&'a str, NodeState<'a>>,
        record: &'a Arc<VersionedValue<PodInstance>>,
        bound: Option<&BoundPod<'a>>,
    ) -> Self {
        let pod = &record.value;
        let name = bound.map(BoundPod::node);
        let node = name.map(|name| *nodes.entry(name).or_insert_with(|| NodeState::of(snapshot, name)));
        let status = bound.and_then(|bound| bound.status_of(&pod.uid));
        let is_evicted = node.is_some_and(|node| node.is_evicted);
        let is_driven_out = node.is_some_and(|node| node.drives_out(&pod.spec));
        let awaits_budget = is_driven_out && name.is_some_and(|name| snapshot.awaits_budget(name, pod));
        Self {
            record,
            node: name,
            status,
            node_is_ready: node.is_some_and(|node| node.is_ready),
            must_move: is_driven_out && !awaits_budget,
            awaits_budget,
            is_lost: is_evicted || status.is_some_and(PodStatus::has_ended),
        }
    }

    pub(super) fn pod(&self) -> &'a PodInstance {
        &self.record.value
    }

    /// True if nothing is known of the pod because its node does not respond.
    pub(super) fn is_silent(&self) -> bool {
        self.node.is_some() && !self.node_is_ready
    }

    pub(super) fn is_ready(&self) -> bool {
        self.node_is_ready && self.status.is_some_and(|status| status.is_ready() && !status.is_terminating())
    }

    /// Returns the time at which the pod became ready; `None` if it is not.
    pub(super) fn ready_since(&self) -> Option<Timestamp> {
        let status = self.status.filter(|_| self.is_ready())?;
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready")?;
        Some(ready.last_transition_time)
    }

    /// Returns the time at which the pod becomes available if nothing happens to it: once it was ready for
    /// `min_ready_seconds`, and containers without a probe have run for long enough to count as running.
    pub(super) fn available_at(&self, min_ready_seconds: u32, now: Timestamp) -> Option<Timestamp> {
        let needs = SignedDuration::from_secs(min_ready_seconds.into());
        // A time in the future comes from a node whose clock is wrong.
        let ready = self.ready_since()?.min(now).checked_add(needs).unwrap_or(Timestamp::MAX);
        let steady =
            self.status?.unsteady_container(&self.pod().spec, now).map(|unsteady| unsteady.steady_at);
        Some(steady.map_or(ready, |steady| steady.max(ready)))
    }

    pub(super) fn phase(&self) -> PodPhase {
        match self.status {
            Some(_) if !self.node_is_ready => PodPhase::Unknown,
            Some(status) => status.phase,
            None => PodPhase::Pending,
        }
    }
}

/// State of a node that all its pods need, looked up once.
#[derive(Clone, Copy)]
struct NodeState<'a> {
    is_ready: bool,
    is_evicted: bool,
    spec: Option<&'a NodeSpec>,
    conditions: Option<&'a NodeConditions>,
}

impl<'a> NodeState<'a> {
    fn of(snapshot: &'a Snapshot, name: &str) -> Self {
        Self {
            is_ready: snapshot.node_is_ready(name),
            is_evicted: snapshot.is_evicted(name),
            spec: snapshot.node_spec(name),
            conditions: snapshot.conditions_of(name),
        }
    }

    fn drives_out(&self, pod: &PodSpec) -> bool {
        let elapsed = |taint: &Taint| elapsed_seconds(self.conditions, taint);
        self.spec.is_some_and(|spec| spec.evicts(pod, elapsed))
    }
}

/// Pods of each workload, by its kind, namespace and name.
pub(super) struct PodsByOwner<'a>(BTreeMap<(Kind, &'a str, &'a str), Vec<OwnedPod<'a>>>);

impl<'a> PodsByOwner<'a> {
    /// Groups all pods that a workload owns; bare pods are not included.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let (bound, mut nodes) = (snapshot.bound_by_pod(), HashMap::new());
        let mut found = BTreeMap::<_, Vec<_>>::new();
        // Pods of one workload are mostly adjacent in order of name.
        let mut run: Vec<OwnedPod<'a>> = Vec::new();
        let owner = |pod: &OwnedPod<'a>| {
            let PodInstance { owner, namespace, .. } = pod.pod();
            (owner.kind, namespace.as_str(), owner.name.as_str())
        };
        for (id, record) in snapshot.pods.iter().filter(|(_, record)| !record.value.is_bare()) {
            let pod = OwnedPod::of(snapshot, &mut nodes, record, bound.get(id));
            if let Some(last) = run.last().map(owner).filter(|last| *last != owner(&pod)) {
                found.entry(last).or_default().append(&mut run);
            }
            run.push(pod);
        }
        if let Some(last) = run.last().map(owner) {
            found.entry(last).or_default().append(&mut run);
        }
        Self(found)
    }

    pub(super) fn pods<'s>(&'s self, owner: &'s ObjectRef) -> &'s [OwnedPod<'s>] {
        self.0.get(&(owner.kind, owner.namespace.as_str(), owner.name.as_str())).map_or(&[], Vec::as_slice)
    }

    /// Returns every workload that owns pods, with its pods.
    pub(super) fn all(&self) -> impl Iterator<Item = (ObjectRef, &[OwnedPod<'a>])> {
        self.0.iter().map(|((kind, namespace, name), pods)| {
            let (namespace, name) = ((*namespace).to_owned(), (*name).to_owned());
            (ObjectRef { kind: *kind, namespace, name }, pods.as_slice())
        })
    }
}

/// Names of pods that are bound or reported anywhere, by the workload in the name.
pub(super) struct PodTraces<'a> {
    snapshot: &'a Snapshot,
    /// Filled on first use: a plan with nothing to do does not need it.
    found: OnceCell<ByWorkload<'a>>,
}

/// Traces by namespace, then by name of the workload.
type ByWorkload<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<Trace<'a>>>>;

/// A node where a pod name occurs.
#[derive(Clone, Copy)]
pub(super) struct Trace<'a> {
    pub(super) pod: &'a NamespacedName,
    pub(super) node: &'a str,
    /// Report of the node under this name.
    pub(super) status: Option<&'a PodStatus>,
}

impl<'a> PodTraces<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, found: OnceCell::new() }
    }

    fn collect_traces(snapshot: &'a Snapshot) -> ByWorkload<'a> {
        let reported = snapshot.pod_status.iter().map(|((node, pod), status)| Trace {
            pod,
            node,
            status: Some(&status.value),
        });
        let bound = snapshot.bindings.keys().map(|(node, pod)| Trace { pod, node, status: None });
        let mut found = ByWorkload::new();
        for trace in reported.chain(bound) {
            if let Some(workload) = PodInstance::workload_in_name(&trace.pod.name) {
                found.entry(&trace.pod.namespace).or_default().entry(workload).or_default().push(trace);
            }
        }
        found
    }

    /// Returns the traces of a workload's pods.
    pub(super) fn of_workload(&self, workload: &ObjectRef) -> &[Trace<'a>] {
        let found = self.found.get_or_init(|| Self::collect_traces(self.snapshot));
        let of_namespace = found.get(workload.namespace.as_str());
        of_namespace.and_then(|names| names.get(workload.name.as_str())).map_or(&[], Vec::as_slice)
    }
}
