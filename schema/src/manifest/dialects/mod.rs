//! Older spellings of manifests, rewritten to today's before anything is checked.
//!
//! Works on the tree of a document: what is rewritten keeps the line and column of what was written, so
//! that later messages point there. One file per kind; each rewrite adds a note that says what is
//! spelled differently today. What is not an older spelling stays as it is, for the walk to judge.

use super::parse::budget::Budget;
use super::parse::node::Problem;
pub(crate) use super::parse::node::{Entry, Mark, Node, Value};
use super::problems::Problems;
use crate::kinds::Kind;
use crate::violation::{Rule, rules};

mod envelope;
pub(crate) mod tree;

/// Rewrites a document in place. Adds a note for each older spelling, and an error where an older
/// spelling can't be carried over. What is read from text within counts on `budget`. False if the spec lacks something because of that.
pub(crate) fn rewrite(node: &mut Node, budget: &mut Budget, problems: &mut Problems) -> bool {
    let mut notes = Notes { problems, budget, is_whole: true };
    envelope::kind_word(node, &mut notes);
    let Some(kind) = node.entry("kind").and_then(|entry| entry.value.text()?.parse::<Kind>().ok()) else {
        return true;
    };
    (kind.descriptor().older.rewrite)(node, &mut notes);
    envelope::api_version(kind, node, &mut notes);
    notes.is_whole
}

/// Where a rewrite says what it did.
pub(crate) struct Notes<'a> {
    problems: &'a mut Problems,
    /// What the file may hold besides: some spellings hold text that is read in turn.
    pub(crate) budget: &'a mut Budget,
    is_whole: bool,
}

impl Notes<'_> {
    /// `old`, found at `mark`, is written `new` today.
    pub(crate) fn older(&mut self, mark: Mark, old: &str, new: &str) {
        let message = format!("`{old}` is an older spelling, read as `{new}`");
        self.problems.push(Problem::new(mark, &rules::OLDER_SPELLING, message));
    }

    /// `old`, found at `mark`, says nothing today: `why`.
    pub(crate) fn dropped(&mut self, mark: Mark, old: &str, why: &str) {
        let message = format!("`{old}` is an older spelling and is left out: {why}");
        self.problems.push(Problem::new(mark, &rules::OLDER_SPELLING, message));
    }

    /// An older spelling that can't be carried over; what is missing from the spec for it is not told again.
    pub(crate) fn error(&mut self, mark: Mark, rule: &'static Rule, message: String, help: &str) {
        self.is_whole = false;
        self.mistake(mark, rule, message, help);
    }

    /// A mistake in an older spelling, in whose place something stands that breaks no rule.
    pub(crate) fn mistake(&mut self, mark: Mark, rule: &'static Rule, message: String, help: &str) {
        self.problems.push(Problem::new(mark, rule, message).help(help));
    }
}
