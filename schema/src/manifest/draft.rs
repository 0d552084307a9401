//! Result of loading a file: objects without provenance, and violations.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::content_refs::Files;
use crate::kinds::Resource;
use crate::kinds::pod::pool;
use crate::meta::{ObjectMeta, ObjectRef, StringMap};
use crate::object::{Object, Provenance};
use crate::violation::{OwnedStep, Severity, Violation};

/// A loaded file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ManifestFile {
    /// Objects without errors, in the order of the file. If the file has errors, there may be fewer than it means
    /// to declare: quarantine the file, do not apply them.
    pub documents: Vec<Document>,
    /// Objects with errors, as far as their names can be read.
    pub broken: Vec<BrokenDocument>,
    /// Words of a text that can't be parsed: names and labels of objects that it may hold.
    pub words: BTreeSet<String>,
    /// Violations, in the order of the file.
    pub violations: Vec<Violation>,
    /// Set for a kustomization; one with an error would change the files that it names.
    pub kustomization: Option<Kustomization>,
    /// False if the file is certainly not a manifest. A file with errors always counts as a manifest.
    pub is_manifest: bool,
    /// True if the file is a truncated copy of its earlier content and ends within a document. Only code that
    /// compares commits knows this.
    pub is_truncated: bool,
}

/// A file of kustomize.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kustomization {
    /// Files that it may name, as paths from the top of the repository: manifests, parts of manifests such as patches,
    /// and folders with a kustomization.
    pub files: Vec<String>,
    /// True if it cannot be read: it may name any file in and below its folder.
    pub is_unread: bool,
}

/// An object of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Kind, namespace, name.
    pub reference: ObjectRef,
    /// The object, with defaults filled in.
    pub object: Arc<DraftObject>,
    /// Files of the repository that it needs, once they are looked up.
    pub files: Files,
    /// Hash of its resource and files.
    pub hash: String,
    /// 1-based line of the document's first key.
    pub line: u32,
    /// Places of the fields that name other objects, as listed by the links of the kind.
    pub places: Vec<FieldLocation>,
}

/// An object with errors whose name is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenDocument {
    /// Kind, namespace, name.
    pub reference: ObjectRef,
    /// 1-based line of the document's first key.
    pub line: u32,
    /// Labels of the object and of its template, as far as they can be read.
    pub labels: Vec<StringMap>,
}

impl ManifestFile {
    /// True if the file must be quarantined.
    pub fn has_errors(&self) -> bool {
        self.violations.iter().any(|violation| violation.severity == Severity::Error)
    }
}

impl Document {
    /// Creates a document for `object` at `line`, which needs no files.
    pub(crate) fn new(mut object: DraftObject, line: u32, places: Vec<FieldLocation>) -> Self {
        let hash = object.hash();
        object.resource = pool::share(&hash, object.resource);
        let reference = object.reference();
        Self { reference, object: Arc::new(object), files: Files::new(), hash, line, places }
    }

    /// Returns line and column of a field whose place is kept; of the document for other fields.
    pub fn place(&self, path: &[OwnedStep]) -> (u32, u32) {
        let found = self.places.iter().find(|place| place.path == path);
        found.map_or((self.line, 1), |place| (place.line, place.column))
    }
}

/// Place of a field in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldLocation {
    /// The field, from the document's root.
    pub path: Vec<OwnedStep>,
    /// 1-based line.
    pub line: u32,
    /// 1-based column, in characters.
    pub column: u32,
}

/// An object without provenance and generation: the content of its manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftObject {
    /// Version as Kubernetes spells it for the kind.
    pub api_version: String,
    /// Name, namespace, labels, annotations.
    pub metadata: ObjectMeta,
    /// `kind` and the effective `spec`.
    pub resource: Resource,
}

impl DraftObject {
    /// Returns kind, namespace and name.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: self.resource.kind(),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
        }
    }

    /// Returns the hash that the object will have if it needs no files of the repository.
    pub fn hash(&self) -> String {
        Object::hash_of(&self.metadata, &self.resource, &Files::new())
    }

    /// Returns the object as stored in etcd if it needs no files.
    pub fn into_object(self, provenance: Provenance, generation: u64) -> Object {
        let hash = self.hash();
        let Self { api_version, metadata, resource } = self;
        let (files, created_at) = (Files::new(), None);
        Object { api_version, metadata, resource, provenance, files, hash, generation, created_at }
    }
}
