//! What a pod takes by key: from a secret, or from an object with content. Whatever looks at these fields does so
//! through here, so that a further origin is added in this file alone. Pure.

use super::container::EnvFromSource;
use super::{Container, EnvVar, EnvVarSource, KeyToPath, Volume};
use crate::files::ContentRef;
use crate::kinds::Kind;

/// One value as a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueOf<'a> {
    /// What has it.
    pub of: ContentRef,
    /// Its key.
    pub key: &'a str,
    /// It may be absent.
    pub is_optional: bool,
    /// The field of the variable below which `name` and `key` stand.
    pub at: [&'static str; 2],
}

/// All texts of something as variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllOf<'a> {
    /// What has them.
    pub of: ContentRef,
    /// Before each key.
    pub prefix: &'a str,
    /// It may be absent.
    pub is_optional: bool,
    /// The field below which `name` stands.
    pub at: &'static str,
}

/// Values as the files of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOf<'a> {
    /// What has them.
    pub of: ContentRef,
    /// Which values, and where in the volume; all under their keys when empty.
    pub items: &'a [KeyToPath],
    /// Mode of files whose item has none.
    pub mode: u32,
    /// What has them, or a key of `items`, may be absent.
    pub is_optional: bool,
    /// Nothing of it goes to a disk.
    pub is_secret: bool,
    /// The field of the volume with the name, and that with the items.
    pub at: [&'static str; 2],
}

/// An item of `env` or `envFrom`.
#[derive(Debug, Clone, PartialEq)]
pub enum Variable<'a> {
    /// One variable.
    One(&'a EnvVar),
    /// Several.
    All(AllOf<'a>),
}

impl Container {
    /// Its variables. A later one of the same name wins.
    pub fn variables(&self) -> impl Iterator<Item = Variable<'_>> {
        let from = self.env_from.iter().filter_map(|from| from.all().map(Variable::All));
        from.chain(self.env.iter().map(Variable::One))
    }
}

impl EnvFromSource {
    /// Its fields, of which one is set.
    pub(super) const FIELDS: &[&str] = &["configMapRef", "secretRef"];

    /// What it names.
    pub(super) fn all(&self) -> Option<AllOf<'_>> {
        self.all_named().next()
    }

    /// All that are written, of which one may be.
    pub(super) fn all_named(&self) -> impl Iterator<Item = AllOf<'_>> {
        let map = self.config_map_ref.iter().map(|map| AllOf {
            of: ContentRef::Object(Kind::ConfigMap, map.name.clone()),
            prefix: &self.prefix,
            is_optional: map.optional,
            at: "configMapRef",
        });
        map.chain(self.secret_ref.iter().map(|secret| AllOf {
            of: ContentRef::Secret(secret.name.clone()),
            prefix: &self.prefix,
            is_optional: secret.optional,
            at: "secretRef",
        }))
    }
}

impl EnvVarSource {
    /// Its fields, of which one is set.
    pub(super) const FIELDS: &[&str] = &["fieldRef", "secretKeyRef", "configMapKeyRef"];

    /// The value that it names by a key.
    pub fn keyed(&self) -> Option<ValueOf<'_>> {
        self.all_keyed().next()
    }

    /// All that are written, of which one may be.
    pub(super) fn all_keyed(&self) -> impl Iterator<Item = ValueOf<'_>> {
        let secret = self.secret_key_ref.iter().map(|secret| ValueOf {
            of: ContentRef::Secret(secret.name.clone()),
            key: &secret.key,
            is_optional: false,
            at: ["valueFrom", "secretKeyRef"],
        });
        secret.chain(self.config_map_key_ref.iter().map(|map| ValueOf {
            of: ContentRef::Object(Kind::ConfigMap, map.name.clone()),
            key: &map.key,
            is_optional: map.optional,
            at: ["valueFrom", "configMapKeyRef"],
        }))
    }
}

impl Volume {
    /// The fields that say where its files come from, of which at most one is set.
    pub(super) const SOURCES: &[&str] = &["emptyDir", "hostPath", "repo", "secret", "configMap"];

    /// The values that are its files.
    pub fn keyed(&self) -> Option<VolumeOf<'_>> {
        self.all_keyed().next()
    }

    /// All that are written, of which one may be.
    pub(super) fn all_keyed(&self) -> impl Iterator<Item = VolumeOf<'_>> {
        let secret = self.secret.iter().map(|secret| VolumeOf {
            of: ContentRef::Secret(secret.secret_name.clone()),
            items: &[],
            mode: 0o400,
            is_optional: false,
            is_secret: true,
            at: ["secret", "secretName"],
        });
        secret.chain(self.config_map.iter().map(|map| VolumeOf {
            of: ContentRef::Object(Kind::ConfigMap, map.name.clone()),
            items: &map.items,
            mode: map.default_mode,
            is_optional: map.optional,
            is_secret: false,
            at: ["configMap", "name"],
        }))
    }
}
