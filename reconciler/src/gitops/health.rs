//! How well an object is, as far as its dependants and the verdict on its commit ask for it. Pure.

use jiff::Timestamp;
use schema::kinds::pod::{ContainerState, PodPhase, PodStatus, Unsteady};
use schema::kinds::{Health, Resource};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{RouteRecord, ServiceRecord};
use schema::snapshot::Snapshot;

/// The health of a live object. Kinds that this version does not run are content with being stored.
pub fn health(snapshot: &Snapshot, object: &Object) -> Health {
    match &object.resource {
        Resource::Pod(_) => bare_pod(snapshot, object),
        Resource::Service(spec) => {
            let record = snapshot.services.get(&named(object)).map(|found| &found.value);
            ServiceRecord::health(record, spec, &object.hash)
        }
        Resource::Dns(spec) => {
            let record = snapshot.routes.get(&named(object)).map(|found| &found.value);
            RouteRecord::health(record, spec, &object.hash)
        }
        // Settings are in force as soon as they are stored.
        Resource::Cluster(_) => Health::Healthy,
        resource if !resource.kind().is_run() => Health::NotRun,
        resource => Health::Unknown { why: format!("the status of a {} is not reported", resource.kind()) },
    }
}

fn named(object: &Object) -> NamespacedName {
    NamespacedName::new(&object.metadata.namespace, &object.metadata.name)
}

/// What keeps an object from being healthy, if anything does.
pub fn trouble(health: &Health) -> Option<&str> {
    match health {
        Health::Healthy | Health::NotRun => None,
        Health::Progressing { why } | Health::Degraded { why } | Health::Unknown { why } => Some(why),
    }
}

/// A healthy pod that may not stay so: it has run for too short a time to tell.
pub fn unsteady<'a>(snapshot: &'a Snapshot, object: &Object, now: Timestamp) -> Option<Unsteady<'a>> {
    let Resource::Pod(_) = &object.resource else { return None };
    let pod = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let (instance, binding) = (snapshot.pods.get(&pod)?, snapshot.binding_of(&pod)?);
    snapshot.pod_status.get(&(binding.value.node.clone(), pod))?.value.unsteady(&instance.value.spec, now)
}

/// Only what is said of the very pod that the object asks for counts, and only from a node that is
/// alive.
fn bare_pod(snapshot: &Snapshot, object: &Object) -> Health {
    let progressing = |why: &str| Health::Progressing { why: why.to_owned() };
    let pod = named(object);
    let Some(instance) = snapshot.pods.get(&pod).filter(|instance| instance.value.hash == object.hash) else {
        return progressing("its pod is not made yet");
    };
    let Some(binding) = snapshot.binding_of(&pod) else {
        return progressing("its pod has no node yet");
    };
    let node = &binding.value.node;
    if !snapshot.node_is_ready(node) {
        return Health::Unknown { why: format!("its node {node} does not answer") };
    }
    let reported = snapshot.pod_status.get(&(node.clone(), pod));
    let Some(status) = reported.map(|found| &found.value).filter(|s| s.uid == instance.value.uid) else {
        return progressing("its node has not reported the pod yet");
    };
    if status.is_terminating() {
        // Wanted again before its node has taken it away: it runs anew.
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

/// One stable line: it lies in statuses, which are written when they change.
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
