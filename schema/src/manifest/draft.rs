//! What a file becomes: objects that only lack where they came from, and what is wrong.

use std::sync::Arc;

use crate::files::Files;
use crate::kinds::Resource;
use crate::kinds::pod::pool;
use crate::meta::{ObjectMeta, ObjectRef};
use crate::object::{Object, Provenance};
use crate::violation::{OwnedStep, Severity, Violation};

/// One file, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ManifestFile {
    /// The objects that are without errors, in the order of the file. If the file has errors, there may
    /// be fewer than it means to declare: quarantine the file, do not apply them.
    pub documents: Vec<Document>,
    /// The objects that have errors, as far as their names can be read.
    pub broken: Vec<BrokenDocument>,
    /// All that is wrong or noteworthy, in the order of the file.
    pub violations: Vec<Violation>,
    /// False: the file is none of ours, and was understood well enough to be sure. A file with errors
    /// is always taken for a manifest.
    pub is_manifest: bool,
    /// It is the beginning of what it was, and ends within a document of that. Known only to who compares
    /// commits.
    pub is_truncated: bool,
}

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Kind, namespace, name.
    pub reference: ObjectRef,
    /// The object, defaults filled in.
    pub object: Arc<DraftObject>,
    /// Files of the repository that it needs, once they were looked up.
    pub files: Files,
    /// The hash of its resource and files.
    pub hash: String,
    /// 1-based line of the document's first key.
    pub line: u32,
    /// Where the fields are that name other objects: what the kind says of its links.
    pub places: Vec<Place>,
}

/// An object that can't be used, but is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenDocument {
    /// Kind, namespace, name.
    pub reference: ObjectRef,
    /// 1-based line of the document's first key.
    pub line: u32,
}

impl ManifestFile {
    /// Whether the file must be quarantined.
    pub fn has_errors(&self) -> bool {
        self.violations.iter().any(|violation| violation.severity == Severity::Error)
    }
}

impl Document {
    /// `object` at `line`, which needs no files.
    pub(crate) fn new(mut object: DraftObject, line: u32, places: Vec<Place>) -> Self {
        let hash = object.hash();
        object.resource = pool::share(&hash, object.resource);
        let reference = object.reference();
        Self { reference, object: Arc::new(object), files: Files::new(), hash, line, places }
    }

    /// Line and column of a field that the kind keeps the place of; of the document for others.
    pub fn place(&self, path: &[OwnedStep]) -> (u32, u32) {
        let found = self.places.iter().find(|place| place.path == path);
        found.map_or((self.line, 1), |place| (place.line, place.column))
    }
}

/// Where a field is in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which field, from the document's root.
    pub path: Vec<OwnedStep>,
    /// 1-based.
    pub line: u32,
    /// 1-based, in characters.
    pub column: u32,
}

/// An object without provenance and generation: all that its manifest says.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftObject {
    /// As Kubernetes spells it for the kind.
    pub api_version: String,
    /// Name, namespace, labels, annotations.
    pub metadata: ObjectMeta,
    /// `kind` and the effective `spec`.
    pub resource: Resource,
}

impl DraftObject {
    /// Kind, namespace and name.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: self.resource.kind(),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
        }
    }

    /// The hash that the object will have if it needs no files: of its effective spec, without metadata.
    pub fn hash(&self) -> String {
        Object::hash_of(&self.resource, &Files::new())
    }

    /// The object as it goes into etcd if it needs no files.
    pub fn into_object(self, provenance: Provenance, generation: u64) -> Object {
        let hash = self.hash();
        let Self { api_version, metadata, resource } = self;
        Object { api_version, metadata, resource, provenance, files: Files::new(), hash, generation }
    }
}
