//! Size limit of a file: one account for all that is read from it, with aliases expanded and with the manifests
//! that are embedded as text.

use super::limits::{NODES_MAX, TEXT_MAX_BYTES};
use super::node::{Mark, Problem, Root};
use crate::violation::rules;

/// Size of a value, all of its parts counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) values: usize,
    pub(crate) bytes: usize,
}

impl Size {
    /// Size of a list or a mapping without its parts.
    pub(crate) const EMPTY: Size = Size { values: 1, bytes: 0 };

    /// Returns the size of a scalar.
    pub(crate) fn of_text(text: &str) -> Self {
        Size { values: 1, bytes: text.len() }
    }

    pub(crate) fn add(&mut self, other: Size) {
        self.values = self.values.saturating_add(other.values);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Remaining size that a file may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    left: Size,
}

impl Budget {
    /// Returns the budget of a file before anything is read.
    pub(crate) fn of_file() -> Self {
        Budget { left: Size { values: NODES_MAX, bytes: TEXT_MAX_BYTES } }
    }

    /// Deducts `size` for a value at `mark`, before it is built.
    pub(crate) fn spend(&mut self, size: Size, mark: Mark) -> Result<(), Problem> {
        let left = (self.left.values.checked_sub(size.values), self.left.bytes.checked_sub(size.bytes));
        let what = match left {
            (Some(values), Some(bytes)) => {
                self.left = Size { values, bytes };
                return Ok(());
            }
            (None, _) => format!("{NODES_MAX} values"),
            (_, None) => format!("{TEXT_MAX_BYTES} bytes of text"),
        };
        Err(Problem::new(mark, &rules::TOO_MANY_NODES, format!("the file holds more than {what}"))
            .help("aliases count as often as they are used; split the file, or write less"))
    }
}

/// Parsed content of a file.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) roots: Vec<Root>,
    /// Problem that kept the rest of the file from being read.
    pub(crate) failure: Option<Problem>,
    /// Remaining budget of the file.
    pub(crate) left: Budget,
}
