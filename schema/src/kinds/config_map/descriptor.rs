//! The `ConfigMap` kind: names, content, defaults.

use super::super::{ContentOf, Descriptor, Fields, KindSpec, Links, NameForm, Older};
use super::{ConfigMapSpec, validate};
use crate::kinds::content::Content;
use crate::violation::{Findings, Path};

impl KindSpec for ConfigMapSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "configmaps",
        short_names: &["cm"],
        api_version: "v1",
        fields: Fields::AtTop,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: false,
        pods_bear_its_name: false,
        labels_are_of_replicas: false,
        names: NameForm::Long,
        older: Older { words: &[], api_versions: &[], may_lack_api_version: false, rewrite: |_, _| () },
    };

    const LINKS: Links<Self> = Links {
        content: Some(ContentOf {
            written: Self::values,
            kept: |spec| Some((spec.content.as_ref()?, spec.immutable)),
        }),
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if self.content.is_none() {
            self.content = Content::of(&self.values());
            (self.data, self.binary_data) = Default::default();
        }
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}
