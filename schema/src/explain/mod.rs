//! Explains a kind or a field as text: `minik8s explain pod.spec.containers`. Pure.
//!
//! Reads the kind's JSON Schema, so the text can't differ from what the loader does.

mod fields;
mod page;

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::document::nearest::{list, nearest};
use crate::kinds::Kind;
use crate::kinds::workflow::{SPELLINGS, Spelling};
use crate::manifest::{json_schema, unsupported};
use fields::{Field, SchemaView};

pub use page::{is_known_field, kubernetes_page, manifests_page};

/// Error for an unknown kind or field, with a suggestion.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExplainError(String);

/// Finds a kind by name, short name or plural, in any case.
pub fn kind_named(word: &str) -> Result<Kind, ExplainError> {
    let typed = word.to_ascii_lowercase();
    if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.names().any(|name| name == typed)) {
        return Ok(kind);
    }
    if let Some((kind, advice)) = unsupported::kind_help(word) {
        return Err(ExplainError(format!("`{kind}` of Kubernetes does not run here: {advice}")));
    }
    let all = || Kind::ALL.into_iter().map(Kind::as_str);
    let help = match nearest(word, all()) {
        Some(name) => format!("did you mean `{}`?", name.to_ascii_lowercase()),
        None => format!("kinds are {}", list(all())),
    };
    Err(ExplainError(format!("unknown kind `{word}`; {help}")))
}

/// Explains a path such as `pod.spec.containers`; with `recursive`, lists all fields below as a tree.
pub fn explain(path: &str, recursive: bool) -> Result<String, ExplainError> {
    let (word, fields) = path.split_once('.').unwrap_or((path, ""));
    let kind = kind_named(word)?;
    let page = explain_in(&json_schema::for_kind(kind), kind, fields, recursive)?;
    let word = word.to_ascii_lowercase();
    let foreign = match word.as_str() {
        "rc" => "ReplicationController",
        _ if word.starts_with("replicationc") => "ReplicationController",
        _ if word.starts_with("deploy") => "Deployment",
        _ => return Ok(page),
    };
    Ok(format!("A {foreign} is read as a {kind}.\n\n{page}"))
}

fn explain_in(schema: &Json, kind: Kind, fields: &str, recursive: bool) -> Result<String, ExplainError> {
    let (mut shape, mut field, mut at) = (SchemaView::root(schema), None, kind.as_str().to_lowercase());
    let mut words =
        fields.split('.').map(|word| word.split('[').next().unwrap_or(word)).filter(|word| !word.is_empty());
    while let Some(mut word) = words.next() {
        let Some((object, is_map)) = shape.object() else {
            let type_name = shape.type_name();
            return Err(ExplainError(format!("`{at}` is a value of type {type_name}: it has no fields")));
        };
        let known = object.fields();
        // Below a map, the path may name a key or skip it.
        if is_map && !known.iter().any(|field| field.name.eq_ignore_ascii_case(word)) {
            at = format!("{at}.{word}");
            let Some(next) = words.next() else {
                shape = object;
                break;
            };
            word = next;
        }
        let found = known.iter().find(|field| field.name == word);
        let found = found.or_else(|| known.iter().find(|field| field.name.eq_ignore_ascii_case(word)));
        let Some(found) = found else {
            let names = || known.iter().map(|field| field.name);
            let help = match nearest(word, names()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("known: {}", list(names())),
            };
            return Err(ExplainError(format!("`{at}` has no field `{word}`; {help}")));
        };
        at = format!("{at}.{}", found.name);
        shape = found.shape;
        field = Some(found.clone());
    }
    let below = at.split_once('.').map(|(_, below)| below.to_owned());
    Ok(page_of(kind, below.as_deref(), field.as_ref(), shape, recursive))
}

fn page_of(
    kind: Kind,
    at: Option<&str>,
    field: Option<&Field<'_>>,
    shape: SchemaView<'_>,
    recursive: bool,
) -> String {
    let mut text = format!("KIND:        {kind}\nAPI VERSION: {}\n", kind.api_version());
    if let Some(at) = at {
        let required = field.filter(|field| field.required).map_or("", |_| " required");
        let _ = writeln!(text, "FIELD:       {at} <{}>{required}", shape.type_name());
    }
    if let Some(default) = shape.default() {
        let _ = writeln!(text, "DEFAULT:     {default}");
    }
    let _ = write!(text, "\n{}", wrapped(shape.description(), ""));
    let values = shape.values();
    if !values.is_empty() {
        text.push_str("\nVALUES:\n");
        for (word, meaning) in values {
            let _ = writeln!(text, "{}", format!("  {word:<20} {meaning}").trim_end());
        }
    }
    let Some((object, _)) = shape.object() else { return text };
    text.push_str("\nFIELDS:\n");
    if recursive {
        text.push_str(&tree(object));
        return text;
    }
    for field in object.fields() {
        let required = if field.required { " required" } else { "" };
        let default = field.shape.default().map(|default| format!(", default {default}")).unwrap_or_default();
        let _ = writeln!(text, "  {} <{}>{required}{default}", field.name, field.shape.type_name());
        text.push_str(&wrapped(&field_description(&field), "      "));
    }
    for Spelling { title, what, example } in spellings(kind).iter().filter(|_| at.is_none()) {
        let _ = write!(text, "\nOTHER SPELLING: {title}\n{}\n", wrapped(what, "  "));
        example.lines().for_each(|line| {
            let _ = writeln!(text, "    {line}");
        });
    }
    text
}

/// Returns the other spellings to show for a kind.
fn spellings(kind: Kind) -> &'static [Spelling] {
    if kind == Kind::Workflow { SPELLINGS } else { &[] }
}

/// Returns the field's description with its allowed words.
fn field_description(field: &Field<'_>) -> String {
    let mut text = field.shape.description().to_owned();
    let mut values: Vec<&str> = field.shape.values().into_iter().map(|(word, _)| word).collect();
    if !field.variant_names.is_empty() {
        (text, values) = ("The type.".to_owned(), field.variant_names.clone());
    }
    if values.len() > 1 {
        let _ = write!(text, " One of {}.", values.join(", "));
    }
    if !field.only_in.is_empty() {
        let _ = write!(text, " Only for {}.", field.only_in.join(", "));
    }
    text
}

// Tree of all fields below an object, and word wrap.

/// Columns per line of prose.
const WIDTH: usize = 96;
/// Levels of a tree: types may be recursive.
const DEPTH_MAX: usize = 16;

/// Renders fields with their types, indented by level. Names a type within itself without expanding it again.
fn tree(object: SchemaView<'_>) -> String {
    let mut text = String::new();
    branch(object, &mut Vec::new(), &mut text);
    text
}

fn branch<'a>(object: SchemaView<'a>, above: &mut Vec<&'a str>, text: &mut String) {
    let name = object.object_name().unwrap_or_default();
    if above.len() >= DEPTH_MAX || (!name.is_empty() && above.contains(&name)) {
        return;
    }
    above.push(name);
    for field in object.fields() {
        let required = if field.required { " required" } else { "" };
        let indent = "  ".repeat(above.len());
        let _ = writeln!(text, "{indent}{} <{}>{required}", field.name, field.shape.type_name());
        if let Some((below, _)) = field.shape.object() {
            branch(below, above, text);
        }
    }
    above.pop();
}

/// Wraps text into lines of at most [`WIDTH`] columns behind `indent`; empty for empty text.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(lines, "{indent}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        let _ = writeln!(lines, "{indent}{line}");
    }
    lines
}

#[cfg(test)]
mod tests;
