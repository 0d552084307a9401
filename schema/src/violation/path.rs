//! Paths in a manifest: `spec.containers[0].image`.
//!
//! Reads nothing, decides nothing: names places. The schema walk and every `validate` build paths on the stack
//! while they descend; only a finding copies one.

use std::fmt;

/// A place in a document, linked to the place above it, so that descending allocates nothing.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    above: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
}

/// A step of a [`Path`] that owns its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedStep {
    /// A key of a mapping.
    Field(String),
    /// An item of a list, from 0.
    Index(usize),
}

impl<'a> Path<'a> {
    /// The document itself.
    pub const ROOT: Path<'static> = Path { above: None, step: Step::Root };

    /// Returns the path of the value under the key `name` of this mapping.
    pub fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { above: Some(self), step: Step::Field(name) }
    }

    /// Returns the path of item `index` of this list.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { above: Some(self), step: Step::Index(index) }
    }

    /// True if any field on the path passes `test`, by the field it is in, its own name, and whether its value is
    /// known to be a mapping.
    pub fn any_field(&self, test: fn(Option<&str>, &str, bool) -> bool) -> bool {
        self.any(test, false)
    }

    fn any(&self, test: fn(Option<&str>, &str, bool) -> bool, is_mapping: bool) -> bool {
        let above = self.above.and_then(Path::field_name);
        self.field_name().is_some_and(|name| test(above, name, is_mapping))
            || self.above.is_some_and(|above| above.any(test, self.field_name().is_some()))
    }

    fn field_name(&self) -> Option<&'a str> {
        match self.step {
            Step::Field(name) => Some(name),
            Step::Root | Step::Index(_) => None,
        }
    }

    /// Returns the steps from the root.
    pub fn steps(&self) -> Vec<OwnedStep> {
        let mut steps = self.above.map(Path::steps).unwrap_or_default();
        match self.step {
            Step::Root => {}
            Step::Field(name) => steps.push(OwnedStep::Field(name.to_owned())),
            Step::Index(index) => steps.push(OwnedStep::Index(index)),
        }
        steps
    }
}

impl fmt::Display for Path<'_> {
    /// Formats as `spec.containers[0].image`, `metadata.labels['app.kubernetes.io/name']`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Field(name) if name.contains(['.', '/', ' ', '\'']) => write!(f, "['{name}']"),
            Step::Field(name) => {
                let below_root = self.above.is_none_or(|above| matches!(above.step, Step::Root));
                f.write_str(if below_root { "" } else { "." })?;
                f.write_str(name)
            }
        }
    }
}

/// Builds a path of fields: `field_path(&["spec", "selector"])`.
pub fn field_path(fields: &[&str]) -> Vec<OwnedStep> {
    fields.iter().map(|field| OwnedStep::Field((*field).to_owned())).collect()
}

/// Builds `before[index].after`.
pub fn indexed(before: &[&str], index: usize, after: &[&str]) -> Vec<OwnedStep> {
    let mut path = field_path(before);
    path.push(OwnedStep::Index(index));
    path.extend(field_path(after));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_a_person_would_write_it() {
        let (spec, metadata) = (Path::ROOT.field("spec"), Path::ROOT.field("metadata"));
        let (containers, labels) = (spec.field("containers"), metadata.field("labels"));
        let first = containers.index(0);
        assert_eq!(first.field("image").to_string(), "spec.containers[0].image");
        assert_eq!(labels.field("a.io/b").to_string(), "metadata.labels['a.io/b']");
        assert_eq!(Path::ROOT.to_string(), "");
        assert_eq!(first.steps().len(), 3);
    }
}
