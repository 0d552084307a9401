//! `kind` and `apiVersion`: older words and versions with the same meaning.

use super::tree::{entry, text};
use super::{Node, Notes, Value};
use crate::kinds::Kind;

/// Rewrites older words for a kind: `kind: Hpa` is `kind: HorizontalPodAutoscaler`.
pub(super) fn kind_word(node: &mut Node, notes: &mut Notes<'_>) {
    let Value::Mapping(entries) = &mut node.value else { return };
    let Some(entry) = entries.iter_mut().find(|entry| entry.key == "kind") else { return };
    let Value::Scalar { text, .. } = &mut entry.value.value else { return };
    let Some(kind) = Kind::of_older_word(text) else { return };
    notes.older(entry.value.mark, &format!("kind: {text}"), &format!("kind: {kind}"));
    *text = kind.to_string();
}

/// Rewrites an older version to the kind's current one.
pub(super) fn api_version(kind: Kind, node: &mut Node, notes: &mut Notes<'_>) {
    let (today, document) = (kind.api_version(), node.first_mark());
    let older = &kind.descriptor().older;
    let Value::Mapping(entries) = &mut node.value else { return };
    let Some(written) = entries.iter_mut().find(|entry| entry.key == "apiVersion") else {
        // The envelope check reports a misspelt key.
        let misspelt = |key: &str| super::super::classify::stands_for(key) == Some("apiVersion");
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
