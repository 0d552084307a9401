//! Checks shared by several parts of a pod.

use std::collections::BTreeSet;

use crate::kinds::pod::ResourceRequirements;
use crate::names::{DNS_LABEL, is_dns_label};
use crate::quantity::Memory;
use crate::violation::{Findings, Path, rules};

/// Checks a container's name: a DNS label that is unique in the pod. Upper case, which Docker accepts, is only a
/// matter of style.
pub(super) fn container_name<'a>(
    name: &'a str,
    at: &Path<'_>,
    seen: &mut BTreeSet<&'a str>,
    findings: &mut Findings,
) {
    if is_dns_label(name) || !is_dns_label(&name.to_ascii_lowercase()) {
        return unique_label(name, at, seen, findings);
    }
    let here = at.field("name");
    if seen.insert(name) {
        let message = format!("`{name}` is not a DNS label; Kubernetes would refuse it");
        findings.add(&rules::NAME_STYLE, &here, message).help("use lower case letters, digits and `-`");
    } else {
        findings.add(&rules::DUPLICATE_NAME, &here, format!("Duplicate value: `{name}`"));
    }
}

/// Checks for a DNS label that is unique in its list.
pub(super) fn unique_label<'a>(
    name: &'a str,
    at: &Path<'_>,
    seen: &mut BTreeSet<&'a str>,
    findings: &mut Findings,
) {
    let here = at.field("name");
    if name.is_empty() {
        findings.add(&rules::INVALID_NAME, &here, "Required value: the name is empty");
    } else if !is_dns_label(name) {
        findings.add(&rules::INVALID_NAME, &here, format!("Invalid value: `{name}`: {DNS_LABEL}"));
    } else if !seen.insert(name) {
        findings.add(&rules::DUPLICATE_NAME, &here, format!("Duplicate value: `{name}`"));
    }
}

/// Checks that exactly one of some fields is set.
pub(super) fn exactly_one(set: &[&str], all: &[&str], what: &str, at: &Path<'_>, findings: &mut Findings) {
    let names = || all.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match set {
        [_] => {}
        [] => {
            let help = format!("set one of {}; a field without a value is null and counts as unset", names());
            findings.add(&rules::EXCLUSIVE, at, format!("Required value: must specify {what}")).help(help);
        }
        [_, second, ..] => {
            let message = format!("Forbidden: may not specify more than 1 {}", what.trim_start_matches("a "));
            findings.add(&rules::EXCLUSIVE, &at.field(second), message).on_key();
        }
    }
}

// Checks of requests and limits.

/// Minimum memory limit that Docker accepts.
const MEMORY_LIMIT_MIN: Memory = Memory { bytes: 6 * 1024 * 1024 };

/// Checks a container's resources.
pub(crate) fn validate(resources: &ResourceRequirements, at: &Path<'_>, findings: &mut Findings) {
    let (requests, limits) = (&resources.requests, &resources.limits);
    let request_path = at.field("requests");
    if let (Some(request), Some(limit)) = (requests.cpu, limits.cpu)
        && request > limit
    {
        let message =
            format!("Invalid value: `{request}`: must be less than or equal to cpu limit of {limit}");
        findings.add(&rules::RESOURCES, &request_path.field("cpu"), message);
    }
    if let (Some(request), Some(limit)) = (requests.memory, limits.memory)
        && request > limit
    {
        let message =
            format!("Invalid value: `{request}`: must be less than or equal to memory limit of {limit}");
        findings.add(&rules::RESOURCES, &request_path.field("memory"), message);
    }
    let limit_path = at.field("limits");
    match (requests.gpus, limits.gpus) {
        (Some(_), None) => {
            let message = "Required value: Limit must be set for non overcommitable resources";
            let finding = findings.add(&rules::RESOURCES, &request_path.field("nvidia.com/gpu"), message);
            finding.on_key().help("write it under limits; requests may be left out");
        }
        (Some(request), Some(limit)) if request != limit => {
            let message =
                format!("Invalid value: `{request}`: must be equal to nvidia.com/gpu limit of {limit}");
            findings.add(&rules::RESOURCES, &request_path.field("nvidia.com/gpu"), message);
        }
        _ => {}
    }
    if let Some(limit) = limits.memory.filter(|limit| *limit < MEMORY_LIMIT_MIN) {
        let message =
            format!("Invalid value: `{limit}`: Docker accepts no memory limit below {MEMORY_LIMIT_MIN}");
        let finding = findings.add(&rules::RESOURCES, &limit_path.field("memory"), message);
        // Nobody means a limit of bytes.
        finding.help(match limit.bytes < 1 << 10 {
            true => {
                "`m` is a thousandth, and a number without a unit is bytes: write `128Mi` for 128 mebibytes"
            }
            false => "raise it: a container needs more to start",
        });
    }
}
