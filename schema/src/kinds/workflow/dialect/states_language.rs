//! The Amazon States Language as AWS writes it: `StartAt` is `startAt`, `Resource` names a function.
//!
//! The shape of the kind decides which keys are names of the language and which are data: everything under
//! `Parameters` or `Result` stays as it is.

use std::collections::HashSet;

use super::definition::each_state;
use crate::document::edit::{below, entries_mut, entry, put, rename, take, text};
use crate::kinds::Kind;
use crate::manifest::dialects::{Entry, Mark, Node, Notes, Value};
use crate::manifest::shape::{Record, Shape, Shapes, compile};
use crate::manifest::states_language::{other_name, unsupported};
use crate::names;
use crate::violation::rules;

/// Label for the keys of the language in notes.
pub(crate) const STATES_LANGUAGE_KEYS: &str = "StartAt, States, Type and so on";

/// Rewrites the spec. Names of the language in a definition produce no note.
pub(super) fn respell(spec: &mut Node, namespace: &str, is_definition: bool, notes: &mut Notes<'_>) {
    let shapes = compile::for_kind(Kind::Workflow);
    let mut first = None;
    lower_keys(spec, shapes, shapes.root, &mut first);
    if let Some(mark) = first.filter(|_| !is_definition) {
        notes.older(mark, STATES_LANGUAGE_KEYS, "startAt, states, type and so on");
    }
    drop_defaults(spec);
    let mut resources =
        ResourceRewriter { namespace, is_of_language: is_definition || first.is_some(), by_arn: None };
    each_state(spec, &mut |_, state| {
        // Machines inside are reached through their current names, so the outer state comes first.
        let kind = state.entry("type").and_then(|entry| entry.value.text()).unwrap_or_default().to_owned();
        drop_defaults(state);
        match kind.as_str() {
            "Task" => resources.replace(state, notes),
            "Map" => map(state, notes),
            _ => {}
        }
    });
    if let Some((mark, functions)) = resources.by_arn {
        let functions = functions.join("`, `");
        notes
            .remark(mark, &format!("an ARN is read as the Function that its last part names: `{functions}`"));
    }
}

/// Conversion of `resource` fields into `function`, if they name one.
struct ResourceRewriter<'a> {
    namespace: &'a str,
    /// True if `Resource` is a name of the language, which needs no note.
    is_of_language: bool,
    /// Position of the first ARN, and the functions that ARNs name.
    by_arn: Option<(Mark, Vec<String>)>,
}

impl ResourceRewriter<'_> {
    fn replace(&mut self, state: &mut Node, notes: &mut Notes<'_>) {
        if state.entry("function").is_some() {
            return;
        }
        let Some(written) = take(state, "resource") else { return };
        let mark = if written.value.is_blank() { written.mark } else { written.value.mark };
        let function = match function_name(&written, self.namespace) {
            Ok(function) => {
                self.note_spelling(&written, mark, &function, notes);
                function
            }
            Err((rule, message)) => {
                let help =
                    "name a Function, for example `function: price` or `Resource: function:shop/price`";
                let field = if self.is_of_language { "Resource" } else { "resource" };
                notes.mistake(mark, rule, format!("{field}: {message}"), help);
                "not-named".to_owned()
            }
        };
        put(state, entry("function", written.mark, text(mark, &function)));
    }

    fn note_spelling(&mut self, written: &Entry, mark: Mark, function: &str, notes: &mut Notes<'_>) {
        if written.value.text().is_some_and(|text| text.starts_with("arn:")) {
            let (_, functions) = self.by_arn.get_or_insert((mark, Vec::new()));
            if !functions.iter().any(|known| known == function) {
                functions.push(function.to_owned());
            }
        } else if !self.is_of_language {
            notes.older(mark, "resource", &format!("function: {function}"));
        }
    }
}

/// Renames the language's keys to ours; `first` becomes the position of the first renamed key.
fn lower_keys(node: &mut Node, shapes: &Shapes, shape: usize, first: &mut Option<Mark>) {
    match (shapes.get(shape), &mut node.value) {
        (Shape::Record(record), Value::Mapping(_)) => lower_record(node, shapes, record, first),
        (Shape::Tagged(tagged), Value::Mapping(_)) => {
            if let Some(mark) = rename(node, "Type", &tagged.tag) {
                first.get_or_insert(mark);
            }
            let tag = node.entry(&tagged.tag).and_then(|entry| tagged.variant(entry.value.text()?));
            if let Some(Shape::Record(record)) = tag.map(|index| shapes.get(index)) {
                lower_record(node, shapes, record, first);
            }
        }
        (Shape::List(items), Value::Sequence(nodes)) => {
            nodes.iter_mut().for_each(|node| lower_keys(node, shapes, *items, first));
        }
        (Shape::Map(values), Value::Mapping(entries)) => {
            entries.iter_mut().for_each(|entry| lower_keys(&mut entry.value, shapes, *values, first));
        }
        _ => {}
    }
}

fn lower_record(node: &mut Node, shapes: &Shapes, record: &Record, first: &mut Option<Mark>) {
    let Some(entries) = entries_mut(node) else { return };
    let mut there = HashSet::new();
    // Duplicate keys were reported when the text was parsed.
    entries.retain(|entry| there.insert(entry.key.clone()));
    for entry in entries {
        let lower =
            lower_camel_case(&entry.key).filter(|lower| !there.contains(lower) && is_key_of(record, lower));
        if let Some(lower) = lower {
            entry.key.clone_from(&lower);
            there.insert(lower);
            first.get_or_insert(entry.mark);
        }
    }
    for entry in entries_mut(node).into_iter().flatten() {
        // Older names of fields have the shape of the current ones.
        let today = match (record.name.as_str(), entry.key.as_str()) {
            ("MapState", "iterator") => "itemProcessor",
            (_, key) => key,
        };
        if let Some(field) = record.fields.get(today) {
            lower_keys(&mut entry.value, shapes, field.shape, first);
        }
    }
}

/// Converts a key from upper to lower camel case.
fn lower_camel_case(key: &str) -> Option<String> {
    let first = key.chars().next().filter(char::is_ascii_uppercase)?;
    Some(format!("{}{}", first.to_ascii_lowercase(), &key[1..]))
}

fn is_key_of(record: &Record, key: &str) -> bool {
    let of_others = || record.variant.as_ref().is_some_and(|variant| variant.other_fields.contains_key(key));
    let is_not_equals = record.name == "Rule" && key.ends_with("NotEquals");
    record.fields.contains_key(key)
        || unsupported(&record.name, key).is_some()
        || of_others()
        || is_not_equals
        || other_name(&record.name, key).is_some()
}

/// Removes fields that only state the default.
fn drop_defaults(node: &mut Node) {
    for (key, value) in [("queryLanguage", "JSONPath"), ("version", "1.0")] {
        if node.entry(key).and_then(|entry| entry.value.text()) == Some(value) {
            take(node, key);
        }
    }
}

fn map(state: &mut Node, notes: &mut Notes<'_>) {
    for (old, new) in [("iterator", "itemProcessor"), ("parameters", "itemSelector")] {
        if let Some(mark) = rename(state, old, new) {
            notes.older(mark, old, new);
        }
    }
    let Some(processor) = below(state, &["itemProcessor"]) else { return };
    let is_inline = |config: &Node| {
        let word =
            |upper, lower| config.entry(upper).or(config.entry(lower)).and_then(|entry| entry.value.text());
        config.entries().is_some_and(|entries| entries.len() <= 1)
            && word("Mode", "mode").unwrap_or("INLINE") == "INLINE"
    };
    if processor.entry("processorConfig").is_some_and(|entry| is_inline(&entry.value)) {
        take(processor, "processorConfig");
    }
}

/// Returns the function that a resource names: `name`, `function:name`, `function:namespace/name`, or a name of AWS.
fn function_name(
    resource: &Entry,
    namespace: &str,
) -> Result<String, (&'static crate::violation::Rule, String)> {
    if resource.value.is_null() {
        return Err((&rules::MISSING_FIELD, "Required value: the field has no value".to_owned()));
    }
    let Some(text) = resource.value.text() else {
        let message = "CloudFormation references are not supported".to_owned();
        return Err((&rules::WORKFLOW_UNSUPPORTED, message));
    };
    function_from_text(text, namespace)
}

/// Returns the function that the text of a Resource names; `namespace/name` if it is in another namespace.
pub fn function_from_resource(text: &str, namespace: &str) -> Option<String> {
    function_from_text(text, namespace).ok()
}

fn function_from_text(
    text: &str,
    namespace: &str,
) -> Result<String, (&'static crate::violation::Rule, String)> {
    let parts: Vec<&str> = text.split(':').collect();
    let is_alias = |alias: &str| alias == "$LATEST" || names::is_name(alias);
    let wrong = || (&rules::TASK_RESOURCE, format!("`{text}` does not name a function"));
    match parts.as_slice() {
        [name] if names::is_name(name) => Ok((*name).to_owned()),
        ["function", name] => match name.split_once('/') {
            None if names::is_name(name) => Ok((*name).to_owned()),
            Some((other, name)) if names::is_name(other) && names::is_name(name) => {
                Ok(if other == namespace { name.to_owned() } else { format!("{other}/{name}") })
            }
            _ => Err(wrong()),
        },
        ["arn", _, "lambda", _, _, "function", name, alias @ ..] => match alias {
            [] if names::is_name(name) => Ok((*name).to_owned()),
            [alias] if names::is_name(name) && is_alias(alias) => Ok((*name).to_owned()),
            _ => Err(wrong()),
        },
        ["arn", _, service, ..] => {
            let message = format!(
                "`{text}` is not a function but an AWS integration (`{service}`), which Minik8s does not support"
            );
            Err((&rules::WORKFLOW_UNSUPPORTED, message))
        }
        _ => Err(wrong()),
    }
}
