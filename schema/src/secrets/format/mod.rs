//! Content of an encrypted secret: a header that names the pods it is for, then its values. Pure.
//!
//! Every reader of the repository can copy ciphertext. The header goes along with it, so a copy in another
//! namespace, under another name or in another source is of no use there.
//!
//! ```text
//! namespace: default
//! name: db
//! format: map
//! ---
//! user: app
//! password: hunter2
//! ```

pub mod sops;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use saphyr_parser::{Event, Parser};

use crate::file_text::file_text;
use crate::names::is_key;

/// Matches every namespace, or every source.
pub const ANY: &str = "*";
/// Key of a secret that is not a map of texts.
pub const WHOLE: &str = "value";
/// Line that ends the header.
const END: &str = "---";
/// Most lines of a header; it has four fields.
const HEADER_LINES_MAX: usize = 8;

/// Format of a secret's values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// A map if it parses as one, else opaque; never dotenv, because an opaque `bXk=` would be that, too.
    #[default]
    Guess,
    /// A map from keys to texts in YAML or JSON.
    Map,
    /// A map from keys to any bytes in base64.
    Base64,
    /// Lines of `NAME=value`.
    Dotenv,
    /// Any bytes, under the single key [`WHOLE`].
    Opaque,
}

impl Format {
    const NAMES: [(Format, &'static str); 4] = [
        (Format::Map, "map"),
        (Format::Base64, "base64"),
        (Format::Dotenv, "dotenv"),
        (Format::Opaque, "opaque"),
    ];

    /// Finds a format by its name in a header.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(format, _)| *format)
    }
}

/// Header of a secret: the pods it is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// Namespace of the pods; [`ANY`] for all.
    pub namespace: String,
    /// Name of the secret.
    pub name: String,
    /// Source that may name it; [`ANY`] for all. `None`: the source of the Cluster object, or without one the first
    /// source.
    pub source: Option<String>,
    /// Format of the values.
    pub format: Format,
}

impl fmt::Display for Header {
    /// Formats the header as written before the values, with its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A bare `*` would be an alias to YAML readers.
        let quoted = |text: &str| if text == ANY { format!("\"{ANY}\"") } else { text.to_owned() };
        write!(f, "namespace: {}\nname: {}\n", quoted(&self.namespace), self.name)?;
        if let Some(source) = &self.source {
            writeln!(f, "source: {}", quoted(source))?;
        }
        if let Some((_, name)) = Format::NAMES.iter().find(|(format, _)| *format == self.format) {
            writeln!(f, "format: {name}")?;
        }
        writeln!(f, "{END}")
    }
}

/// Error that makes a plaintext unusable. No error holds any of a secret's values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaintextError {
    /// The plaintext has no header.
    #[error("has no header: its text must begin with `namespace:` and `name:`")]
    Unbound,
    /// A line of the header has no meaning.
    #[error("has a header that can't be read: line {line} {why}")]
    Header {
        /// Line number, from 1.
        line: usize,
        /// Problem with the line.
        why: &'static str,
    },
    /// The values do not match the format.
    #[error("can't be read: {0}")]
    Values(String),
}

/// Splits a plaintext into header and values.
pub fn split(plain: &[u8]) -> Result<(Header, &[u8]), PlaintextError> {
    let mut header = Header::default();
    let mut rest = plain;
    for line in 1..=HEADER_LINES_MAX {
        // The header is text, whatever follows it.
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return Err(PlaintextError::Unbound);
        };
        let Ok(text) = str::from_utf8(&rest[..end]) else { return Err(PlaintextError::Unbound) };
        rest = &rest[end + 1..];
        let text = text.trim_end();
        if text == END {
            return if header.namespace.is_empty() || header.name.is_empty() {
                Err(PlaintextError::Unbound)
            } else {
                Ok((header, rest))
            };
        }
        header.take(text, line)?;
    }
    Err(PlaintextError::Unbound)
}

impl Header {
    fn take(&mut self, text: &str, line: usize) -> Result<(), PlaintextError> {
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        // Anything else at the beginning means that there is no header at all.
        let (field, value) = text.split_once(':').ok_or(PlaintextError::Unbound)?;
        let value = value.trim();
        let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
        let wrong = |why| Err(PlaintextError::Header { line, why });
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if value != ANY && !(!value.is_empty() && value.len() <= 253 && value.chars().all(fits)) {
            return if self.has_fields() {
                wrong("has a value that is not a name")
            } else {
                Err(PlaintextError::Unbound)
            };
        }
        match field {
            "namespace" if self.namespace.is_empty() => self.namespace = value.to_owned(),
            "name" if self.name.is_empty() && value != ANY => self.name = value.to_owned(),
            "source" if self.source.is_none() => self.source = Some(value.to_owned()),
            "format" if self.format == Format::Guess => match Format::parse(value) {
                Some(format) => self.format = format,
                None => return wrong("has an unknown format; use map, base64, dotenv or opaque"),
            },
            "namespace" | "name" | "source" | "format" => return wrong("repeats a field"),
            _ if self.has_fields() => return wrong("is not namespace, name, source or format"),
            _ => return Err(PlaintextError::Unbound),
        }
        Ok(())
    }

    /// True once a field was read: problems from here on are those of a header.
    fn has_fields(&self) -> bool {
        !self.namespace.is_empty() || !self.name.is_empty()
    }
}

/// Returns the values by key.
pub fn entries(format: Format, values: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, PlaintextError> {
    let opaque = || BTreeMap::from([(WHOLE.to_owned(), values.to_vec())]);
    let text = || file_text(values).ok_or_else(|| PlaintextError::Values("it is not text".to_owned()));
    let texts = match format {
        Format::Opaque => return Ok(opaque()),
        Format::Guess => match file_text(values).map(parse_map) {
            Some(Ok(Some(texts))) => texts,
            Some(Err(MapError::Refused(why))) => return Err(PlaintextError::Values(why.to_owned())),
            _ => return Ok(opaque()),
        },
        Format::Map => whole_map(text()?)?,
        Format::Base64 => {
            let bytes = |(key, value): (String, String)| {
                let bytes = STANDARD.decode(&value);
                bytes.map_err(|_| format!("{key} is not base64")).map(|bytes| (key, bytes))
            };
            let texts = whole_map(text()?)?.into_iter();
            return texts.map(bytes).collect::<Result<_, _>>().map_err(PlaintextError::Values);
        }
        Format::Dotenv => parse(text()?).map_err(PlaintextError::Values)?,
    };
    Ok(texts.into_iter().map(|(key, value)| (key, value.into_bytes())).collect())
}

fn whole_map(text: &str) -> Result<BTreeMap<String, String>, PlaintextError> {
    match parse_map(text) {
        Ok(Some(texts)) => Ok(texts),
        Ok(None) => Err(PlaintextError::Values("it is not a single map from keys to text".to_owned())),
        Err(why) => Err(PlaintextError::Values(why.to_string())),
    }
}

/// Formats values by key, a line for each: as texts if all of them are.
pub fn format_entries(values: &BTreeMap<String, Vec<u8>>) -> (Format, Vec<u8>) {
    // JSON's texts are also YAML's.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let lines = |value: &dyn Fn(&[u8]) -> String| {
        let line = |(key, bytes): (&String, &Vec<u8>)| {
            let key = if key.starts_with(char::is_alphabetic) { key.clone() } else { quoted(key) };
            format!("{key}: {}\n", value(bytes))
        };
        values.iter().map(line).collect::<String>().into_bytes()
    };
    let texts = lines(&|bytes| quoted(&String::from_utf8_lossy(bytes)));
    // What would not be read back exactly is no text.
    if entries(Format::Map, &texts).is_ok_and(|read| read == *values) {
        return (Format::Map, texts);
    }
    (Format::Base64, lines(&|bytes| STANDARD.encode(bytes)))
}

/// True if values of an unknown format are certainly a map: each key can be the name of a file, and no value is
/// empty. Keys are listed in clear, and `hunter2:` may be a password.
pub fn is_plain_map(values: &[u8]) -> bool {
    let fits = |(key, value): (&String, &Vec<u8>)| is_key(key) && !value.is_empty();
    entries(Format::Map, values).is_ok_and(|entries| entries.iter().all(fits))
}

// Size limits of a secret.

/// Most keys of a secret: each may become a file or a variable.
pub(crate) const KEYS_MAX: usize = 1000;

// Parses lines of `NAME=value`. Nothing is substituted: a `$` stands for itself.

/// Returns the values by name. An error names a line and none of its text.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut values = BTreeMap::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').ok_or_else(|| format!("line {number} has no `=`"))?;
        let name = name.trim();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(fits) {
            return Err(format!("line {number} does not begin with the name of a variable"));
        }
        let value = unquoted(value.trim()).ok_or_else(|| {
            format!("line {number} has an unclosed quote or text after it; multi-line values need a map")
        })?;
        if values.insert(name.to_owned(), value).is_some() {
            return Err(format!("line {number} sets a variable again"));
        }
        if values.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
    }
    Ok(values)
}

/// Removes quotes: single quotes keep all as it is, double quotes know `\n`, `\t`, `\r`, `\"`, `\\` and `\$`;
/// without quotes, ` #` begins a comment.
fn unquoted(value: &str) -> Option<String> {
    let is_rest = |rest: &str| rest.trim_start().is_empty() || rest.trim_start().starts_with('#');
    match value.chars().next() {
        Some('\'') => {
            let (inside, rest) = value[1..].split_once('\'')?;
            is_rest(rest).then(|| inside.to_owned())
        }
        Some('"') => {
            let mut inside = String::new();
            let mut chars = value[1..].chars();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => match chars.next()? {
                        'n' => inside.push('\n'),
                        't' => inside.push('\t'),
                        'r' => inside.push('\r'),
                        plain @ ('"' | '\\' | '$') => inside.push(plain),
                        other => inside.extend(['\\', other]),
                    },
                    plain => inside.push(plain),
                }
            }
            is_rest(chars.as_str()).then_some(inside)
        }
        _ => Some(value.split(" #").next().unwrap_or(value).trim_end().to_owned()),
    }
}

// Parses a map from keys to texts in YAML or JSON, event by event: what is refused is never built.

/// Error for a text that must not be taken for anything but a map of texts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapError {
    /// A map that does what no secret may.
    #[error("{0}")]
    Refused(&'static str),
    /// Not YAML. The parser's own message would quote the text.
    #[error("line {0} is not valid YAML")]
    Syntax(usize),
}

/// Returns the values by key as written; `None` if the text is something else: nested, a list, a word.
pub(crate) fn parse_map(text: &str) -> Result<Option<BTreeMap<String, String>>, MapError> {
    // YAML does not know all of JSON's escapes.
    if text.trim_start().starts_with('{')
        && let Ok(texts) = serde_json::from_str::<BTreeMap<String, String>>(text)
    {
        return if texts.len() > KEYS_MAX {
            Err(too_many())
        } else {
            Ok((!texts.is_empty()).then_some(texts))
        };
    }
    let mut events = Parser::new_from_str(text);
    let mut next = || {
        let event = events.next_event().transpose();
        event
            .map_err(|error| MapError::Syntax(error.marker().line()))
            .map(|event| event.map(|(event, _)| event))
    };
    let is_map = loop {
        match next()? {
            Some(Event::StreamStart | Event::DocumentStart(_) | Event::Nothing) => {}
            Some(Event::MappingStart(..)) => break true,
            _ => break false,
        }
    };
    if !is_map {
        return Ok(None);
    }
    let mut texts = BTreeMap::new();
    loop {
        let key = match next()? {
            Some(Event::MappingEnd) => break,
            Some(Event::Scalar(key, ..)) => key.into_owned(),
            Some(Event::Alias(_)) => return Err(ALIAS),
            _ => return Ok(None),
        };
        let value = match next()? {
            Some(Event::Scalar(value, ..)) => value.into_owned(),
            Some(Event::Alias(_)) => return Err(ALIAS),
            _ => return Ok(None),
        };
        if texts.insert(key, value).is_some() {
            return Err(MapError::Refused("a key occurs twice"));
        }
        if texts.len() > KEYS_MAX {
            return Err(too_many());
        }
    }
    // A second document may be anything.
    let ends = matches!(next()?, Some(Event::DocumentEnd)) && matches!(next()?, Some(Event::StreamEnd));
    Ok((ends && !texts.is_empty()).then_some(texts))
}

/// An anchor with many aliases expands a few kilobytes to gigabytes.
const ALIAS: MapError =
    MapError::Refused("it has an alias (`*name`), not allowed in a secret; write the value itself");

fn too_many() -> MapError {
    MapError::Refused("it has more than 1000 keys")
}

#[cfg(test)]
mod tests;
