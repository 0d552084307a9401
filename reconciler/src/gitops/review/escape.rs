//! Escapes untrusted text for terminals and Markdown. Pure.
//!
//! The author of a pull request writes names, values and messages that end up here. In Markdown all of it is put
//! into code, where neither HTML nor links nor mentions work; characters that control a terminal or change the
//! direction of writing are removed everywhere.

use schema::violation::{is_invisible, shortened};

/// Puts the text on one line and removes control characters and invisible ones.
pub(super) fn plain(text: &str) -> String {
    let breaks = |c: char| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c };
    text.chars().map(breaks).filter(|c| !is_invisible(*c)).collect()
}

/// Formats the text as inline code, cut to `chars_max` characters.
pub(super) fn code(text: &str, chars_max: usize) -> String {
    let text = shortened(plain(text), chars_max);
    if text.trim().is_empty() {
        return "``` ```".to_owned();
    }
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    // A backtick at an end would join the fence; a space there is not shown.
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// Formats the text as HTML code, for places where Markdown is not interpreted.
pub(super) fn html(text: &str, chars_max: usize) -> String {
    let mut escaped = String::new();
    for c in shortened(plain(text), chars_max).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Some renderers interpret Markdown here after all.
            '`' => escaped.push_str("&#96;"),
            '*' => escaped.push_str("&#42;"),
            '_' => escaped.push_str("&#95;"),
            '[' => escaped.push_str("&#91;"),
            ']' => escaped.push_str("&#93;"),
            c => escaped.push(c),
        }
    }
    format!("<code>{escaped}</code>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_can_not_be_left() {
        assert_eq!(code("a", 9), "`a`");
        assert_eq!(code("a`b", 9), "``a`b``");
        assert_eq!(code("``` @ada", 99), "```` ``` @ada ````");
        assert_eq!(code("x\n\n# Title", 99), "`x  # Title`");
        assert_eq!(code("abcdef", 3), "`abc…`");
        assert_eq!(code("", 3), "``` ```");
    }

    #[test]
    fn html_can_not_be_written() {
        assert_eq!(html("</code><img src=x>", 99), "<code>&lt;/code&gt;&lt;img src=x&gt;</code>");
    }

    #[test]
    fn what_can_not_be_seen_is_left_out() {
        assert_eq!(plain("a\u{202e}b\u{200b}c\u{1b}[2Jd\u{9b}"), "abc[2Jd");
    }
}
