//! Decides whether a document is meant as a manifest.
//!
//! A manifest with a typo must never pass for another sort of file: its objects would be pruned. So any document
//! with `kind`, or with two of the four top-level fields, counts as a manifest.

use std::collections::BTreeSet;

use super::shape;
use crate::document::nearest::nearest;
use crate::document::node::{Entry, Mark, Node, ParsedFile, Problem, Root, Value};
use crate::kinds::Kind;
use crate::violation::rules;

/// Top-level fields of every object.
pub(crate) const TOP_LEVEL: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// Classification of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentClass {
    /// Only whitespace and comments.
    Empty,
    /// Meant as an object, valid or not.
    Manifest,
    /// Anything else.
    Other,
}

/// Classifies a document.
pub(crate) fn classify(node: &Node) -> DocumentClass {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => DocumentClass::Empty,
        // With another first character, `{"kind":"Pod",…}` is one long word.
        Value::Scalar { text, .. } if count_top_level_words(text) >= 2 => DocumentClass::Manifest,
        Value::Scalar { .. } => DocumentClass::Other,
        // A list of objects is a mistake (Kubernetes has no such form), but objects are meant.
        Value::Sequence(items) if items.iter().any(looks_like_object) => DocumentClass::Manifest,
        Value::Sequence(_) => DocumentClass::Other,
        Value::Mapping(_) if looks_like_object(node) => DocumentClass::Manifest,
        Value::Mapping(_) => DocumentClass::Other,
    }
}

/// Counts the top-level fields that occur in a text.
fn count_top_level_words(text: &str) -> usize {
    TOP_LEVEL.iter().filter(|word| text.contains(**word)).count()
}

fn looks_like_object(node: &Node) -> bool {
    let Some(entries) = node.entries() else { return false };
    if let [only] = entries
        && only.key.is_empty()
    {
        // A stray `:` in front puts the whole object under an empty key.
        return looks_like_object(&only.value);
    }
    // `kind: List` with a typo.
    let holds_objects = |entry: &Entry| matches!(&entry.value.value, Value::Sequence(items) if entry.key == "items" && items.iter().any(looks_like_object));
    let words = entries.iter().filter(|entry| top_level_field(&entry.key).is_some()).count();
    words >= 2
        || entries.iter().any(|entry| entry.key == "kind")
        || entries.iter().any(holds_objects)
        // `knd: Pod` with nothing else.
        || entries.iter().any(|entry| {
            nearest(&entry.key, ["kind"]).is_some()
                && entry.value.text().is_some_and(|text| text.parse::<Kind>().is_ok())
        })
}

/// Returns the top-level field that a key is, or is likely a misspelling of. `kind` and `spec` are so short that
/// only their exact spelling counts, in any case: `bind` and `specs` are words of other files.
pub(crate) fn top_level_field(key: &str) -> Option<&'static str> {
    TOP_LEVEL
        .into_iter()
        .find(|word| word.eq_ignore_ascii_case(key))
        .or_else(|| nearest(key, ["apiVersion", "metadata"]))
}

/// Finds a one-line manifest that became a comment or a `%` directive: with its first brace replaced, a whole
/// object would vanish silently. ([`classify`] catches other shapes.) Comments that only mention manifests have no
/// braces and no colons; lines in a block of text are no comments.
pub(crate) fn vanished_manifest(text: &str, parsed: &ParsedFile) -> Option<Problem> {
    let mut suspects = (1u32..).zip(text.lines()).filter(|(_, line)| is_commented_manifest(line)).peekable();
    suspects.peek()?;
    let mut in_blocks = BTreeSet::new();
    parsed.roots.iter().for_each(|root| lines_of_blocks(&root.node, &mut in_blocks));
    let (number, _) = suspects.find(|(_, line)| !in_blocks.contains(line.trim()))?;
    let message = "this line reads like a whole manifest, but is a comment or directive";
    Some(
        Problem::new(Mark { line: number, column: 1 }, &rules::COMMENTED_MANIFEST, message)
            .help("remove the line to delete the object, or repair it"),
    )
}

/// True if a line is a comment or directive that would be a flow-style manifest with another first character.
fn is_commented_manifest(line: &str) -> bool {
    let line = line.strip_prefix("---").unwrap_or(line).trim_start();
    let text = line.trim_start_matches(|c: char| !c.is_alphanumeric());
    line.starts_with(['#', '%'])
        && line[1..].contains('{')
        && TOP_LEVEL.iter().any(|word| text.starts_with(word))
        && count_top_level_words(text) >= 3
        && TOP_LEVEL.iter().filter(|word| has_key(text, word)).count() >= 2
}

/// True if any top-level field occurs as a key in a text that can't be parsed.
pub(crate) fn has_words_of_manifest(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    TOP_LEVEL.iter().any(|word| has_key(&text, word))
}

/// Most bytes of a text whose words are kept.
const WORDS_TEXT_MAX_BYTES: usize = 256 * 1024;

/// Returns the words of a text that can't be parsed; none for a large text, because every file keeps them in memory.
pub(crate) fn words(text: &str) -> BTreeSet<String> {
    if text.len() > WORDS_TEXT_MAX_BYTES {
        return BTreeSet::new();
    }
    let is_part = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// True if `word` is followed by a colon somewhere, possibly after a closing quote.
fn has_key(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let rest = text[at + word.len()..].trim_start();
        let rest = rest.strip_prefix(['"', '\'']).unwrap_or(rest);
        rest.trim_start().starts_with(':')
    })
}

/// Collects the lines of all multi-line texts.
fn lines_of_blocks<'a>(node: &'a Node, lines: &mut BTreeSet<&'a str>) {
    match &node.value {
        Value::Scalar { text, .. } if text.contains('\n') => lines.extend(text.lines().map(str::trim)),
        Value::Scalar { .. } => {}
        Value::Sequence(items) => items.iter().for_each(|item| lines_of_blocks(item, lines)),
        Value::Mapping(entries) => entries.iter().for_each(|entry| lines_of_blocks(&entry.value, lines)),
    }
}

/// Reports a document without any mark of a manifest in a file that has manifests.
pub(crate) fn stray_document(node: &Node) -> Problem {
    let mark = node.first_mark();
    if node.entries().is_none() {
        return not_an_object(node);
    }
    Problem::new(mark, &rules::MISSING_KIND, "the document has no `kind`, but others in this file do")
        .help("add apiVersion, kind and metadata, or move it into a file of its own")
}

/// Reports a document that is a list or a text.
pub(crate) fn not_an_object(node: &Node) -> Problem {
    let message = format!(
        "expected an object with apiVersion, kind, metadata and spec, found {}",
        shape::describe_found(node, false)
    );
    let help = match node.value {
        Value::Sequence(_) => "separate objects with `---`, or write `kind: List` with `items`",
        _ => "",
    };
    Problem::new(node.mark, &rules::NOT_A_MAPPING, message).help(help)
}

/// Expands Kubernetes' `kind: List` to its items, if they are objects.
pub(crate) fn expand_list(mut root: Root) -> Vec<Root> {
    let is_list = root.node.entry("kind").and_then(|entry| entry.value.text()) == Some("List");
    let Value::Mapping(entries) = &mut root.node.value else { return vec![root] };
    let items = entries.iter_mut().find(|entry| entry.key == "items").map(|entry| &mut entry.value.value);
    let Some(Value::Sequence(items)) = items else { return vec![root] };
    let are_objects = items.iter().all(|item| classify(item) == DocumentClass::Manifest);
    if !is_list || items.is_empty() || !are_objects {
        return vec![root];
    }
    // Problems of the text are reported once, with the first item.
    let (items, mut problems) = (std::mem::take(items), root.problems);
    items.into_iter().map(|node| Root { node, problems: std::mem::take(&mut problems) }).collect()
}
