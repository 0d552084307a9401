//! `kind` and `apiVersion`: the older words and versions that still say the same.

use super::tree::{entry, text};
use super::{API_VERSIONS, KIND_WORDS, Node, Notes, OWN_API_VERSION, OWN_KINDS_API_VERSIONS, Value};
use crate::kinds::Kind;

/// `kind: Hpa` is `kind: HorizontalPodAutoscaler`.
pub(super) fn kind_word(node: &mut Node, notes: &mut Notes<'_>) {
    let Value::Mapping(entries) = &mut node.value else { return };
    let Some(entry) = entries.iter_mut().find(|entry| entry.key == "kind") else { return };
    let Value::Scalar { text, .. } = &mut entry.value.value else { return };
    let Some((_, kind)) = KIND_WORDS.iter().find(|(word, _)| *word == text) else { return };
    notes.older(entry.value.mark, &format!("kind: {text}"), &format!("kind: {kind}"));
    *text = kind.to_string();
}

/// An older version becomes the kind's own.
pub(super) fn api_version(kind: Kind, node: &mut Node, notes: &mut Notes<'_>) {
    let (today, document) = (kind.api_version(), node.first_mark());
    let is_own = today == OWN_API_VERSION;
    let may_lack = is_own || kind == Kind::Node;
    let older = API_VERSIONS.iter().find(|(of, _)| *of == kind).map_or(&[][..], |(_, versions)| versions);
    let older = if is_own { OWN_KINDS_API_VERSIONS } else { older };
    let Value::Mapping(entries) = &mut node.value else { return };
    let Some(written) = entries.iter_mut().find(|entry| entry.key == "apiVersion") else {
        // Our own kinds needed none before `minik8s.io/v1`, and Node never did. A misspelt key is the envelope
        // check's to report.
        let misspelt = |key: &str| super::super::classify::stands_for(key) == Some("apiVersion");
        if may_lack && !entries.iter().any(|entry| misspelt(&entry.key)) {
            notes.older(document, "no apiVersion", &format!("apiVersion: {today}"));
            entries.push(entry("apiVersion", document, text(document, today)));
        }
        return;
    };
    let Value::Scalar { text, .. } = &mut written.value.value else { return };
    if older.contains(&text.as_str()) {
        notes.older(written.value.mark, &format!("apiVersion: {text}"), &format!("apiVersion: {today}"));
        *text = today.to_owned();
    }
}
