//! The `ReplicaSet` kind: names, links, defaults.

use super::super::{Descriptor, KindSpec, Links, NameForm, ObjectPod, OlderSpellings, Pods};
use super::{
    IntOrPercent, LabelSelector, PodTemplate, ReplicaSetSpec, RollingUpdate, StrategyType, dialect, validate,
};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

impl KindSpec for ReplicaSetSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "replicasets",
        short_names: &[
            "rs",
            "deployments",
            "deployment",
            "deploy",
            "replicationcontrollers",
            "replicationcontroller",
            "rc",
        ],
        api_version: "apps/v1",
        failure_is_final: true,
        pods: Pods::Replicas,
        shows_rollout: true,
        names: NameForm::Workload,
        older: OlderSpellings {
            words: &["Replicaset"],
            api_versions: &["v1", "apps/v1beta2", "apps/v1beta1", "extensions/v1beta1"],
            rewrite: dialect::rewrite,
            ..OlderSpellings::NONE
        },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        extra_position_paths: |_| vec![field_path(&["spec", "replicas"])],
        pod: Self::pod,
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        fill(self);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self.template != after.template
    }

    fn deadline_seconds(&self, default: u32) -> u32 {
        self.progress_deadline_seconds.unwrap_or_else(|| default_deadline(self.min_ready_seconds, default))
    }
}

impl ReplicaSetSpec {
    fn pod<'a>(&'a self, _: &'a ObjectMeta) -> Option<ObjectPod<'a>> {
        let (spec, labels) = (&self.template.spec, &self.template.metadata.labels);
        Some(ObjectPod {
            spec,
            at: &["spec", "template", "spec"],
            labels,
            count: self.replicas,
            is_per_node: false,
        })
    }
}

// Effective spec: Kubernetes' defaults, and one spelling for equal meanings.

/// Fills in fields that follow from other fields. Idempotent.
pub(super) fn fill(spec: &mut ReplicaSetSpec) {
    fill_workload(&mut spec.selector, &mut spec.template);
    spec.strategy.rolling_update = match spec.strategy.kind {
        StrategyType::Recreate => None,
        StrategyType::RollingUpdate => {
            let RollingUpdate { max_surge, max_unavailable } =
                spec.strategy.rolling_update.take().unwrap_or_default();
            Some(RollingUpdate {
                max_surge: Some(plain(max_surge.unwrap_or_else(IntOrPercent::quarter))),
                max_unavailable: Some(plain(max_unavailable.unwrap_or_else(IntOrPercent::quarter))),
            })
        }
    };
}

/// Fills in the fields that every kind of workload has.
pub(in crate::kinds) fn fill_workload(selector: &mut LabelSelector, template: &mut PodTemplate) {
    selector.normalize();
    template.spec.fill_defaults();
}

/// Returns the deadline of a workload whose manifest has none, as in a ReplicaSet or DaemonSet of Kubernetes: the
/// cluster's default, which must leave it time to become ready.
pub(in crate::kinds) fn default_deadline(min_ready_seconds: u32, default: u32) -> u32 {
    if min_ready_seconds < default { default } else { min_ready_seconds.saturating_add(default) }
}

/// Normalizes equal amounts: `025%` becomes `25%`.
pub(in crate::kinds) fn plain(written: IntOrPercent) -> IntOrPercent {
    written.percent().map_or(written, |percent| IntOrPercent::Percent(format!("{percent}%")))
}
