//! A file's bytes to values that know their line and column.
//!
//! Knows no kind: what the values mean is read in the folder above.

pub(crate) mod budget;
mod flow_indent;
pub(crate) mod json;
pub mod limits;
pub(crate) mod node;
pub(crate) mod scalar;
pub(crate) mod text;
pub(crate) mod yaml;

use budget::{Budget, Parsed};

/// How a file is written, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Yaml,
    Json,
}

impl Format {
    /// What the path's extension says.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Format::Yaml),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// The values of a file's text, with what is wrong in it.
pub(crate) fn parse(format: Format, text: &str) -> Parsed {
    match format {
        Format::Yaml => yaml::parse(text, Budget::of_file()),
        Format::Json => json::parse(text, Budget::of_file()),
    }
}
