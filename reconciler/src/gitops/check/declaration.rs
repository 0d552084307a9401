//! Documents that name objects, and violations in one of them.

use std::sync::Arc;

use schema::manifest::Document;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Versioned;
use schema::violation::{Rule, Violation};

/// A document that names an object.
#[derive(Debug, Clone, Copy)]
pub struct Declaration<'a> {
    pub file: &'a Arc<str>,
    pub document: &'a Document,
    /// The live object, of any source.
    pub live: Option<&'a Versioned<Object>>,
}

/// A live object with its reference.
pub type Live<'a> = (&'a ObjectRef, &'a Versioned<Object>);

/// Builds a violation of `rule` in the document of `declared`, at line and column.
pub(super) fn problem(
    declared: &Declaration<'_>,
    rule: &'static Rule,
    (line, column): (u32, u32),
    message: String,
    help: impl Into<String>,
) -> Violation {
    Violation {
        file: declared.file.to_string(),
        line,
        column,
        severity: rule.severity,
        rule: rule.id.to_owned(),
        message,
        help: help.into(),
        object: Some(declared.document.reference.to_string()),
    }
}
