//! Parses a file's bytes to values that know their line and column.
//!
//! Knows no kind: the parent module interprets the values.

pub(crate) mod edit;
pub(crate) mod json;
pub mod limits;
pub(crate) mod nearest;
pub(crate) mod node;
pub(crate) mod problems;
pub(crate) mod yaml;

use super::file_text::{is_git_crypt, without_mark};
use super::violation::rules;
use limits::FILE_MAX_BYTES;
use node::{Budget, IGNORE_HELP, Mark, ParsedFile, Problem};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Yaml,
    Json,
}

impl Format {
    /// Returns the format of the path's extension. Kustomize also reads a file without one.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        if name == "Kustomization" {
            return Some(Format::Yaml);
        }
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Format::Yaml),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// Parses a file's text.
pub(crate) fn parse(format: Format, text: &str) -> ParsedFile {
    match format {
        Format::Yaml => yaml::parse(text, Budget::for_file()),
        Format::Json => json::parse(text, Budget::for_file()),
    }
}

// Decodes a manifest's bytes to text: size, encoding, byte order mark, Git LFS pointers, control characters.

/// Returns the text of the file without its byte order mark.
pub(crate) fn read(bytes: &[u8]) -> Result<&str, Problem> {
    let whole_file = Mark::default();
    if bytes.len() > FILE_MAX_BYTES {
        let message = format!("the file has {} bytes; the limit is {FILE_MAX_BYTES}", bytes.len());
        let help = format!("split it into several files, or {IGNORE_HELP}");
        return Err(Problem::new(whole_file, &rules::TOO_LARGE, message).help(help));
    }
    if is_git_crypt(bytes) {
        return Err(Problem::new(whole_file, &rules::NOT_UTF8, "the file is encrypted by git-crypt").help(
            "Minik8s reads the repository without the key of git-crypt: keep manifests out of its filter",
        ));
    }
    if bytes.starts_with(&[0xFE, 0xFF]) || bytes.starts_with(&[0xFF, 0xFE]) {
        let message = "the file is UTF-16; manifests are UTF-8";
        return Err(Problem::new(whole_file, &rules::NOT_UTF8, message).help("save it as UTF-8"));
    }
    let bytes = without_mark(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let mark = mark_after(&String::from_utf8_lossy(&bytes[..error.valid_up_to()]));
        let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
        Problem::new(mark, &rules::NOT_UTF8, format!("byte 0x{byte:02x} is not UTF-8"))
            .help("save it as UTF-8")
    })?;
    if text.starts_with("version https://git-lfs.github.com/spec/") {
        return Err(Problem::new(
            Mark { line: 1, column: 1 },
            &rules::LFS_POINTER,
            "the file is a Git LFS pointer",
        )
        .help("Minik8s reads the repository without LFS: keep manifests out of `git lfs track`"));
    }
    // A NUL would end the YAML parser's input: the rest of the file would vanish silently.
    let forbidden = |c: char| (c.is_ascii_control() && !matches!(c, '\t' | '\n' | '\r')) || c == '\u{FFFE}';
    if let Some(at) = text.find(forbidden) {
        let character = text[at..].chars().next().map_or(0, u32::from);
        let message = format!("character U+{character:04X} is not allowed in a manifest");
        return Err(Problem::new(mark_after(&text[..at]), &rules::CONTROL_CHARACTER, message)
            .help("remove it; inside double quotes write it as an escape such as `\\u001b`"));
    }
    Ok(text)
}

/// Returns the place right after `text`.
pub(crate) fn mark_after(text: &str) -> Mark {
    let lines = text.matches('\n').count() + 1;
    let columns = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Mark {
        line: u32::try_from(lines).unwrap_or(u32::MAX),
        column: u32::try_from(columns).unwrap_or(u32::MAX),
    }
}
