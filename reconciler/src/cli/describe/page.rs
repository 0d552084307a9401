//! Text layout of a `describe` page.

use jiff::Timestamp;
use schema::condition::Condition;
use schema::meta::StringMap;

use crate::cli::output::{Layout, Screen, column, cuttable, format_rows};
use crate::view::{EventGroup, EventView, age, event_groups};

const EVENTS_MAX: usize = 20;

/// Lines `Key:   value`, further lines indented below.
#[derive(Default)]
pub(in crate::cli) struct Page(pub(in crate::cli) String);

impl Page {
    /// Adds a line with its key; skips an empty value.
    pub(in crate::cli) fn field(&mut self, indent: usize, key: &str, value: &str) {
        if !value.is_empty() {
            let key = format!("{:indent$}{key}:", "");
            self.line(&format!("{key:<14} {value}"));
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
                _ => self.line(&format!("{:15}{value}", "")),
            }
        }
    }

    pub(in crate::cli) fn line(&mut self, text: &str) {
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    pub(in crate::cli) fn block(&mut self, title: &str, text: &str) {
        if !text.is_empty() {
            self.line(title);
            text.lines().for_each(|line| self.line(&format!("  {line}")));
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
        if !rows.is_empty() {
            self.block(
                "Conditions:",
                &format_rows(&columns, &rows, indented(screen), &mut Layout::default()),
            );
        }
    }

    /// Adds the last events, with similar ones grouped.
    pub(in crate::cli) fn events(&mut self, events: &[EventView], screen: Screen, now: Timestamp) {
        let columns = [column("TYPE"), column("REASON"), column("AGE"), column("FROM"), cuttable("MESSAGE")];
        let rows = event_groups(events, EVENTS_MAX, now).into_iter().map(|group| {
            let EventGroup { last, age, .. } = group;
            vec![format!("{:?}", last.kind), last.reason, age, last.reporter, last.message]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let text = match rows.is_empty() {
            true => "none in the last hour".to_owned(),
            false => format_rows(&columns, &rows, indented(screen), &mut Layout::default()),
        };
        self.block("Events:", &text);
    }
}

/// The screen, narrowed by the two columns of a block's indentation.
pub(in crate::cli) fn indented(screen: Screen) -> Screen {
    Screen { width: screen.width.map(|width| width.saturating_sub(2)), ..screen }
}

pub(in crate::cli) fn pairs(map: &StringMap) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect()
}
