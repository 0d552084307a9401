//! Checks of addresses: cluster IP, external IPs, and those behind the service.

use std::net::Ipv4Addr;

use super::super::{ServiceSpec, ServiceType};
use crate::violation::{Findings, Path, rules};

/// Checks `clusterIP`, `externalIPs` and `addresses` at `at`.
pub(super) fn validate(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
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
            let message = "the service has neither `selector` nor `addresses`: nothing will be behind it";
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
