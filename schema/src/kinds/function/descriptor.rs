//! The `Function` kind: names, links, defaults.

use super::super::pod::content_uses::{env_uses, login_key, used};
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, OWN_API_VERSION, Older};
use super::{DEFAULT_HANDLER, FunctionSpec, Runtime, dialect, validate};
use crate::files::{ContentRef, ContentUse, normal_path};
use crate::violation::{Findings, Path, field_path, indexed};

impl KindSpec for FunctionSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "functions",
        short_names: &["fn"],
        api_version: OWN_API_VERSION,
        fields: Fields::InSpec,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: true,
        pods_bear_its_name: true,
        labels_are_of_replicas: true,
        names: NameForm::Short,
        older: Older::of_own_kind(dialect::rewrite),
    };

    const LINKS: Links<Self> = Links { files: Self::files, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if let Some(source) = &mut self.source {
            *source = normal_path(source);
        }
        if self.runtime != Some(Runtime::Dockerfile) && self.image.is_none() {
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
        let pods = |spec: &Self| spec.pod("", "");
        self.is_rebuilt_by(after) || self.image != after.image || pods(self) != pods(after)
    }
}

impl FunctionSpec {
    fn files(&self) -> Vec<ContentUse> {
        let folder = self.source.iter().map(|path| ContentRef::Path(normal_path(path)));
        let source = folder.map(|folder| used(field_path(&["spec", "source"]), folder));
        let env = env_uses(&self.env, |number| indexed(&["spec", "env"], number, &[]));
        // Replicas keep running when the token changes: only gateways read it.
        let token = self.auth.iter().map(|auth| {
            login_key(&["spec", "auth", "tokenFrom", "secretKeyRef"], &auth.token_from.secret_key_ref)
        });
        source.chain(env).chain(token).collect()
    }
}
