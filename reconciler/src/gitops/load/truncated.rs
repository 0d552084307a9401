//! Truncated files: only their beginning is in a commit, after half a push, a full disk or a bad merge.
//!
//! A file that is truncated after a whole document, or within its last field, is a valid manifest of fewer objects.
//! Reads the same file in the commits that set the missing objects, decides whether the file is their beginning and
//! ends where no author would end it; [`crate::gitops::check`] decides the consequences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use git2::{Oid, Repository};

use schema::meta::ObjectRef;
use schema::object::{Object, Provenance};
use schema::snapshot::Table;

use crate::git;
use crate::gitops::load::Manifests;

/// Limit on earlier versions of a file to compare with.
const TEXTS_MAX: usize = 64;

/// Commits that set objects which no document names, by the file that they were in.
pub type Homes = BTreeMap<String, BTreeSet<String>>;

/// Returns the homes of objects that no document names.
pub fn homes<'a>(of: impl Iterator<Item = &'a Provenance>) -> Homes {
    let mut homes = Homes::new();
    for provenance in of {
        let commits = homes.entry(provenance.file.clone()).or_default();
        commits.insert(provenance.commit.clone());
    }
    homes
}

/// Returns the commits of all homes.
pub fn commits(homes: &Homes) -> BTreeSet<String> {
    homes.values().flatten().cloned().collect()
}

/// Adds the commits of all objects of the same files: the missing one may be older than the last change to its file.
pub fn with_siblings(mut homes: Homes, source: &str, live: &Table<ObjectRef, Object>) -> Homes {
    if homes.is_empty() {
        return homes;
    }
    for provenance in live.values().map(|live| &live.value.provenance).filter(|of| of.source == source) {
        if let Some(commits) = homes.get_mut(&provenance.file) {
            commits.insert(provenance.commit.clone());
        }
    }
    homes
}

/// True if `now` is the beginning of `former` and ends within a document of it. Pure.
///
/// An end between two documents is how a person removes the last ones.
pub fn is_truncated(now: &[u8], former: &[u8]) -> bool {
    let Some(rest) = former.strip_prefix(now).filter(|rest| !rest.is_empty()) else { return false };
    let is_whole_line =
        now.is_empty() || now.ends_with(b"\n") || rest.starts_with(b"\n") || rest.starts_with(b"\r\n");
    let last = now.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let item = item_of_list(former);
    // Text between two documents belongs to neither.
    let mut lines = rest.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let next = lines.find(|line| !line.is_empty() && line[0] != b'#');
    let begins = |line: &[u8]| is_separator(line) || item.as_ref().is_some_and(|item| line.starts_with(item));
    !(is_whole_line && (is_separator(last) || next.is_none_or(begins)))
}

fn is_separator(line: &[u8]) -> bool {
    matches!(line.strip_prefix(b"---"), Some([] | [b' ' | b'\t', ..])) || line == b"..."
}

/// Returns the first bytes of an item if this text is Kubernetes' `kind: List`, or a typed list, whose items are its
/// documents.
fn item_of_list(text: &[u8]) -> Option<Vec<u8>> {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let is_list = lines.clone().any(|line| line.starts_with(b"kind: ") && line.ends_with(b"List"));
    lines.find(|line| *line == b"items:").filter(|_| is_list)?;
    let first = lines.find(|line| !line.is_empty() && !line.trim_ascii_start().starts_with(b"#"))?;
    let indent = first.len() - first.trim_ascii_start().len();
    first[indent..].starts_with(b"- ").then(|| first[..indent + 2].to_vec())
}

/// Marks the truncated files of commit `head`. `whole` is the newest commit that was applied with nothing held
/// back. Unreadable files are not marked.
pub(in crate::gitops) fn marked(
    repository: &Repository,
    head: Oid,
    manifests: &Manifests,
    whole: Option<&str>,
    homes: &Homes,
) -> Manifests {
    let mut marked = manifests.clone();
    for (path, commits) in homes {
        let Some((path, file)) = manifests.get_key_value(path.as_str()) else { continue };
        let blob = |commit: &str| git::blob_at(repository, commit, path);
        let text = |id: Oid| git::blob(repository, id).ok()?;
        let Some(now) = blob(&head.to_string()).and_then(text) else { continue };
        // The newest complete commit first, so that the limit never cuts it off.
        let formers = whole.into_iter().chain(commits.iter().map(String::as_str)).filter_map(blob);
        let mut seen = BTreeSet::new();
        let texts = formers.filter(|former| seen.insert(*former)).take(TEXTS_MAX).filter_map(text);
        if texts.into_iter().any(|former| is_truncated(&now, &former)) {
            let mut file = (**file).clone();
            file.is_truncated = true;
            marked.insert(Arc::clone(path), Arc::new(file));
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_ends_between_documents_is_an_edit_and_one_that_ends_within_is_cut() {
        let whole = "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n--- # c\nkind: C\n...\n";
        let cut: Vec<&str> = (0..whole.len())
            .map(|at| &whole[..at])
            .filter(|now| !is_truncated(now.as_bytes(), whole.as_bytes()))
            .collect();
        let edits = [
            "kind: A\nname: a-1",
            "kind: A\nname: a-1\n",
            "kind: A\nname: a-1\n# of b",
            "kind: A\nname: a-1\n# of b\n",
            "kind: A\nname: a-1\n# of b\n---",
            "kind: A\nname: a-1\n# of b\n---\n",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n--- # c",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n--- # c\n",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n--- # c\nkind: C",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n--- # c\nkind: C\n",
            "kind: A\nname: a-1\n# of b\n---\n# b\nkind: B\nname: b\n--- # c\nkind: C\n...",
        ];
        assert_eq!(cut, edits);
        assert!(!is_truncated(whole.as_bytes(), whole.as_bytes()), "the same");
        assert!(!is_truncated(b"kind: Z\n", whole.as_bytes()), "another");
        // An indented separator is text.
        let text = "kind: A\nargs:\n- |\n    one\n    ---\n    two\n---\nkind: B\n";
        assert!(is_truncated(&text.as_bytes()[..text.find("    ---").unwrap()], text.as_bytes()));
        let list =
            "kind: List\nitems:\n  - kind: A\n    name: a\n  - kind: B\n    args:\n    - x\n  - kind: C\n";
        for (before, is_cut) in
            [("  - kind: B", false), ("  - kind: C", false), ("    name: a", true), ("    - x", true)]
        {
            let now = &list[..list.find(before).unwrap()];
            assert_eq!(is_truncated(now.as_bytes(), list.as_bytes()), is_cut, "{before}");
            let typed = |text: &str| text.replace("kind: List", "kind: PodList").into_bytes();
            assert_eq!(is_truncated(&typed(now), &typed(list)), is_cut, "{before} of a typed list");
        }
        let windows = whole.replace('\n', "\r\n");
        assert!(!is_truncated(b"kind: A\r\nname: a-1", windows.as_bytes()));
        assert!(is_truncated(b"kind: A\r\nname: a", windows.as_bytes()));
    }
}
