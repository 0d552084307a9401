//! Other Workflow manifests: two older forms, and the Amazon States Language as AWS writes it.
//!
//! In this order: fields at the top level move under `spec` (form A), a `definition` in text form is parsed,
//! `workflowNodes` become states (form B), names in upper camel case become ours, and terms of the language that
//! have a simpler equivalent here are replaced.

use crate::manifest::dialects::tree::below;
use crate::manifest::dialects::{Node, Notes};

mod choices;
mod definition;
mod nodes;
mod parts;
mod spellings;
mod states_language;
mod top_level;

pub(crate) use spellings::{SPELLINGS, Spelling};
pub(crate) use states_language::STATES_LANGUAGE_KEYS;
pub use states_language::function_of_resource;

/// Rewrites a document of kind Workflow.
pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    top_level::move_down(node, notes);
    let namespace = namespace(node);
    let Some(spec) = below(node, &["spec"]) else { return };
    let is_definition = definition::splice(spec, notes);
    nodes::convert(spec, &namespace, notes);
    states_language::respell(spec, &namespace, is_definition, notes);
    choices::not_equals(spec, notes);
}

/// Returns the namespace of the document, which applies to functions without an explicit one.
fn namespace(node: &Node) -> String {
    let written = node.entry("metadata").and_then(|metadata| metadata.value.entry("namespace"));
    let text = written.and_then(|entry| entry.value.text()).filter(|text| !text.is_empty());
    text.unwrap_or(crate::meta::DEFAULT_NAMESPACE).to_owned()
}
