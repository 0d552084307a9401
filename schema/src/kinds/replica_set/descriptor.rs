//! The `ReplicaSet` kind: names, links, defaults.

use super::super::{
    Descriptor, FieldPlacement, KindSpec, Links, NameForm, ObjectPod, OlderSpellings, exclusive,
};
use super::{
    IntOrPercent, LabelSelector, PodTemplate, ReplicaSetSpec, RollingUpdate, StrategyType, dialect, validate,
};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

impl KindSpec for ReplicaSetSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "replicasets",
        short_names: &["rs", "deployments", "deployment", "deploy"],
        api_version: "apps/v1",
        fields: FieldPlacement::InSpec,
        is_namespaced: true,
        fails_commits: true,
        failure_is_final: true,
        names_its_pods: true,
        labels_propagate: false,
        names: NameForm::Workload,
        older: OlderSpellings {
            words: &["Replicaset"],
            api_versions: &["v1"],
            may_lack_api_version: false,
            rewrite: dialect::rewrite,
        },
    };

    const LINKS: Links<Self> = Links {
        exclusives: |set, metadata| exclusive::selector_use(&set.selector, metadata),
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

/// Normalizes equal amounts: `025%` becomes `25%`.
pub(in crate::kinds) fn plain(written: IntOrPercent) -> IntOrPercent {
    written.percent().map_or(written, |percent| IntOrPercent::Percent(format!("{percent}%")))
}
