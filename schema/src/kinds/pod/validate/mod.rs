//! Checks of a pod beyond the schema, one file per part, in Kubernetes' wording where people search for it. Reads
//! the typed spec, adds findings by path, changes nothing.

mod env;
mod probe;
mod scheduling;
mod security;
mod shared;
mod volume;

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Container, ContainerPort, HostPort, LifecycleHandler, PodSpec};
use crate::image;
use crate::names::is_port_name;
use crate::violation::{Findings, Path, rules};
use shared::{container_name, exactly_one};

pub(crate) use env::validate as check_env;
#[cfg(test)]
pub(crate) use security::CAPABILITIES;
pub(crate) use shared::validate as check_resources;

impl PodSpec {
    /// Checks a spec as written, before [`PodSpec::fill_defaults`], at the path `at`.
    pub fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        volume::validate(self, at, findings);
        validate(self, at, findings);
        validate_ports(self, at, findings);
        validate_gpus(self, at, findings);
        security::validate(self, at, findings);
        scheduling::validate(self, at, findings);
    }
}

// Checks of containers: names, image, command, and the parts of each.

/// Checks every container of the pod; names are unique across both lists.
fn validate(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    let mut names = BTreeSet::new();
    let lists = [("initContainers", &pod.init_containers), ("containers", &pod.containers)];
    for (field, containers) in lists {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let here = list.index(index);
            container_name(&container.name, &here, &mut names, findings);
            one(pod, container, &here, findings);
            if field == "containers" && container.restart_policy.is_some() {
                let message = "Forbidden: may not be set for non-init containers";
                findings
                    .add(&rules::EXCLUSIVE, &here.field("restartPolicy"), message)
                    .on_key()
                    .help("set it on the pod, or list the container under initContainers");
            }
            if field == "initContainers" && !container.is_sidecar() {
                forbid_on_init(container, &here, findings);
            }
        }
    }
    if pod.containers.is_empty() {
        findings.add(
            &rules::REQUIRED,
            &at.field("containers"),
            "Required value: a pod needs at least one container",
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
    env::validate(&container.env, Some(pod), &at.field("env"), findings);
    env::validate_from(container, at, findings);
    env::validate_words(&container.command, &at.field("command"), findings);
    env::validate_words(&container.args, &at.field("args"), findings);
    shared::validate(&container.resources, &at.field("resources"), findings);
    volume::mounts(pod, container, &at.field("volumeMounts"), findings);
    probe::validate(container, at, findings);
    if let Some(lifecycle) = &container.lifecycle {
        let here = at.field("lifecycle");
        for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
            if let Some(handler) = hook {
                handler_of(pod, container, handler, &here.field(field), findings);
            }
        }
    }
}

fn handler_of(
    pod: &PodSpec,
    container: &Container,
    handler: &LifecycleHandler,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    let mut set = Vec::new();
    set.extend(handler.exec.as_ref().map(|_| "exec"));
    set.extend(handler.http_get.as_ref().map(|_| "httpGet"));
    set.extend(handler.sleep.as_ref().map(|_| "sleep"));
    exactly_one(&set, &["exec", "httpGet", "sleep"], "a handler type", at, findings);
    let grace = pod.termination_grace_period_seconds;
    if let Some(sleep) = handler.sleep.as_ref().filter(|sleep| sleep.seconds > grace) {
        let message = format!(
            "Invalid value: {}: must be non-negative and less than terminationGracePeriodSeconds ({grace})",
            sleep.seconds
        );
        findings.add(&rules::OUT_OF_RANGE, &at.field("sleep").field("seconds"), message);
    }
    if let Some(exec) = &handler.exec {
        probe::exec(exec, &at.field("exec"), findings);
    }
    if let Some(http_get) = &handler.http_get {
        probe::http_get(container, http_get, &at.field("httpGet"), findings);
    }
}

/// Forbids probes and hooks of an init container that runs once to its end.
fn forbid_on_init(container: &Container, at: &Path<'_>, findings: &mut Findings) {
    let set = [
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ];
    for (field, _) in set.iter().filter(|(_, is_set)| *is_set) {
        let message = "Forbidden: may not be set for init containers without restartPolicy=Always";
        findings.add(&rules::EXCLUSIVE, &at.field(field), message).on_key();
    }
}

/// Checks that one container at most has GPUs: Docker gives each the first ones of the node, and others would share them.
fn validate_gpus(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    let mut is_taken = false;
    for (field, containers) in [("containers", &pod.containers), ("initContainers", &pod.init_containers)] {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let stays = field == "containers" || container.is_sidecar();
            if !stays || container.resources.gpus() == 0 {
                continue;
            }
            if is_taken {
                let here = list.index(index);
                let here = here.field("resources");
                let message = "Forbidden: another container of this pod has GPUs, and Docker would give both the same ones";
                let finding =
                    findings.add(&rules::RESOURCES, &here.field("limits").field("nvidia.com/gpu"), message);
                finding.on_key().help("write one pod for each");
            }
            is_taken = true;
        }
    }
}

// Checks of ports: names, and clashes of host ports within the pod.

/// Checks the ports of every container. Init containers other than sidecars end before the others start, so their
/// host ports do not clash.
fn validate_ports(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    let mut host_ports: Vec<HostPort> = Vec::new();
    for (field, containers) in [("containers", &pod.containers), ("initContainers", &pod.init_containers)] {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let here = list.index(index);
            let ports = here.field("ports");
            let mut names = BTreeSet::new();
            for (index, port) in container.ports.iter().enumerate() {
                let here = ports.index(index);
                host_port(pod, port, &here, findings);
                name(port, &mut names, &here, findings);
                host_address(pod, port, &here, findings);
                let stays = field == "containers" || container.is_sidecar();
                let Some(host_port @ 1..) = port.host_port.filter(|_| stays) else { continue };
                let (protocol, address) = (port.protocol, port.host_address());
                let taken = HostPort { protocol, port: host_port, address };
                if host_ports.iter().any(|other| other.clashes(&taken)) {
                    let message =
                        format!("Duplicate value: {host_port}: already used by another port of this pod");
                    findings.add(&rules::HOST_PORT, &here.field("hostPort"), message);
                }
                host_ports.push(taken);
            }
        }
    }
}

fn host_port(pod: &PodSpec, port: &ContainerPort, at: &Path<'_>, findings: &mut Findings) {
    let differs = port.host_port.is_some_and(|host_port| host_port != 0 && host_port != port.container_port);
    if pod.host_network && differs {
        let message = "Invalid value: must match `containerPort` when `hostNetwork` is true";
        findings.add(&rules::HOST_PORT, &at.field("hostPort"), message);
    }
}

/// Checks the address of a host port; an empty one means the same as a missing one.
fn host_address(pod: &PodSpec, port: &ContainerPort, at: &Path<'_>, findings: &mut Findings) {
    let Some(text) = port.host_ip.as_deref().filter(|text| !text.is_empty()) else { return };
    let here = at.field("hostIP");
    let invalid = |why: &str| format!("Invalid value: `{text}`: {why}");
    match text.parse::<IpAddr>() {
        Err(_) => {
            let message = invalid("must be a valid IP address, (e.g. 10.9.8.7)");
            findings.add(&rules::INVALID_ADDRESS, &here, message);
        }
        Ok(IpAddr::V6(address)) if !address.is_unspecified() => {
            let finding =
                findings.add(&rules::INVALID_ADDRESS, &here, invalid("pods have IPv4 addresses only"));
            finding.help("write an IPv4 address of the node, or remove hostIP to use all of them");
        }
        Ok(address) if !address.is_unspecified() && (pod.host_network || port.host_port.is_none()) => {
            let why = match pod.host_network {
                true => "on the host network the container itself chooses its address",
                false => "without hostPort the port is not on the node",
            };
            findings.add(&rules::NO_EFFECT, &here, format!("`hostIP` has no effect here: {why}")).on_key();
        }
        Ok(_) => {}
    }
}

fn name<'a>(port: &'a ContainerPort, seen: &mut BTreeSet<&'a str>, at: &Path<'_>, findings: &mut Findings) {
    let Some(name) = &port.name else { return };
    let here = at.field("name");
    if !is_port_name(name) {
        let message = format!(
            "Invalid value: `{name}`: must be no more than 15 characters, lower case alphanumeric or '-', with at \
least one letter"
        );
        findings.add(&rules::INVALID_PORT, &here, message);
    } else if !seen.insert(name) {
        findings.add(&rules::DUPLICATE_NAME, &here, format!("Duplicate value: `{name}`"));
    }
}
