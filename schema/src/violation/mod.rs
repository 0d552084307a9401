//! What is wrong with a manifest, where, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

mod finding;
mod path;
pub mod rules;

pub use finding::{Finding, Findings};
pub use path::{OwnedStep, Path};
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
