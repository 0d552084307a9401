//! Lines of a log with times: whole, each once, chosen by a text, as HTML.
//!
//! A tab that comes back has a mark for each log: the time of the last line that it has.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::iter::repeat;

use jiff::Timestamp;

use crate::api::page::ansi::line_html;

/// Longest line that is shown, in bytes; the rest of it is left out.
const LINE_MAX: usize = 4 * 1024;
/// Longest line that is searched, in bytes.
const SEARCHED_MAX: usize = 64 * 1024;
/// Number of lines in which a repeated one is found.
const RECENT_MAX: usize = 1000;
/// Beginning of the mark of a line; the rest is its time.
const MARK: &str = "after:";

/// Formats the marks of the logs of a page, in the order of its columns: `after:TIME,after:TIME`.
pub(super) fn marks(columns: &[Lines]) -> String {
    columns.iter().map(Lines::mark).collect::<Vec<_>>().join(",")
}

/// Parses the marks of this many logs. `None` for a log of which the tab has no line.
pub(super) fn parse_marks(marks: &str, columns: usize) -> Vec<Option<Timestamp>> {
    let time = |mark: &str| mark.strip_prefix(MARK).and_then(|time| time.parse::<Timestamp>().ok());
    marks.split(',').map(time).chain(repeat(None)).take(columns).collect()
}

/// Splits a log with times into lines.
pub(super) struct Lines {
    grep: String,
    /// Beginning of the next line.
    rest: Vec<u8>,
    /// Newest time of a line.
    last: Option<Timestamp>,
    /// Newest time that the tab has, until a later line comes: the node sends its whole second again.
    seen: Option<Timestamp>,
    /// Times and hashes of the last lines: Docker may repeat some when it rotates a log. Times alone do not tell: lines
    /// of the two outputs may swap places, and clocks may be set back.
    recent: BTreeSet<(Timestamp, u64)>,
}

impl Lines {
    pub(super) fn new(grep: &str, seen: Option<Timestamp>) -> Self {
        let (rest, recent) = (Vec::new(), BTreeSet::new());
        Self { grep: grep.to_owned(), rest, last: seen, seen, recent }
    }

    fn mark(&self) -> String {
        format!("{MARK}{}", self.last.map(|time| time.to_string()).unwrap_or_default())
    }

    /// Returns the lines that `bytes` completes, as HTML.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = SEARCHED_MAX.saturating_sub(self.rest.len());
            self.rest.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                out.extend(self.end());
            }
        }
        out
    }

    /// Ends the line that was begun, and returns it if it is new and contains the text.
    pub(super) fn end(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.rest);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() {
            return None;
        }
        let timed =
            line.split_once(' ').and_then(|(time, text)| Some((time.parse::<Timestamp>().ok()?, text)));
        let (at, text) = timed.map_or((None, line), |(at, text)| (Some(at), text));
        if !self.is_new(at, text) || !text.contains(&self.grep) {
            return None;
        }
        if text.len() <= LINE_MAX {
            return Some(line_html(at, text));
        }
        let end = (0..=LINE_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        Some(line_html(at, &format!("{}…", &text[..end])))
    }

    /// Returns false for a line that the tab has, and otherwise takes note of it.
    fn is_new(&mut self, at: Option<Timestamp>, text: &str) -> bool {
        if self.seen.is_some_and(|seen| at.is_none_or(|at| at <= seen)) {
            return false;
        }
        self.seen = None;
        let Some(at) = at else { return true };
        self.last = self.last.max(Some(at));
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let is_new = self.recent.insert((at, hasher.finish()));
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_first();
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_chosen_by_text() {
        let mut lines = Lines::new("er", None);
        let mut shown = Vec::new();
        for chunk in
            ["2026-01-01T00:00:00.1Z no", "\n2026-01-01T00:00:00.2Z err", "or\n2026-01-01T00:00:00.3Z error"]
        {
            shown.extend(lines.take(chunk.as_bytes()));
        }
        shown.extend(lines.end());
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].contains("error"), "{shown:?}");
        assert_eq!(lines.mark(), "after:2026-01-01T00:00:00.3Z");
        let long = format!("2026-01-01T00:00:00.4Z er{}\n", "ä".repeat(LINE_MAX));
        assert!(lines.take(long.as_bytes())[0].len() < 2 * LINE_MAX);
        let endless = vec![b'x'; 2 * SEARCHED_MAX];
        assert!(lines.take(&endless).is_empty() && lines.rest.len() == SEARCHED_MAX);
    }

    #[test]
    fn no_line_is_shown_twice_and_none_is_lost() {
        let count = |lines: &mut Lines, text: &str| lines.take(text.as_bytes()).len();
        let mut lines = Lines::new("", "2026-01-01T00:00:00.3Z".parse().ok());
        let second = "2026-01-01T00:00:00.200000000Z a\n2026-01-01T00:00:00.300000000Z b\n";
        assert_eq!(count(&mut lines, second), 0, "the tab has them");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.31Z c\n"), 1, "later, although its text is less");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.305Z d\n"), 1, "late from the other output");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.31Z c\n"), 0, "repeated");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.31Z e\n\n"), 1, "at the same time");
        assert_eq!(count(&mut lines, "without a time\n"), 1);
        assert_eq!(lines.mark(), "after:2026-01-01T00:00:00.31Z");
    }

    #[test]
    fn marks_keep_their_columns_and_all_digits() {
        let time: Option<Timestamp> = "2026-01-01T00:00:00.123456789Z".parse().ok();
        let columns = [Lines::new("", None), Lines::new("", time)];
        let text = marks(&columns);
        assert_eq!(text, "after:,after:2026-01-01T00:00:00.123456789Z");
        assert_eq!(parse_marks(&text, 2), [None, time]);
        assert_eq!(parse_marks(&text, 3), [None, time, None]);
        assert_eq!(parse_marks(&text, 1), [None::<Timestamp>]);
        for hostile in ["", "lines:abc", "after:soon,,after:"] {
            assert_eq!(parse_marks(hostile, 2), [None::<Timestamp>; 2], "{hostile}");
        }
    }
}
