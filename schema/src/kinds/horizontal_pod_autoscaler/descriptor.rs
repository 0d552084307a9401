//! The `HorizontalPodAutoscaler` kind: names, links, defaults.

use super::super::exclusive::{Exclusive, ExclusiveUse};
use super::super::links::{FieldAt, Reference};
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, Older};
use super::{HorizontalPodAutoscalerSpec, defaults, dialect, validate};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

/// Field that names the scale target.
const TARGET_AT: &[&str] = &["spec", "scaleTargetRef", "name"];

impl KindSpec for HorizontalPodAutoscalerSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "horizontalpodautoscalers",
        short_names: &["hpa"],
        api_version: "autoscaling/v2",
        fields: Fields::InSpec,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: false,
        pods_bear_its_name: false,
        labels_are_of_replicas: false,
        names: NameForm::Short,
        older: Older {
            words: &["Hpa", "HPA"],
            api_versions: &["v1", "app/v1", "apps/v1", "autoscaling/v1", "autoscaling/v2beta2"],
            may_lack_api_version: false,
            rewrite: dialect::rewrite,
        },
    };

    const LINKS: Links<Self> =
        Links { references: Self::references, exclusives: Self::exclusives, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        defaults::fill(self);
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl HorizontalPodAutoscalerSpec {
    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let (at, target) = (FieldAt::Fields(TARGET_AT), self.target(metadata));
        vec![Reference { at, target, port: None, is_optional: false }]
    }

    fn exclusives(&self, metadata: &ObjectMeta) -> Vec<ExclusiveUse> {
        vec![ExclusiveUse::alone(Exclusive::Scale(self.target(metadata)), field_path(TARGET_AT))]
    }
}
