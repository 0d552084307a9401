//! What every kind's spec can do.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Kind, Resource};
use crate::violation::{Findings, OwnedStep, Path};

/// The spec of one kind. The loader does the same with all of them: schema walk, serde, `validate`,
/// `fill_defaults`.
pub trait KindSpec: Serialize + DeserializeOwned + JsonSchema + Into<Resource> {
    /// Which kind.
    const KIND: Kind;

    /// Checks the spec as it is written, before the defaults, at the path `at` (`spec`).
    fn validate(&self, at: &Path<'_>, findings: &mut Findings);

    /// Fills in what follows from other fields. Doing it twice changes nothing.
    fn fill_defaults(&mut self);

    /// Paths from the document's root whose line and column the checks across objects need: the
    /// fields that name other objects. The loader keeps the place of each with the document.
    fn places(&self) -> Vec<Vec<OwnedStep>> {
        Vec::new()
    }
}

/// A path of fields, for [`KindSpec::places`]: `field_path(&["spec", "selector"])`.
pub fn field_path(fields: &[&str]) -> Vec<OwnedStep> {
    fields.iter().map(|field| OwnedStep::Field((*field).to_owned())).collect()
}
