//! Checks of an autoscaler beyond the schema, in Kubernetes' wording where people search for it.

use super::{HorizontalPodAutoscalerSpec, Metric, ResourceMetric, ScaleTarget, ScalingRules, TargetType};
use crate::kinds::metadata;
use crate::names::{DNS_LABEL, is_name, is_subdomain_name};
use crate::violation::{Findings, Path, rules};

/// Limits of Kubernetes.
const PERIOD_MAX_SECONDS: u32 = 1800;
const STABILIZATION_MAX_SECONDS: u32 = 3600;

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &HorizontalPodAutoscalerSpec, at: &Path<'_>, findings: &mut Findings) {
    target(&spec.scale_target_ref, &at.field("scaleTargetRef"), findings);
    if spec.max_replicas < spec.min_replicas {
        let message = format!(
            "Invalid value: {}: must be greater than or equal to `minReplicas`, which is {}",
            spec.max_replicas, spec.min_replicas
        );
        findings.add(&rules::SCALING, &at.field("maxReplicas"), message);
    }
    let metrics = at.field("metrics");
    for (index, one) in spec.metrics.iter().enumerate() {
        metric(one, &metrics.index(index), findings);
    }
    if let Some(behavior) = &spec.behavior {
        let here = at.field("behavior");
        for (field, direction) in [("scaleUp", &behavior.scale_up), ("scaleDown", &behavior.scale_down)] {
            if let Some(rules) = direction {
                scaling_rules(rules, &here.field(field), findings);
            }
        }
    }
}

fn target(target: &ScaleTarget, at: &Path<'_>, findings: &mut Findings) {
    if !is_name(&target.name) && !is_subdomain_name(&target.name) {
        let message = format!("Invalid value: `{}`: {DNS_LABEL}", target.name);
        findings.add(&rules::INVALID_NAME, &at.field("name"), message);
    } else {
        metadata::workload_name(&target.name, &at.field("name"), findings);
    }
    let (wanted, written) = (target.kind.kind().api_version(), target.api_version.as_deref());
    if let Some(written) = written.filter(|written| *written != wanted) {
        let message = format!("Invalid value: `{written}`: not an apiVersion of the target's kind");
        findings
            .add(&rules::API_VERSION, &at.field("apiVersion"), message)
            .help(format!("write `apiVersion: {wanted}`, or remove it"));
    }
}

fn metric(metric: &Metric, at: &Path<'_>, findings: &mut Findings) {
    match &metric.resource {
        Some(resource) => {
            let here = at.field("resource");
            metric_target(resource, &here.field("target"), findings);
        }
        // Reported at the metric, not at `resource`, because the type may be the mistake.
        None => {
            let message = "Required value: must populate information for the given metric source";
            findings.add(&rules::REQUIRED, at, message).help("set resource");
        }
    }
}

fn metric_target(metric: &ResourceMetric, at: &Path<'_>, findings: &mut Findings) {
    let target = &metric.target;
    let value = at.field("averageValue");
    if target.average_utilization == Some(0) {
        let here = at.field("averageUtilization");
        findings.add(&rules::SCALING, &here, "Invalid value: 0: must be greater than 0");
    }
    match target.average_value.as_ref().map(|value| value.amount(metric.name)) {
        None => {}
        Some(Err(error)) => _ = findings.add(&rules::QUANTITY, &value, format!("Invalid value: {error}")),
        Some(Ok(0)) => _ = findings.add(&rules::SCALING, &value, "Invalid value: 0: must be positive"),
        Some(Ok(_)) => {}
    }
    let mut type_must_be = |wanted: &str, set: &str| {
        let message = format!("Invalid value: `{:?}`: must be `{wanted}` when `{set}` is set", target.kind);
        findings.add(&rules::EXCLUSIVE, &at.field("type"), message);
    };
    match (target.kind, target.average_utilization, &target.average_value) {
        (TargetType::Utilization, None, Some(_)) => type_must_be("AverageValue", "averageValue"),
        (TargetType::AverageValue, Some(_), None) => type_must_be("Utilization", "averageUtilization"),
        (_, None, None) => {
            let message = "Required value: must set either a target raw value or a target utilization";
            findings.add(&rules::REQUIRED, at, message).help(
                "with `type: Utilization` set averageUtilization, with `type: AverageValue` averageValue",
            );
        }
        (_, Some(_), Some(_)) => {
            let message = "Forbidden: may not set both a target raw value and a target utilization";
            findings.add(&rules::EXCLUSIVE, &value, message).on_key();
        }
        _ => {}
    }
}

fn scaling_rules(scaling: &ScalingRules, at: &Path<'_>, findings: &mut Findings) {
    let window = scaling.stabilization_window_seconds.unwrap_or_default();
    if window > STABILIZATION_MAX_SECONDS {
        let message =
            format!("Invalid value: {window}: must be less than or equal to {STABILIZATION_MAX_SECONDS}");
        findings.add(&rules::SCALING, &at.field("stabilizationWindowSeconds"), message);
    }
    let policies = at.field("policies");
    for (index, policy) in scaling.policies.iter().enumerate() {
        let here = policies.index(index);
        if policy.value == 0 {
            findings.add(
                &rules::SCALING,
                &here.field("value"),
                "Invalid value: 0: must be greater than zero",
            );
        }
        if !(1..=PERIOD_MAX_SECONDS).contains(&policy.period_seconds) {
            let message = format!(
                "Invalid value: {}: must be greater than zero and less than or equal to {PERIOD_MAX_SECONDS}",
                policy.period_seconds
            );
            findings.add(&rules::SCALING, &here.field("periodSeconds"), message);
        }
    }
}
