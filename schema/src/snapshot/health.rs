//! Health of each object: one function for all callers, so that no two answers differ. Pure.
//!
//! A new kind has one arm in [`health`] and one in [`is_complete`], which the compiler asks for.

use jiff::Timestamp;

use super::Snapshot;
use crate::kinds::autoscaler::HorizontalPodAutoscalerStatus;
use crate::kinds::function::ImageState;
use crate::kinds::job::{JobPhase, JobSpec};
use crate::kinds::pod::{ContainerState, PodPhase, PodStatus, RestartPolicy, UnsteadyContainer};
use crate::kinds::service::ServiceType;
use crate::kinds::workflow::RunPhase;
use crate::kinds::{Health, Resource};
use crate::meta::NamespacedName;
use crate::object::Object;
use crate::records::{
    ClusterSettings, FunctionRecord, JobReport, PodInstance, Rollout, RouteRecord, ServiceRecord,
    WorkflowRecord,
};

/// Returns the health of a live object.
pub fn health(snapshot: &Snapshot, object: &Object) -> Health {
    match &object.resource {
        Resource::Pod(_) => match bare_pod(snapshot, object) {
            Health::Healthy if copy_count(snapshot, object) > 0 => copied_pod_health(snapshot, object),
            health => health,
        },
        Resource::Service(spec) => {
            let record = snapshot.services.get(&namespaced_name(object)).map(|found| &found.value);
            ServiceRecord::health(record, spec, &object.hash)
        }
        Resource::Dns(spec) => {
            let record = snapshot.routes.get(&namespaced_name(object)).map(|found| &found.value);
            RouteRecord::health(record, spec, &object.hash)
        }
        Resource::Cluster(_) => {
            let published = snapshot.settings.get(&()).map(|found| &found.value);
            ClusterSettings::health(published, object.generation)
        }
        Resource::ReplicaSet(spec) => workload(snapshot, object, spec.paused),
        Resource::DaemonSet(_) => workload(snapshot, object, false),
        // The content of a ConfigMap is stored with it.
        Resource::ConfigMap(_) => Health::Healthy,
        Resource::HorizontalPodAutoscaler(spec) => {
            let record = snapshot.autoscalers.get(&namespaced_name(object)).map(|found| &found.value);
            let current = record.filter(|record| record.observed_generation == object.generation);
            // Without one, the autoscaler has not observed its target yet.
            spec.health(current.map_or(&HorizontalPodAutoscalerStatus::default(), |record| &record.status))
        }
        Resource::Node(_) => node(snapshot, &object.metadata.name),
        Resource::Function(_) => function(snapshot, object),
        Resource::Workflow(spec) => {
            let (record, none) =
                (snapshot.workflows.get(&namespaced_name(object)), WorkflowRecord::default());
            let record = record.map_or(&none, |found| &found.value);
            record.health(spec.params.is_some(), object.generation)
        }
        Resource::Job(spec) => job(snapshot, object, spec),
    }
}

/// Returns the reason why an object is not healthy, if its kind fails commits.
pub fn trouble(snapshot: &Snapshot, object: &Object) -> Option<String> {
    let is_awaited = object.kind().descriptor().fails_commits;
    health(snapshot, object).why().filter(|_| is_awaited).map(str::to_owned)
}

/// Returns the health of a node. A node that never registered is unknown, not broken: its manifest may come before
/// the machine.
fn node(snapshot: &Snapshot, name: &str) -> Health {
    match (snapshot.nodes.contains_key(name), snapshot.node_is_ready(name)) {
        (true, true) => Health::Healthy,
        (true, false) => Health::Degraded { why: "its agent does not answer".to_owned() },
        (false, _) => Health::Unknown { why: "no agent of this name has registered".to_owned() },
    }
}

/// Returns the seconds without progress after which an unhealthy object has failed.
pub fn deadline_seconds(snapshot: &Snapshot, object: &Object) -> u32 {
    deadline_or(object, snapshot.cluster().defaults.progress_deadline_seconds)
}

/// Like [`deadline_seconds`], with the cluster's default as an argument.
pub fn deadline_or(object: &Object, default: u32) -> u32 {
    // A ReplicaSet or DaemonSet of Kubernetes has no deadline: the default one must leave it time to become ready.
    let or_default = |written: Option<u32>, min_ready: u32| {
        written.unwrap_or(if min_ready < default { default } else { min_ready.saturating_add(default) })
    };
    match &object.resource {
        Resource::ReplicaSet(set) => or_default(set.progress_deadline_seconds, set.min_ready_seconds),
        Resource::DaemonSet(set) => or_default(set.progress_deadline_seconds, set.min_ready_seconds),
        Resource::Pod(_)
        | Resource::Service(_)
        | Resource::Dns(_)
        | Resource::Cluster(_)
        | Resource::Node(_)
        | Resource::ConfigMap(_)
        | Resource::Function(_)
        | Resource::HorizontalPodAutoscaler(_)
        | Resource::Workflow(_)
        | Resource::Job(_) => default,
    }
}

/// Returns the time at which the object last came closer to being healthy. A restart is not progress, so a crash
/// loop reaches its deadline.
pub fn progressed_at(snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
    // A new number of pods restarts the deadline of a workload that was complete. A workload that never was must
    // not gain by it.
    let scaled = || {
        if rollout_of(snapshot, object).is_some_and(|rollout| !rollout.complete) {
            return None;
        }
        let target = object.reference();
        let of_object = snapshot.autoscalers.values().filter(|record| record.value.target == target);
        of_object.filter_map(|record| record.value.status.last_scale_time).filter(|at| *at <= now).max()
    };
    match &object.resource {
        Resource::Function(_) => {
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
        Resource::Workflow(_) => {
            let workflow = snapshot.workflows.get(&namespaced_name(object));
            let last_run = workflow.and_then(|found| found.value.last_run.as_ref());
            // A run has its own deadline, and may wait for long.
            last_run.filter(|run| run.phase == RunPhase::Running).map(|_| now)
        }
        Resource::Job(_) => {
            let (node, report) = job_report(snapshot, object).ok()?;
            // An upload has its own deadline. A blocked upload has a reason.
            let is_uploaded = report.status.phase == JobPhase::Uploading
                && report.status.reason.is_empty()
                && snapshot.node_is_ready(&node);
            Some(if is_uploaded { now } else { report.since }).filter(|at| *at <= now)
        }
        Resource::ReplicaSet(_) | Resource::DaemonSet(_) => {
            let rollout = rollout_of(snapshot, object)?;
            scaled().into_iter().chain([rollout.progressed_at]).max()
        }
        Resource::Pod(_) => {
            let copies = rollout_of(snapshot, object).map(|rollout| rollout.progressed_at);
            let own = pod_progress(status_of(snapshot, object).ok()?);
            own.into_iter().chain(copies).chain(scaled()).filter(|at| *at <= now).max()
        }
        Resource::Service(_)
        | Resource::HorizontalPodAutoscaler(_)
        | Resource::Dns(_)
        | Resource::ConfigMap(_)
        | Resource::Node(_)
        | Resource::Cluster(_) => None,
    }
}

/// Returns the times at which a pod came closer to being ready. A time in the future comes from a node whose clock
/// is wrong.
fn pod_progress(status: &PodStatus) -> Vec<Timestamp> {
    let ended = status.init_container_statuses.iter().filter_map(|container| match &container.state {
        ContainerState::Terminated(end) if end.exit_code == 0 && container.restart_count == 0 => {
            end.finished_at
        }
        _ => None,
    });
    let started = status.container_statuses.iter().filter_map(|container| match &container.state {
        ContainerState::Running(running) if container.restart_count == 0 => Some(running.started_at),
        _ => None,
    });
    // A probe that fails for a moment restarts the pod's deadline.
    let restarted = status.container_statuses.iter().any(|container| container.restart_count > 0);
    let ready = status.conditions.iter().filter(|condition| condition.kind == "Ready" && !restarted);
    let ready = ready.map(|condition| condition.last_transition_time);
    status.start_time.into_iter().chain(ended).chain(started).chain(ready).collect()
}

/// True if the records that nodes need for the object exist; for a pod, those of this version. Not waited for: a
/// name, an address or a port that others hold.
pub fn is_complete(snapshot: &Snapshot, object: &Object) -> bool {
    match &object.resource {
        Resource::Pod(_) => {
            let is_made = |pod: &PodInstance| pod.hash == object.hash || !pod.is_bare();
            snapshot.pods.get(&namespaced_name(object)).is_some_and(|pod| is_made(&pod.value))
                && (copy_count(snapshot, object) == 0 || has_its_pods(snapshot, object, false))
        }
        Resource::Service(spec) => {
            let may_be_refused = spec.cluster_ip.is_some() || spec.kind == ServiceType::NodePort;
            may_be_refused || snapshot.services.contains_key(&namespaced_name(object))
        }
        Resource::Dns(_) => snapshot.routes.contains_key(&namespaced_name(object)),
        Resource::Cluster(_) => snapshot.settings.contains_key(&()),
        // A paused ReplicaSet may have no pods at all.
        Resource::ReplicaSet(spec) => has_its_pods(snapshot, object, spec.paused),
        Resource::DaemonSet(_) => has_its_pods(snapshot, object, false),
        // Its first pass adopts the number of running pods, should etcd have been lost.
        Resource::HorizontalPodAutoscaler(_) => snapshot.autoscalers.contains_key(&namespaced_name(object)),
        Resource::Function(_) => function_is_complete(snapshot, object) && ticks_are_known(snapshot, object),
        // Before a node has the order, its absence would prove nothing.
        Resource::Job(_) => {
            let nobody = snapshot.heartbeats.is_empty();
            nobody
                || snapshot
                    .job_of(&namespaced_name(object))
                    .is_some_and(|(_, order)| order.hash == object.hash)
        }
        // Until its records are here, those on the disks tell which pushes and ticks had their run.
        Resource::Workflow(_) => {
            snapshot.workflows.contains_key(&namespaced_name(object)) && ticks_are_known(snapshot, object)
        }
        // Nodes need nothing of these.
        Resource::Node(_) | Resource::ConfigMap(_) => true,
    }
}

/// True if each schedule of the object has its record. Triggers of other kinds have one only after they started a
/// run.
fn ticks_are_known(snapshot: &Snapshot, object: &Object) -> bool {
    let mut scheduled = object.resource.triggers().iter().filter(|trigger| trigger.schedule.is_some());
    scheduled.all(|trigger| snapshot.triggers.contains_key(&(object.reference(), trigger.name.clone())))
}

fn workload(snapshot: &Snapshot, object: &Object, paused: bool) -> Health {
    match rollout_of(snapshot, object) {
        Some(rollout) => rollout.status.health(object.generation, paused),
        None => Health::Progressing { why: "its pods are not made yet".to_owned() },
    }
}

/// Returns the health of a job, from the report of its node.
fn job(snapshot: &Snapshot, object: &Object, spec: &JobSpec) -> Health {
    match job_report(snapshot, object) {
        Ok((node, report)) if report.status.phase.is_final() || snapshot.node_is_ready(&node) => {
            spec.health(&report.status)
        }
        Ok((node, _)) => Health::Unknown { why: format!("its node {node} does not answer") },
        Err(health) => health,
    }
}

/// Returns the name of the job's node and its report of this very version; else the job's health.
fn job_report<'a>(snapshot: &'a Snapshot, object: &Object) -> Result<(String, &'a JobReport), Health> {
    let id = namespaced_name(object);
    let order = snapshot.job_of(&id).filter(|(_, order)| order.hash == object.hash && !order.deleting);
    let (node, order) = order
        .map(|(node, order)| (node.to_owned(), order))
        .ok_or_else(|| Health::Progressing { why: "it is not assigned to a node yet".to_owned() })?;
    let report = snapshot.job_reports.get(&(node.clone(), id.clone())).map(|report| &report.value);
    let report = report.filter(|report| report.uid == order.uid);
    match report {
        Some(report) => Ok((node, report)),
        None => Err(Health::Progressing { why: format!("node {node} has not begun with it yet") }),
    }
}

/// Returns the health of a function: that of its image first, then that of its rollout.
fn function(snapshot: &Snapshot, object: &Object) -> Health {
    let Some(record) = function_record(snapshot, object) else {
        return Health::Progressing {
            why: "the functions controller has not taken this version in yet".to_owned(),
        };
    };
    let health = record.health();
    if record.image().is_none_or(|image| image.state != ImageState::Ready) {
        return health;
    }
    match rollout_of(snapshot, object)
        .map(|rollout| (rollout, rollout.status.health(object.generation, false)))
    {
        None => Health::Progressing { why: "its first replica is not made yet".to_owned() },
        Some((_, degraded @ Health::Degraded { .. })) => degraded,
        Some((rollout, progressing)) if !rollout.complete => match &record.trouble {
            Some(trouble) => Health::Progressing { why: trouble.message.clone() },
            None => progressing,
        },
        Some(_) => health,
    }
}

/// Returns the record of a function, once it describes the current object.
fn function_record<'a>(snapshot: &'a Snapshot, object: &Object) -> Option<&'a FunctionRecord> {
    let record = &snapshot.functions.get(&namespaced_name(object))?.value;
    (record.hash == object.hash).then_some(record)
}

/// True if a function has its records: its pods if its image is available or it has run before, else only its own
/// record.
fn function_is_complete(snapshot: &Snapshot, object: &Object) -> bool {
    let Some(record) = snapshot.functions.get(&namespaced_name(object)).map(|found| &found.value) else {
        return false;
    };
    match snapshot.rollouts.get(&object.reference()).map(|found| &found.value.status) {
        Some(status) => status.replicas >= status.desired_replicas,
        None => record.image().is_none_or(|image| image.state != ImageState::Ready),
    }
}

fn has_its_pods(snapshot: &Snapshot, object: &Object, paused: bool) -> bool {
    let has_all = |rollout: &Rollout| rollout.status.replicas >= rollout.status.desired_replicas;
    rollout_of(snapshot, object).is_some_and(|rollout| paused || has_all(rollout))
}

/// Returns the health of a bare pod with copies.
fn copied_pod_health(snapshot: &Snapshot, object: &Object) -> Health {
    let is_first = rollout_of(snapshot, object).is_some_and(|rollout| rollout.good.is_none());
    match workload(snapshot, object, false) {
        // No further copy could be placed, for lack of room, say: nothing that served is gone.
        Health::Degraded { why } if is_first => Health::Progressing { why },
        health => health,
    }
}

/// Returns the number of copies that an autoscaler gave a pod.
fn copy_count(snapshot: &Snapshot, object: &Object) -> u32 {
    if snapshot.scales.is_empty() {
        return 0;
    }
    let lasts = matches!(&object.resource, Resource::Pod(pod) if pod.restart_policy == RestartPolicy::Always);
    let scale = snapshot.scales.get(&object.reference()).filter(|_| lasts);
    scale.map_or(0, |scale| scale.value.replicas.saturating_sub(1))
}

/// Returns the record of a workload, once it describes the current object.
fn rollout_of<'a>(snapshot: &'a Snapshot, object: &Object) -> Option<&'a Rollout> {
    let rollout = &snapshot.rollouts.get(&object.reference())?.value;
    (rollout.status.observed_generation == object.generation).then_some(rollout)
}

fn namespaced_name(object: &Object) -> NamespacedName {
    NamespacedName::new(&object.metadata.namespace, &object.metadata.name)
}

/// Returns a healthy pod that may not stay so: it has run for too short a time to know.
pub fn unsteady<'a>(
    snapshot: &'a Snapshot,
    object: &Object,
    now: Timestamp,
) -> Option<UnsteadyContainer<'a>> {
    let Resource::Pod(_) = &object.resource else { return None };
    let pod = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let (instance, binding) = (snapshot.pods.get(&pod)?, snapshot.binding_of(&pod)?);
    snapshot
        .pod_status
        .get(&(binding.value.node.clone(), pod))?
        .value
        .unsteady_container(&instance.value.spec, now)
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

/// Returns the report of the node about the very pod that the object asks for, if the node is alive; else the pod's
/// health.
fn status_of<'a>(snapshot: &'a Snapshot, object: &Object) -> Result<&'a PodStatus, Health> {
    let progressing = |why: &str| Health::Progressing { why: why.to_owned() };
    let pod = namespaced_name(object);
    let instance = snapshot.pods.get(&pod).filter(|instance| instance.value.hash == object.hash);
    let instance = instance.ok_or_else(|| progressing("its pod is not made yet"))?;
    let binding = snapshot.binding_of(&pod).ok_or_else(|| progressing("its pod has no node yet"))?;
    let node = &binding.value.node;
    if !snapshot.node_is_ready(node) {
        return Err(Health::Unknown { why: format!("its node {node} does not answer") });
    }
    let reported = snapshot.pod_status.get(&(node.clone(), pod)).map(|found| &found.value);
    let reported = reported.filter(|status| status.uid == instance.value.uid);
    reported.ok_or_else(|| progressing("its node has not reported the pod yet"))
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
