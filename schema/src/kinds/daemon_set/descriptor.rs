//! What a DaemonSet is among the kinds.

use super::super::exclusive::{self, Exclusive, ExclusiveUse};
use super::super::pod::content_uses::content_uses;
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, Older, PodOf};
use super::{DaemonSetSpec, defaults, dialect, validate};
use crate::files::ContentUse;
use crate::meta::ObjectMeta;
use crate::violation::{Findings, OwnedStep, Path, field_path};

/// Where the pod stands in the manifest.
const POD_AT: &[&str] = &["spec", "template", "spec"];

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
        exclusives: Self::exclusives,
        files: Self::files,
        further_places: Self::further_places,
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
    fn exclusives(&self, metadata: &ObjectMeta) -> Vec<ExclusiveUse> {
        let key = Exclusive::Selector(metadata.namespace.clone(), exclusive::selector(&self.selector));
        let mut found = vec![ExclusiveUse::alone(key, field_path(&["spec", "selector"]))];
        found.extend(exclusive::host_ports(&self.template.spec, POD_AT));
        found
    }

    fn files(&self) -> Vec<ContentUse> {
        content_uses(&self.template.spec, POD_AT)
    }

    fn further_places(&self) -> Vec<Vec<OwnedStep>> {
        self.template.spec.host_ports(POD_AT).into_iter().map(|port| port.path).collect()
    }

    fn pod<'a>(&'a self, _: &'a ObjectMeta) -> Option<PodOf<'a>> {
        let (spec, labels) = (&self.template.spec, &self.template.metadata.labels);
        Some(PodOf { spec, at: POD_AT, labels, count: 1, is_per_node: true })
    }
}
