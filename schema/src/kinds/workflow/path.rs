//! Bounded parser for the JSONPaths of workflows.
//!
//! Not the crate `serde_json_path`: it implements RFC 9535, in which `$.input-foo` is not a path, but state
//! machines are full of such names. Filters, `..` and unions are not supported: a function does better where a run
//! needs them.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum length of a path in bytes, which bounds its steps too. Real paths have under ten steps.
const PATH_MAX_BYTES: usize = 1024;

/// A path into a state's data, or into the run's data about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    /// Root of the path.
    pub root: PathRoot,
    /// Steps from the root.
    pub segments: Vec<Segment>,
}

/// Root of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathRoot {
    /// `$`: the state's input.
    Data,
    /// `$$`: the context object, with `$$.Execution.Id`, `$$.State.Name`, `$$.Map.Item.Value` and so on.
    Context,
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// `.name` or `['name']`.
    Name(String),
    /// `[3]`; from the end if negative.
    Index(i64),
    /// `[1:3]`, `[1:]`, `[:3]`: a part of a list; yields a list.
    Slice(Option<i64>, Option<i64>),
    /// `[*]` or `.*`: each item of a list, or each value of an object; yields a list.
    Wildcard,
}

/// Error for text that is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The text does not begin like a path.
    #[error("a path begins with `$`")]
    NoRoot,
    /// An intrinsic function.
    #[error("an intrinsic function is not a path")]
    Intrinsic,
    /// An unsupported part of JSONPath.
    #[error("{0} are not supported in paths")]
    Unsupported(&'static str),
    /// A syntax error at a character, counted from 1.
    #[error("expected {wanted} at character {at}")]
    Syntax {
        /// Expected text.
        wanted: &'static str,
        /// Position of the error.
        at: usize,
    },
    /// The path is too long.
    #[error("the path is longer than {PATH_MAX_BYTES} bytes")]
    TooLong,
}

impl JsonPath {
    /// Parses a path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > PATH_MAX_BYTES {
            return Err(PathError::TooLong);
        }
        if text.starts_with("States.") {
            return Err(PathError::Intrinsic);
        }
        let (root, rest) = match (text.strip_prefix("$$"), text.strip_prefix('$')) {
            (Some(rest), _) => (PathRoot::Context, rest),
            (None, Some(rest)) => (PathRoot::Data, rest),
            (None, None) => return Err(PathError::NoRoot),
        };
        let mut reader = Reader { text, rest };
        let mut segments = Vec::new();
        while !reader.rest.is_empty() {
            segments.push(reader.segment()?);
        }
        Ok(Self { root, segments })
    }

    /// Returns the path of a field of the data.
    pub fn from_field(name: &str) -> Self {
        Self { root: PathRoot::Data, segments: vec![Segment::Name(name.to_owned())] }
    }

    /// True if the path leads to at most one place: only such a place of the state's data can be written to.
    pub fn is_reference(&self) -> bool {
        let is_single = |segment: &Segment| match segment {
            Segment::Name(_) => true,
            Segment::Index(index) => *index >= 0,
            Segment::Slice(..) | Segment::Wildcard => false,
        };
        self.segments.iter().all(is_single)
    }
}

/// A text and its unread rest.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) rest: &'a str,
}

impl<'a> Reader<'a> {
    pub(super) fn syntax_error(&self, wanted: &'static str) -> PathError {
        let before = &self.text[..self.text.len() - self.rest.len()];
        PathError::Syntax { wanted, at: before.chars().count() + 1 }
    }

    pub(super) fn eat(&mut self, prefix: char) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes the next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> &'a str {
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        word
    }

    fn segment(&mut self) -> Result<Segment, PathError> {
        if self.eat('.') {
            if self.rest.starts_with('.') {
                return Err(PathError::Unsupported("`..` steps"));
            }
            if self.eat('*') {
                return Ok(Segment::Wildcard);
            }
            let name = self.until(|c| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '$' | '@')));
            return match name {
                "" => Err(self.syntax_error("a name")),
                name => Ok(Segment::Name(name.to_owned())),
            };
        }
        if !self.eat('[') {
            return Err(self.syntax_error("`.` or `[`"));
        }
        let segment = match self.rest.chars().next() {
            Some(quote @ ('\'' | '"')) => Segment::Name(self.quoted(quote)?),
            Some('*') => {
                self.eat('*');
                Segment::Wildcard
            }
            Some('?' | '(') => return Err(PathError::Unsupported("filters")),
            _ => self.index()?,
        };
        if self.rest.starts_with(',') {
            return Err(PathError::Unsupported("unions"));
        }
        if self.eat(']') { Ok(segment) } else { Err(self.syntax_error("`]`")) }
    }

    fn until(&mut self, is_end: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(is_end).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn quoted(&mut self, quote: char) -> Result<String, PathError> {
        let mut name = String::new();
        self.eat(quote);
        loop {
            let mut chars = self.rest.chars();
            match (chars.next(), chars.clone().next()) {
                (None, _) => return Err(self.syntax_error("the closing quote")),
                (Some('\\'), Some(escaped)) => {
                    chars.next();
                    name.push(escaped);
                }
                (Some(end), _) if end == quote => {
                    self.rest = chars.as_str();
                    return Ok(name);
                }
                (Some(other), _) => name.push(other),
            }
            self.rest = chars.as_str();
        }
    }

    fn index(&mut self) -> Result<Segment, PathError> {
        let first = self.number()?;
        if self.eat(':') {
            let last = self.number()?;
            if self.rest.starts_with(':') {
                return Err(PathError::Unsupported("slice steps"));
            }
            return Ok(Segment::Slice(first, last));
        }
        first.map(Segment::Index).ok_or_else(|| self.syntax_error("an index or a name in quotes"))
    }

    fn number(&mut self) -> Result<Option<i64>, PathError> {
        let before = self.rest;
        let digits = self.until(|c| !(c.is_ascii_digit() || c == '-'));
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| {
            self.rest = before;
            self.syntax_error("an index")
        })
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.root == PathRoot::Context { "$$" } else { "$" })?;
        let bound = |bound: &Option<i64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
        for segment in &self.segments {
            match segment {
                Segment::Name(name) if is_bare(name) => write!(f, ".{name}")?,
                Segment::Name(name) => {
                    write!(f, "['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))?;
                }
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Wildcard => f.write_str("[*]")?,
                Segment::Slice(first, last) => write!(f, "[{}:{}]", bound(first), bound(last))?,
            }
        }
        Ok(())
    }
}

/// True if a name can follow a dot.
fn is_bare(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$' | '@'))
}

/// A path, or null, which differs from a missing field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NullablePath(
    /// Path; `None` for null.
    pub Option<String>,
);

impl JsonSchema for NullablePath {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NullablePath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "null"], "format": "nullable"})
    }
}

/// Deserializes a field in which null is a value: it counts as written.
pub(super) fn written<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_real_machines_are_read_and_written_back() {
        for (text, is_reference) in [
            ("$", true),
            ("$.guid", true),
            ("$.input-foo-bar", true),
            ("$.items[0].name", true),
            ("$['a b'].c", true),
            ("$['it\\'s']", true),
            ("$.fooList[1:]", false),
            ("$.a[-1]", false),
            ("$.a[*].b", false),
            ("$$.Execution.Id", true),
            ("$.größe", true),
        ] {
            let path = JsonPath::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(path.to_string(), text);
            assert_eq!(path.is_reference(), is_reference, "{text}");
        }
    }

    #[test]
    fn what_is_no_path_is_reported() {
        for (text, error) in [
            ("", "a path begins with `$`"),
            (".guid", "a path begins with `$`"),
            ("bug$.x", "a path begins with `$`"),
            ("$foo", "expected `.` or `[` at character 2"),
            ("$.", "expected a name at character 3"),
            ("$...", "`..` steps are not supported in paths"),
            ("$.a[", "expected an index or a name in quotes at character 5"),
            ("$.a[1", "expected `]` at character 6"),
            ("$.a['b", "expected the closing quote at character 7"),
            ("$.a[--]", "expected an index at character 5"),
            ("$.a[?(@.b)]", "filters are not supported in paths"),
            ("$.a[1,2]", "unions are not supported in paths"),
            ("$.a b", "expected `.` or `[` at character 4"),
            ("States.UUID()", "an intrinsic function is not a path"),
        ] {
            assert_eq!(
                JsonPath::parse(text).map_err(|error| error.to_string()),
                Err(error.to_owned()),
                "{text}"
            );
        }
    }
}
