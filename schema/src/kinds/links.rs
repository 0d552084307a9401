//! Which objects an object names, and by which field. Pure.

use super::metadata::parse_reference;
use super::pod::PortReference;
use super::{Resource, field_path, indexed};
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::OwnedStep;

/// One field that names another object.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference<'a> {
    /// The field.
    pub at: FieldAt,
    /// What it names.
    pub target: ObjectRef,
    /// The port of the target that it names, too.
    pub port: Option<&'a PortReference>,
    /// The target may be absent.
    pub is_optional: bool,
}

/// A field that names an object: short, since there may be a hundred thousand of them.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldAt {
    /// These fields.
    Fields(&'static [&'static str]),
    /// An item of a list, and fields of it.
    Item(&'static [&'static str], usize, &'static [&'static str]),
    /// Anything else.
    Steps(Vec<OwnedStep>),
}

impl FieldAt {
    /// The item of `dependsOn`.
    pub fn dependency(index: usize) -> Self {
        Self::Item(&["metadata", "dependsOn"], index, &[])
    }

    /// From the document's root.
    pub fn path(&self) -> Vec<OwnedStep> {
        match self {
            Self::Fields(fields) => field_path(fields),
            Self::Item(before, index, after) => indexed(before, *index, after),
            Self::Steps(path) => path.clone(),
        }
    }
}

impl Reference<'_> {
    /// The field that names the target's port: beside its name.
    pub fn port_path(&self) -> Vec<OwnedStep> {
        let mut path = self.at.path();
        path.pop();
        path.push(OwnedStep::Field("port".to_owned()));
        path
    }
}

/// The objects that `metadata` says to wait for. Malformed items, which the kind's own check reports, are
/// passed over.
pub fn dependencies(metadata: &ObjectMeta) -> impl Iterator<Item = ObjectRef> {
    metadata.depends_on.iter().filter_map(|text| parse_reference(text, &metadata.namespace).ok())
}

/// Every field of an object that names another one.
pub fn references<'a>(metadata: &ObjectMeta, resource: &'a Resource) -> Vec<Reference<'a>> {
    let mut found = resource.references(metadata);
    for (index, text) in metadata.depends_on.iter().enumerate() {
        let Ok(target) = parse_reference(text, &metadata.namespace) else { continue };
        found.push(Reference { at: FieldAt::dependency(index), target, port: None, is_optional: false });
    }
    for wish in resource.files() {
        let Some(target) = wish.target(metadata) else { continue };
        let at = FieldAt::Steps(wish.at);
        found.push(Reference { at, target, port: None, is_optional: wish.is_optional });
    }
    found
}

/// Fields whose line and column the checks across objects need.
pub(crate) fn places(metadata: &ObjectMeta, resource: &Resource) -> Vec<Vec<OwnedStep>> {
    let mut paths: Vec<_> = (0..metadata.depends_on.len()).map(|at| FieldAt::dependency(at).path()).collect();
    paths.extend(resource.further_places());
    paths.extend(resource.exclusives(metadata).into_iter().map(|used| used.path));
    for reference in resource.references(metadata) {
        paths.push(reference.at.path());
        paths.extend(reference.port.map(|_| reference.port_path()));
    }
    for wish in resource.files() {
        paths.push(wish.at);
        paths.extend(wish.keys.into_iter().map(|(at, _)| at));
    }
    paths
}
