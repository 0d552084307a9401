//! The `Cluster` kind: names, links, validation.

use super::super::pod::content_uses::used;
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, OWN_API_VERSION, Older};
use super::{CLUSTER_NAME, ClusterSpec, validate};
use crate::files::{ContentRef, ContentUse};
use crate::kinds::pod::LocalReference;
use crate::violation::{Findings, Path, field_path};

impl KindSpec for ClusterSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "clusters",
        short_names: &[],
        api_version: OWN_API_VERSION,
        fields: Fields::InSpec,
        is_namespaced: false,
        fails_commits: true,
        fails_for_good: false,
        pods_bear_its_name: false,
        labels_are_of_replicas: false,
        names: NameForm::Only(CLUSTER_NAME),
        older: Older::of_own_kind(super::super::job::dialect::rewrite_cluster),
    };

    const LINKS: Links<Self> = Links {
        files: |cluster| {
            [identity()]
                .into_iter()
                .chain(login(
                    &["registry", "loginSecret"],
                    cluster.registry.as_ref().and_then(|registry| registry.login_secret.as_ref()),
                ))
                .chain(login(
                    &["functions", "packageIndexLogin"],
                    cluster.functions.package_index_login.as_ref(),
                ))
                .chain(cluster.slurm.login.content_uses(&["spec", "slurm", "login"]))
                .collect()
        },
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {}

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl ClusterSpec {
    /// Returns the secrets with logins for the registry and for the Python package index. Only the next push, pull
    /// or build needs them.
    pub fn logins(&self) -> impl Iterator<Item = &LocalReference> {
        let registry = self.registry.iter().filter_map(|registry| registry.login_secret.as_ref());
        registry.chain(&self.functions.package_index_login)
    }
}

fn login(field: &[&'static str], secret: Option<&LocalReference>) -> Option<ContentUse> {
    let at = field_path(&[&["spec"], field, &["name"]].concat());
    Some(ContentUse { is_login: true, ..used(at, ContentRef::Secret(secret?.name.clone())) })
}

/// Returns the use of the cluster identity. Every source has it at the same place, so no field names it; problems
/// with it are reported for the object.
fn identity() -> ContentUse {
    ContentUse { is_optional: true, ..used(field_path(&["metadata", "name"]), ContentRef::ClusterIdentity) }
}
