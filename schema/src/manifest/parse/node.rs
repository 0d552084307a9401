//! Tree of a document in which every key and value knows its line and column.

use super::limits::KEY_MAX_CHARS;
use crate::violation::{OwnedStep, Rule, rules};

/// A place in a file: line and column, both from 1, the column in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A value and its start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) mark: Mark,
    pub(crate) value: Value,
}

/// Content of a node. Scalars keep their text: only the schema knows whether `1.10` is wanted as text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// `plain`: without quotes and not a block of text, so possibly a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) mark: Mark,
    pub(crate) value: Node,
}

/// A problem at a place of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) mark: Mark,
    pub(crate) rule: &'static Rule,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl Problem {
    pub(crate) fn new(mark: Mark, rule: &'static Rule, message: impl Into<String>) -> Self {
        Self { mark, rule, message: message.into(), help: String::new() }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

/// A document of a file, with the problems of its text that did not keep it from being read. Those problems count
/// only if the document is a manifest: other files may use tags as they like.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) node: Node,
    pub(crate) problems: Vec<Problem>,
}

/// Truncates a key that is too long for any manifest: every message about something below it names it.
pub(crate) fn cut_key(key: &mut String, mark: Mark, problems: &mut Vec<Problem>) {
    let Some((end, _)) = key.char_indices().nth(KEY_MAX_CHARS) else { return };
    key.truncate(end);
    let message = format!("a key has more than {KEY_MAX_CHARS} characters");
    problems.push(Problem::new(mark, &rules::TOO_LARGE, message));
}

impl Node {
    /// Returns the entries, if this is a mapping.
    pub(crate) fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Mapping(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns the entry under `key`, if this is a mapping that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries()?.iter().find(|entry| entry.key == key)
    }

    /// Returns the text, if this is a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// True for null, written or left out.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// True if nothing is written here at all.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if text.is_empty())
    }

    /// Returns the first key's place, or the value's own.
    pub(crate) fn first_mark(&self) -> Mark {
        self.entries().and_then(|entries| entries.first()).map_or(self.mark, |entry| entry.mark)
    }

    /// Returns the place of the value at `steps`, or of its key; the nearest written place if it is absent.
    pub(crate) fn locate(&self, steps: &[OwnedStep], on_key: bool) -> Mark {
        let (mut node, mut key_mark) = (self, self.first_mark());
        for step in steps {
            let below = match (step, &node.value) {
                (OwnedStep::Field(name), _) => node.entry(name).map(|entry| (&entry.value, entry.mark)),
                (OwnedStep::Index(index), Value::Sequence(items)) => {
                    items.get(*index).map(|item| (item, item.mark))
                }
                (OwnedStep::Index(_), _) => None,
            };
            match below {
                Some((value, mark)) => (node, key_mark) = (value, mark),
                // The value was a default: show the nearest thing that is written.
                None => return key_mark,
            }
        }
        // A value that is not written, or that starts on a later line, is best shown by its key.
        let shows_key = on_key || node.is_blank() || !matches!(node.value, Value::Scalar { .. });
        if shows_key { key_mark } else { node.mark }
    }
}
