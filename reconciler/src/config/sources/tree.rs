//! The text of a list of sources as a tree in which every value knows its line. Pure.
//!
//! Not serde, which stops at the first mistake and reports it in words of Rust.

use saphyr_parser::{Event, Parser};

/// What is wrong where; line 0: the file as a whole.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) why: String,
    pub(super) help: String,
}

impl Wrong {
    pub(super) fn new(line: usize, why: impl Into<String>, help: impl Into<String>) -> Self {
        Self { line, why: why.into(), help: help.into() }
    }

    /// It is about this field of `who`.
    pub(super) fn is_of(&self, who: &str, field: &str) -> bool {
        self.why.strip_prefix(who).is_some_and(|rest| rest.starts_with(&format!(": {field} ")))
    }
}

pub(super) const HELP: &str = "see docs/operations.md, \"Repositories and credentials\"";

/// A list of sources holds maps, and these one more map.
const DEPTH_MAX: usize = 8;

/// A value and the line it begins in, from 1.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Nothing,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Value {
    /// What it is, for a message.
    pub(super) fn described(&self) -> &'static str {
        match self {
            Value::Nothing => "nothing",
            Value::Text(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// A list or map that is not at its end yet.
struct Open {
    line: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    /// With the key that waits for its value, and its line.
    Map(Vec<(String, Node)>, Option<(String, usize)>),
}

/// The tree of the only document; nothing at all is `Nothing`.
pub(super) fn read(text: &str) -> Result<Node, Wrong> {
    let (mut open, mut root): (Vec<Open>, Option<Node>) = (Vec::new(), None);
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let help = "see that lines of one map begin in the same column, and that quotes and brackets end";
            Wrong::new(error.marker().line(), format!("is no YAML: {}", error.info()), help)
        })?;
        let line = span.start.line();
        let ended = match event {
            Event::DocumentStart(_) if root.is_some() => {
                return Err(Wrong::new(line, "a second document begins", "write all sources as one list"));
            }
            Event::Alias(_) => {
                return Err(Wrong::new(line, "an alias stands for a value", "write the value itself"));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= DEPTH_MAX => {
                return Err(Wrong::new(line, "is nested too deep for a list of sources", HELP));
            }
            Event::SequenceStart(..) => {
                open.push(Open { line, items: Items::List(Vec::new()) });
                None
            }
            Event::MappingStart(..) => {
                open.push(Open { line, items: Items::Map(Vec::new(), None) });
                None
            }
            Event::Scalar(text, style, ..) => {
                let is_nothing = style == saphyr_parser::ScalarStyle::Plain
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if is_nothing { Value::Nothing } else { Value::Text(text.into_owned()) };
                Some(Node { line, value })
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(closed),
            _ => None,
        };
        let Some(node) = ended else { continue };
        match open.last_mut().map(|open| &mut open.items) {
            None => root = Some(node),
            Some(Items::List(items)) => items.push(node),
            Some(Items::Map(entries, key)) => match (key.take(), node.value) {
                (Some((key, line)), value) => {
                    // A block that is indented begins after its key: the key's line is where one looks.
                    let line = if matches!(value, Value::Map(_)) { node.line } else { line };
                    entries.push((key, Node { line, value }));
                }
                (None, Value::Text(text)) => *key = Some((text, node.line)),
                (None, _) => return Err(Wrong::new(node.line, "a key is no word", HELP)),
            },
        }
    }
    Ok(root.unwrap_or(Node { line: 0, value: Value::Nothing }))
}

fn closed(Open { line, items }: Open) -> Node {
    let value = match items {
        Items::List(items) => Value::List(items),
        Items::Map(entries, _) => Value::Map(entries),
    };
    Node { line, value }
}
