//! Checks of containers: names, image, command, and the parts of each.

use std::collections::BTreeSet;

use super::super::{Container, LifecycleHandler, PodSpec};
use super::shared::{container_name, exactly_one};
use super::{env, image, probe, resources, volume};
use crate::violation::{Findings, Path, rules};

/// Checks every container of the pod; names are unique across both lists.
pub(super) fn validate(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    let mut names = BTreeSet::new();
    let lists = [("initContainers", &pod.init_containers), ("containers", &pod.containers)];
    for (field, containers) in lists {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let here = list.index(index);
            container_name(&container.name, &here, &mut names, findings);
            one(pod, container, &here, findings);
            if field == "initContainers" {
                forbid_on_init(container, &here, findings);
            }
        }
    }
    if pod.containers.is_empty() {
        findings.add(
            &rules::REQUIRED,
            &at.field("containers"),
            "Required value: a pod has at least one container",
        );
    }
}

fn one(pod: &PodSpec, container: &Container, at: &Path<'_>, findings: &mut Findings) {
    if let Err(why) = image::check(&container.image) {
        findings.add(&rules::INVALID_IMAGE, &at.field("image"), why);
    }
    if let Some(directory) = &container.working_dir
        && !directory.starts_with('/')
    {
        let message = format!("Invalid value: `{directory}`: must be an absolute path");
        findings.add(&rules::INVALID_PATH, &at.field("workingDir"), message);
    }
    env::validate(&container.env, &at.field("env"), findings);
    env::validate_from(container, at, findings);
    env::validate_words(&container.command, &at.field("command"), findings);
    env::validate_words(&container.args, &at.field("args"), findings);
    resources::validate(&container.resources, &at.field("resources"), findings);
    volume::mounts(pod, container, &at.field("volumeMounts"), findings);
    probe::validate(container, at, findings);
    if let Some(lifecycle) = &container.lifecycle {
        let here = at.field("lifecycle");
        let here = here.field("preStop");
        if let Some(handler) = &lifecycle.pre_stop {
            pre_stop(container, handler, &here, findings);
        }
    }
}

fn pre_stop(container: &Container, handler: &LifecycleHandler, at: &Path<'_>, findings: &mut Findings) {
    let mut set = Vec::new();
    set.extend(handler.exec.as_ref().map(|_| "exec"));
    set.extend(handler.http_get.as_ref().map(|_| "httpGet"));
    exactly_one(&set, &["exec", "httpGet"], "a handler type", at, findings);
    if let Some(exec) = &handler.exec {
        probe::exec(exec, &at.field("exec"), findings);
    }
    if let Some(http_get) = &handler.http_get {
        probe::http_get(container, http_get, &at.field("httpGet"), findings);
    }
}

/// Forbids probes and hooks of init containers, which run once to their end.
fn forbid_on_init(container: &Container, at: &Path<'_>, findings: &mut Findings) {
    let set = [
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ];
    for (field, _) in set.iter().filter(|(_, is_set)| *is_set) {
        let message = "Forbidden: may not be set for init containers";
        findings.add(&rules::EXCLUSIVE, &at.field(field), message).on_key();
    }
}
