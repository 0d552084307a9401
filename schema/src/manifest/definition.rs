//! State machines on their own: documents without an envelope, as other tools of the Amazon States Language
//! write them.

use super::dialects::tree::{mapping, text as text_at};
use super::parse::node::Node;
use super::parse::{Format, parse, text};
use super::{ManifestFile, broken, load_parsed};
use crate::kinds::workflow::STATES_LANGUAGE_KEYS as KEYS;
use crate::kinds::{Kind, OWN_API_VERSION};
use crate::violation::rules;

/// What the workflow of a bare document is called.
pub const BARE_NAME: &str = "workflow";

/// Loads a file whose documents without a `kind` are state machines: each is the spec of a Workflow named
/// [`BARE_NAME`]. The extension says how it is written; without one that does, `{` at its beginning means JSON.
pub fn load_definition(path: &str, bytes: &[u8]) -> ManifestFile {
    let text = match text::read(bytes) {
        Ok(text) => text,
        Err(problem) => return broken(path, problem),
    };
    let guessed = || if text.trim_start().starts_with('{') { Format::Json } else { Format::Yaml };
    let format = Format::of(path).unwrap_or_else(guessed);
    let mut parsed = parse(format, text);
    for root in &mut parsed.roots {
        if is_bare(&root.node) {
            in_envelope(&mut root.node);
        }
    }
    let mut loaded = load_parsed(path, parsed, None);
    // Its own language's spelling is no older one.
    loaded.violations.retain(|violation| {
        let is_of_language = violation.rule == rules::OLDER_SPELLING.id && violation.message.contains(KEYS);
        !is_of_language
    });
    loaded
}

/// What has none of the envelope's fields. An empty document stays what it is.
fn is_bare(node: &Node) -> bool {
    let has = |key: &str| node.entry(key).is_some();
    !node.is_null() && !has("kind") && !has("apiVersion") && !has("metadata")
}

fn in_envelope(node: &mut Node) {
    let mark = node.first_mark();
    let nothing = mapping(mark, []);
    let spec = std::mem::replace(node, nothing);
    *node = mapping(
        mark,
        [
            ("apiVersion", text_at(mark, OWN_API_VERSION)),
            ("kind", text_at(mark, Kind::Workflow.as_str())),
            ("metadata", mapping(mark, [("name", text_at(mark, BARE_NAME))])),
            ("spec", spec),
        ],
    );
}
