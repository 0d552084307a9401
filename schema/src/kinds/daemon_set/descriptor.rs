//! The `DaemonSet` kind: names, links, defaults.

use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, Older, PodOf, exclusive};
use super::{DaemonSetSpec, defaults, dialect, validate};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path};

impl KindSpec for DaemonSetSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "daemonsets",
        short_names: &["ds"],
        api_version: "apps/v1",
        fields: Fields::InSpec,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: true,
        pods_bear_its_name: true,
        labels_are_of_replicas: false,
        names: NameForm::OfPods,
        older: Older {
            words: &["Daemonset"],
            api_versions: &["extensions/v1beta1"],
            may_lack_api_version: false,
            rewrite: dialect::rewrite,
        },
    };

    const LINKS: Links<Self> = Links {
        exclusives: |set, metadata| exclusive::of_selector(&set.selector, metadata),
        pod: Self::pod,
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        defaults::fill(self);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self.template != after.template
    }
}

impl DaemonSetSpec {
    fn pod<'a>(&'a self, _: &'a ObjectMeta) -> Option<PodOf<'a>> {
        let (spec, labels) = (&self.template.spec, &self.template.metadata.labels);
        Some(PodOf { spec, at: &["spec", "template", "spec"], labels, count: 1, is_per_node: true })
    }
}
