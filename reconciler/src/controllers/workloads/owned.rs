//! The pods of a workload, with what is known of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::{PodPhase, PodStatus};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::PodInstance;
use schema::snapshot::{Snapshot, Versioned};

/// A pod of a workload.
#[derive(Clone, Copy)]
pub(super) struct OwnedPod<'a> {
    pub(super) record: &'a Arc<Versioned<PodInstance>>,
    /// Its node, once it has one.
    pub(super) node: Option<&'a str>,
    /// What its node reports of this very pod.
    pub(super) status: Option<&'a PodStatus>,
    /// Its node beats.
    pub(super) node_is_ready: bool,
    /// It must leave its node: a drain, or a taint that it does not tolerate.
    pub(super) is_to_move: bool,
    /// Its node is gone for good, or it ended by itself.
    pub(super) is_lost: bool,
}

impl<'a> OwnedPod<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, record: &'a Arc<Versioned<PodInstance>>) -> Self {
        let pod = &record.value;
        let id = pod.reference();
        let node = snapshot.binding_of(&id).map(|binding| binding.value.node.as_str());
        let reported = node.and_then(|node| snapshot.pod_status.get(&(node.to_owned(), id)));
        let status = reported.map(|status| &status.value).filter(|status| status.uid == pod.uid);
        Self {
            record,
            node,
            status,
            node_is_ready: node.is_some_and(|node| snapshot.node_is_ready(node)),
            is_to_move: node.is_some_and(|node| snapshot.drives_out(node, &pod.spec)),
            is_lost: node.is_some_and(|node| snapshot.is_evicted(node))
                || status.is_some_and(PodStatus::has_ended),
        }
    }

    pub(super) fn pod(&self) -> &'a PodInstance {
        &self.record.value
    }

    /// Nothing is known of it, because its node does not answer.
    pub(super) fn is_silent(&self) -> bool {
        self.node.is_some() && !self.node_is_ready
    }

    pub(super) fn is_ready(&self) -> bool {
        self.node_is_ready && self.status.is_some_and(|status| status.is_ready() && !status.is_terminating())
    }

    /// When it became ready, if it is.
    pub(super) fn ready_since(&self) -> Option<Timestamp> {
        let status = self.status.filter(|_| self.is_ready())?;
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready")?;
        Some(ready.last_transition_time)
    }

    /// When it becomes available, if nothing happens to it: it was ready for `min_ready_seconds`, and what
    /// has no probe has run for long enough to say that it runs.
    pub(super) fn available_at(&self, min_ready_seconds: u32, now: Timestamp) -> Option<Timestamp> {
        let needs = SignedDuration::from_secs(min_ready_seconds.into());
        // A time to come is of a node whose clock is wrong.
        let ready = self.ready_since()?.min(now).checked_add(needs).unwrap_or(Timestamp::MAX);
        let steady = self.status?.unsteady(&self.pod().spec, now).map(|unsteady| unsteady.steady_at);
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

/// The pods of each workload.
pub(super) type ByOwner<'a> = BTreeMap<ObjectRef, Vec<OwnedPod<'a>>>;

/// All pods that a workload owns; those that Git names are not among them.
pub(super) fn by_owner(snapshot: &Snapshot) -> ByOwner<'_> {
    let mut found = ByOwner::new();
    for record in snapshot.pods.values() {
        let pod = &record.value;
        if pod.is_bare() {
            continue;
        }
        let (namespace, name) = (pod.namespace.clone(), pod.owner.name.clone());
        let owner = ObjectRef { kind: pod.owner.kind, namespace, name };
        found.entry(owner).or_default().push(OwnedPod::of(snapshot, record));
    }
    found
}

/// Names of pods that are bound or reported anywhere, by the workload that their name speaks of.
pub(super) struct Names<'a> {
    /// By namespace, then by name of the workload.
    found: BTreeMap<&'a str, BTreeMap<&'a str, Vec<Trace<'a>>>>,
}

/// Where a name was seen.
#[derive(Clone, Copy)]
pub(super) struct Trace<'a> {
    pub(super) pod: &'a NamespacedName,
    pub(super) node: &'a str,
    /// What the node reports under the name.
    pub(super) status: Option<&'a PodStatus>,
}

impl<'a> Names<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let reported = snapshot.pod_status.iter().map(|((node, pod), status)| Trace {
            pod,
            node,
            status: Some(&status.value),
        });
        let bound = snapshot.bindings.keys().map(|(node, pod)| Trace { pod, node, status: None });
        let mut found: BTreeMap<&'a str, BTreeMap<&'a str, Vec<Trace<'a>>>> = BTreeMap::new();
        for trace in reported.chain(bound) {
            if let Some(workload) = PodInstance::workload_in_name(&trace.pod.name) {
                found.entry(&trace.pod.namespace).or_default().entry(workload).or_default().push(trace);
            }
        }
        Self { found }
    }

    /// Where pods of a workload were seen.
    pub(super) fn of_workload(&self, workload: &ObjectRef) -> &[Trace<'a>] {
        let of_namespace = self.found.get(workload.namespace.as_str());
        of_namespace.and_then(|names| names.get(workload.name.as_str())).map_or(&[], Vec::as_slice)
    }
}
