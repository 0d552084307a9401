//! Older spellings of manifests, rewritten to today's before anything is checked.
//!
//! Works on the tree of a document: what is rewritten keeps the line and column of what was written, so
//! that later messages point there. One file per kind; each rewrite adds a note that says what is
//! spelled differently today. What is not an older spelling stays as it is, for the walk to judge.

use super::parse::budget::Budget;
pub(crate) use super::parse::node::{Entry, Mark, Node, Value};
use super::problems::Problems;
use crate::kinds::{Kind, replica_set};

mod envelope;
mod notes;
pub(crate) mod tree;

pub(crate) use notes::Notes;

/// Rewrites a document in place. Adds a note for each older spelling, and an error where an older
/// spelling can't be carried over. What is read from text within counts on `budget`. False if the spec lacks something because of that.
pub(crate) fn rewrite(node: &mut Node, budget: &mut Budget, problems: &mut Problems) -> bool {
    let mut notes = Notes::new(problems, budget);
    replica_set::dialect::deployment(node, &mut notes);
    envelope::kind_word(node, &mut notes);
    let Some(kind) = node.entry("kind").and_then(|entry| entry.value.text()?.parse::<Kind>().ok()) else {
        return true;
    };
    (kind.descriptor().older.rewrite)(node, &mut notes);
    envelope::api_version(kind, node, &mut notes);
    notes.is_whole()
}
