//! A commit's manifest files by blob id; from the last listing, only what changed is walked.
//!
//! Two trees of one id hold the same files, so a subtree that did not change is never opened.
//! Symlinks and submodules are passed over with a note: what they point to is not in the commit.

use std::sync::Arc;

use git2::{ErrorCode, Oid, Repository, Tree};
use imbl::OrdMap;
use schema::violation::{Severity, Violation};

use super::ignored::{self, IgnoreRules};

/// Deeper folders are passed over with a note.
const DEPTH_MAX: usize = 64;
/// A larger file can't be a manifest.
const BLOB_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one commit holds below the source's folder.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Manifest files by path from the repository's root, ignored ones left out.
    pub files: OrdMap<Arc<str>, Oid>,
    /// What was passed over, and why.
    pub notes: Vec<Violation>,
    /// The folder's tree.
    root: Option<Oid>,
    /// Everything of interest, ignored or not.
    entries: OrdMap<Arc<str>, Entry>,
    /// Ignore files of the folders that the source's folder lies in.
    above: Vec<(String, Oid)>,
    rules: IgnoreRules,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Manifest(Oid),
    Ignore(Oid),
    Link,
    Submodule,
    TooDeep,
}

/// Lists `commit` below `folder`, from `previous` where that helps. `None`: no such folder.
pub fn list(
    repository: &Repository,
    commit: Oid,
    folder: &str,
    previous: &Listing,
) -> Result<Option<Listing>, git2::Error> {
    let Some(root) = folder_tree(repository, commit, folder)? else { return Ok(None) };
    let above = ignore_files_above(repository, commit, folder)?;
    if previous.root == Some(root.id()) && previous.above == above {
        return Ok(Some(previous.clone()));
    }
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut walk = Walk { repository, changes: Vec::new() };
    // A tree that is gone from a rebuilt mirror only means that all of the new one is walked.
    let old = previous.root.and_then(|id| repository.find_tree(id).ok());
    let mut entries = if old.is_some() { previous.entries.clone() } else { OrdMap::new() };
    let mut listing = if old.is_some() { previous.clone() } else { Listing::default() };
    walk.compare(old.as_ref(), Some(&root), &prefix, 0)?;
    let rules_changed = old.is_none()
        || listing.above != above
        || walk.changes.iter().any(|(path, _)| path.ends_with(ignored::FILE_NAME));
    for (path, entry) in &walk.changes {
        match entry {
            Some(entry) => entries.insert(Arc::clone(path), *entry),
            None => entries.remove(path),
        };
    }
    if rules_changed {
        listing.rules = read_rules(repository, &above, &entries)?;
        let all = entries.iter().map(|(path, entry)| (path, Some(entry)));
        listing.files = select(OrdMap::new(), &listing.rules, all);
    } else {
        let changed = walk.changes.iter().map(|(path, entry)| (path, entry.as_ref()));
        listing.files = select(listing.files, &listing.rules, changed);
    }
    listing.notes = entries.iter().filter_map(|(path, entry)| note(path, *entry)).collect();
    listing.root = Some(root.id());
    listing.entries = entries;
    listing.above = above;
    Ok(Some(listing))
}

/// The bytes of a file; `None` when it is too large to be a manifest.
pub fn blob(repository: &Repository, id: Oid) -> Result<Option<Vec<u8>>, git2::Error> {
    // Asked before it is read: a blob is read whole, and may be larger than memory.
    let (size, _) = repository.odb()?.read_header(id)?;
    if size > BLOB_BYTES_MAX {
        return Ok(None);
    }
    Ok(Some(repository.find_blob(id)?.content().to_vec()))
}

/// The blob at `path` in `commit`, if both are there.
pub fn blob_at(repository: &Repository, commit: &str, path: &str) -> Option<Oid> {
    let commit = repository.find_commit(Oid::from_str(commit).ok()?).ok()?;
    let entry = commit.tree().ok()?.get_path(path.as_ref()).ok()?;
    (entry.kind() == Some(git2::ObjectType::Blob)).then(|| entry.id())
}

/// The tree of `folder` in `commit`; `None` when it is not there or no folder.
fn folder_tree<'r>(
    repository: &'r Repository,
    commit: Oid,
    folder: &str,
) -> Result<Option<Tree<'r>>, git2::Error> {
    let root = repository.find_commit(commit)?.tree()?;
    if folder.is_empty() {
        return Ok(Some(root));
    }
    match root.get_path(folder.as_ref()) {
        Ok(entry) if entry.kind() == Some(git2::ObjectType::Tree) => {
            repository.find_tree(entry.id()).map(Some)
        }
        Ok(_) => Ok(None),
        // A folder that is absent, told from one whose tree can't be read.
        Err(error) if error.code() == ErrorCode::NotFound && error.class() == git2::ErrorClass::Tree => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

struct Walk<'r> {
    repository: &'r Repository,
    /// Path and what is there now.
    changes: Vec<(Arc<str>, Option<Entry>)>,
}

impl<'r> Walk<'r> {
    fn compare(
        &mut self,
        old: Option<&Tree<'_>>,
        new: Option<&Tree<'_>>,
        prefix: &str,
        depth: usize,
    ) -> Result<(), git2::Error> {
        if depth > DEPTH_MAX {
            self.changes.push((prefix.trim_end_matches('/').into(), new.map(|_| Entry::TooDeep)));
            return Ok(());
        }
        for side in [Side::Old, Side::New] {
            let (tree, other) = if side == Side::Old { (old, new) } else { (new, old) };
            for item in tree.into_iter().flat_map(Tree::iter) {
                let twin = other.and_then(|tree| by_name(tree, item.name_bytes()));
                let unchanged =
                    twin.as_ref().is_some_and(|t| t.id() == item.id() && t.filemode() == item.filemode());
                // Names that are no UTF-8 can't be shown or kept as keys.
                let Ok(name) = std::str::from_utf8(item.name_bytes()) else { continue };
                if unchanged {
                    continue;
                }
                let path = format!("{prefix}{name}");
                let twin_tree = self.subtree(twin.as_ref())?;
                match (side, self.subtree(Some(&item))?) {
                    // Folders on both sides are compared once, from the new side.
                    (Side::Old, Some(_)) if twin_tree.is_some() => {}
                    (Side::Old, Some(tree)) => {
                        self.compare(Some(&tree), None, &format!("{path}/"), depth + 1)?;
                    }
                    (Side::New, Some(tree)) => {
                        self.compare(twin_tree.as_ref(), Some(&tree), &format!("{path}/"), depth + 1)?;
                    }
                    (Side::Old, None) => self.changes.push((path.into(), None)),
                    (Side::New, None) => {
                        if let Some(entry) = entry_of(name, &item) {
                            self.changes.push((path.into(), Some(entry)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn subtree(&self, item: Option<&git2::TreeEntry<'_>>) -> Result<Option<Tree<'r>>, git2::Error> {
        match item {
            Some(item) if item.kind() == Some(git2::ObjectType::Tree) => {
                self.repository.find_tree(item.id()).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

fn by_name<'t>(tree: &'t Tree<'_>, name: &[u8]) -> Option<git2::TreeEntry<'t>> {
    tree.get_name_bytes(name)
}

fn entry_of(name: &str, item: &git2::TreeEntry<'_>) -> Option<Entry> {
    const LINK: i32 = 0o120_000;
    match item.kind() {
        Some(git2::ObjectType::Commit) => Some(Entry::Submodule),
        Some(git2::ObjectType::Blob) if item.filemode() == LINK => Some(Entry::Link),
        Some(git2::ObjectType::Blob) if name == ignored::FILE_NAME => Some(Entry::Ignore(item.id())),
        Some(git2::ObjectType::Blob) if is_manifest_name(name) => Some(Entry::Manifest(item.id())),
        _ => None,
    }
}

fn is_manifest_name(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    matches!(extension.as_deref(), Some("yaml" | "yml" | "json"))
}

/// The ignore files of the folders around `folder`, outermost first.
fn ignore_files_above(
    repository: &Repository,
    commit: Oid,
    folder: &str,
) -> Result<Vec<(String, Oid)>, git2::Error> {
    let mut found = Vec::new();
    let mut tree = repository.find_commit(commit)?.tree()?;
    let mut at = String::new();
    for part in folder.split('/').filter(|part| !part.is_empty()) {
        let rules = tree.get_name(ignored::FILE_NAME).and_then(|item| entry_of(ignored::FILE_NAME, &item));
        if let Some(Entry::Ignore(id)) = rules {
            found.push((at.clone(), id));
        }
        let Some(below) = tree.get_name(part).map(|item| item.id()) else { break };
        tree = repository.find_tree(below)?;
        at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
    }
    Ok(found)
}

fn read_rules(
    repository: &Repository,
    above: &[(String, Oid)],
    entries: &OrdMap<Arc<str>, Entry>,
) -> Result<IgnoreRules, git2::Error> {
    let mut files = Vec::new();
    for (folder, id) in above {
        let text = blob(repository, *id)?.unwrap_or_default();
        files.push((folder.as_str(), String::from_utf8_lossy(&text).into_owned()));
    }
    for (path, entry) in entries {
        if let Entry::Ignore(id) = entry {
            let text = blob(repository, *id)?.unwrap_or_default();
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            files.push((folder, String::from_utf8_lossy(&text).into_owned()));
        }
    }
    Ok(IgnoreRules::new(files.into_iter()))
}

fn select<'a>(
    mut files: OrdMap<Arc<str>, Oid>,
    rules: &IgnoreRules,
    changes: impl Iterator<Item = (&'a Arc<str>, Option<&'a Entry>)>,
) -> OrdMap<Arc<str>, Oid> {
    for (path, entry) in changes {
        match entry {
            Some(Entry::Manifest(id)) if !rules.ignores(path) => files.insert(Arc::clone(path), *id),
            _ => files.remove(path),
        };
    }
    files
}

fn note(path: &str, entry: Entry) -> Option<Violation> {
    let (rule, message) = match entry {
        Entry::Link => ("symlink", "symbolic link passed over: only files of the commit itself are read"),
        Entry::Submodule => ("submodule", "submodule passed over: make it a source of its own"),
        Entry::TooDeep => ("too-deep", "folder passed over: more than 64 levels deep"),
        Entry::Manifest(_) | Entry::Ignore(_) => return None,
    };
    Some(Violation {
        file: path.to_owned(),
        line: 0,
        column: 0,
        severity: Severity::Note,
        rule: rule.to_owned(),
        message: message.to_owned(),
        help: String::new(),
        object: None,
    })
}
