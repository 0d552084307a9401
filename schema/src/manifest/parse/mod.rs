//! Parses a file's bytes to values that know their line and column.
//!
//! Knows no kind: the parent module interprets the values.

pub(crate) mod budget;
mod flow_indent;
pub(crate) mod json;
pub mod limits;
pub(crate) mod node;
pub(crate) mod scalar;
pub(crate) mod text;
pub(crate) mod yaml;

use budget::{Budget, Parsed};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Yaml,
    Json,
}

impl Format {
    /// Returns the format of the path's extension.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Format::Yaml),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// Parses a file's text.
pub(crate) fn parse(format: Format, text: &str) -> Parsed {
    match format {
        Format::Yaml => yaml::parse(text, Budget::of_file()),
        Format::Json => json::parse(text, Budget::of_file()),
    }
}
