//! Text layout of a `describe` page.

use jiff::Timestamp;
use schema::condition::Condition;
use schema::meta::StringMap;
use schema::violation::visible;

use crate::cli::output::{Column, Layout, Screen, column, cuttable, format_rows};
use crate::view::{EventGroup, EventView, age, event_groups};

const EVENTS_MAX: usize = 20;

/// Lines `Key:   value`, further lines indented below. Whatever is added is safe to print: the text has no control
/// characters but line ends and colors.
#[derive(Default)]
pub(in crate::cli) struct Page(String);

impl Page {
    /// Returns the finished page.
    pub(in crate::cli) fn text(self) -> String {
        self.0
    }

    /// Adds a value with its key, and its further lines below; skips an empty value.
    pub(in crate::cli) fn field(&mut self, indent: usize, key: &str, value: &str) {
        let mut lines = value.lines();
        if let Some(first) = lines.next() {
            let key = format!("{:indent$}{key}:", "");
            self.line(&format!("{key:<14} {first}"));
        }
        lines.for_each(|line| self.line(&format!("{:15}{line}", "")));
    }

    /// Adds a status word with its key, in the word's color.
    pub(in crate::cli) fn state(&mut self, key: &str, word: &str, screen: Screen) {
        if !word.is_empty() {
            let key = format!("{key}:");
            self.printable(&format!("{key:<14} {}", screen.paint(word)));
        }
    }

    /// Adds a line per value, with the key before the first.
    pub(in crate::cli) fn fields(
        &mut self,
        indent: usize,
        key: &str,
        values: impl IntoIterator<Item = String>,
    ) {
        for (position, value) in values.into_iter().enumerate() {
            match position {
                0 => self.field(indent, key, &value),
                _ => value.lines().for_each(|line| self.line(&format!("{:15}{line}", ""))),
            }
        }
    }

    /// Adds a line, with control characters made visible.
    pub(in crate::cli) fn line(&mut self, text: &str) {
        self.printable(&visible(text));
    }

    /// Adds a line that has only our own control characters.
    fn printable(&mut self, text: &str) {
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    /// Adds an indented text of several lines, with control characters made visible.
    pub(in crate::cli) fn block(&mut self, title: &str, text: &str) {
        if !text.is_empty() {
            self.line(title);
            text.lines().for_each(|line| self.line(&format!("  {}", line.replace('\t', "    "))));
        }
    }

    /// Adds an indented table; nothing for no rows.
    pub(in crate::cli) fn table(
        &mut self,
        title: &str,
        columns: &[Column],
        rows: &[Vec<String>],
        screen: Screen,
    ) {
        if !rows.is_empty() {
            self.drawn_table(title, &format_rows(columns, rows, indented(screen), &mut Layout::default()));
        }
    }

    /// Adds an indented table that [`format_rows`] has drawn.
    pub(in crate::cli) fn drawn_table(&mut self, title: &str, text: &str) {
        if !text.is_empty() {
            self.line(title);
            text.lines().for_each(|line| self.printable(&format!("  {line}")));
        }
    }

    pub(in crate::cli) fn conditions(&mut self, conditions: &[Condition], screen: Screen, now: Timestamp) {
        let columns =
            [column("TYPE"), column("STATUS"), column("AGE"), column("REASON"), cuttable("MESSAGE")];
        let row = |c: &Condition| {
            let since = age(c.last_transition_time, now);
            vec![c.kind.clone(), format!("{:?}", c.status), since, c.reason.clone(), c.message.clone()]
        };
        let rows: Vec<Vec<String>> = conditions.iter().map(row).collect();
        self.table("Conditions:", &columns, &rows, screen);
    }

    /// Adds the last events, with similar ones grouped.
    pub(in crate::cli) fn events(&mut self, events: &[EventView], screen: Screen, now: Timestamp) {
        let columns = [column("TYPE"), column("REASON"), column("AGE"), column("FROM"), cuttable("MESSAGE")];
        let rows = event_groups(events, EVENTS_MAX, now).into_iter().map(|group| {
            let EventGroup { last, age, .. } = group;
            vec![format!("{:?}", last.kind), last.reason, age, last.reporter, last.message]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        match rows.is_empty() {
            true => self.block("Events:", "none in the last hour"),
            false => self.table("Events:", &columns, &rows, screen),
        }
    }
}

/// The screen, narrowed by the two columns of a block's indentation.
pub(in crate::cli) fn indented(screen: Screen) -> Screen {
    Screen { width: screen.width.map(|width| width.saturating_sub(2)), ..screen }
}

pub(in crate::cli) fn pairs(map: &StringMap) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_several_lines_stays_one_of_several_lines() {
        let mut page = Page::default();
        page.field(0, "Note", "no matching distribution\nhint: \u{1b}[31m");
        page.field(0, "Why", "");
        page.fields(0, "Images", ["a".to_owned(), "b\nc".to_owned()]);
        insta::assert_snapshot!(page.text(), @r"
        Note:          no matching distribution
                       hint: \u{1b}[31m
        Images:        a
                       b
                       c
        ");
    }
}
