//! A cluster for trying workloads: it applies the controller's writes, binds pods to nodes and makes
//! nodes report the given fates. The test controls the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::keys::Key;
use schema::kinds::pod::{
    ContainerState, ContainerStatus, PodPhase, PodSpec, PodStatus, RunningState, WaitingState,
};
use schema::kinds::replica_set::{IntOrPercent, ReplicaSetSpec, RollingUpdate};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{NodeRecord, PodInstance, Rollout, SettledRecord};
use schema::snapshot::Snapshot;
use schema::testing::{SnapshotBuilder, condition, container, node_record, object, pod_ref, spec};

use super::super::plan::plan;
use crate::controllers::testing::ApplyPlan as _;
use crate::controllers::{LastKnown, Writes};

/// Outcome of the pods of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Ready at the next report.
    Ready,
    /// Never ready, with this reason.
    Waits(&'static str),
}

/// A workload `web` and the cluster around it.
pub(super) struct Field {
    pub(super) builder: SnapshotBuilder,
    pub(super) now: Timestamp,
    pub(super) object: Object,
    /// Fates by image; pods of other images are ready immediately.
    pub(super) fates: BTreeMap<String, Fate>,
    pub(super) last_known: LastKnown,
    pub(super) waits_until: Option<Timestamp>,
    nodes: u8,
}

/// A replica set of `replicas` pods with this image.
pub(super) fn replica_set(replicas: u32, image: &str) -> ReplicaSetSpec {
    let mut set =
        ReplicaSetSpec { replicas, progress_deadline_seconds: Some(60), ..ReplicaSetSpec::default() };
    set.template.spec = spec(10, 1);
    set.template.spec.containers[0].image = image.to_owned();
    set.template.metadata.labels.insert("app".to_owned(), "web".to_owned());
    set
}

pub(super) fn rolling(mut set: ReplicaSetSpec, surge: u32, unavailable: u32) -> ReplicaSetSpec {
    let (max_surge, max_unavailable) = (IntOrPercent::Number(surge), IntOrPercent::Number(unavailable));
    let update = RollingUpdate { max_surge: Some(max_surge), max_unavailable: Some(max_unavailable) };
    set.strategy.rolling_update = Some(update);
    set
}

impl Field {
    pub(super) fn new(set: impl Into<Resource>) -> Self {
        let nodes = 3;
        let object = object("web", PodSpec::default());
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let builder = SnapshotBuilder::new().nodes(nodes);
        let last_known = LastKnown::default();
        let mut field =
            Self { builder, now, object, fates: BTreeMap::new(), last_known, waits_until: None, nodes };
        field.push(set, 1);
        field
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.builder.snapshot
    }

    /// Applies the next commit of the workload.
    pub(super) fn push(&mut self, set: impl Into<Resource>, commit: u32) {
        let resource = set.into();
        let hash = Object::hash_of(&self.object.metadata, &resource, &self.object.files);
        if hash != self.object.hash {
            self.object.generation += 1;
        }
        (self.object.resource, self.object.hash) = (resource, hash);
        self.object.provenance.commit = format!("{commit:040}");
        let key = Key::Object(self.object.reference());
        self.builder = std::mem::take(&mut self.builder).put(&key, &self.object);
    }

    pub(super) fn after(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// Runs the controller and applies its plan.
    pub(super) fn plan(&mut self) -> Writes {
        let last_known = Arc::new(self.last_known.clone()).without_outdated(self.snapshot());
        let plan = plan(self.snapshot(), &last_known, self.waits_until, self.now);
        self.builder = std::mem::take(&mut self.builder).after(&plan);
        plan
    }

    /// Unbinds removed pods and binds new ones, to the node that they name once it is ready, else to each node in
    /// turn.
    pub(super) fn bind(&mut self) {
        let snapshot = self.snapshot().clone();
        for (node, pod) in snapshot.bindings.keys() {
            if !snapshot.pods.contains_key(pod) {
                let builder = std::mem::take(&mut self.builder);
                self.builder = builder
                    .delete(&Key::Binding(node.clone(), pod.clone()))
                    .delete(&Key::PodStatus(node.clone(), pod.clone()));
            }
        }
        let mut number = snapshot.bindings.len();
        for (id, pod) in &snapshot.pods {
            if snapshot.binding_of(id).is_some() {
                continue;
            }
            number += 1;
            let named = pod.value.spec.node_name.clone();
            if named.as_ref().is_some_and(|node| !snapshot.node_is_ready(node)) {
                continue;
            }
            let node = named.unwrap_or_else(|| format!("n{}", number % usize::from(self.nodes) + 1));
            self.builder = std::mem::take(&mut self.builder).bound(&node, &pod.value);
        }
    }

    /// Makes live nodes report all pods bound to them, each according to the fate of its image.
    pub(super) fn report(&mut self) {
        let snapshot = self.snapshot().clone();
        for ((node, id), binding) in
            snapshot.bindings.iter().filter(|((node, _), _)| snapshot.node_is_ready(node))
        {
            let reported = snapshot.pod_status.get(&(node.clone(), id.clone()));
            let pod = &binding.value.pod;
            if reported.is_some_and(|status| status.value.uid == pod.uid && status.value.is_ready()) {
                continue;
            }
            let image = &pod.spec.containers[0].image;
            let fate = self.fates.get(image).copied().unwrap_or(Fate::Ready);
            let builder = std::mem::take(&mut self.builder);
            let status = status(pod, fate, self.now);
            self.builder = builder.put(&Key::PodStatus(node.clone(), id.clone()), &status);
        }
    }

    /// Plans, binds and reports `rounds` times, two seconds apart.
    pub(super) fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.plan();
            self.bind();
            self.report();
            self.after(2);
        }
    }

    pub(super) fn rollout(&self) -> Rollout {
        self.snapshot().rollouts[&self.object.reference()].value.clone()
    }

    /// Names of the pods that should exist, with their images.
    pub(super) fn pods(&self) -> BTreeMap<String, String> {
        let pods = self.snapshot().pods.values();
        pods.map(|pod| (pod.value.name.clone(), pod.value.spec.containers[0].image.clone())).collect()
    }

    pub(super) fn images(&self) -> Vec<String> {
        let mut images: Vec<String> = self.pods().into_values().collect();
        images.sort();
        images
    }

    /// Loses etcd and refills it from Git under another commit; nodes report nothing yet. The reconciler's disk
    /// becomes `last_known`.
    pub(super) fn lose_etcd(&mut self) {
        self.keep();
        self.object.provenance.commit = "f".repeat(40);
        self.object.generation = 1;
        let key = Key::Object(self.object.reference());
        self.builder = SnapshotBuilder::new().nodes(self.nodes).put(&key, &self.object);
        for number in 1..=self.nodes {
            let record = NodeRecord { registered_at: self.now, ..node_record(&format!("n{number}")) };
            self.builder = std::mem::take(&mut self.builder).put(&Key::Node(record.name.clone()), &record);
        }
    }

    /// Saves the content of etcd as the reconciler does on its disk.
    pub(super) fn keep(&mut self) {
        let settled = Key::Settled("n1".to_owned());
        let whole = self.builder.clone().put(&settled, &SettledRecord::default()).snapshot;
        let disk =
            serde_json::to_string(&LastKnown::from_snapshot(&whole, self.now).unwrap().to_disk()).unwrap();
        self.last_known = LastKnown::from_disk(&serde_json::from_str(&disk).unwrap());
    }

    /// Makes nodes repeat to the new etcd what they reported to the lost one.
    pub(super) fn report_again(&mut self, before: &Snapshot) {
        for ((node, pod), status) in &before.pod_status {
            let key = Key::PodStatus(node.clone(), pod.clone());
            self.builder = std::mem::take(&mut self.builder).put(&key, &status.value);
        }
    }

    pub(super) fn forget_pods(&mut self, names: &BTreeSet<String>) {
        for name in names {
            self.builder = std::mem::take(&mut self.builder).delete(&Key::Pod(pod_ref(name)));
        }
    }

    pub(super) fn workload() -> ObjectRef {
        ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name: "web".to_owned() }
    }

    pub(super) fn node_of(&self, name: &str) -> String {
        self.snapshot().binding_of(&NamespacedName::new("default", name)).unwrap().value.node.clone()
    }
}

/// Status that a node reports for a pod.
pub(super) fn status(pod: &PodInstance, fate: Fate, now: Timestamp) -> PodStatus {
    let state = match fate {
        Fate::Ready => {
            ContainerState::Running(RunningState { started_at: now - SignedDuration::from_secs(1) })
        }
        Fate::Waits(reason) => {
            ContainerState::Waiting(WaitingState { reason: reason.to_owned(), message: String::new() })
        }
    };
    let ready = fate == Fate::Ready;
    let image = pod.spec.containers[0].image.clone();
    PodStatus {
        uid: pod.uid.clone(),
        phase: if ready { PodPhase::Running } else { PodPhase::Pending },
        conditions: vec![condition("Ready", ready, now)],
        start_time: Some(now),
        container_statuses: vec![ContainerStatus { image, ..container("main", state) }],
        ..PodStatus::default()
    }
}
