//! Checks of the name that a service of type ExternalName is an alias of.

use std::net::Ipv4Addr;

use super::super::{ServiceSpec, ServiceType};
use crate::kinds::names::is_dns_subdomain;
use crate::violation::{Findings, Path, rules};

/// Kubernetes' message for a malformed name.
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
'.', and must start and end with an alphanumeric character";

/// Checks `externalName` at `at`, and fields that have no meaning with it. Ports have none either, but are often
/// written for the reader.
pub(super) fn validate(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
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
        let message = "Required value: a service of type ExternalName is an alias of a name";
        findings.add(&rules::REQUIRED, &here, message);
    } else if name.parse::<Ipv4Addr>().is_ok() {
        let message = format!("Invalid value: `{name}`: must be a name, not an address");
        let finding = findings.add(&rules::EXTERNAL_NAME, &here, message);
        finding.help("for addresses write `addresses`, without `type: ExternalName`");
    } else if !is_dns_subdomain(name) {
        findings.add(&rules::EXTERNAL_NAME, &here, format!("Invalid value: `{name}`: {SUBDOMAIN}"));
    }
    let unused = [
        ("selector", spec.selector.is_empty()),
        ("addresses", spec.addresses.is_empty()),
        ("externalIPs", spec.external_ips.is_empty()),
    ];
    for (field, _) in unused.into_iter().filter(|(_, is_empty)| !is_empty) {
        let message = "Forbidden: may not be used when `type` is 'ExternalName': nothing is behind an alias";
        findings.add(&rules::EXTERNAL_NAME, &at.field(field), message).on_key().help("remove it");
    }
}
