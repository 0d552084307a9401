//! Checks of requests and limits.

use super::super::ResourceRequirements;
use crate::quantity::Memory;
use crate::violation::{Findings, Path, rules};

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
    if let Some(limit) = limits.memory.filter(|limit| *limit < MEMORY_LIMIT_MIN) {
        let message =
            format!("Invalid value: `{limit}`: Docker takes no memory limit below {MEMORY_LIMIT_MIN}");
        findings
            .add(&rules::RESOURCES, &limit_path.field("memory"), message)
            .help("`m` is a thousandth: write `128Mi` for 128 mebibytes");
    }
}
