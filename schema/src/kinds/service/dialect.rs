//! Older Service manifests with words in another case, such as `protocol: tcp`.

use crate::manifest::dialects::tree::{below, items_mut};
use crate::manifest::dialects::{Node, Notes, Value};

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(document, &["spec"]) else { return };
    word(spec, "type", &["ClusterIP", "NodePort", "ExternalName"], notes);
    let ports = below(spec, &["ports"]).and_then(items_mut);
    for port in ports.into_iter().flatten() {
        word(port, "protocol", &["TCP", "UDP"], notes);
    }
}

/// Accepts the value of `key` in any case.
fn word(node: &mut Node, key: &str, words: &[&str], notes: &mut Notes<'_>) {
    let Some(Node { mark, value: Value::Scalar { text, .. } }) = below(node, &[key]) else { return };
    let today = words.iter().find(|word| word.eq_ignore_ascii_case(text) && *word != text);
    if let Some(today) = today {
        notes.older(*mark, &format!("{key}: {text}"), &format!("{key}: {today}"));
        *text = (*today).to_owned();
    }
}
