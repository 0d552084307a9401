//! Other Workflow manifests: two older forms, and the Amazon States Language as AWS writes it.
//!
//! In this order: fields at the top level move under `spec` (form A), a `definition` in text form is parsed,
//! `workflowNodes` become states (form B), names in upper camel case become ours, and terms of the language that
//! have a simpler equivalent here are replaced.

mod definition;
mod nodes;
mod spellings;
mod states_language;

use super::JsonPath;
use crate::document::edit::{below, entries_mut, entry, items_mut, number, plain, put, take, text};
use crate::manifest::dialects::{Entry, Mark, Node, Notes, Value};
use definition::{EndState, each_state, names_a_state, take_non_null};

pub(crate) use spellings::{SPELLINGS, Spelling};
pub(crate) use states_language::STATES_LANGUAGE_KEYS;
pub use states_language::function_from_resource;

/// Rewrites a document of kind Workflow.
pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    move_down(node, notes);
    let namespace = namespace(node);
    let Some(spec) = below(node, &["spec"]) else { return };
    let is_definition = definition::splice(spec, notes);
    nodes::convert(spec, &namespace, notes);
    states_language::respell(spec, &namespace, is_definition, notes);
    not_equals(spec, notes);
}

/// Returns the namespace of the document, which applies to functions without an explicit one.
fn namespace(node: &Node) -> String {
    let written = node.entry("metadata").and_then(|metadata| metadata.value.entry("namespace"));
    let text = written.and_then(|entry| entry.value.text()).filter(|text| !text.is_empty());
    text.unwrap_or(crate::meta::DEFAULT_NAMESPACE).to_owned()
}

// Rewrites `numericNotEquals` and similar operators, which the Amazon States Language lacks, as `not` of the
// positive rule.

const TYPES: [&str; 4] = ["numeric", "string", "boolean", "timestamp"];

/// Rewrites the rules of every Choice.
fn not_equals(spec: &mut Node, notes: &mut Notes<'_>) {
    each_state(spec, &mut |_, state| {
        for choice in below(state, &["choices"]).and_then(items_mut).into_iter().flatten() {
            rule(choice, notes);
        }
    });
}

fn rule(node: &mut Node, notes: &mut Notes<'_>) {
    for joined in ["and", "or"] {
        for inner in below(node, &[joined]).and_then(items_mut).into_iter().flatten() {
            rule(inner, notes);
        }
    }
    if let Some(inner) = below(node, &["not"]) {
        return rule(inner, notes);
    }
    let positive = |key: &str| {
        let kind = key.strip_suffix("NotEquals")?;
        TYPES.iter().find(|known| known.eq_ignore_ascii_case(kind)).map(|known| format!("{known}Equals"))
    };
    let written = node.entries().into_iter().flatten();
    let Some((old, new)) =
        written.filter_map(|entry| Some((entry.key.clone(), positive(&entry.key)?))).next()
    else {
        return;
    };
    let (Some(variable), Some(mut comparison)) = (take(node, "variable"), take(node, &old)) else { return };
    notes.older(comparison.mark, &old, &format!("not: {{variable, {new}}}"));
    let mark = comparison.mark;
    comparison.key = new;
    let inner = Node { mark, value: Value::Mapping(vec![variable, comparison]) };
    put(node, entry("not", mark, inner));
}

// Form A: `startAt`, `params` and `nodes` next to `metadata`, and no `spec`. A task has the name of its function;
// a node without `next`, and a choice without a matching rule, end the run.

/// Fields that belong under `spec`.
const MACHINE_FIELDS: [&str; 10] = [
    "startAt",
    "params",
    "nodes",
    "states",
    "comment",
    "timeoutSeconds",
    "StartAt",
    "States",
    "Comment",
    "TimeoutSeconds",
];

/// Moves the machine of a document without `spec` under `spec`.
fn move_down(node: &mut Node, notes: &mut Notes<'_>) {
    let Some(entries) = entries_mut(node).filter(|entries| !entries.iter().any(|entry| entry.key == "spec"))
    else {
        return;
    };
    let is_machine = |entry: &mut Entry| MACHINE_FIELDS.contains(&entry.key.as_str());
    let moved: Vec<Entry> = entries.extract_if(.., is_machine).collect();
    let Some(mark) = moved.first().map(|entry| entry.mark) else { return };
    let old: Vec<&str> = moved.iter().map(|entry| entry.key.as_str()).collect();
    notes.older(mark, &format!("{} at the top level", old.join(", ")), "spec: {startAt, params, states}");
    let mut spec = Node { mark, value: Value::Mapping(moved) };
    if let Some(params) = take_non_null(&mut spec, "params") {
        put(&mut spec, params);
    }
    if let Some(nodes) = take_non_null(&mut spec, "nodes") {
        put(&mut spec, Entry { key: "states".to_owned(), value: states(nodes.value), ..nodes });
    }
    entries.push(entry("spec", mark, spec));
}

fn states(mut nodes: Node) -> Node {
    let names: Vec<String> = nodes.entries().into_iter().flatten().map(|entry| entry.key.clone()).collect();
    let mut end = EndState::new(&names.iter().map(String::as_str));
    let Some(entries) = entries_mut(&mut nodes) else { return nodes };
    for Entry { key, mark, value } in entries.iter_mut() {
        match lower_type(value).as_deref() {
            Some("task") => task(key, *mark, value),
            Some("choice") => choice(*mark, value, &mut end),
            _ => {}
        }
    }
    end.add_to(entries);
    nodes
}

/// Returns the type of a node in lower case, and rewrites it in the current spelling.
fn lower_type(node: &mut Node) -> Option<String> {
    let Value::Scalar { text, .. } = &mut below(node, &["type"])?.value else { return None };
    let lower = text.to_lowercase();
    match lower.as_str() {
        "task" => *text = "Task".to_owned(),
        "choice" => *text = "Choice".to_owned(),
        _ => {}
    }
    Some(lower)
}

fn task(name: &str, mark: Mark, node: &mut Node) {
    put(node, entry("function", mark, text(mark, name)));
    match take_non_null(node, "next").filter(names_a_state) {
        Some(next) => put(node, next),
        None => put(node, entry("end", mark, plain(mark, true))),
    }
}

fn choice(mark: Mark, node: &mut Node, end: &mut EndState) {
    match take_non_null(node, "default").filter(names_a_state) {
        Some(default) => put(node, default),
        None => put(node, entry("default", mark, text(mark, end.name(mark)))),
    }
    for rule in below(node, &["choices"]).and_then(items_mut).into_iter().flatten() {
        let mark = rule.first_mark();
        match take_non_null(rule, "next").filter(names_a_state) {
            Some(next) => put(rule, next),
            None => put(rule, entry("next", mark, text(mark, end.name(mark)))),
        }
        for entry in entries_mut(rule).into_iter().flatten() {
            match entry.key.as_str() {
                "variable" => prefix(&mut entry.value),
                key if key.starts_with("numeric") && number(&entry.value).is_some() => {
                    let Value::Scalar { plain, .. } = &mut entry.value.value else { continue };
                    *plain = true;
                }
                _ => {}
            }
        }
    }
}

/// Rewrites `x` as `$.x`; every name is one of the top level.
fn prefix(variable: &mut Node) {
    if let Value::Scalar { text, .. } = &mut variable.value
        && !text.is_empty()
        && !text.starts_with('$')
    {
        *text = JsonPath::from_field(text).to_string();
    }
}
