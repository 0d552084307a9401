//! Rewrites older spellings of manifests to today's before anything is checked.
//!
//! Works on the tree of a document: rewritten nodes keep the line and column of the original, so that later
//! messages point there. One file per kind; each rewrite adds a note about the current spelling. Anything else
//! stays as it is, for the walk to judge.

use crate::document::edit::{entry, text};
use crate::document::node::Budget;
use crate::document::problems::Problems;
use crate::kinds::{Kind, replica_set};

pub(crate) use crate::document::node::{Entry, Mark, Node, Value};

pub(crate) use crate::document::problems::Notes;

/// Rewrites a document in place. Adds a note for each older spelling, and an error where an older spelling can't be
/// carried over. Manifests embedded as text count against `budget`.
pub(crate) fn rewrite(node: &mut Node, budget: &mut Budget, problems: &mut Problems) -> Rewritten {
    let mut notes = Notes::new(problems, budget);
    replica_set::dialect::rewrite_kind(node, &mut notes);
    kind_word(node, &mut notes);
    if let Some(kind) = node.entry("kind").and_then(|entry| entry.value.text()?.parse::<Kind>().ok()) {
        (kind.descriptor().older.rewrite)(node, &mut notes);
        api_version(kind, node, &mut notes);
    }
    Rewritten { is_complete: notes.is_complete(), kind_word: notes.kind_word }
}

/// Outcome of a rewrite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rewritten {
    /// False if the spec lacks an older spelling that could not be carried over.
    pub(crate) is_complete: bool,
    /// Kind in the manifest, if it is read as another one.
    pub(crate) kind_word: Option<&'static str>,
}

// `kind` and `apiVersion`: older words and versions with the same meaning.

/// Rewrites older words for a kind: `kind: Hpa` is `kind: HorizontalPodAutoscaler`.
fn kind_word(node: &mut Node, notes: &mut Notes<'_>) {
    let Value::Mapping(entries) = &mut node.value else { return };
    let Some(entry) = entries.iter_mut().find(|entry| entry.key == "kind") else { return };
    let Value::Scalar { text, .. } = &mut entry.value.value else { return };
    let Some(kind) = Kind::from_older_word(text) else { return };
    notes.older(entry.value.mark, &format!("kind: {text}"), &format!("kind: {kind}"));
    *text = kind.to_string();
}

/// Rewrites an older version to the kind's current one.
fn api_version(kind: Kind, node: &mut Node, notes: &mut Notes<'_>) {
    let (today, document) = (kind.api_version(), node.first_mark());
    let older = &kind.descriptor().older;
    let Value::Mapping(entries) = &mut node.value else { return };
    let Some(written) = entries.iter_mut().find(|entry| entry.key == "apiVersion") else {
        // The envelope check reports a misspelt key.
        let misspelt = |key: &str| super::classify::top_level_field(key) == Some("apiVersion");
        if older.may_lack_api_version && !entries.iter().any(|entry| misspelt(&entry.key)) {
            notes.older(document, "no apiVersion", &format!("apiVersion: {today}"));
            entries.push(entry("apiVersion", document, text(document, today)));
        }
        return;
    };
    let Value::Scalar { text, .. } = &mut written.value.value else { return };
    if older.api_versions.contains(&text.as_str()) {
        notes.older(written.value.mark, &format!("apiVersion: {text}"), &format!("apiVersion: {today}"));
        *text = today.to_owned();
    }
}
