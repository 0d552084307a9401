//! Content of a verified body: branch, commit, repository. Pure, and total over any bytes.
//!
//! Only a hint: the repository itself decides what is applied. An unreadable body gives an empty hint, and the
//! repository is checked.

use serde_json::Value;

use crate::git::Reference;

/// Maximum bytes kept of a text of a body.
const TEXT_BYTES_MAX: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    /// The branch or tag in full: `refs/heads/main`.
    pub reference: Option<String>,
    /// The commit that it points to now; `None` if it was removed.
    pub commit: Option<String>,
    pub repository: Option<String>,
}

/// Fields that name a repository, the most specific first.
const NAMES: [&str; 3] = ["full_name", "path_with_namespace", "name"];

/// The text of a value, or the name of an object.
fn name_of(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(fields) => NAMES.iter().find_map(|name| name_of(fields.get(*name)?)),
        _ => None,
    }
}

/// Parses a body, leaving out unreadable parts.
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

/// Full name of a reference; `create` events name a branch or tag without its prefix.
fn in_full(name: &str, kind: Option<&str>) -> Option<String> {
    match kind {
        _ if name.starts_with("refs/") => Some(name.to_owned()),
        Some("branch") => Some(format!("refs/heads/{name}")),
        Some("tag") => Some(format!("refs/tags/{name}")),
        _ => None,
    }
}

/// Accepts only text that fits a table and a log.
fn plain(text: String) -> Option<String> {
    let fit = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    fit.then_some(text)
}

/// Reason why a source that follows `followed` ignores the event, if so.
pub fn not_followed(followed: &Reference, hint: &Hint) -> Option<String> {
    if let Reference::Commit(_) = followed {
        return Some("the source is pinned to a commit".to_owned());
    }
    let named = hint.reference.as_ref()?;
    let wanted = followed.full_name();
    (*named != wanted).then(|| format!("the source follows {wanted}, not {named}"))
}
