//! Lines of logs as HTML: colors by an allow-list, everything else as text.

use jiff::Timestamp;
use schema::violation::visible;

use crate::api::kinds::results::escape_html;

/// Classes of the eight colors of a terminal, in the order of their numbers. Named by meaning: the page has one set of
/// colors.
const COLORS: [&str; 8] = ["quiet", "bad", "good", "busy", "accent", "accent", "accent", ""];

/// Formats a line: its time to the millisecond, and its text with colors and bold.
pub(super) fn line_html(at: Option<Timestamp>, text: &str) -> String {
    let mut out = "<span class=\"line\">".to_owned();
    if let Some(at) = at {
        // Formatted here, so there is nothing to escape.
        out.push_str(&format!("<time datetime=\"{at}\">{at:.3}</time> "));
    }
    let mut style = Style::default();
    let mut parts = text.split('\u{1b}');
    let mut run = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((codes, rest)) = color_codes(part) else {
            // Any other sequence is shown, not carried out.
            run.push('\u{1b}');
            run.push_str(part);
            continue;
        };
        let changed = style.after(&codes);
        // One element for each style, not for each sequence: a hostile line must not become much longer.
        if changed != style {
            push(&mut out, &run, style);
            run.clear();
            style = changed;
        }
        run.push_str(rest);
    }
    push(&mut out, &run, style);
    out.push_str("\n</span>");
    out
}

/// Look of a piece of text.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Style {
    color: &'static str,
    is_bold: bool,
}

impl Style {
    /// Returns the style after a sequence with these codes.
    fn after(mut self, codes: &[u8]) -> Self {
        let mut codes = codes.iter().copied();
        while let Some(code) = codes.next() {
            match code {
                0 => self = Self::default(),
                1 => self.is_bold = true,
                22 => self.is_bold = false,
                39 => self.color = "",
                30..=37 => self.color = COLORS[usize::from(code - 30)],
                90..=97 => self.color = COLORS[usize::from(code - 90)],
                // A color of a larger palette, `38;5;N` or `38;2;R;G;B`: its numbers are not codes.
                38 | 48 => {
                    let numbers = match codes.next() {
                        Some(5) => 1,
                        Some(2) => 3,
                        _ => 0,
                    };
                    for _ in 0..numbers {
                        codes.next();
                    }
                }
                _ => {}
            }
        }
        self
    }
}

/// Splits the codes of a color sequence, `[1;31m`, from the text after it.
fn color_codes(part: &str) -> Option<(Vec<u8>, &str)> {
    let rest = part.strip_prefix('[')?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    let text = rest[end..].strip_prefix('m')?;
    // A number that is too large keeps its place, as a code that does nothing.
    let code = |code: &str| if code.is_empty() { 0 } else { code.parse::<u8>().unwrap_or(u8::MAX) };
    Some((rest[..end].split(';').map(code).collect(), text))
}

fn push(out: &mut String, text: &str, style: Style) {
    if text.is_empty() {
        return;
    }
    let text = shown(text);
    if style == Style::default() {
        out.push_str(&text);
        return;
    }
    let (color, bold) = (style.color, if style.is_bold { " bold" } else { "" });
    out.push_str(&format!("<span class=\"ansi {color}{bold}\">{text}</span>"));
}

/// Escapes text of a log for HTML; of its control characters, only tabs stay.
fn shown(text: &str) -> String {
    text.split('\t').map(|part| escape_html(&visible(part))).collect::<Vec<_>>().join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(text: &str) -> String {
        let html = line_html(None, text);
        html.strip_prefix("<span class=\"line\">").unwrap().strip_suffix("\n</span>").unwrap().to_owned()
    }

    #[test]
    fn a_time_is_shown_to_the_millisecond_and_kept_in_full() {
        let at = "2026-11-30T12:57:14.005987654Z".parse().ok();
        let time = "<time datetime=\"2026-11-30T12:57:14.005987654Z\">2026-11-30T12:57:14.005Z</time>";
        assert_eq!(line_html(at, "on"), format!("<span class=\"line\">{time} on\n</span>"));
    }

    #[test]
    fn colors_are_kept_and_other_sequences_are_shown() {
        assert_eq!(html("plain\ttext"), "plain\ttext");
        assert_eq!(html("\u{1b}[31mred\u{1b}[0m no"), "<span class=\"ansi bad\">red</span> no");
        assert_eq!(html("\u{1b}[1;32mok"), "<span class=\"ansi good bold\">ok</span>");
        for unknown in ["\u{1b}[38;5;200mx", "\u{1b}[38;5;1mx", "\u{1b}[48;2;1;31;32mx"] {
            assert_eq!(html(unknown), "x", "{unknown:?}: colors of other palettes do nothing");
        }
        for hostile in
            ["\u{1b}]0;title\u{7}", "\u{1b}[2J", "\u{1b}[999999999999m<b>", "\u{202e}x", "<img src=x>"]
        {
            let html = html(hostile);
            assert!(
                !html.contains(['\u{1b}', '\u{7}', '\u{202e}'])
                    && !html.contains("<b")
                    && !html.contains("<img"),
                "{html}"
            );
        }
        let many = "\u{1b}[1m\u{1b}".repeat(1_000);
        assert!(html(&many).len() < 2 * many.len(), "one element for each sequence");
    }
}
