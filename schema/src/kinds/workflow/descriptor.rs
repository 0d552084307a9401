//! What a Workflow is among the kinds.

use super::super::exclusive::ExclusiveUse;
use super::super::links::{FieldAt, Reference};
use super::super::{
    Descriptor, Kind, KindSpec, NameForm, OWN_API_VERSION, OWN_OLDER_API_VERSIONS, Older, PodOf,
};
use super::{WorkflowSpec, defaults, dialect, validate};
use crate::files::Wish;
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::{Findings, OwnedStep, Path};

impl KindSpec for WorkflowSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "workflows",
        short_names: &["wf"],
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
        validate::workflow(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        self.comment = None;
        defaults::states(&mut self.states);
    }

    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let found = self.functions().into_iter().map(|(path, name)| {
            let (namespace, name) = name.split_once('/').unwrap_or((&metadata.namespace, name));
            let target =
                ObjectRef { namespace: namespace.to_owned(), ..metadata.reference(Kind::Function, name) };
            Reference { at: FieldAt::Steps(path), target, port: None }
        });
        found.collect()
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
