//! Rewrites older spellings of manifests to today's before anything is checked.
//!
//! Works on the tree of a document: rewritten nodes keep the line and column of the original, so that later
//! messages point there. One file per kind; each rewrite adds a note about the current spelling. Anything else
//! stays as it is, for the walk to judge.

use super::parse::budget::Budget;
pub(crate) use super::parse::node::{Entry, Mark, Node, Value};
use super::problems::Problems;
use crate::kinds::{Kind, replica_set};

mod envelope;
mod notes;
pub(crate) mod tree;

pub(crate) use notes::Notes;

/// Rewrites a document in place. Adds a note for each older spelling, and an error where an older spelling can't be
/// carried over. Manifests embedded as text count against `budget`. Returns false if the spec is incomplete because
/// of such an error.
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
