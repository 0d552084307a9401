//! What a Job is among the kinds.

use super::super::exclusive::ExclusiveUse;
use super::super::links::Reference;
use super::super::{
    Descriptor, KindSpec, NameForm, OWN_API_VERSION, OWN_OLDER_API_VERSIONS, Older, PodOf, repo_path,
};
use super::{JobSpec, dialect, validate};
use crate::files::Wish;
use crate::meta::ObjectMeta;
use crate::violation::{Findings, OwnedStep, Path};

impl KindSpec for JobSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "jobs",
        short_names: &[],
        api_version: OWN_API_VERSION,
        is_namespaced: true,
        is_run: false,
        names: NameForm::Short,
        older: Older {
            words: &[],
            api_versions: OWN_OLDER_API_VERSIONS,
            may_lack_api_version: true,
            rewrite: dialect::rewrite,
        },
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if let Some(files) = &mut self.files {
            repo_path::normalize(files);
        }
        self.gpus_per_node = self.gpus_per_node.filter(|gpus| *gpus > 0);
        let default = if self.array.is_some() { "slurm-%A_%a.out" } else { "slurm-%j.out" };
        self.output_file.get_or_insert_with(|| default.to_owned());
    }

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

    fn is_replaced_by(&self, after: &Self) -> bool {
        self != after
    }
}
