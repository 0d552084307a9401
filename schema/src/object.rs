//! Envelope of a desired object, stored under `objects/<kind>/<ns>/<name>`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::content_refs::Files;
use crate::codec::content_hash;
use crate::kinds::links::hashed_content;
use crate::kinds::{Kind, Resource};
use crate::meta::{ObjectMeta, ObjectRef};

/// A desired object: its content from Git, its origin, and the hash of its effective spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "WrittenObject")]
pub struct Object {
    /// Version as Kubernetes spells it for the kind: `v1`, `apps/v1` and so on.
    pub api_version: String,
    /// Name, namespace, labels, annotations.
    pub metadata: ObjectMeta,
    /// `kind` and `spec`.
    #[serde(flatten)]
    pub resource: Resource,
    /// Origin of the object.
    pub provenance: Provenance,
    /// Files of the repository that its pods need, by path: those that volumes and secrets name.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
    /// Content hash of the effective spec (defaults filled in) and of what running pods need of `files` (see
    /// [`hashed_content`]). Of the metadata it includes only what is in files of a pod.
    pub hash: String,
    /// Number of changes of `hash`, from 1.
    pub generation: u64,
    /// Time at which the object was first applied; `None` until then, and if an older version applied it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
}

/// An object as read: `kind` determines the type of `spec`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenObject {
    api_version: String,
    metadata: ObjectMeta,
    kind: Kind,
    spec: serde_json::Value,
    provenance: Provenance,
    #[serde(default)]
    files: Files,
    hash: String,
    generation: u64,
    #[serde(default)]
    created_at: Option<Timestamp>,
}

impl TryFrom<WrittenObject> for Object {
    type Error = serde_json::Error;

    fn try_from(written: WrittenObject) -> Result<Self, serde_json::Error> {
        let WrittenObject {
            api_version,
            metadata,
            kind,
            spec,
            provenance,
            files,
            hash,
            generation,
            created_at,
        } = written;
        let resource = Resource::from_json(kind, spec)?;
        Ok(Self { api_version, metadata, resource, provenance, files, hash, generation, created_at })
    }
}

impl Object {
    /// Returns kind, namespace and name.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: self.kind(),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
        }
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.resource.kind()
    }

    /// Returns the value of [`Object::hash`] for `resource` with this metadata and these files.
    pub fn hash_of(metadata: &ObjectMeta, resource: &Resource, files: &Files) -> String {
        let files = hashed_content(resource, files);
        let in_files = match resource {
            Resource::Pod(pod) => pod.metadata_in_files(metadata),
            // The metadata of a template is a part of the spec.
            _ => Default::default(),
        };
        // Unchanged without files: an upgrade must not turn pods of the same spec into others.
        match (files.is_empty(), in_files.is_empty()) {
            (true, true) => content_hash(resource),
            (false, true) => content_hash(&(resource, files)),
            (_, false) => content_hash(&(resource, files, in_files)),
        }
    }
}

/// Returns the first 12 digits of a commit's id: enough to find it, short enough to read.
pub fn short_commit(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// Commit and line that set an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// Name of the source that owns the object.
    pub source: String,
    /// Full hex id of the commit that last changed the object's metadata or spec.
    pub commit: String,
    /// `Name <mail>` of that commit's author.
    pub author: String,
    /// Path within the repository, `/`-separated.
    pub file: String,
    /// 1-based line of the document's first key.
    pub line: u32,
}

impl Provenance {
    /// Formats the place for people: `apps/web.yaml:3 of source main`.
    pub fn set_by(&self) -> String {
        format!("{}:{} of source {}", self.file, self.line, self.source)
    }

    /// Formats the commit for people: `1a2b… by Ada <ada@example.org>`.
    pub fn commit_by(&self) -> String {
        format!("{} by {}", self.commit, self.author)
    }
}
