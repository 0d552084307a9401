//! Checks of hosts and paths beyond the schema, in Kubernetes' wording (of its Ingress) where people search for it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::cluster::DEFAULT_ZONE;
use super::super::pod::PortReference;
use super::{BACKENDS_MAX, DnsBackend, DnsPath, DnsSpec, StickyKey, WEIGHT_MAX, without_final_slash};
use crate::names::{DNS_LABEL, is_dns_label, is_dns_subdomain};
use crate::violation::{Findings, Path, rules};

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &DnsSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Err((why, help)) = host(&spec.host) {
        let message = format!("Invalid value: `{}`: {why}", spec.host);
        findings.add(&rules::HOST, &at.field("host"), message).help(help);
    }
    let list = at.field("paths");
    if spec.paths.is_empty() {
        findings.add(&rules::REQUIRED, &list, "Required value: a host needs at least one path");
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
        path_target(one, &here, findings);
    }
}

/// Checks that a path leads to one service, or to backends.
fn path_target(path: &DnsPath, at: &Path<'_>, findings: &mut Findings) {
    match (&path.service, &path.backends[..]) {
        (Some(service), []) => {
            let here = at.field("service");
            name(&service.name, &here.field("name"), findings);
            port(&service.port, &here.field("port"), findings);
            if path.sticky.is_some() {
                let message = "Forbidden: may only be set with `backends`";
                findings.add(&rules::EXCLUSIVE, &at.field("sticky"), message).on_key();
            }
        }
        (Some(_), _) => {
            let message = "Forbidden: may not be set together with `service`";
            findings.add(&rules::EXCLUSIVE, &at.field("backends"), message).on_key();
        }
        (None, []) => {
            let help = "write `service` with name and port, or `backends`";
            findings.add(&rules::REQUIRED, &at.field("service"), "Required value").help(help);
        }
        (None, all) => backends(path, all, at, findings),
    }
}

fn backends(path: &DnsPath, all: &[DnsBackend], at: &Path<'_>, findings: &mut Findings) {
    let list = at.field("backends");
    if all.len() > BACKENDS_MAX {
        let message = format!("Invalid value: {} backends: must be at most {BACKENDS_MAX}", all.len());
        findings.add(&rules::OUT_OF_RANGE, &list, message);
    }
    let mut groups: BTreeMap<BTreeMap<String, &str>, u32> = BTreeMap::new();
    for (index, one) in all.iter().enumerate() {
        let here = list.index(index);
        backend(one, &here, findings);
        let headers = one.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()));
        let total = groups.entry(headers.collect()).or_default();
        *total = total.saturating_add(one.weight.min(WEIGHT_MAX));
    }
    if !groups.contains_key(&BTreeMap::new()) {
        let help = "add a backend without `headers`, for all other requests";
        findings.add(&rules::REQUIRED, &list, "Required value: a backend without headers").help(help);
    }
    if groups.values().any(|total| *total == 0) {
        let message = "Invalid value: one of the backends with the same headers must have a weight above 0";
        findings.add(&rules::OUT_OF_RANGE, &list, message);
    }
    if path.rewrite.is_some() && all.iter().all(|one| one.function.is_some()) {
        let message = "Forbidden: a function receives only the body, not the path";
        findings.add(&rules::EXCLUSIVE, &at.field("rewrite"), message).on_key();
    }
    match &path.sticky {
        None => {}
        Some(StickyKey { header: Some(header), cookie: None }) => {
            header_name(header, &at.field("sticky").field("header"), findings);
        }
        Some(StickyKey { header: None, cookie: Some(cookie) }) => {
            header_name(cookie, &at.field("sticky").field("cookie"), findings);
        }
        Some(_) => {
            let message = "Required value: one of `header` and `cookie`";
            findings.add(&rules::EXCLUSIVE, &at.field("sticky"), message);
        }
    }
}

fn backend(backend: &DnsBackend, at: &Path<'_>, findings: &mut Findings) {
    match (&backend.service, &backend.function) {
        (Some(service), None) => {
            name(service, &at.field("service"), findings);
            match &backend.port {
                Some(reference) => port(reference, &at.field("port"), findings),
                None => {
                    let message = "Required value: the port of the service";
                    findings.add(&rules::REQUIRED, &at.field("port"), message);
                }
            }
        }
        (None, Some(function)) => {
            name(function, &at.field("function"), findings);
            if backend.port.is_some() {
                let message = "Forbidden: a function has no port";
                findings.add(&rules::EXCLUSIVE, &at.field("port"), message).on_key();
            }
        }
        (Some(_), Some(_)) => {
            let message = "Forbidden: may not be set together with `service`";
            findings.add(&rules::EXCLUSIVE, &at.field("function"), message).on_key();
        }
        (None, None) => {
            let message = "Required value: one of `service` and `function`";
            findings.add(&rules::EXCLUSIVE, at, message);
        }
    }
    let headers = at.field("headers");
    let mut seen = BTreeSet::new();
    for (name, value) in &backend.headers {
        let here = headers.field(name);
        header_name(name, &here, findings);
        if !seen.insert(name.to_ascii_lowercase()) {
            findings.add(&rules::DUPLICATE_NAME, &here, format!("Duplicate value: `{name}`"));
        }
        if value.trim() != value || value.chars().any(char::is_control) {
            let message = format!(
                "Invalid value: `{value}`: must not begin or end with a space, or have control characters"
            );
            findings.add(&rules::INVALID_HEADER, &here, message);
        }
    }
}

/// Checks that a Service or Function can have this name, so that the reference can resolve.
fn name(name: &str, at: &Path<'_>, findings: &mut Findings) {
    if !is_dns_label(name) {
        findings.add(&rules::INVALID_NAME, at, format!("Invalid value: `{name}`: {DNS_LABEL}"));
    }
}

/// Checks for a token of RFC 9110, which names of headers and cookies are.
fn header_name(name: &str, at: &Path<'_>, findings: &mut Findings) {
    let fits = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || name.len() > 256 || !name.chars().all(fits) {
        let message = format!(
            "Invalid value: `{name}`: a valid HTTP header must consist of alphanumeric characters or '-'"
        );
        findings.add(&rules::INVALID_HEADER, at, message).help("for example `X-Canary`");
    }
}

/// True for a host of the default zone, which could take the name of a service. Another zone is not known here; in
/// such a zone services take precedence.
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
        Err(("always resolves to the local machine", "choose another name"))
    } else if is_in_cluster(host) {
        Err(("is in the cluster's zone, which is for the names of services and pods", "choose another name"))
    } else {
        Ok(())
    }
}

/// Checks that a request can have this path. Returns false, with a finding, if not.
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
