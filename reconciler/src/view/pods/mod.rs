//! Views of pods: the desired state, the binding and the node's report in one row.

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::pod::{HostPortStatus, PodPhase, PodStatus};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{Binding, PodInstance};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod detail;
pub(super) mod index;
pub(super) mod status;

use crate::view::age::age;
pub use detail::{PodDetail, pod};
use index::PodIndex;
use status::{StatusWord, removal_error, reported_status};

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    pub namespace: String,
    pub name: String,
    /// Ready containers out of all: `1/2`.
    pub ready: String,
    /// True if the desired pod is ready, on a live node.
    pub is_ready: bool,
    pub phase: PodPhase,
    /// Status word of kubectl: Pending, ContainerCreating, Running, CrashLoopBackOff, Terminating, NodeLost, ….
    pub status: String,
    /// Number of restarts of its containers.
    pub restarts: u32,
    /// Start time, or else the time at which the commit was applied.
    pub created_at: Option<Timestamp>,
    /// Time since `created_at`; empty if unknown.
    pub age: String,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Ports of the node that forward to the pod.
    #[serde(default)]
    pub host_ports: Vec<HostPortStatus>,
    pub node: Option<String>,
    /// `Kind/name` of the owner.
    pub owner: String,
    pub source: String,
    pub commit: String,
    /// `path:line` of the owner in the repository; empty if the object is gone.
    pub file: String,
    pub uid: String,
    /// Reason that the pod is not well, in a sentence; empty if it is.
    pub why: String,
}

/// Rows by namespace and name. A pod that moved has a second row while its old node still stops it.
pub fn pods(snapshot: &Snapshot, namespace: Option<&str>, now: Timestamp) -> Vec<PodView> {
    pods_where(snapshot, |pod| namespace.is_none_or(|n| n == pod.namespace), now)
}

/// Rows of the pods whose names are `wanted`.
pub(super) fn pods_where(
    snapshot: &Snapshot,
    wanted: impl Fn(&NamespacedName) -> bool,
    now: Timestamp,
) -> Vec<PodView> {
    let index = PodIndex::of(snapshot, wanted);
    let mut rows = Vec::new();
    for pod in index.pods() {
        let facts = PodFacts::gather(&index, pod);
        rows.push(facts.view(&index, now));
        rows.extend(facts.other_reports(&index).map(|(node, status)| leftover(pod, node, status, now)));
    }
    rows
}

/// The row of a pod, for callers that already have an index.
pub(super) fn row<'a>(index: &PodIndex<'a>, pod: &'a NamespacedName, now: Timestamp) -> PodView {
    PodFacts::gather(index, pod).view(index, now)
}

struct PodFacts<'a> {
    pod: &'a NamespacedName,
    instance: Option<&'a PodInstance>,
    object: Option<&'a Object>,
    binding: Option<&'a Binding>,
    /// The node whose report counts: the bound one, or the one that still reports.
    node: Option<&'a str>,
    status: Option<&'a PodStatus>,
}

impl<'a> PodFacts<'a> {
    fn gather(index: &PodIndex<'a>, pod: &'a NamespacedName) -> Self {
        let instance = index.snapshot.pods.get(pod).map(|p| &p.value);
        let binding = index.binding(pod, instance.map(|p| p.uid.as_str()));
        let owner = instance.or(binding.map(|b| &b.pod)).map(|p| &p.owner);
        let object = owner.and_then(|owner| {
            let id =
                ObjectRef { kind: owner.kind, namespace: pod.namespace.clone(), name: owner.name.clone() };
            index.snapshot.objects.get(&id).map(|object| &object.value)
        });
        let (node, status) = match (binding, instance) {
            (Some(binding), _) => (Some(binding.node.as_str()), index.status(pod, &binding.node)),
            // Desired but not bound: reports of other nodes are not about this pod.
            (None, Some(_)) => (None, None),
            (None, None) => index.statuses(pod).next().map_or((None, None), |(n, s)| (Some(n), Some(s))),
        };
        Self { pod, instance, object, binding, node, status }
    }

    /// The pod in full, as desired or as last bound.
    fn wanted(&self) -> Option<&'a PodInstance> {
        self.instance.or(self.binding.map(|b| &b.pod))
    }

    /// Reports of nodes other than the one that counts.
    fn other_reports(
        &self,
        index: &PodIndex<'a>,
    ) -> impl Iterator<Item = (&'a str, &'a PodStatus)> + use<'a> {
        let counted = self.node;
        index.statuses(self.pod).filter(move |(node, _)| Some(*node) != counted)
    }

    /// The report, if it is about the desired incarnation of the pod.
    fn current(&self) -> Option<&'a PodStatus> {
        self.status.filter(|status| self.wanted().is_none_or(|pod| pod.uid == status.uid))
    }

    fn view(&self, index: &PodIndex<'a>, now: Timestamp) -> PodView {
        let StatusWord { word, why } = self.word(index);
        let lost = word == "NodeLost";
        let current = self.current();
        let wanted = self.wanted();
        let commit = wanted.map(|p| p.commit.clone()).unwrap_or_default();
        let created_at = current.and_then(|s| s.start_time).or_else(|| index.applied.time(&commit));
        let provenance = self.object.map(|object| &object.provenance);
        PodView {
            namespace: self.pod.namespace.clone(),
            name: self.pod.name.clone(),
            ready: ready_of(current, wanted),
            is_ready: self.instance.is_some() && !lost && current.is_some_and(PodStatus::is_ready),
            phase: if lost { PodPhase::Unknown } else { current.map(|s| s.phase).unwrap_or_default() },
            status: word,
            restarts: restarts(current),
            created_at,
            age: created_at.map(|then| age(then, now)).unwrap_or_default(),
            pod_ip: current.and_then(|s| s.pod_ip.clone()),
            host_ports: current.map(|s| s.host_ports.clone()).unwrap_or_default(),
            node: self.node.map(str::to_owned),
            owner: wanted.map(|p| format!("{}/{}", p.owner.kind, p.owner.name)).unwrap_or_default(),
            source: provenance.map(|p| p.source.clone()).unwrap_or_default(),
            commit,
            file: provenance.map(|p| format!("{}:{}", p.file, p.line)).unwrap_or_default(),
            uid: wanted
                .map_or_else(|| self.status.map(|s| s.uid.clone()).unwrap_or_default(), |p| p.uid.clone()),
            why,
        }
    }

    fn word(&self, index: &PodIndex<'_>) -> StatusWord {
        let snapshot = index.snapshot;
        let word = |word: &str, why: String| StatusWord { word: word.to_owned(), why };
        let Some(instance) = self.instance else {
            return word("Terminating", self.why_terminating(snapshot));
        };
        let Some(binding) = self.binding else {
            return word("Pending", index.unbound.reason(self.pod));
        };
        let node = &binding.node;
        if !snapshot.node_is_ready(node) {
            return word(
                "NodeLost",
                format!("node {node} has no heartbeat; last seen: {}", self.last_seen()),
            );
        }
        if binding.pod.uid != instance.uid {
            return word("Pending", index.unbound.reason(self.pod));
        }
        match (self.current(), self.status) {
            (Some(status), _) => reported_status(status, &instance.spec),
            (None, Some(_)) => {
                word("ContainerCreating", format!("waiting for its previous version on node {node} to stop"))
            }
            (None, None) => word("Pending", format!("node {node} has not reported on it yet")),
        }
    }

    fn last_seen(&self) -> String {
        let reported = self.current().zip(self.wanted());
        reported.map_or_else(|| "never".to_owned(), |(status, pod)| reported_status(status, &pod.spec).word)
    }

    fn why_terminating(&self, snapshot: &Snapshot) -> String {
        match (self.node, self.binding) {
            (Some(node), _) if !snapshot.node_is_ready(node) => {
                format!("node {node} has no heartbeat; it stops the pod when it is back")
            }
            (Some(node), _) if self.status.is_some_and(|s| removal_error(s).is_some()) => {
                let why = self.status.and_then(removal_error).unwrap_or_default();
                format!("node {node} can't remove it: {why}")
            }
            (Some(node), Some(_)) => format!("waiting for the scheduler to remove it from node {node}"),
            (Some(node), None) => format!("node {node} is stopping it"),
            (None, _) => "being removed".to_owned(),
        }
    }
}

fn leftover(pod: &NamespacedName, node: &str, status: &PodStatus, now: Timestamp) -> PodView {
    PodView {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        ready: ready_of(Some(status), None),
        phase: status.phase,
        status: "Terminating".to_owned(),
        restarts: restarts(Some(status)),
        created_at: status.start_time,
        age: status.start_time.map(|then| age(then, now)).unwrap_or_default(),
        pod_ip: status.pod_ip.clone(),
        host_ports: status.host_ports.clone(),
        node: Some(node.to_owned()),
        owner: format!("{}/{}", Kind::Pod, pod.name),
        uid: status.uid.clone(),
        why: format!("no longer wanted on node {node}"),
        ..PodView::default()
    }
}

fn ready_of(status: Option<&PodStatus>, wanted: Option<&PodInstance>) -> String {
    let reported = status.map_or(&[][..], |s| &s.container_statuses);
    let init = status.map_or(&[][..], |s| &s.init_container_statuses);
    let total = wanted.map_or(reported.len(), |pod| pod.spec.side_by_side().count());
    // An init container that is ready and has not ended is a sidecar.
    let sidecars = init.iter().filter(|_| wanted.is_some()).filter(|init| !init.state.is_terminated());
    format!("{}/{total}", reported.iter().chain(sidecars).filter(|c| c.ready).count())
}

/// Returns the number of restarts of a pod's containers.
pub(super) fn restarts(status: Option<&PodStatus>) -> u32 {
    status.map_or(0, |s| {
        let all = s.init_container_statuses.iter().chain(&s.container_statuses);
        all.map(|c| c.restart_count).fold(0, u32::saturating_add)
    })
}

#[cfg(test)]
mod tests;
