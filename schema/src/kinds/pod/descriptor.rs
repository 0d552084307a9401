//! The `Pod` kind: names, links, defaults.

use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, Older, PodOf};
use super::PodSpec;
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

impl KindSpec for PodSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "pods",
        short_names: &["po"],
        api_version: "v1",
        fields: Fields::InSpec,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: false,
        pods_bear_its_name: true,
        labels_are_of_replicas: false,
        names: NameForm::Long,
        older: Older { words: &[], api_versions: &[], may_lack_api_version: false, rewrite: |_, _| () },
    };

    const LINKS: Links<Self> = Links {
        further_places: |pod| pod.node_name.iter().map(|_| field_path(&["spec", "nodeName"])).collect(),
        pod: Self::pod,
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        Self::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        Self::fill_defaults(self);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self != after
    }
}

impl PodSpec {
    fn pod<'a>(&'a self, metadata: &'a ObjectMeta) -> Option<PodOf<'a>> {
        Some(PodOf { spec: self, at: &["spec"], labels: &metadata.labels, count: 1, is_per_node: false })
    }
}
