//! Wording of the walk's messages.

use super::{Shape, Shapes};
use crate::document::node::{Mark, Node, PlainScalar, Value, resolve};
use crate::secrets::is_secret_text;
use crate::violation::Path;

/// Position of the walk: the path, and the place to show for it.
#[derive(Clone, Copy)]
pub(crate) struct WalkPosition<'a> {
    pub(crate) path: &'a Path<'a>,
    pub(crate) mark: Mark,
}

/// Returns the place to show for a value: its key's if the value is not written.
pub(super) fn mark_to_show(node: &Node, here: WalkPosition<'_>) -> Mark {
    if node.is_blank() { here.mark } else { node.mark }
}

/// Describes the wanted type.
pub(super) fn describe_wanted(shapes: &Shapes, shape: usize) -> &'static str {
    match shapes.get(shape) {
        Shape::Text | Shape::OneOf(_) => "text",
        Shape::TextOrList(_) => "text or a list",
        Shape::NullableText => "text or null",
        Shape::Number(_) => "a number",
        Shape::Any => "a value",
        Shape::Bool => "`true` or `false`",
        Shape::Integer(_) | Shape::FileMode => "an integer",
        Shape::IntegerOrText(range) if range.max > i128::from(u16::MAX) => "an integer or text",
        Shape::IntegerOrText(_) => "a port's number or name",
        Shape::Cpu | Shape::Memory | Shape::Count => "a quantity",
        Shape::List(_) => "a list",
        Shape::Map(_) | Shape::Record(_) | Shape::Tagged(_) => "a mapping",
    }
}

/// Describes the value found. `hidden`: its place may hold a secret.
pub(crate) fn describe_found(node: &Node, hidden: bool) -> String {
    let Value::Scalar { text, plain } = &node.value else {
        return if node.entries().is_some() { "a mapping" } else { "a list" }.to_owned();
    };
    let hidden = hidden || is_secret_text(text);
    let meaning = if *plain { resolve(text) } else { PlainScalar::Text };
    match meaning {
        PlainScalar::Null => "null".to_owned(),
        PlainScalar::Bool(_) if hidden => "a boolean".to_owned(),
        PlainScalar::Integer(_) | PlainScalar::Float | PlainScalar::LeadingZero if hidden => {
            "a number".to_owned()
        }
        PlainScalar::Text | PlainScalar::OldBool(_) if hidden => "text that is not shown".to_owned(),
        PlainScalar::Bool(_) => format!("the boolean `{text}`"),
        PlainScalar::Integer(_) | PlainScalar::Float | PlainScalar::LeadingZero => {
            format!("the number `{}`", shortened(text))
        }
        PlainScalar::Text | PlainScalar::OldBool(_) if *plain => format!("the text `{}`", shortened(text)),
        PlainScalar::Text | PlainScalar::OldBool(_) => format!("the text \"{}\"", shortened(text)),
    }
}

/// Suggests what to write instead. `hidden`: the value's place may hold a secret.
pub(super) fn type_help(shape: &Shape, node: &Node, hidden: bool) -> String {
    let Value::Scalar { text, plain } = &node.value else {
        return match (shape, &node.value) {
            (Shape::List(_), Value::Mapping(_)) => "begin each item with `- `".to_owned(),
            (Shape::Record(_) | Shape::Map(_) | Shape::Tagged(_), Value::Sequence(_)) => {
                "leave out the `- `".to_owned()
            }
            _ => String::new(),
        };
    };
    let hidden = hidden || is_secret_text(text);
    match (shape, resolve(text), *plain) {
        (Shape::Text, PlainScalar::Null, _) => "write \"\" for empty text".to_owned(),
        (Shape::Text | Shape::TextOrList(_) | Shape::NullableText, _, true) if hidden => {
            "write it in quotes".to_owned()
        }
        (Shape::Text | Shape::TextOrList(_) | Shape::NullableText, _, true) => {
            format!("write \"{text}\" in quotes")
        }
        (Shape::Bool, PlainScalar::Bool(value) | PlainScalar::OldBool(value), _) => {
            format!("write {value} without quotes")
        }
        (
            Shape::Integer(_) | Shape::IntegerOrText(_) | Shape::Number(_),
            PlainScalar::Integer(_) | PlainScalar::Float,
            false,
        ) if hidden => "write it without quotes".to_owned(),
        (
            Shape::Integer(_) | Shape::IntegerOrText(_) | Shape::Number(_),
            PlainScalar::Integer(number),
            false,
        ) => {
            format!("write {number} without quotes")
        }
        (Shape::Number(_), PlainScalar::Float, false) => format!("write {text} without quotes"),
        (_, PlainScalar::LeadingZero, true) if hidden => {
            "a leading zero makes it octal in older YAML and decimal in newer: write it without, or with 0o"
                .to_owned()
        }
        (_, PlainScalar::LeadingZero, true) => {
            format!(
                "a leading zero makes it octal in older YAML and decimal in newer: write {} or 0o{}",
                text.trim_start_matches('0'),
                text.trim_start_matches('0')
            )
        }
        _ => String::new(),
    }
}

fn shortened(text: &str) -> String {
    // Enough to recognize the value, short enough for one line of a terminal.
    const SHOWN: usize = 40;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= SHOWN && line.len() == text.trim_end().len() {
        return line.to_owned();
    }
    format!("{}…", line.chars().take(SHOWN).collect::<String>())
}

/// Formats names as `Task, Parallel and Map`.
pub(super) fn list_of_states(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
