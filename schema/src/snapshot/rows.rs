//! Row of each kind: what the records of the snapshot say about an object. Pure.
//!
//! A new kind has an impl of [`Row`] and its line in [`row`], which the compiler asks for.

use jiff::Timestamp;

use super::Snapshot;
use crate::kinds::autoscaler::{HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus};
use crate::kinds::cluster::ClusterSpec;
use crate::kinds::config_map::ConfigMapSpec;
use crate::kinds::daemon_set::DaemonSetSpec;
use crate::kinds::disruption_budget::PodDisruptionBudgetSpec;
use crate::kinds::dns::DnsSpec;
use crate::kinds::function::{FunctionSpec, ImageState};
use crate::kinds::job::{JobPhase, JobSpec};
use crate::kinds::node::NodeSpec;
use crate::kinds::pod::{
    ContainerState, ContainerStatus, PodPhase, PodSpec, PodStatus, RestartPolicy, UnsteadyContainer,
};
use crate::kinds::replica_set::ReplicaSetSpec;
use crate::kinds::service::{ServiceSpec, ServiceType};
use crate::kinds::workflow::{RunPhase, WorkflowSpec};
use crate::kinds::{Health, Resource};
use crate::meta::NamespacedName;
use crate::object::Object;
use crate::records::{
    ClusterSettings, FunctionRecord, JobReport, PodInstance, Rollout, RouteRecord, ServiceRecord,
    WorkflowRecord,
};

/// Conclusions from the records of an object. `self` is the object's spec.
pub(super) trait Row {
    /// Returns the health of a live object.
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health;

    /// True if the records that nodes need for the object exist.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool;

    /// Returns the time at which the object last came closer to being healthy, at most `now`.
    fn progressed_at(&self, _: &Snapshot, _: &Object, _now: Timestamp) -> Option<Timestamp> {
        None
    }

    /// Returns the pod that has run for too short a time to know whether the object stays healthy.
    fn unsteady<'a>(&self, _: &'a Snapshot, _: &Object, _now: Timestamp) -> Option<UnsteadyContainer<'a>> {
        None
    }
}

/// Returns the row of the object's kind.
pub(super) fn row(object: &Object) -> &dyn Row {
    match &object.resource {
        Resource::Cluster(spec) => &**spec,
        Resource::Node(spec) => &**spec,
        Resource::ConfigMap(spec) => &**spec,
        Resource::Function(spec) => &**spec,
        Resource::Service(spec) => &**spec,
        Resource::Pod(spec) => &**spec,
        Resource::ReplicaSet(spec) => &**spec,
        Resource::DaemonSet(spec) => &**spec,
        Resource::HorizontalPodAutoscaler(spec) => &**spec,
        Resource::PodDisruptionBudget(spec) => &**spec,
        Resource::Dns(spec) => &**spec,
        Resource::Workflow(spec) => &**spec,
        Resource::Job(spec) => &**spec,
    }
}

impl Row for ClusterSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let published = snapshot.settings.get(&()).map(|found| &found.value);
        ClusterSettings::health(published, object.generation)
    }

    fn is_complete(&self, snapshot: &Snapshot, _: &Object) -> bool {
        snapshot.settings.contains_key(&())
    }
}

impl Row for NodeSpec {
    /// Returns the health of a node. A node that never registered is unknown, not broken: its manifest may come
    /// before the machine.
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let name = &object.metadata.name;
        match (snapshot.nodes.contains_key(name), snapshot.node_is_ready(name)) {
            (true, true) => Health::Healthy,
            (true, false) => Health::Degraded { why: "its agent does not answer".to_owned() },
            (false, _) => Health::Unknown { why: "no agent with this name has registered".to_owned() },
        }
    }

    fn is_complete(&self, _: &Snapshot, _: &Object) -> bool {
        true
    }
}

impl Row for ConfigMapSpec {
    /// The content of a ConfigMap is stored with it.
    fn health(&self, _: &Snapshot, _: &Object) -> Health {
        Health::Healthy
    }

    fn is_complete(&self, _: &Snapshot, _: &Object) -> bool {
        true
    }
}

impl Row for ServiceSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let record = snapshot.services.get(&named(object)).map(|found| &found.value);
        ServiceRecord::health(record, self, &object.hash)
    }

    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        let may_be_refused = self.cluster_ip.is_some() || self.kind == ServiceType::NodePort;
        may_be_refused || snapshot.services.contains_key(&named(object))
    }
}

impl Row for DnsSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let record = snapshot.routes.get(&named(object)).map(|found| &found.value);
        RouteRecord::health(record, self, &object.hash)
    }

    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        snapshot.routes.contains_key(&named(object))
    }
}

impl Row for HorizontalPodAutoscalerSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let record = snapshot.autoscalers.get(&named(object)).map(|found| &found.value);
        let current = record.filter(|record| record.observed_generation == object.generation);
        // Without one, the autoscaler has not observed its target yet.
        let none = HorizontalPodAutoscalerStatus::default();
        self.health(current.map_or(&none, |record| &record.status))
    }

    /// The first pass of an autoscaler adopts the number of running pods, should etcd have been lost.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        snapshot.autoscalers.contains_key(&named(object))
    }
}

impl Row for PodDisruptionBudgetSpec {
    /// A budget has no pods of its own: one that no pod fulfills only holds drains.
    fn health(&self, _: &Snapshot, _: &Object) -> Health {
        Health::Healthy
    }

    fn is_complete(&self, _: &Snapshot, _: &Object) -> bool {
        true
    }
}

impl Row for ReplicaSetSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        workload(snapshot, object, self.paused)
    }

    /// A paused ReplicaSet may have no pods at all.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        has_its_pods(snapshot, object, self.paused)
    }

    fn progressed_at(&self, snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
        rolled_at(snapshot, object, now)
    }
}

impl Row for DaemonSetSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        workload(snapshot, object, false)
    }

    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        has_its_pods(snapshot, object, false)
    }

    fn progressed_at(&self, snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
        rolled_at(snapshot, object, now)
    }
}

impl Row for WorkflowSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let (record, none) = (snapshot.workflows.get(&named(object)), WorkflowRecord::default());
        let record = record.map_or(&none, |found| &found.value);
        record.health(self.params.is_some(), object.generation)
    }

    /// Until a workflow's records are here, those on the disks tell which pushes and ticks had their run.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        snapshot.workflows.contains_key(&named(object)) && ticks_are_known(snapshot, object)
    }

    fn progressed_at(&self, snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
        let workflow = snapshot.workflows.get(&named(object));
        let last_run = workflow.and_then(|found| found.value.last_run.as_ref());
        // A run has its own deadline, and may wait for long.
        last_run.filter(|run| run.phase == RunPhase::Running).map(|_| now)
    }
}

impl Row for JobSpec {
    /// Returns the health of a job, from the report of its node.
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        match job_report(snapshot, object) {
            Ok((node, report)) if report.status.phase.is_final() || snapshot.node_is_ready(&node) => {
                self.health(&report.status)
            }
            Ok((node, _)) => Health::Unknown { why: format!("its node {node} does not answer") },
            Err(health) => health,
        }
    }

    /// Before a node has the order, its absence would prove nothing.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        let nobody = snapshot.heartbeats.is_empty();
        nobody || snapshot.job_of(&named(object)).is_some_and(|(_, order)| order.hash == object.hash)
    }

    fn progressed_at(&self, snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
        let (node, report) = job_report(snapshot, object).ok()?;
        // An upload has its own deadline. A blocked upload has a reason.
        let is_uploaded = report.status.phase == JobPhase::Uploading
            && report.status.reason.is_empty()
            && snapshot.node_is_ready(&node);
        Some(if is_uploaded { now } else { report.since }).filter(|at| *at <= now)
    }
}

/// Returns the name of the job's node and its report of this very version; else the job's health.
fn job_report<'a>(snapshot: &'a Snapshot, object: &Object) -> Result<(String, &'a JobReport), Health> {
    let id = named(object);
    let order = snapshot.job_of(&id).filter(|(_, order)| order.hash == object.hash && !order.deleting);
    let (node, order) = order
        .map(|(node, order)| (node.to_owned(), order))
        .ok_or_else(|| Health::Progressing { why: "it is not assigned to a node yet".to_owned() })?;
    let report = snapshot.job_reports.get(&(node.clone(), id.clone())).map(|report| &report.value);
    let report = report.filter(|report| report.uid == order.uid);
    match report {
        Some(report) => Ok((node, report)),
        None => Err(Health::Progressing { why: format!("node {node} has not started it yet") }),
    }
}

impl Row for FunctionSpec {
    /// Returns the health of a function: that of its image first, then that of its rollout.
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        let Some(record) = function_record(snapshot, object) else {
            return Health::Progressing {
                why: "the functions controller has not processed this version yet".to_owned(),
            };
        };
        let health = record.health();
        if record.image().is_none_or(|image| image.state != ImageState::Ready) {
            return health;
        }
        match rollout_of(snapshot, object)
            .map(|rollout| (rollout, rollout.status.health(object.generation, false)))
        {
            None => Health::Progressing { why: "its first replica is not created yet".to_owned() },
            Some((_, degraded @ Health::Degraded { .. })) => degraded,
            Some((rollout, progressing)) if !rollout.complete => match &record.trouble {
                Some(trouble) => Health::Progressing { why: trouble.message.clone() },
                None => progressing,
            },
            Some(_) => health,
        }
    }

    /// True if a function has its records, those of its triggers, and its pods if its image is available or it has
    /// run before.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        let Some(record) = snapshot.functions.get(&named(object)).map(|found| &found.value) else {
            return false;
        };
        let has_pods = match snapshot.rollouts.get(&object.reference()).map(|found| &found.value.status) {
            Some(status) => status.replicas >= status.desired_replicas,
            None => record.image().is_none_or(|image| image.state != ImageState::Ready),
        };
        has_pods && ticks_are_known(snapshot, object)
    }

    fn progressed_at(&self, snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
        let record = function_record(snapshot, object);
        match record.and_then(|record| record.image()).map(|image| &image.state) {
            // A build has its own deadline, and may wait for others.
            Some(ImageState::Waiting | ImageState::Building { .. }) => Some(now),
            // The image may have come long after the commit, and its rollout begins only then.
            _ => {
                let rollout = rollout_of(snapshot, object).map(|rollout| rollout.progressed_at);
                // A time in the future comes from a leader whose clock was wrong.
                let ready = record.and_then(|record| record.image_ready_at).map(|at| at.min(now));
                rollout.into_iter().chain(ready).max()
            }
        }
    }
}

/// Returns the record of a function, once it describes the current object.
fn function_record<'a>(snapshot: &'a Snapshot, object: &Object) -> Option<&'a FunctionRecord> {
    let record = &snapshot.functions.get(&named(object))?.value;
    (record.hash == object.hash).then_some(record)
}

impl Row for PodSpec {
    fn health(&self, snapshot: &Snapshot, object: &Object) -> Health {
        match bare_pod(snapshot, object) {
            Health::Healthy if copies(self, snapshot, object) > 0 => with_copies(snapshot, object),
            health => health,
        }
    }

    /// True if the pod of this version exists, and its copies.
    fn is_complete(&self, snapshot: &Snapshot, object: &Object) -> bool {
        let is_made = |pod: &PodInstance| pod.hash == object.hash || !pod.is_bare();
        snapshot.pods.get(&named(object)).is_some_and(|pod| is_made(&pod.value))
            && (copies(self, snapshot, object) == 0 || has_its_pods(snapshot, object, false))
    }

    fn progressed_at(&self, snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
        let copies = rollout_of(snapshot, object).map(|rollout| rollout.progressed_at);
        let own = pod_progress(status_of(snapshot, object).ok()?);
        own.into_iter().chain(copies).chain(scaled_at(snapshot, object, now)).filter(|at| *at <= now).max()
    }

    fn unsteady<'a>(
        &self,
        snapshot: &'a Snapshot,
        object: &Object,
        now: Timestamp,
    ) -> Option<UnsteadyContainer<'a>> {
        let pod = named(object);
        let (instance, binding) = (snapshot.pods.get(&pod)?, snapshot.binding_of(&pod)?);
        let status = snapshot.pod_status.get(&(binding.value.node.clone(), pod))?;
        status.value.unsteady_container(&instance.value.spec, now)
    }
}

fn bare_pod(snapshot: &Snapshot, object: &Object) -> Health {
    let status = match status_of(snapshot, object) {
        Ok(status) => status,
        Err(health) => return health,
    };
    if status.is_terminating() {
        // Wanted again before its node has removed it: it will start again.
        return Health::Progressing { why: reason(status) };
    }
    match status.phase {
        PodPhase::Succeeded => Health::Healthy,
        PodPhase::Failed => Health::Degraded { why: reason(status) },
        PodPhase::Running if status.is_ready() => Health::Healthy,
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {
            Health::Progressing { why: reason(status) }
        }
    }
}

/// Returns the health of a bare pod with copies.
fn with_copies(snapshot: &Snapshot, object: &Object) -> Health {
    let is_first = rollout_of(snapshot, object).is_some_and(|rollout| rollout.good.is_none());
    match workload(snapshot, object, false) {
        // No further copy could be placed, for lack of room, say: nothing that served is gone.
        Health::Degraded { why } if is_first => Health::Progressing { why },
        health => health,
    }
}

/// Returns the number of copies that an autoscaler gave a pod.
fn copies(spec: &PodSpec, snapshot: &Snapshot, object: &Object) -> u32 {
    if snapshot.scales.is_empty() {
        return 0;
    }
    let lasts = spec.restart_policy == RestartPolicy::Always;
    let scale = snapshot.scales.get(&object.reference()).filter(|_| lasts);
    scale.map_or(0, |scale| scale.value.replicas.saturating_sub(1))
}

/// Returns the report of the node about the very pod that the object asks for, if the node is alive; else the pod's
/// health.
fn status_of<'a>(snapshot: &'a Snapshot, object: &Object) -> Result<&'a PodStatus, Health> {
    let progressing = |why: &str| Health::Progressing { why: why.to_owned() };
    let pod = named(object);
    let instance = snapshot.pods.get(&pod).filter(|instance| instance.value.hash == object.hash);
    let instance = instance.ok_or_else(|| progressing("its pod is not created yet"))?;
    let binding = snapshot.binding_of(&pod).ok_or_else(|| progressing("its pod has no node yet"))?;
    let node = &binding.value.node;
    if !snapshot.node_is_ready(node) {
        return Err(Health::Unknown { why: format!("its node {node} does not answer") });
    }
    let reported = snapshot.pod_status.get(&(node.clone(), pod)).map(|found| &found.value);
    let reported = reported.filter(|status| status.uid == instance.value.uid);
    reported.ok_or_else(|| progressing("its node has not reported the pod yet"))
}

/// Returns the times at which a pod came closer to being ready. A time in the future comes from a node whose clock
/// is wrong.
fn pod_progress(status: &PodStatus) -> Vec<Timestamp> {
    let ended = status.init_container_statuses.iter().filter_map(|container| match &container.state {
        ContainerState::Terminated(end) if end.completes_init() && container.restart_count == 0 => {
            end.finished_at
        }
        _ => None,
    });
    // Sidecars among them: one that crashes again and again must not extend the pod's deadline.
    let is_done = |init: &ContainerStatus| match &init.state {
        ContainerState::Terminated(end) => end.completes_init(),
        ContainerState::Waiting(_) | ContainerState::Running(_) => false,
    };
    let init = || status.init_container_statuses.iter().filter(|init| !is_done(init));
    let all = || status.container_statuses.iter().chain(init());
    let started = all().filter_map(|container| match &container.state {
        ContainerState::Running(running) if container.restart_count == 0 => Some(running.started_at),
        _ => None,
    });
    // A probe that fails for a moment restarts the pod's deadline.
    let restarted = all().any(|container| container.restart_count > 0);
    let ready = status.conditions.iter().filter(|condition| condition.kind == "Ready" && !restarted);
    let ready = ready.map(|condition| condition.last_transition_time);
    status.start_time.into_iter().chain(ended).chain(started).chain(ready).collect()
}

/// Returns a stable one-line reason: it becomes part of statuses, which are written when they change.
fn reason(status: &PodStatus) -> String {
    if !status.reason.is_empty() {
        return status.reason.clone();
    }
    let mut containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    let found = containers.find_map(|container| match &container.state {
        ContainerState::Waiting(waiting) if !waiting.reason.is_empty() => {
            Some(format!("container {}: {}", container.name, waiting.reason))
        }
        ContainerState::Terminated(ended) if ended.exit_code != 0 => {
            Some(format!("container {} ended with code {}", container.name, ended.exit_code))
        }
        ContainerState::Running(_) if !container.ready => {
            Some(format!("container {} is not ready", container.name))
        }
        ContainerState::Waiting(_) | ContainerState::Running(_) | ContainerState::Terminated(_) => None,
    });
    found.unwrap_or_else(|| "it is not ready".to_owned())
}

fn workload(snapshot: &Snapshot, object: &Object, paused: bool) -> Health {
    match rollout_of(snapshot, object) {
        Some(rollout) => rollout.status.health(object.generation, paused),
        None => Health::Progressing { why: "its pods are not created yet".to_owned() },
    }
}

fn has_its_pods(snapshot: &Snapshot, object: &Object, paused: bool) -> bool {
    let has_all = |rollout: &Rollout| rollout.status.replicas >= rollout.status.desired_replicas;
    rollout_of(snapshot, object).is_some_and(|rollout| paused || has_all(rollout))
}

/// Returns the time at which a workload with a rollout last made progress or was scaled.
fn rolled_at(snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
    let rollout = rollout_of(snapshot, object)?;
    scaled_at(snapshot, object, now).into_iter().chain([rollout.progressed_at]).max()
}

/// Returns the time at which an autoscaler last changed the number of a workload's pods. The new number restarts the
/// deadline of a workload that was complete; a workload that never was must not gain by it.
fn scaled_at(snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
    if rollout_of(snapshot, object).is_some_and(|rollout| !rollout.complete) {
        return None;
    }
    let target = object.reference();
    let of_object = snapshot.autoscalers.values().filter(|record| record.value.target == target);
    of_object.filter_map(|record| record.value.status.last_scale_time).filter(|at| *at <= now).max()
}

/// Returns the record of a workload, once it describes the current object.
fn rollout_of<'a>(snapshot: &'a Snapshot, object: &Object) -> Option<&'a Rollout> {
    let rollout = &snapshot.rollouts.get(&object.reference())?.value;
    (rollout.status.observed_generation == object.generation).then_some(rollout)
}

/// True if each schedule of the object has its record. Triggers of other kinds have one only after they started a
/// run.
fn ticks_are_known(snapshot: &Snapshot, object: &Object) -> bool {
    let mut scheduled = object.resource.triggers().iter().filter(|trigger| trigger.schedule.is_some());
    scheduled.all(|trigger| snapshot.triggers.contains_key(&(object.reference(), trigger.name.clone())))
}

fn named(object: &Object) -> NamespacedName {
    NamespacedName::new(&object.metadata.namespace, &object.metadata.name)
}
