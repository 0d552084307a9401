//! What a Job is among the kinds.

use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, OWN_API_VERSION, Older, repo_path};
use super::{JobSpec, dialect, validate};
use crate::violation::{Findings, Path};

impl KindSpec for JobSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "jobs",
        short_names: &[],
        api_version: OWN_API_VERSION,
        fields: Fields::InSpec,
        is_namespaced: true,
        is_run: false,
        names: NameForm::Short,
        older: Older::of_own_kind(dialect::rewrite),
    };

    const LINKS: Links<Self> = Links::NONE;

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

    fn is_replaced_by(&self, after: &Self) -> bool {
        self != after
    }
}
