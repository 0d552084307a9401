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

use std::collections::BTreeMap;
use std::fmt;

use crate::kinds::names::is_key;

mod bounds;
mod dotenv;
mod map;
pub mod sops;

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
    /// Lines of `NAME=value`.
    Dotenv,
    /// Any bytes, under the single key [`WHOLE`].
    Opaque,
}

impl Format {
    const NAMES: [(Format, &'static str); 3] =
        [(Format::Map, "map"), (Format::Dotenv, "dotenv"), (Format::Opaque, "opaque")];

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
    #[error("does not name inside the namespace and secret that it is for")]
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
            return if self.is_begun() {
                wrong("has no name as its value")
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
                None => return wrong("names no format; there are map, dotenv and opaque"),
            },
            "namespace" | "name" | "source" | "format" => return wrong("is set twice"),
            _ if self.is_begun() => return wrong("is none of namespace, name, source and format"),
            _ => return Err(PlaintextError::Unbound),
        }
        Ok(())
    }

    /// True once a field was read: problems from here on are those of a header.
    fn is_begun(&self) -> bool {
        !self.namespace.is_empty() || !self.name.is_empty()
    }
}

/// Returns the values by key.
pub fn entries(format: Format, values: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, PlaintextError> {
    let opaque = || BTreeMap::from([(WHOLE.to_owned(), values.to_vec())]);
    let text = || str::from_utf8(values).map_err(|_| PlaintextError::Values("it is not text".to_owned()));
    let texts = match format {
        Format::Opaque => return Ok(opaque()),
        Format::Guess => match str::from_utf8(values).ok().map(map::parse) {
            Some(Ok(Some(texts))) => texts,
            Some(Err(map::MapError::Refused(why))) => return Err(PlaintextError::Values(why.to_owned())),
            _ => return Ok(opaque()),
        },
        Format::Map => match map::parse(text()?) {
            Ok(Some(texts)) => texts,
            Ok(None) => {
                return Err(PlaintextError::Values("it is not one map from keys to texts".to_owned()));
            }
            Err(why) => return Err(PlaintextError::Values(why.to_string())),
        },
        Format::Dotenv => dotenv::parse(text()?).map_err(PlaintextError::Values)?,
    };
    Ok(texts.into_iter().map(|(key, value)| (key, value.into_bytes())).collect())
}

/// True if values of an unknown format are certainly a map: each key can be the name of a file, and no value is
/// empty. Keys are listed in clear, and `hunter2:` may be a password.
pub fn is_plain_map(values: &[u8]) -> bool {
    let fits = |(key, value): (&String, &Vec<u8>)| is_key(key) && !value.is_empty();
    entries(Format::Map, values).is_ok_and(|entries| entries.iter().all(fits))
}

#[cfg(test)]
mod tests;
