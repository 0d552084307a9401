//! What the schema can't say about hosts and paths, in Kubernetes' words (of its Ingress) where people
//! search for them.

use std::collections::BTreeSet;

use super::super::cluster::DEFAULT_ZONE;
use super::super::names::{DNS_LABEL, is_dns_label, is_dns_subdomain};
use super::super::pod::PortReference;
use super::{DnsSpec, without_final_slash};
use crate::violation::{Findings, Path, rules};

/// Checks a spec as it is written, before the defaults, at the path `at`.
pub(super) fn validate(spec: &DnsSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Err((why, help)) = host(&spec.host) {
        let message = format!("Invalid value: `{}`: {why}", spec.host);
        findings.add(&rules::HOST, &at.field("host"), message).help(help);
    }
    let list = at.field("paths");
    if spec.paths.is_empty() {
        findings.add(&rules::REQUIRED, &list, "Required value: a host has at least one path");
    }
    let mut seen = BTreeSet::new();
    for (index, one) in spec.paths.iter().enumerate() {
        let here = list.index(index);
        let path_here = here.field("path");
        if path(&one.path, &path_here, findings) && !seen.insert(without_final_slash(&one.path)) {
            findings.add(&rules::DUPLICATE_NAME, &path_here, format!("Duplicate value: `{}`", one.path));
        }
        if let Some(rewrite) = &one.rewrite {
            path(rewrite, &here.field("rewrite"), findings);
        }
        let service = here.field("service");
        // What a Service may be called, so that the reference can lead somewhere.
        if !is_dns_label(&one.service.name) {
            let message = format!("Invalid value: `{}`: {DNS_LABEL}", one.service.name);
            findings.add(&rules::INVALID_NAME, &service.field("name"), message);
        }
        port(&one.service.port, &service.field("port"), findings);
    }
}

/// A host there could take the name of a service. Of another zone than the default this is not known here;
/// there, services come first.
fn is_in_cluster(host: &str) -> bool {
    host.strip_suffix(DEFAULT_ZONE).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn host(host: &str) -> Result<(), (&'static str, &'static str)> {
    let last = host.rsplit('.').next().unwrap_or_default();
    if host.contains('*') {
        Err(("wildcard hosts are not supported", "write one Dns object per host"))
    } else if host.contains([':', '/']) {
        Err((
            "must be a DNS name without scheme, port and path",
            "write the name alone, for example `shop.example`",
        ))
    } else if !is_dns_subdomain(host) {
        let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
and must start and end with an alphanumeric character";
        Err((why, "for example `shop.example`"))
    } else if last.bytes().all(|byte| byte.is_ascii_digit()) {
        Err(("must be a DNS name, not an IP address", "no top-level domain is a number"))
    } else if last == "localhost" {
        Err(("is every machine itself, whatever DNS says", "choose another name"))
    } else if is_in_cluster(host) {
        Err((
            "is in the zone of the cluster, in which services and pods have their names",
            "choose another name",
        ))
    } else {
        Ok(())
    }
}

/// Whether a path can be one of a request.
fn path(path: &str, at: &Path<'_>, findings: &mut Findings) -> bool {
    let lower = path.to_ascii_lowercase();
    let segments = || path.split('/');
    let why = if !path.starts_with('/') {
        "must be an absolute path"
    } else if path.contains("//") {
        "must not contain '//'"
    } else if segments().any(|segment| segment == "..") {
        "must not contain '..'"
    } else if segments().any(|segment| segment == ".") {
        "must not contain '/./'"
    } else if lower.contains("%2f") || lower.contains("%2e") {
        "must not contain an encoded '/' or '.'"
    } else if path.contains(['?', '#', '\\']) || path.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        "must not contain spaces, '?', '#' or '\\'"
    } else {
        return true;
    };
    findings.add(&rules::INVALID_PATH, at, format!("Invalid value: `{path}`: {why}"));
    false
}

fn port(port: &PortReference, at: &Path<'_>, findings: &mut Findings) {
    match port {
        PortReference::Number(0) => {
            let message = "Invalid value: 0: must be between 1 and 65535, inclusive";
            findings.add(&rules::INVALID_PORT, at, message);
        }
        PortReference::Name(name) if !is_dns_label(name) => {
            let message = format!(
                "Invalid value: `{name}`: must be a number from 1 to 65535, or the name of a port of the service"
            );
            findings.add(&rules::INVALID_PORT, at, message);
        }
        _ => {}
    }
}
