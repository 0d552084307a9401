//! What a document becomes: an object that only lacks where it came from.

use crate::files::Files;
use crate::kinds::Resource;
use crate::meta::{ObjectMeta, ObjectRef};
use crate::object::{Object, Provenance};
use crate::violation::OwnedStep;

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The object, defaults filled in.
    pub object: DraftObject,
    /// 1-based line of the document's first key.
    pub line: u32,
    /// Where the fields are that name other objects: what [`crate::kinds::KindSpec::places`] asks for.
    pub places: Vec<Place>,
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
