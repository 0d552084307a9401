//! Values that a pod takes by key from a secret or from an object with content. Every reader of these fields uses
//! this module, so that a further source is added in this file alone. Pure.

use super::container::EnvFromSource;
use super::{Container, EnvVar, EnvVarSource, KeyToPath, Volume};
use crate::content_refs::ContentRef;
use crate::kinds::Kind;

/// A value used as a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSource<'a> {
    /// Secret or object that holds the value.
    pub owner: ContentRef,
    /// Key of the value.
    pub key: &'a str,
    /// True if the value may be absent.
    pub is_optional: bool,
    /// Path, within the variable, of the field that has `name` and `key`.
    pub at: [&'static str; 2],
}

/// Every text of a secret or object, used as variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextsSource<'a> {
    /// Secret or object that holds the texts.
    pub of: ContentRef,
    /// Prefix for each key.
    pub prefix: &'a str,
    /// True if the secret or object may be absent.
    pub is_optional: bool,
    /// Field that has the `name`.
    pub at: &'static str,
}

/// Values used as the files of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeContent<'a> {
    /// Secret or object that holds the values.
    pub of: ContentRef,
    /// Selected values, with their paths in the volume; if empty, every value under its key.
    pub items: &'a [KeyToPath],
    /// Mode of files whose item has none.
    pub mode: u32,
    /// True if the secret or object, or a key of `items`, may be absent.
    pub is_optional: bool,
    /// True if the values must never be written to a disk.
    pub is_secret: bool,
    /// Field of the volume, and the field within it that has the name.
    pub at: [&'static str; 2],
}

/// An item of `env` or `envFrom`.
#[derive(Debug, Clone, PartialEq)]
pub enum Variable<'a> {
    /// A single variable.
    One(&'a EnvVar),
    /// Several variables.
    All(TextsSource<'a>),
}

impl Container {
    /// Returns the variables of the container. Later ones of the same name override earlier ones.
    pub fn variables(&self) -> impl Iterator<Item = Variable<'_>> {
        let from = self.env_from.iter().filter_map(|from| from.texts().map(Variable::All));
        from.chain(self.env.iter().map(Variable::One))
    }
}

impl EnvFromSource {
    /// Fields of which exactly one must be set.
    pub(super) const FIELDS: &[&str] = &["configMapRef", "secretRef"];

    /// Returns the secret or ConfigMap of the entry.
    pub(super) fn texts(&self) -> Option<TextsSource<'_>> {
        self.all_texts().next()
    }

    /// Returns every secret or ConfigMap that is written, of which only one may be.
    pub(super) fn all_texts(&self) -> impl Iterator<Item = TextsSource<'_>> {
        let map = self.config_map_ref.iter().map(|map| TextsSource {
            of: ContentRef::Object(Kind::ConfigMap, map.name.clone()),
            prefix: &self.prefix,
            is_optional: map.optional,
            at: "configMapRef",
        });
        map.chain(self.secret_ref.iter().map(|secret| TextsSource {
            of: ContentRef::Secret(secret.name.clone()),
            prefix: &self.prefix,
            is_optional: secret.optional,
            at: "secretRef",
        }))
    }
}

impl EnvVarSource {
    /// Fields of which exactly one must be set.
    pub(super) const FIELDS: &[&str] = &["fieldRef", "secretKeyRef", "configMapKeyRef"];

    /// Returns the value that is named by a key, if any.
    pub fn keyed(&self) -> Option<ValueSource<'_>> {
        self.all_keyed().next()
    }

    /// Returns every such value that is written, of which only one may be.
    pub(super) fn all_keyed(&self) -> impl Iterator<Item = ValueSource<'_>> {
        let secret = self.secret_key_ref.iter().map(|secret| ValueSource {
            owner: ContentRef::Secret(secret.name.clone()),
            key: &secret.key,
            is_optional: false,
            at: ["valueFrom", "secretKeyRef"],
        });
        secret.chain(self.config_map_key_ref.iter().map(|map| ValueSource {
            owner: ContentRef::Object(Kind::ConfigMap, map.name.clone()),
            key: &map.key,
            is_optional: map.optional,
            at: ["valueFrom", "configMapKeyRef"],
        }))
    }
}

impl Volume {
    /// Fields for the source of the files, of which at most one may be set.
    pub(super) const SOURCES: &[&str] = &["emptyDir", "hostPath", "repo", "secret", "configMap"];

    /// Returns the values that become the files of the volume, if any.
    pub fn keyed(&self) -> Option<VolumeContent<'_>> {
        self.all_keyed().next()
    }

    /// Returns every such source that is written, of which only one may be.
    pub(super) fn all_keyed(&self) -> impl Iterator<Item = VolumeContent<'_>> {
        let secret = self.secret.iter().map(|secret| VolumeContent {
            of: ContentRef::Secret(secret.secret_name.clone()),
            items: &[],
            mode: 0o400,
            is_optional: false,
            is_secret: true,
            at: ["secret", "secretName"],
        });
        secret.chain(self.config_map.iter().map(|map| VolumeContent {
            of: ContentRef::Object(Kind::ConfigMap, map.name.clone()),
            items: &map.items,
            mode: map.default_mode,
            is_optional: map.optional,
            is_secret: false,
            at: ["configMap", "name"],
        }))
    }
}
