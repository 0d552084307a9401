//! What a verified body says: branch, commit, repository. Pure, and total over any bytes.
//!
//! A hint and no more: what is applied is what the repository shows. What can't be read is none,
//! and then the repository is looked at.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::git::Reference;

/// Longest text that is kept of a body, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// What a body says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    /// The branch or tag in full: `refs/heads/main`.
    pub reference: Option<String>,
    /// The commit that it is at now; none if it was removed.
    pub commit: Option<String>,
    pub repository: Option<String>,
}

/// Fields of another type are as if they were not there. Nothing but these is kept: reading a body
/// takes little more memory than the body.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    #[serde(rename = "ref")]
    reference: Loose,
    ref_type: Loose,
    after: Loose,
    checkout_sha: Loose,
    repository: Loose,
    project: Loose,
}

/// A text, or the name of an object; anything else is none.
#[derive(Default)]
struct Loose(Option<String>);

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct LooseVisitor;

/// The names of a repository, the most telling first.
const NAMES: [&str; 3] = ["full_name", "path_with_namespace", "name"];

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Loose, E> {
        Ok(Loose(Some(text.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose, A::Error> {
        let mut best: Option<(usize, String)> = None;
        while let Some(key) = map.next_key::<String>()? {
            let rank = NAMES.iter().position(|name| *name == key);
            match rank.filter(|rank| best.as_ref().is_none_or(|(than, _)| rank < than)) {
                Some(rank) => best = map.next_value::<Loose>()?.0.map(|name| (rank, name)).or(best),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Loose(best.map(|(_, name)| name)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Loose, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Loose(None))
    }

    fn visit_unit<E>(self) -> Result<Loose, E> {
        Ok(Loose(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Loose, E> {
        Ok(Loose(None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Loose, E> {
        Ok(Loose(None))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Loose, E> {
        Ok(Loose(None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Loose, E> {
        Ok(Loose(None))
    }
}

/// Reads a body; what can't be read is left out.
pub fn read(body: &[u8]) -> Hint {
    let Ok(body) = serde_json::from_slice::<Body>(body) else { return Hint::default() };
    let is_commit = |text: &String| {
        matches!(text.len(), 40 | 64)
            && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            && text.bytes().any(|byte| byte != b'0')
    };
    let named = body.repository.0.or(body.project.0);
    Hint {
        reference: body
            .reference
            .0
            .and_then(|name| in_full(name, body.ref_type.0.as_deref()))
            .and_then(plain),
        commit: [body.after.0, body.checkout_sha.0].into_iter().flatten().find(is_commit),
        repository: named.and_then(plain),
    }
}

/// `create` events name a branch or tag without its folder.
fn in_full(name: String, kind: Option<&str>) -> Option<String> {
    match kind {
        _ if name.starts_with("refs/") => Some(name),
        Some("branch") => Some(format!("refs/heads/{name}")),
        Some("tag") => Some(format!("refs/tags/{name}")),
        // Not to be told: as if it were not there.
        _ => None,
    }
}

/// Fit for a table and a log; a longer one is none of ours.
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
