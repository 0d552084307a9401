//! Checks of service ports: names, clashes, node ports.

use std::collections::BTreeSet;

use super::super::{NODE_PORTS, ServicePort, ServiceSpec, ServiceType};
use crate::kinds::names::{DNS_LABEL, is_dns_label, is_port_name};
use crate::kinds::pod::{PortReference, Protocol};
use crate::violation::{Findings, Path, rules};

/// Checks the ports at `at.ports`.
pub(super) fn validate(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    let list = at.field("ports");
    if spec.ports.is_empty() && spec.has_cluster_ip() {
        findings
            .add(&rules::REQUIRED, &list, "Required value: a service has at least one port")
            .help("only `clusterIP: None` and `type: ExternalName` can do without");
    }
    let mut seen = EarlierPorts::default();
    for (index, port) in spec.ports.iter().enumerate() {
        let here = list.index(index);
        name(port, spec.ports.len() > 1, &mut seen, &here, findings);
        if !seen.ports.insert((port.port, port.protocol)) {
            let message = format!(
                "Duplicate value: {} {}: another port of this service has them",
                port.port,
                word(port.protocol)
            );
            findings.add(&rules::INVALID_PORT, &here.field("port"), message);
        }
        target_port(spec, port, &here, findings);
        node_port(spec, port, &mut seen, &here, findings);
    }
}

/// Names and ports that earlier ports of the service took.
#[derive(Default)]
struct EarlierPorts<'a> {
    names: BTreeSet<&'a str>,
    ports: BTreeSet<(u16, Protocol)>,
    node_ports: BTreeSet<(u16, Protocol)>,
}

fn name<'a>(
    port: &'a ServicePort,
    is_needed: bool,
    seen: &mut EarlierPorts<'a>,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    let here = at.field("name");
    match port.name.as_deref().unwrap_or_default() {
        "" if is_needed => {
            let message = "Required value: a service with several ports names each";
            findings.add(&rules::REQUIRED, &here, message);
        }
        "" => {}
        name if !is_dns_label(name) => {
            findings.add(&rules::INVALID_PORT, &here, format!("Invalid value: `{name}`: {DNS_LABEL}"));
        }
        name if !seen.names.insert(name) => {
            findings.add(&rules::DUPLICATE_NAME, &here, format!("Duplicate value: `{name}`"));
        }
        _ => {}
    }
}

fn target_port(spec: &ServiceSpec, port: &ServicePort, at: &Path<'_>, findings: &mut Findings) {
    // 0 and the empty name mean `port`, as in Kubernetes.
    let Some(PortReference::Name(name)) = &port.target_port else { return };
    let here = at.field("targetPort");
    if !name.is_empty() && !is_port_name(name) {
        let message = format!(
            "Invalid value: `{name}`: must be a number from 1 to 65535, or the name of a container port: no more \
than 15 characters, lower case alphanumeric or '-', with at least one letter"
        );
        findings.add(&rules::INVALID_PORT, &here, message);
    } else if !name.is_empty() && spec.selector.is_empty() && !spec.addresses.is_empty() {
        let message = format!("Not found: `{name}`: `addresses` have no named ports");
        findings.add(&rules::NOT_FOUND, &here, message).help("write the port's number");
    }
}

fn node_port(
    spec: &ServiceSpec,
    port: &ServicePort,
    seen: &mut EarlierPorts<'_>,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    let Some(node_port @ 1..) = port.node_port else { return };
    let here = at.field("nodePort");
    if spec.kind != ServiceType::NodePort {
        let message = format!("Forbidden: may not be used when `type` is '{:?}'", spec.kind);
        findings.add(&rules::NODE_PORT, &here, message).on_key().help("set `type: NodePort`, or remove it");
    } else if !NODE_PORTS.contains(&node_port) {
        let message = format!(
            "Invalid value: {node_port}: provided port is not in the valid range. The range of valid ports is {}-{}",
            NODE_PORTS.start(),
            NODE_PORTS.end()
        );
        findings.add(&rules::NODE_PORT, &here, message);
    } else if !seen.node_ports.insert((node_port, port.protocol)) {
        let message = format!("Duplicate value: {node_port}: another port of this service takes it");
        findings.add(&rules::NODE_PORT, &here, message);
    }
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}
