//! What a Cluster is among the kinds.

use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, OWN_API_VERSION, Older};
use super::{CLUSTER_NAME, ClusterSpec, unsupported, validate};
use crate::files::{ContentRef, ContentUse};
use crate::violation::{Findings, Path, field_path};

impl KindSpec for ClusterSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "clusters",
        short_names: &[],
        api_version: OWN_API_VERSION,
        fields: Fields::InSpec,
        is_namespaced: false,
        names: NameForm::Only(CLUSTER_NAME),
        older: Older::of_own_kind(super::super::job::dialect::rewrite_cluster),
    };

    const LINKS: Links<Self> = Links {
        files: |cluster| {
            [identity()]
                .into_iter()
                .chain(cluster.slurm.login.content_uses(&["spec", "slurm", "login"]))
                .collect()
        },
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        let before = findings.count();
        validate::validate(self, at, findings);
        // What is malformed is said first.
        if findings.count() == before {
            unsupported::refuse(self, at, findings);
        }
    }

    fn fill_defaults(&mut self) {}

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

/// It is where every source has it, so no field names it; what is wrong with it is said of the object.
fn identity() -> ContentUse {
    ContentUse {
        at: field_path(&["metadata", "name"]),
        what: ContentRef::ClusterIdentity,
        is_login: false,
        is_optional: true,
        keys: Vec::new(),
    }
}
