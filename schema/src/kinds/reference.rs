//! A field that names another object.

use super::pod::PortReference;
use crate::meta::ObjectRef;
use crate::violation::{OwnedStep, field_path, indexed};

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
