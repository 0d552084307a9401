//! The `Job` kind: names, links, defaults.

use super::super::pod::content_uses::{login_key, used};
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, OWN_API_VERSION, Older};
use super::{JobSpec, SlurmLogin, dialect, validate};
use crate::files::{ContentRef, ContentUse, normal_path};
use crate::kinds::Kind;
use crate::kinds::reference::{FieldAt, Reference};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

impl KindSpec for JobSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "jobs",
        short_names: &[],
        api_version: OWN_API_VERSION,
        fields: Fields::InSpec,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: true,
        pods_bear_its_name: false,
        labels_are_of_replicas: false,
        names: NameForm::Short,
        older: Older::of_own_kind(dialect::rewrite),
    };

    const LINKS: Links<Self> = Links { references: Self::references, files: Self::files, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if let Some(files) = &mut self.files {
            *files = normal_path(files);
        }
        self.gpus_per_node = self.gpus_per_node.filter(|gpus| *gpus > 0);
        let default = if self.array.is_some() { "slurm-%A_%a.out" } else { "slurm-%j.out" };
        self.output_file.get_or_insert_with(|| default.to_owned());
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self != after
    }
}

impl JobSpec {
    fn files(&self) -> Vec<ContentUse> {
        let folder = self.files.iter().map(|path| ContentRef::Path(normal_path(path)));
        let files = folder.map(|folder| used(field_path(&["spec", "files"]), folder));
        files.chain(self.login.content_uses(&["spec", "login"])).collect()
    }

    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let on = self.dependency.iter().map(|dependency| Reference {
            at: FieldAt::Fields(&["spec", "dependency", "job"]),
            target: metadata.reference(Kind::Job, &dependency.job),
            port: None,
            is_optional: false,
        });
        on.collect()
    }
}

impl SlurmLogin {
    /// Returns the secrets that the login names. A submitted job does not need them, so a new key does not resubmit
    /// it.
    pub(in crate::kinds) fn content_uses(&self, at: &[&'static str]) -> Vec<ContentUse> {
        self.secrets().map(|(field, secret)| login_key(&[at, &[field]].concat(), secret)).collect()
    }
}
