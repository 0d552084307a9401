//! Violations: problems of a manifest, with place and advice.

use std::borrow::Cow;
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

/// Returns a word of a command as a shell takes it, for a command within single quotes.
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let fits =
        |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '+' | '=' | ',');
    if word.chars().all(fits) && !word.is_empty() {
        return Cow::Borrowed(word);
    }
    let escaped =
        word.chars().flat_map(|c| matches!(c, '\\' | '"' | '$' | '`').then_some('\\').into_iter().chain([c]));
    Cow::Owned(format!("\"{}\"", escaped.collect::<String>()))
}

/// `1 file`, `2 files`.
pub fn plural(count: impl fmt::Display, word: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {word}{ending}")
}

/// Joins names that have the same reason, in the order of their first: `a, b and 3 more: why`. Names at most `max`
/// for a reason, and gives at most `max` reasons; a last line counts the names without one: `and 12 more`.
pub fn grouped(reasons: impl IntoIterator<Item = (String, String)>, max: usize) -> Vec<String> {
    let mut groups: Vec<(String, Vec<String>, usize)> = Vec::new();
    let mut left_out = 0;
    for (name, why) in reasons {
        match groups.iter().position(|(reason, ..)| *reason == why) {
            Some(at) if groups[at].1.len() < max => groups[at].1.push(name),
            Some(at) => groups[at].2 += 1,
            None if groups.len() < max => groups.push((why, vec![name], 0)),
            None => left_out += 1,
        }
    }
    let group = |(why, names, more): (String, Vec<String>, usize)| {
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}: {why}", names.join(", "))
    };
    let mut lines: Vec<String> = groups.into_iter().map(group).collect();
    lines.extend((left_out > 0).then(|| format!("and {left_out} more")));
    lines
}

// Makes the words of others safe to print: a name, a value or an output may contain terminal control sequences.

/// Escapes control characters, invisible ones and those that change the direction of text.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_invisible) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_invisible(c) => shown.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// True for controls, zero-width characters, line separators, bidirectional controls and tags.
pub fn is_invisible(c: char) -> bool {
    let ranges = [
        '\u{200b}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{e0000}'..='\u{e007f}',
    ];
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || ranges.iter().any(|range| range.contains(&c))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_shown_as_an_escape() {
        assert_eq!(visible("näme 漢"), "näme 漢");
        assert_eq!(visible("a\u{1b}[31mb\nc\t\u{202e}d\u{7f}"), "a\\u{1b}[31mb\\nc\\t\\u{202e}d\\u{7f}");
        assert_eq!(visible("a\u{61c}\u{ad}\u{e0041}"), "a\\u{61c}\\u{ad}\\u{e0041}");
    }

    #[test]
    fn a_reason_is_given_once_with_all_that_have_it_and_what_is_left_out_is_counted() {
        let reasons = |pairs: &[(&str, &str)]| {
            grouped(pairs.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())), 2)
        };
        assert_eq!(reasons(&[]), [""; 0]);
        assert_eq!(reasons(&[("a", "x"), ("b", "y"), ("c", "x")]), ["a, c: x", "b: y"]);
        let many = [("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"), ("e", "z"), ("f", "z"), ("g", "x")];
        assert_eq!(reasons(&many), ["a, b and 2 more: x", "d: y", "and 2 more"]);
    }
}
