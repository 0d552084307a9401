//! Small operations on the tree of a document, shared by the rewrites. Each keeps the original place.

use super::node::{PlainScalar, resolve};
use crate::manifest::dialects::{Entry, Mark, Node, Value};

/// Returns the value below `keys`, if every step is a mapping with that key.
pub(crate) fn below<'a>(node: &'a mut Node, keys: &[&str]) -> Option<&'a mut Node> {
    let Some((first, rest)) = keys.split_first() else { return Some(node) };
    let next = entries_mut(node)?.iter_mut().find(|entry| entry.key == *first)?;
    below(&mut next.value, rest)
}

/// Returns the entries, if this is a mapping.
pub(crate) fn entries_mut(node: &mut Node) -> Option<&mut Vec<Entry>> {
    match &mut node.value {
        Value::Mapping(entries) => Some(entries),
        _ => None,
    }
}

/// Returns the items, if this is a list.
pub(crate) fn items_mut(node: &mut Node) -> Option<&mut Vec<Node>> {
    match &mut node.value {
        Value::Sequence(items) => Some(items),
        _ => None,
    }
}

/// Removes the entry `key` from a mapping and returns it.
pub(crate) fn take(node: &mut Node, key: &str) -> Option<Entry> {
    let entries = entries_mut(node)?;
    let index = entries.iter().position(|entry| entry.key == key)?;
    Some(entries.remove(index))
}

/// Appends an entry to a mapping. An existing entry of the same key stays, and the new one is dropped: today's
/// spelling wins.
pub(crate) fn put(node: &mut Node, entry: Entry) {
    if node.entry(&entry.key).is_none()
        && let Some(entries) = entries_mut(node)
    {
        entries.push(entry);
    }
}

/// Renames the entry `old` of a mapping to `new`, in place; returns the mark of the key. Does nothing if `new`
/// exists as well: then `old` stays and is reported as unknown.
pub(crate) fn rename(node: &mut Node, old: &str, new: &str) -> Option<Mark> {
    if node.entry(new).is_some() {
        return None;
    }
    let entry = entries_mut(node)?.iter_mut().find(|entry| entry.key == old)?;
    entry.key = new.to_owned();
    Some(entry.mark)
}

/// Builds an entry with its key at `mark`.
pub(crate) fn entry(key: &str, mark: Mark, value: Node) -> Entry {
    Entry { key: key.to_owned(), mark, value }
}

/// Builds a text, as if in quotes.
pub(crate) fn text(mark: Mark, text: &str) -> Node {
    Node { mark, value: Value::Scalar { text: text.to_owned(), plain: false } }
}

/// Builds a plain scalar: a number, `true`, `null`.
pub(crate) fn plain(mark: Mark, value: impl ToString + Copy) -> Node {
    Node { mark, value: Value::Scalar { text: value.to_string(), plain: true } }
}

/// Builds a mapping with all keys at `mark`.
pub(crate) fn mapping<const N: usize>(mark: Mark, entries: [(&str, Node); N]) -> Node {
    let entries = entries.into_iter().map(|(key, value)| entry(key, mark, value)).collect();
    Node { mark, value: Value::Mapping(entries) }
}

pub(crate) fn list(mark: Mark, items: Vec<Node>) -> Node {
    Node { mark, value: Value::Sequence(items) }
}

/// Returns the number in a scalar. Numbers in quotes count as well: older tools read both.
pub(crate) fn number(node: &Node) -> Option<f64> {
    let text = node.text()?;
    match resolve(text) {
        PlainScalar::Integer(_) | PlainScalar::Float => {
            text.parse().ok().filter(|number: &f64| number.is_finite())
        }
        _ => None,
    }
}
