//! The `Workflow` kind: names, links, defaults.

use super::super::links::{FieldAt, Reference};
use super::super::{Descriptor, Fields, Kind, KindSpec, Links, NameForm, OWN_API_VERSION, Older};
use super::{WorkflowSpec, defaults, dialect, validate};
use crate::files::normal_path;
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::{Findings, Path, field_path};

impl KindSpec for WorkflowSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "workflows",
        short_names: &["wf"],
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

    const LINKS: Links<Self> = Links {
        references: Self::references,
        further_places: |spec| {
            spec.definition_path.iter().map(|_| field_path(&["spec", "definitionPath"])).collect()
        },
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::workflow(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        self.comment = None;
        if let Some(path) = &mut self.definition_path {
            *path = normal_path(path);
        }
        defaults::states(&mut self.states);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self.run_hash() != after.run_hash()
    }
}

impl WorkflowSpec {
    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let found = self.functions().into_iter().map(|(path, name)| {
            let (namespace, name) = name.split_once('/').unwrap_or((&metadata.namespace, name));
            let target =
                ObjectRef { namespace: namespace.to_owned(), ..metadata.reference(Kind::Function, name) };
            Reference { at: FieldAt::Steps(path), target, port: None, is_optional: false }
        });
        found.collect()
    }
}
