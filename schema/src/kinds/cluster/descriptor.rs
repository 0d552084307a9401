//! What a Cluster is among the kinds.

use super::super::exclusive::ExclusiveUse;
use super::super::links::Reference;
use super::super::{Descriptor, KindSpec, NameForm, OWN_API_VERSION, OWN_OLDER_API_VERSIONS, Older, PodOf};
use super::{CLUSTER_NAME, ClusterSpec, not_executed, validate};
use crate::files::Wish;
use crate::meta::ObjectMeta;
use crate::violation::{Findings, OwnedStep, Path};

impl KindSpec for ClusterSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "clusters",
        short_names: &[],
        api_version: OWN_API_VERSION,
        is_namespaced: false,
        is_run: true,
        names: NameForm::Only(CLUSTER_NAME),
        older: Older {
            words: &[],
            api_versions: OWN_OLDER_API_VERSIONS,
            may_lack_api_version: true,
            rewrite: super::super::job::dialect::rewrite_cluster,
        },
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
        not_executed::note(self, at, findings);
    }

    fn fill_defaults(&mut self) {}

    fn references(&self, _: &ObjectMeta) -> Vec<Reference<'_>> {
        Vec::new()
    }

    fn exclusives(&self, _: &ObjectMeta) -> Vec<ExclusiveUse> {
        Vec::new()
    }

    fn files(&self) -> Vec<Wish> {
        Vec::new()
    }

    fn further_places(&self) -> Vec<Vec<OwnedStep>> {
        Vec::new()
    }

    fn pod<'a>(&'a self, _: &'a ObjectMeta) -> Option<PodOf<'a>> {
        None
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}
