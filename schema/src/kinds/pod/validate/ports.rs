//! Checks of ports: names, and clashes of host ports within the pod.

use std::collections::BTreeSet;

use super::super::{ContainerPort, PodSpec};
use crate::kinds::names::is_port_name;
use crate::violation::{Findings, Path, rules};

/// Checks the ports of every container. Init containers end before the others start, so their host ports do not
/// clash.
pub(super) fn validate(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    let mut host_ports = BTreeSet::new();
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
                let Some(host_port @ 1..) = port.host_port else { continue };
                if field == "containers" && !host_ports.insert((host_port, port.protocol)) {
                    let message = format!("Duplicate value: {host_port}: another port of this pod takes it");
                    findings.add(&rules::HOST_PORT, &here.field("hostPort"), message);
                }
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
