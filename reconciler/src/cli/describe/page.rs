//! A page as text.

use schema::meta::StringMap;

use crate::cli::print::output::Screen;

/// Lines `Key:   value`, further lines indented below.
#[derive(Default)]
pub(in crate::cli) struct Page(pub(in crate::cli) String);

impl Page {
    /// A line with its key; nothing for an empty value.
    pub(in crate::cli) fn field(&mut self, indent: usize, key: &str, value: &str) {
        if !value.is_empty() {
            let key = format!("{:indent$}{key}:", "");
            self.line(&format!("{key:<14} {value}"));
        }
    }

    /// One line per value, the key before the first.
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
}

/// The screen without the two columns that a block is indented by.
pub(in crate::cli) fn indented(screen: Screen) -> Screen {
    Screen { width: screen.width.map(|width| width.saturating_sub(2)), ..screen }
}

pub(in crate::cli) fn pairs(map: &StringMap) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect()
}
