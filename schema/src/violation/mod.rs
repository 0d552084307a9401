//! What is wrong with a manifest, where, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

mod finding;
mod path;
pub mod rules;

pub use finding::{Finding, Findings};
pub use path::{OwnedStep, Path, field_path, indexed};
pub use rules::Rule;

/// One thing that is wrong, or noteworthy, at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Violation {
    /// Path within the repository, `/`-separated.
    pub file: String,
    /// 1-based; 0 when the whole file is meant.
    pub line: u32,
    /// 1-based, in characters; 0 when the whole line or file is meant.
    pub column: u32,
    /// How bad.
    pub severity: Severity,
    /// Stable id of the rule, for example `unknown-field`.
    pub rule: String,
    /// What is wrong, in a sentence that names the field or value.
    pub message: String,
    /// What to do; empty when the message says it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// `Kind/namespace/name` of the object, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl Violation {
    /// A violation of `rule` in `file`, at line and column; both 0 when the whole file is meant.
    pub fn of(
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

    /// The file that it is of can't be applied.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// The same with what to do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// The same with its object.
    #[must_use]
    pub fn about(mut self, object: impl fmt::Display) -> Self {
        self.object = Some(object.to_string());
        self
    }
}

/// How bad a violation is. Only errors keep a file from being applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file is quarantined.
    Error,
    /// Works, but is likely not what was meant.
    Warning,
    /// Worth knowing.
    Note,
}

/// Longest message, help or object's name of a violation, in characters: a message may quote a text
/// of the manifest that has no end.
pub const TEXT_MAX_CHARS: usize = 500;

/// The first `chars` characters of a text.
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
    /// `file:line:column: severity[rule]: message (help)`.
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
