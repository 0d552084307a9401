//! The `HorizontalPodAutoscaler` kind: names, links, defaults.

use super::{
    Behavior, DEFAULT_CPU_UTILIZATION, HorizontalPodAutoscalerSpec, Metric, MetricTarget, MetricType,
    PolicyType, ResourceMetric, ResourceName, ScalingPolicy, ScalingRules, SelectPolicy, TargetType, dialect,
    validate,
};
use crate::kinds::exclusive::{ExclusiveResource, ExclusiveUse};
use crate::kinds::links::{FieldLocation, Reference};
use crate::kinds::{Descriptor, KindSpec, Links, OlderSpellings};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

/// Field that names the scale target.
const TARGET_AT: &[&str] = &["spec", "scaleTargetRef", "name"];

impl KindSpec for HorizontalPodAutoscalerSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "horizontalpodautoscalers",
        short_names: &["hpa"],
        api_version: "autoscaling/v2",
        older: OlderSpellings {
            words: &["Hpa", "HPA"],
            api_versions: &[
                "v1",
                "app/v1",
                "apps/v1",
                "autoscaling/v1",
                "autoscaling/v2beta1",
                "autoscaling/v2beta2",
            ],
            rewrite: dialect::rewrite,
            ..OlderSpellings::NONE
        },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> =
        Links { references: Self::references, exclusives: Self::exclusives, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        fill(self);
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl HorizontalPodAutoscalerSpec {
    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let (at, target) = (FieldLocation::Fields(TARGET_AT), self.target(metadata));
        vec![Reference { at, target, port: None, is_optional: false }]
    }

    fn exclusives(&self, metadata: &ObjectMeta) -> Vec<ExclusiveUse> {
        vec![ExclusiveUse::unshared(ExclusiveResource::Scale(self.target(metadata)), field_path(TARGET_AT))]
    }
}

// Effective spec: Kubernetes' defaults (`pkg/apis/autoscaling/v2/defaults.go`), and one spelling for equal meanings.
//
// An absent `behavior` stays absent, as in Kubernetes: without it other limits apply to each step.

/// Seconds for which a recommendation to scale down must hold, as in Kubernetes' controller.
const STABILIZATION_DOWN_SECONDS: u32 = 300;

/// Period of each default policy in seconds.
const POLICY_SECONDS: u32 = 15;

/// Fills in fields that follow from other fields. Idempotent.
pub(super) fn fill(spec: &mut HorizontalPodAutoscalerSpec) {
    let target = &mut spec.scale_target_ref;
    target.api_version = Some(target.kind.kind().api_version().to_owned());
    if spec.metrics.is_empty() {
        spec.metrics.push(default_metric());
    }
    for metric in spec.metrics.iter_mut().filter_map(|metric| metric.resource.as_mut()) {
        if let Some(value) = &mut metric.target.average_value {
            value.normalize(metric.name);
        }
    }
    if let Some(Behavior { scale_up, scale_down }) = &mut spec.behavior {
        let double = ScalingPolicy { kind: PolicyType::Percent, value: 100, period_seconds: POLICY_SECONDS };
        let four = ScalingPolicy { kind: PolicyType::Pods, value: 4, period_seconds: POLICY_SECONDS };
        fill_rules(scale_up.get_or_insert_default(), 0, vec![four, double.clone()]);
        fill_rules(scale_down.get_or_insert_default(), STABILIZATION_DOWN_SECONDS, vec![double]);
    }
}

fn default_metric() -> Metric {
    let target = MetricTarget {
        kind: TargetType::Utilization,
        average_utilization: Some(DEFAULT_CPU_UTILIZATION),
        average_value: None,
    };
    let resource = ResourceMetric { name: ResourceName::Cpu, target };
    Metric { kind: MetricType::Resource, resource: Some(resource) }
}

fn fill_rules(rules: &mut ScalingRules, stabilization: u32, policies: Vec<ScalingPolicy>) {
    rules.stabilization_window_seconds.get_or_insert(stabilization);
    rules.select_policy.get_or_insert(SelectPolicy::Max);
    if rules.policies.is_empty() {
        rules.policies = policies;
    }
}
