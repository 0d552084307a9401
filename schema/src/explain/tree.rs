//! Tree of all fields below an object, and word wrap.

use std::fmt::Write as _;

use super::fields::SchemaView;

/// Columns per line of prose.
const WIDTH: usize = 96;
/// Levels of a tree: types may be recursive.
const DEPTH_MAX: usize = 16;

/// Renders fields with their types, indented by level. Names a type within itself without expanding it again.
pub(super) fn tree(object: SchemaView<'_>) -> String {
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
pub(super) fn wrapped(text: &str, indent: &str) -> String {
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
