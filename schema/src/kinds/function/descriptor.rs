//! What a Function is among the kinds.

use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, OWN_API_VERSION, Older, repo_path};
use super::{DEFAULT_HANDLER, FunctionSpec, Runtime, dialect, validate};
use crate::violation::{Findings, Path};

impl KindSpec for FunctionSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "functions",
        short_names: &["fn"],
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
        repo_path::normalize(&mut self.source);
        if self.runtime != Some(Runtime::Dockerfile) {
            self.handler.get_or_insert_with(|| DEFAULT_HANDLER.to_owned());
        }
        for variable in &mut self.env {
            match variable.value_from {
                None => _ = variable.value.get_or_insert_default(),
                Some(_) => variable.value = None,
            }
        }
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self.is_rebuilt_by(after)
            || (&self.env, &self.resources, &self.sandbox) != (&after.env, &after.resources, &after.sandbox)
    }
}
