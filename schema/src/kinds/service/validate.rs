//! Checks of a service beyond the schema, in Kubernetes' wording where people search for it.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::{NODE_PORTS, ServicePort, ServiceSpec, ServiceType, SessionAffinity, TrafficPolicy};
use crate::kinds::metadata;
use crate::kinds::pod::{PortReference, Protocol};
use crate::names::{DNS_LABEL, is_dns_label, is_dns_subdomain, is_port_name};
use crate::violation::{Findings, Path, rules};

/// A day, as in Kubernetes.
const AFFINITY_MAX_SECONDS: u32 = 24 * 60 * 60;

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    metadata::labels(&spec.selector, &at.field("selector"), findings);
    validate_ports(spec, at, findings);
    validate_external_name(spec, at, findings);
    validate_addresses(spec, at, findings);
    affinity(spec, at, findings);
    traffic_policy(spec, at, findings);
}

fn affinity(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(config) = &spec.session_affinity_config else { return };
    let here = at.field("sessionAffinityConfig");
    if spec.session_affinity == SessionAffinity::None {
        let message = "Forbidden: must not be set when session affinity is None";
        findings
            .add(&rules::SESSION_AFFINITY, &here, message)
            .on_key()
            .help("set `sessionAffinity: ClientIP`");
        return;
    }
    let seconds = config.client_ip.as_ref().and_then(|config| config.timeout_seconds);
    if let Some(seconds) = seconds.filter(|seconds| !(1..=AFFINITY_MAX_SECONDS).contains(seconds)) {
        let message =
            format!("Invalid value: {seconds}: must be greater than 0 and at most {AFFINITY_MAX_SECONDS}");
        let here = here.field("clientIP");
        findings.add(&rules::SESSION_AFFINITY, &here.field("timeoutSeconds"), message);
    }
}

/// Checks the external policy. `Cluster` is the default and always valid; `Local` requires clients from outside.
fn traffic_policy(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    let is_external = spec.kind == ServiceType::NodePort || !spec.external_ips.is_empty();
    if spec.external_traffic_policy == TrafficPolicy::Local && !is_external {
        let message = "Invalid value: `Local`: may only be set for externally-accessible services";
        findings
            .add(&rules::TRAFFIC_POLICY, &at.field("externalTrafficPolicy"), message)
            .help("set `type: NodePort` or externalIPs, or remove it");
    }
}

// Checks of addresses: cluster IP, external IPs, and those behind the service.

/// Checks `clusterIP`, `externalIPs` and `addresses` at `at`.
fn validate_addresses(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    cluster_ip(spec, &at.field("clusterIP"), findings);
    list(&spec.external_ips, &at.field("externalIPs"), findings);
    let addresses = at.field("addresses");
    list(&spec.addresses, &addresses, findings);
    if spec.kind == ServiceType::ExternalName {
        return;
    }
    match (spec.selector.is_empty(), spec.addresses.is_empty()) {
        (false, false) => {
            let message = "Forbidden: may not be used when `selector` is set";
            findings.add(&rules::EXCLUSIVE, &addresses, message).on_key().help("remove one of them");
        }
        (true, true) => {
            let message = "the service has neither `selector` nor `addresses`: it will have no endpoints";
            findings.add(&rules::NO_ENDPOINTS, at, message).on_key();
        }
        _ => {}
    }
}

fn cluster_ip(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(text) = spec.cluster_ip.as_deref().filter(|text| !text.is_empty()) else { return };
    if spec.kind == ServiceType::ExternalName {
        let message = "Forbidden: may not be set for ExternalName services";
        findings.add(&rules::CLUSTER_IP, at, message).on_key();
        return;
    }
    if spec.is_headless() {
        if spec.kind == ServiceType::NodePort {
            let message = "Invalid value: `None`: may not be set to 'None' for NodePort services";
            findings.add(&rules::CLUSTER_IP, at, message);
        }
        return;
    }
    if let Err(why) = usable(text) {
        let message = format!("Invalid value: `{text}`: must be empty, 'None', or a valid IP address: {why}");
        findings.add(&rules::CLUSTER_IP, at, message);
    }
}

fn list(addresses: &[String], at: &Path<'_>, findings: &mut Findings) {
    for (index, address) in addresses.iter().enumerate() {
        if let Err(why) = usable(address) {
            let message = format!("Invalid value: `{address}`: {why}");
            findings.add(&rules::INVALID_ADDRESS, &at.index(index), message);
        }
    }
}

/// Checks for an address that a machine can have. Kubernetes forbids the same ones for endpoints.
fn usable(text: &str) -> Result<(), &'static str> {
    let address: Ipv4Addr = text.parse().map_err(|_| "must be an IPv4 address such as 10.96.0.20")?;
    match address {
        _ if address.is_unspecified() => Err("may not be unspecified (0.0.0.0)"),
        _ if address.is_loopback() => Err("may not be in the loopback range (127.0.0.0/8)"),
        _ if address.is_link_local() => Err("may not be in the link-local range (169.254.0.0/16)"),
        _ if address.is_multicast() || address.is_broadcast() => Err("may not be a multicast address"),
        _ => Ok(()),
    }
}

// Checks of the name that a service of type ExternalName is an alias of.

/// Kubernetes' message for a malformed name.
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
'.', and must start and end with an alphanumeric character";

/// Checks `externalName` at `at`, and fields that have no meaning with it. Ports have none either, but are often
/// written for the reader.
fn validate_external_name(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    let here = at.field("externalName");
    let name = spec.external_name.as_deref().unwrap_or_default();
    if spec.kind != ServiceType::ExternalName {
        if !name.is_empty() {
            let message = format!("Forbidden: may not be used when `type` is '{:?}'", spec.kind);
            let finding = findings.add(&rules::EXTERNAL_NAME, &here, message);
            finding.on_key().help("set `type: ExternalName`, or remove it");
        }
        return;
    }
    if name.is_empty() {
        let message = "Required value: a service of type ExternalName is an alias for a name";
        findings.add(&rules::REQUIRED, &here, message);
    } else if name.parse::<Ipv4Addr>().is_ok() {
        let message = format!("Invalid value: `{name}`: must be a name, not an address");
        let finding = findings.add(&rules::EXTERNAL_NAME, &here, message);
        finding.help("for addresses write `addresses`, without `type: ExternalName`");
    } else if name.strip_suffix('.').is_some_and(is_dns_subdomain) {
        let message = format!("Invalid value: `{name}`: ends with a dot");
        let finding = findings.add(&rules::EXTERNAL_NAME, &here, message);
        finding.help("remove the dot: the name is always read from the root of DNS");
    } else if !is_dns_subdomain(name) {
        findings.add(&rules::EXTERNAL_NAME, &here, format!("Invalid value: `{name}`: {SUBDOMAIN}"));
    }
    let unused = [
        ("selector", spec.selector.is_empty()),
        ("addresses", spec.addresses.is_empty()),
        ("externalIPs", spec.external_ips.is_empty()),
    ];
    for (field, _) in unused.into_iter().filter(|(_, is_empty)| !is_empty) {
        let message = "Forbidden: may not be used when `type` is 'ExternalName': an alias has no endpoints";
        findings.add(&rules::EXTERNAL_NAME, &at.field(field), message).on_key().help("remove it");
    }
}

// Checks of service ports: names, clashes, node ports.

/// Checks the ports at `at.ports`.
fn validate_ports(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    let list = at.field("ports");
    if spec.ports.is_empty() && spec.has_cluster_ip() {
        findings
            .add(&rules::REQUIRED, &list, "Required value: a service needs at least one port")
            .help("only `clusterIP: None` and `type: ExternalName` work without ports");
    }
    let mut seen = EarlierPorts::default();
    for (index, port) in spec.ports.iter().enumerate() {
        let here = list.index(index);
        name(port, spec.ports.len() > 1, &mut seen, &here, findings);
        if !seen.ports.insert((port.port, port.protocol)) {
            let message = format!(
                "Duplicate value: {} {}: already used by another port of this service",
                port.port,
                protocol_name(port.protocol)
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
            let message = "Required value: a service with several ports must name each";
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
        let message = format!("Duplicate value: {node_port}: already used by another port of this service");
        findings.add(&rules::NODE_PORT, &here, message);
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}
