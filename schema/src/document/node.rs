//! Tree of a document in which every key and value knows its line and column.

use super::limits::{KEY_MAX_CHARS, NODES_MAX, TEXT_MAX_BYTES};
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

/// Advice about a file that can't be read.
pub(crate) const IGNORE_HELP: &str = "if the file is not a manifest, list it in `.minik8signore`";

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

// Meaning of a plain YAML scalar: YAML 1.2's core schema, and the words of 1.1 that Kubernetes' own parser still
// reads as booleans.

/// Meaning of a scalar without quotes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PlainScalar {
    Null,
    Bool(bool),
    /// `yes`, `off` and so on: a boolean in YAML 1.1, text in 1.2.
    OldBool(bool),
    Integer(i128),
    /// `0644`: octal in YAML 1.1, decimal in 1.2.
    LeadingZero,
    /// A fraction, an exponent, or an integer beyond 128 bits.
    Float,
    Text,
}

/// Resolves a plain scalar to its meaning.
pub(crate) fn resolve(text: &str) -> PlainScalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return PlainScalar::Null,
        "true" | "True" | "TRUE" => return PlainScalar::Bool(true),
        "false" | "False" | "FALSE" => return PlainScalar::Bool(false),
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => return PlainScalar::OldBool(true),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => return PlainScalar::OldBool(false),
        _ => {}
    }
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(octal) = text.strip_prefix("0o") {
        return i128::from_str_radix(octal, 8).map_or(PlainScalar::Text, PlainScalar::Integer);
    }
    if let Some(hexadecimal) = text.strip_prefix("0x") {
        return i128::from_str_radix(hexadecimal, 16).map_or(PlainScalar::Text, PlainScalar::Integer);
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        if digits.len() > 1 && digits.starts_with('0') {
            return PlainScalar::LeadingZero;
        }
        return digits.parse::<i128>().map_or(PlainScalar::Float, |number| {
            PlainScalar::Integer(if negative { -number } else { number })
        });
    }
    if is_float(digits) { PlainScalar::Float } else { PlainScalar::Text }
}

/// True for `[0-9]+(\.[0-9]*)?` or `\.[0-9]+`, then an exponent; or `.inf`, `.nan`.
fn is_float(text: &str) -> bool {
    if matches!(text, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let exponent_fits = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !digits.is_empty() && is_digits(digits)
    });
    is_digits(whole) && is_digits(fraction) && whole.len() + fraction.len() > 0 && exponent_fits
}

// Size limit of a file: one account for all that is read from it, with aliases expanded and with the manifests
// that are embedded as text.

/// Size of a value, all of its parts counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) values: usize,
    pub(crate) bytes: usize,
}

impl Size {
    /// Size of a list or a mapping without its parts.
    pub(crate) const EMPTY: Size = Size { values: 1, bytes: 0 };

    /// Returns the size of a scalar.
    pub(crate) fn of_text(text: &str) -> Self {
        Size { values: 1, bytes: text.len() }
    }

    pub(crate) fn add(&mut self, other: Size) {
        self.values = self.values.saturating_add(other.values);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Remaining size that a file may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    left: Size,
}

impl Budget {
    /// Returns the budget of a file before anything is read.
    pub(crate) fn for_file() -> Self {
        Budget { left: Size { values: NODES_MAX, bytes: TEXT_MAX_BYTES } }
    }

    /// Deducts `size` for a value at `mark`, before it is built.
    pub(crate) fn spend(&mut self, size: Size, mark: Mark) -> Result<(), Problem> {
        let left = (self.left.values.checked_sub(size.values), self.left.bytes.checked_sub(size.bytes));
        let what = match left {
            (Some(values), Some(bytes)) => {
                self.left = Size { values, bytes };
                return Ok(());
            }
            (None, _) => format!("{NODES_MAX} values"),
            (_, None) => format!("{TEXT_MAX_BYTES} bytes of text"),
        };
        Err(Problem::new(mark, &rules::TOO_MANY_NODES, format!("the file holds more than {what}"))
            .help("each use of an alias counts; split or shorten the file"))
    }
}

/// Parsed content of a file.
#[derive(Debug)]
pub(crate) struct ParsedFile {
    pub(crate) roots: Vec<Root>,
    /// Problem that kept the rest of the file from being read.
    pub(crate) failure: Option<Problem>,
    /// Remaining budget of the file.
    pub(crate) left: Budget,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_yaml_1_2_says() {
        for (text, meaning) in [
            ("", PlainScalar::Null),
            ("~", PlainScalar::Null),
            ("True", PlainScalar::Bool(true)),
            ("no", PlainScalar::OldBool(false)),
            ("80", PlainScalar::Integer(80)),
            ("-1", PlainScalar::Integer(-1)),
            ("0x1F", PlainScalar::Integer(31)),
            ("0o17", PlainScalar::Integer(15)),
            ("0644", PlainScalar::LeadingZero),
            ("0", PlainScalar::Integer(0)),
            ("1.10", PlainScalar::Float),
            (".5", PlainScalar::Float),
            ("1e3", PlainScalar::Float),
            (".", PlainScalar::Text),
            ("1.2.3", PlainScalar::Text),
            ("500m", PlainScalar::Text),
            ("1:30", PlainScalar::Text),
            ("e3", PlainScalar::Text),
            ("-", PlainScalar::Text),
        ] {
            assert_eq!(resolve(text), meaning, "{text:?}");
        }
    }
}
