//! Bare state machines: documents without an envelope, as other tools of the Amazon States Language write them.

use std::sync::Arc;

use super::{Document, ManifestFile, broken_file, load_parsed};
use crate::document;
use crate::document::edit::{mapping, text as text_at};
use crate::document::node::Node;
use crate::document::{Format, parse};
use crate::kinds::workflow::{STATES_LANGUAGE_KEYS as KEYS, WorkflowSpec};
use crate::kinds::{Kind, OWN_API_VERSION, Resource};
use crate::meta::DEFAULT_NAMESPACE;
use crate::object::Object;
use crate::violation::{Violation, rules};

/// Name of the workflow in a bare document.
pub const BARE_NAME: &str = "workflow";

/// Loads a file whose documents without a `kind` are state machines: each is the spec of a Workflow named
/// [`BARE_NAME`]. The extension selects the format; without a known one, a leading `{` means JSON.
pub fn load_definition(path: &str, bytes: &[u8]) -> ManifestFile {
    load_in(DEFAULT_NAMESPACE, path, bytes)
}

/// Fills in the state machine of a workflow that names a file by `definitionPath`. Violations are reported at their
/// place in the file, and the workflow then stays unchanged.
pub fn fill_in_definition(document: &mut Document, path: &str, bytes: &[u8]) -> Vec<Violation> {
    let Resource::Workflow(named) = &document.object.resource else { return Vec::new() };
    let ManifestFile { documents, mut violations, .. } = load_in(&document.reference.namespace, path, bytes);
    for violation in &mut violations {
        violation.object = Some(document.reference.to_string());
    }
    if violations.iter().any(Violation::is_error) {
        return violations;
    }
    let machine = match documents.as_slice() {
        [only] => match &only.object.resource {
            Resource::Workflow(machine) if !machine.is_undefined() => Some(Arc::clone(machine)),
            _ => None,
        },
        _ => None,
    };
    let Some(machine) = machine else {
        let message =
            "the file contains no state machine in the Amazon States Language, or several documents";
        let mut violation = Violation::new(&rules::WRONG_TYPE, path, (1, 1), message)
            .with_help("write one document with `StartAt` and `States` at its top level");
        violation.object = Some(document.reference.to_string());
        violations.push(violation);
        return violations;
    };
    let spec = WorkflowSpec {
        start_at: machine.start_at.clone(),
        states: machine.states.clone(),
        timeout_seconds: named.timeout_seconds.or(machine.timeout_seconds),
        ..WorkflowSpec::clone(named)
    };
    let object = Arc::make_mut(&mut document.object);
    object.resource = Resource::Workflow(Arc::new(spec));
    document.hash = Object::hash_of(&object.metadata, &object.resource, &document.files);
    violations
}

fn load_in(namespace: &str, path: &str, bytes: &[u8]) -> ManifestFile {
    let text = match document::read(bytes) {
        Ok(text) => text,
        Err(problem) => return broken_file(path, problem),
    };
    let guessed = || if text.trim_start().starts_with('{') { Format::Json } else { Format::Yaml };
    let format = Format::from_path(path).unwrap_or_else(guessed);
    let mut parsed = parse(format, text);
    for root in &mut parsed.roots {
        if is_bare(&root.node) {
            wrap_in_envelope(&mut root.node, namespace);
        }
    }
    let mut loaded = load_parsed(path, parsed, None);
    // The language's own spelling is not an older one.
    loaded.violations.retain(|violation| {
        let is_of_language = violation.rule == rules::OLDER_SPELLING.id && violation.message.contains(KEYS);
        !is_of_language
    });
    loaded
}

/// True if none of the envelope's fields is there. An empty document is not bare.
fn is_bare(node: &Node) -> bool {
    let has = |key: &str| node.entry(key).is_some();
    !node.is_null() && !has("kind") && !has("apiVersion") && !has("metadata")
}

fn wrap_in_envelope(node: &mut Node, namespace: &str) {
    let mark = node.first_mark();
    let nothing = mapping(mark, []);
    let spec = std::mem::replace(node, nothing);
    *node = mapping(
        mark,
        [
            ("apiVersion", text_at(mark, OWN_API_VERSION)),
            ("kind", text_at(mark, Kind::Workflow.as_str())),
            (
                "metadata",
                mapping(mark, [("name", text_at(mark, BARE_NAME)), ("namespace", text_at(mark, namespace))]),
            ),
            ("spec", spec),
        ],
    );
}
