//! What a verified body says: branch, commit, repository. Pure, and total over any bytes.
//!
//! A hint and no more: what is applied is what the repository shows. What can't be read is none,
//! and then the repository is looked at.

use serde_json::Value;

use crate::git::Reference;

/// Longest text that is kept of a body, in bytes.
const TEXT_BYTES_MAX: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    /// The branch or tag in full: `refs/heads/main`.
    pub reference: Option<String>,
    /// The commit that it is at now; none if it was removed.
    pub commit: Option<String>,
    pub repository: Option<String>,
}

/// The names of a repository, the most specific first.
const NAMES: [&str; 3] = ["full_name", "path_with_namespace", "name"];

/// A text, or the name of an object.
fn name_of(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(fields) => NAMES.iter().find_map(|name| name_of(fields.get(*name)?)),
        _ => None,
    }
}

/// Reads a body; what can't be read is left out.
pub fn read(body: &[u8]) -> Hint {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return Hint::default() };
    let is_commit = |text: &&str| {
        matches!(text.len(), 40 | 64)
            && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            && text.bytes().any(|byte| byte != b'0')
    };
    let field = |name: &str| name_of(&body[name]);
    Hint {
        reference: field("ref").and_then(|name| in_full(name, field("ref_type"))).and_then(plain),
        commit: ["after", "checkout_sha"].into_iter().filter_map(field).find(is_commit).map(str::to_owned),
        repository: field("repository").or(field("project")).map(str::to_owned).and_then(plain),
    }
}

/// `create` events name a branch or tag without its folder.
fn in_full(name: &str, kind: Option<&str>) -> Option<String> {
    match kind {
        _ if name.starts_with("refs/") => Some(name.to_owned()),
        Some("branch") => Some(format!("refs/heads/{name}")),
        Some("tag") => Some(format!("refs/tags/{name}")),
        _ => None,
    }
}

/// Only text that fits a table and a log.
fn plain(text: String) -> Option<String> {
    let fit = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    fit.then_some(text)
}

/// Why a source that follows `followed` does not care, if so.
pub fn not_followed(followed: &Reference, hint: &Hint) -> Option<String> {
    if let Reference::Commit(_) = followed {
        return Some("the source stays at a commit".to_owned());
    }
    let named = hint.reference.as_ref()?;
    let wanted = followed.full_name();
    (*named != wanted).then(|| format!("the source follows {wanted}, not {named}"))
}
