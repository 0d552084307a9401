//! References between objects.

use super::pod::PortReference;
use crate::meta::ObjectRef;
use crate::violation::{OwnedStep, field_path, indexed};

/// A field that names another object.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference<'a> {
    /// Location of the field.
    pub at: FieldLocation,
    /// Object that the field names.
    pub target: ObjectRef,
    /// Port of the target, if the reference names one too.
    pub port: Option<&'a PortReference>,
    /// True if the target may be absent.
    pub is_optional: bool,
}

/// Location of a field that names an object; compact, since there may be a hundred thousand of them.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldLocation {
    /// A path of fields.
    Fields(&'static [&'static str]),
    /// A field of a list item: path of the list, index, path within the item.
    Item(&'static [&'static str], usize, &'static [&'static str]),
    /// Any other path.
    Steps(Vec<OwnedStep>),
}

impl FieldLocation {
    /// Returns the location of item `index` of `dependsOn`.
    pub fn dependency(index: usize) -> Self {
        Self::Item(&["metadata", "dependsOn"], index, &[])
    }

    /// Returns the path from the document's root.
    pub fn path(&self) -> Vec<OwnedStep> {
        match self {
            Self::Fields(fields) => field_path(fields),
            Self::Item(before, index, after) => indexed(before, *index, after),
            Self::Steps(path) => path.clone(),
        }
    }
}

impl Reference<'_> {
    /// Returns the path of the field that names the target's port, next to the field with its name.
    pub fn port_path(&self) -> Vec<OwnedStep> {
        let mut path = self.at.path();
        path.pop();
        path.push(OwnedStep::Field("port".to_owned()));
        path
    }
}
