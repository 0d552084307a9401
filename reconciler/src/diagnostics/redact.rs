//! Redacts values that may be secret from a line of a manifest. Pure.
//!
//! Reads the line and those above, as far as their indentation tells its parents: the file may be broken, so there
//! may be no document. Everything below `env` or `args` is hidden, whatever it looks like.

use std::borrow::Cow;

use schema::secrets::{
    has_states, is_pass_state_name, is_secret_field, is_secret_mapping, is_secret_name, is_secret_text,
};

const HIDDEN: &str = "(hidden)";
/// Maximum number of lines searched upward; a line deeper in a list is hidden.
const LINES_UP_MAX: usize = 500;
const HEAD_BYTES: usize = 400;

/// Returns line `index`, without its values if one may be a secret by its form, its name, or a field above it.
pub(super) fn redacted<'a>(lines: &[&'a str], index: usize) -> Cow<'a, str> {
    let line = lines[index];
    let is_secret = is_secret_text(line)
        || words(line).any(|word| is_secret_name(word) && !is_pass_state_name(word))
        || keys(line).any(is_secret_key)
        || is_below_secret(lines, index);
    if is_secret { keys_only(line) } else { Cow::Borrowed(line) }
}

/// True if a field above the line may hold secrets, such as `env` and `args`.
fn is_below_secret(lines: &[&str], index: usize) -> bool {
    let (mut indent, mut is_item) = place(lines[index]);
    // The name of a field hides its content, unless the field turns out to be a state.
    let mut may_be_state = false;
    for (far, line) in lines[..index].iter().rev().enumerate() {
        let (at, item) = place(line);
        // `env:` may be right above `- name`, at the same column.
        let is_above = at < indent || at == indent && is_item && !item;
        if line.trim().is_empty() || line.trim_start().starts_with('#') || !is_above {
            continue;
        }
        let opened = mapping_key(head(line));
        if may_be_state && !opened.is_some_and(has_states) {
            return true;
        }
        let is_secret = keys(head(line)).any(is_secret_key);
        may_be_state = is_secret && !is_item && opened.is_some();
        if far >= LINES_UP_MAX || is_secret && !may_be_state {
            return true;
        }
        (indent, is_item) = (at, item);
        if at == 0 && !item {
            break;
        }
    }
    may_be_state
}

/// The key of a line whose value is below it.
fn mapping_key(line: &str) -> Option<&str> {
    let mut keys = keys(line);
    let (key, behind) = keys.next()?;
    let is_alone = matches!(behind.trim(), "" | "{")
        && line.trim_start().trim_start_matches(['"', '{']).starts_with(key);
    is_alone.then_some(key)
}

/// Words of a line, without quotes, brackets and trailing colons.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let parts =
        line.split(|c: char| c.is_whitespace() || matches!(c, '{' | '}' | '[' | ']' | ',' | '"' | '\''));
    parts.map(|part| part.trim_end_matches(':')).filter(|part| !part.is_empty())
}

/// Indentation of the line, and true if it begins an item.
fn place(line: &str) -> (usize, bool) {
    let text = line.trim_start();
    (line.len() - text.len(), text == "-" || text.starts_with("- "))
}

fn head(line: &str) -> &str {
    let end = (0..=HEAD_BYTES.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
    &line[..end.unwrap_or(0)]
}

/// Words followed by a colon, each with the rest of its line.
fn keys(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut from = 0;
    line.split([' ', '\t', '{', '}', '[', ']', ',']).filter_map(move |part| {
        let begin = from;
        // Every separator is one byte.
        from += part.len() + 1;
        let (key, _) = part.split_once(':')?;
        Some((key.trim_matches(['"', '\'']), &line[begin + key.len() + 1..]))
    })
}

/// True if the value of the key may be a secret.
fn is_secret_key((key, behind): (&str, &str)) -> bool {
    match behind.trim_start() {
        "" => is_secret_mapping(key),
        value if value.starts_with('{') => is_secret_mapping(key),
        _ => is_secret_field(key),
    }
}

/// The line up to the end of its first key; a `name` is shown with its value.
fn keys_only(line: &str) -> Cow<'_, str> {
    let start = line.len() - line.trim_start_matches([' ', '\t', '-']).len();
    let (before, text) = line.split_at(start);
    let is_key = |key: &str| {
        let key = key.trim_matches(['"', '\'']);
        !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
    };
    let Some((key, rest)) = text.split_once(':').filter(|(key, _)| is_key(key)) else {
        return Cow::Owned(format!("{before}{HIDDEN}"));
    };
    let value = rest.trim_start();
    let is_name = key == "name" && !value.contains([',', ':', '}']) && !is_secret_text(value);
    if is_name || matches!(value, "" | "|" | "|-" | ">" | ">-" | "{" | "[") {
        return Cow::Borrowed(line);
    }
    let blank = &rest[..rest.len() - value.len()];
    if blank.is_empty() && !key.ends_with('"') {
        return Cow::Owned(format!("{before}{HIDDEN}"));
    }
    Cow::Owned(format!("{before}{key}:{blank}{HIDDEN}"))
}
