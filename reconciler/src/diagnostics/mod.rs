//! Diagnostics of manifests for people, programs and pull requests.
//!
//! `inspect` reads and checks a folder; `excerpt`, `text`, `json` and `github` are pure: they turn a report and the
//! lines it refers to into text.

pub mod excerpt;
pub mod inspect;
pub mod json;
mod redact;
pub mod report;

use std::borrow::Cow;

pub use inspect::inspect;
pub use report::Report;

// Makes text of a repository safe to print: a name or value in it may contain terminal control sequences.

/// Escapes control characters and those that change the direction of text.
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

/// True for controls, zero-width characters, line separators and bidirectional controls.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_shown_as_an_escape() {
        assert_eq!(visible("näme 漢"), "näme 漢");
        assert_eq!(visible("a\u{1b}[31mb\nc\t\u{202e}d\u{7f}"), "a\\u{1b}[31mb\\nc\\t\\u{202e}d\\u{7f}");
    }
}
