//! Checks of a service beyond the schema, in Kubernetes' wording where people search for it.

mod addresses;
mod external_name;
mod ports;

use super::{ServiceSpec, ServiceType, SessionAffinity, TrafficPolicy};
use crate::kinds::metadata;
use crate::violation::{Findings, Path, rules};

/// A day, as in Kubernetes.
const AFFINITY_MAX_SECONDS: u32 = 24 * 60 * 60;

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
    metadata::labels(&spec.selector, &at.field("selector"), findings);
    ports::validate(spec, at, findings);
    external_name::validate(spec, at, findings);
    addresses::validate(spec, at, findings);
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
