//! Accepts lists and mappings in brackets whose later lines are no deeper than their key:
//!
//! ```yaml
//! runCommands: [
//!   "./run",
//! ]
//! ```
//!
//! The YAML specification wants the last line deeper, and so does our parser; libyaml and with it kubectl, Go and
//! Python accept it, and many manifests are written so. The parser reports this only within brackets, where space
//! in front of a line means nothing: so the line is moved to the right and the file is read again. Columns are
//! reported as they were written.

use std::borrow::Cow;
use std::collections::BTreeSet;

use saphyr_parser::ScanError;

use super::limits::DEPTH_MAX;
use super::node::Mark;

/// Most lines that are moved in one file; each costs another pass over the file.
const MOVED_MAX: usize = 64;

/// Columns by which lines move: deeper than any key of a manifest that can be loaded, written as people do.
const BY: usize = 4 * DEPTH_MAX;

/// A text in which some lines may be moved to the right.
pub(super) struct Indented<'a> {
    pub(super) text: Cow<'a, str>,
    /// 1-based numbers of the moved lines.
    moved: BTreeSet<u32>,
}

impl<'a> Indented<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: Cow::Borrowed(text), moved: BTreeSet::new() }
    }

    /// Moves the line at which the parser gave up, if that can help; returns whether it did.
    pub(super) fn move_line(&mut self, error: &ScanError, at: Mark) -> bool {
        let is_about_indentation =
            matches!(error.info(), "invalid indentation" | "invalid indentation in flow construct");
        if !is_about_indentation || self.moved.len() >= MOVED_MAX || !self.moved.insert(at.line) {
            return false;
        }
        let before = self.text.split_inclusive('\n').take(at.line as usize - 1).map(str::len).sum();
        self.text.to_mut().insert_str(before, &" ".repeat(BY));
        true
    }

    /// Maps a place of this text to the original text.
    pub(super) fn written(&self, mark: Mark) -> Mark {
        let by = if self.moved.contains(&mark.line) { BY as u32 } else { 0 };
        Mark { line: mark.line, column: mark.column.saturating_sub(by).max(1) }
    }
}
