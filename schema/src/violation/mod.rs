//! Violations: problems of a manifest, with place and advice.

use std::fmt;

use serde::{Deserialize, Serialize};

mod finding;
mod path;
pub mod rules;

pub use finding::{Finding, Findings};
pub use path::{OwnedStep, Path, field_path, indexed};
pub use rules::Rule;

/// A problem, or something noteworthy, at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Violation {
    /// Path within the repository, `/`-separated.
    pub file: String,
    /// 1-based line; 0 for the whole file.
    pub line: u32,
    /// 1-based column, in characters; 0 for the whole line or file.
    pub column: u32,
    /// Severity of the violation.
    pub severity: Severity,
    /// Stable id of the rule, for example `unknown-field`.
    pub rule: String,
    /// Description of the problem, in a sentence that names the field or value.
    pub message: String,
    /// Advice; empty if the message includes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// `Kind/namespace/name` of the object, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl Violation {
    /// Creates a violation of `rule` in `file`, at line and column; both 0 for the whole file.
    pub fn new(
        rule: &Rule,
        file: impl Into<String>,
        (line, column): (u32, u32),
        message: impl Into<String>,
    ) -> Self {
        Self {
            file: file.into(),
            line,
            column,
            severity: rule.severity,
            rule: rule.id.to_owned(),
            message: message.into(),
            help: String::new(),
            object: None,
        }
    }

    /// True if the violation keeps its file from being applied.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Adds advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Adds the object.
    #[must_use]
    pub fn about(mut self, object: impl fmt::Display) -> Self {
        self.object = Some(object.to_string());
        self
    }
}

/// Severity of a violation. Only errors keep a file from being applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file is quarantined.
    Error,
    /// Works, but is probably not intended.
    Warning,
    /// Worth knowing.
    Note,
}

/// Longest message, help or object name of a violation, in characters: a message may quote an arbitrarily long text
/// of the manifest.
pub const TEXT_MAX_CHARS: usize = 500;

/// Returns the first `chars` characters of a text, with `…` if it is cut.
pub fn shortened(mut text: String, chars: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(chars) {
        text.truncate(at);
        text.push('…');
    }
    text
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

impl fmt::Display for Violation {
    /// Formats as `file:line:column: severity[rule]: message (help)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, severity, rule, message, help, .. } = self;
        f.write_str(file)?;
        if *line > 0 {
            write!(f, ":{line}")?;
            if *column > 0 {
                write!(f, ":{column}")?;
            }
        }
        write!(f, ": {severity}[{rule}]: {message}")?;
        if !help.is_empty() {
            write!(f, " ({help})")?;
        }
        Ok(())
    }
}
