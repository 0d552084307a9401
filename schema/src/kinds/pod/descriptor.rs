//! What a Pod is among the kinds.

use super::super::exclusive::{self, ExclusiveUse};
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, Older, PodOf};
use super::{PodSpec, content_uses};
use crate::files::ContentUse;
use crate::meta::ObjectMeta;
use crate::violation::{Findings, OwnedStep, Path, field_path};

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
        exclusives: Self::exclusives,
        files: Self::files,
        further_places: Self::further_places,
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
    fn exclusives(&self, _: &ObjectMeta) -> Vec<ExclusiveUse> {
        exclusive::host_ports(self, &["spec"])
    }

    fn files(&self) -> Vec<ContentUse> {
        content_uses::content_uses(self, &["spec"])
    }

    fn further_places(&self) -> Vec<Vec<OwnedStep>> {
        let node = self.node_name.iter().map(|_| field_path(&["spec", "nodeName"]));
        node.chain(self.host_ports(&["spec"]).into_iter().map(|port| port.path)).collect()
    }

    fn pod<'a>(&'a self, metadata: &'a ObjectMeta) -> Option<PodOf<'a>> {
        Some(PodOf { spec: self, at: &["spec"], labels: &metadata.labels, count: 1, is_per_node: false })
    }
}
