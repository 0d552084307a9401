//! Values that a pod takes by key from a secret or from an object with content. Every reader of these fields uses
//! this module, so that a further source is added in this file alone. Pure.

use std::collections::BTreeMap;

use super::container::EnvFromSource;
use super::volume::{ProjectedSource, SECRET_MODE};
use super::{Container, DownwardApiFile, EnvVar, EnvVarSource, FieldRef, KeyToPath, PodSpec, Volume};
use crate::content_refs::ContentRef;
use crate::kinds::Kind;
use crate::meta::ObjectMeta;

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

/// Files of a volume that are written for the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFiles<'a> {
    /// Sources of the files, each with its index if the volume is a projected one. Later ones win.
    pub sources: Vec<(Option<usize>, FileSource<'a>)>,
    /// Mode of files whose item has none.
    pub mode: u32,
}

/// Source of a volume's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSource<'a> {
    /// Values of a secret or an object.
    Values(VolumeContent<'a>),
    /// Fields of the pod itself.
    Fields(&'a [DownwardApiFile]),
}

/// Values used as the files of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeContent<'a> {
    /// Secret or object that holds the values.
    pub of: ContentRef,
    /// Selected values, with their paths in the volume; if empty, every value under its key.
    pub items: &'a [KeyToPath],
    /// True if the secret or object, or a key of `items`, may be absent.
    pub is_optional: bool,
    /// Field of the volume or of the projected source, and the field within it that has the name.
    pub at: [&'static str; 2],
}

impl VolumeFiles<'_> {
    /// True if a source is a secret, whose values must never be written to a disk.
    pub fn has_secret(&self) -> bool {
        self.sources.iter().any(|(_, source)| {
            matches!(source, FileSource::Values(VolumeContent { of: ContentRef::Secret(_), .. }))
        })
    }
}

impl FileSource<'_> {
    /// Returns the field of the volume or of the projected source.
    pub(super) fn field(&self) -> &'static str {
        match self {
            FileSource::Values(content) => content.at[0],
            FileSource::Fields(_) => "downwardAPI",
        }
    }
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
    pub(super) const FIELDS: &[&str] = &["fieldRef", "resourceFieldRef", "secretKeyRef", "configMapKeyRef"];

    /// Returns the value that is named by a key, if any.
    pub fn keyed(&self) -> Option<ValueSource<'_>> {
        self.all_keyed().next()
    }

    /// Returns every such value that is written, of which only one may be.
    pub(super) fn all_keyed(&self) -> impl Iterator<Item = ValueSource<'_>> {
        let secret = self.secret_key_ref.iter().map(|secret| ValueSource {
            owner: ContentRef::Secret(secret.name.clone()),
            key: &secret.key,
            is_optional: secret.optional,
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
    pub(super) const SOURCES: &[&str] =
        &["emptyDir", "hostPath", "repo", "secret", "configMap", "downwardAPI", "projected"];

    /// Returns the files that are written for the pod, if any.
    pub fn files(&self) -> Option<VolumeFiles<'_>> {
        self.all_files().next().map(|(_, files)| files)
    }

    /// Returns such files for every field that is written, of which only one may be.
    pub(super) fn all_files(&self) -> impl Iterator<Item = (&'static str, VolumeFiles<'_>)> {
        fn one(source: FileSource<'_>, mode: u32) -> (&'static str, VolumeFiles<'_>) {
            (source.field(), VolumeFiles { sources: vec![(None, source)], mode })
        }
        let secret = self.secret.iter().map(|secret| {
            let content = secret_content((&secret.secret_name, "secretName"), &secret.items, secret.optional);
            one(content, secret.default_mode.unwrap_or(SECRET_MODE))
        });
        let map = self
            .config_map
            .iter()
            .map(|map| one(config_map_content(&map.name, &map.items, map.optional), map.default_mode));
        let fields = self.downward_api.iter();
        let fields = fields.map(|fields| one(FileSource::Fields(&fields.items), fields.default_mode));
        let projected = self.projected.iter().map(|projected| {
            let sources = projected.sources.iter().enumerate();
            let sources = sources.flat_map(|(index, of)| of.all_files().map(move |one| (Some(index), one)));
            ("projected", VolumeFiles { sources: sources.collect(), mode: projected.default_mode })
        });
        secret.chain(map).chain(fields).chain(projected)
    }
}

impl PodSpec {
    /// Returns the labels and annotations in files of the pod, by their field paths. Files of a running container
    /// never change, so other ones mean another pod.
    pub fn metadata_in_files(&self, metadata: &ObjectMeta) -> BTreeMap<&str, String> {
        let sources = self.volumes.iter().filter_map(Volume::files).flat_map(|files| files.sources);
        let items = sources.flat_map(|(_, source)| match source {
            FileSource::Fields(items) => items,
            FileSource::Values(_) => &[],
        });
        let fields = items.filter_map(|item| item.field_ref.as_ref());
        let text = |field: &'_ FieldRef| field.of_metadata(&metadata.labels, &metadata.annotations);
        fields.filter_map(|field| Some((field.field_path.as_str(), text(field)?))).collect()
    }
}

impl ProjectedSource {
    /// Fields of which exactly one must be set.
    pub(super) const FIELDS: &[&str] = &["secret", "configMap", "downwardAPI"];

    /// Returns every source that is written, of which only one may be.
    pub(super) fn all_files(&self) -> impl Iterator<Item = FileSource<'_>> {
        let secret = self.secret.iter();
        let secret =
            secret.map(|secret| secret_content((&secret.name, "name"), &secret.items, secret.optional));
        let map = self.config_map.iter().map(|map| config_map_content(&map.name, &map.items, map.optional));
        secret.chain(map).chain(self.downward_api.iter().map(|fields| FileSource::Fields(&fields.items)))
    }
}

fn secret_content<'a>(
    (name, field): (&str, &'static str),
    items: &'a [KeyToPath],
    is_optional: bool,
) -> FileSource<'a> {
    let of = ContentRef::Secret(name.to_owned());
    FileSource::Values(VolumeContent { of, items, is_optional, at: ["secret", field] })
}

fn config_map_content<'a>(name: &str, items: &'a [KeyToPath], is_optional: bool) -> FileSource<'a> {
    let of = ContentRef::Object(Kind::ConfigMap, name.to_owned());
    FileSource::Values(VolumeContent { of, items, is_optional, at: ["configMap", "name"] })
}
