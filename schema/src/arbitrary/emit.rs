//! Writes JSON as YAML, in block or flow style at random: the style must never matter.

use serde_json::Value as Json;

use super::Chance;

/// Writes a value as one document.
pub(super) fn yaml(value: &Json, chance: &mut Chance) -> String {
    let mut text = String::new();
    block(value, 0, chance, &mut text);
    text
}

fn block(value: &Json, indent: usize, chance: &mut Chance, text: &mut String) {
    let space = " ".repeat(indent);
    match value {
        Json::Object(fields) => {
            for (key, value) in fields {
                text.push_str(&format!("{space}{}:", word(key)));
                below(value, indent, chance, text);
            }
        }
        Json::Array(items) => {
            for item in items {
                text.push_str(&format!("{space}-"));
                below(item, indent, chance, text);
            }
        }
        scalar => text.push_str(&format!("{space}{scalar}\n")),
    }
}

/// Writes the value after a key or a dash.
fn below(value: &Json, indent: usize, chance: &mut Chance, text: &mut String) {
    let is_empty = match value {
        Json::Object(fields) => fields.is_empty(),
        Json::Array(items) => items.is_empty(),
        _ => true,
    };
    // The envelope stays in block style: a document needs a line for each of its top-level keys.
    if is_empty || (indent > 0 && chance.one_in(3)) {
        // One-line JSON is YAML.
        text.push_str(&format!(" {value}\n"));
    } else {
        text.push('\n');
        block(value, indent + 2, chance, text);
    }
}

/// Writes a key, quoted only where necessary.
fn word(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { key.to_owned() } else { Json::from(key).to_string() }
}
