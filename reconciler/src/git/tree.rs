//! Manifest files of a commit by blob id. A subtree unchanged since the last listing is never opened.
//!
//! Links and submodules are skipped with a note. A manifest whose name can't be decoded is an error, and an
//! unreadable ignore file rejects the commit.

use std::sync::Arc;

use git2::{ErrorCode, Oid, Repository, Tree};
use imbl::OrdMap;
use schema::violation::{Violation, rules};

use super::error::ReadError;
use super::walk;
use super::walk::{FolderPosition, IgnoreRules, Limits, SourceEntry, Walk, classify_entry};

pub const BLOB_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Faults of an ignore file.
pub const IGNORE_LINK: &str = "is a symbolic link";
pub const IGNORE_TOO_LARGE: &str = "is larger than 4 MiB";

/// Files of one commit below the source's folder.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Manifest files by path from the repository root, without ignored ones.
    pub files: OrdMap<Arc<str>, Oid>,
    pub notes: Vec<Violation>,
    root: Option<Oid>,
    /// Every entry of interest, ignored or not.
    entries: OrdMap<Arc<str>, SourceEntry>,
    /// Ignore files of the folders above the source's folder.
    above: Vec<(String, Oid)>,
    rules: IgnoreRules,
    /// Set if some names are not UTF-8, so that two paths may look the same: no later listing builds on this one.
    has_odd_names: bool,
}

/// Lists `commit` below `folder`, reusing `previous` where possible. `None` if there is no such folder.
pub fn list(
    repository: &Repository,
    commit: Oid,
    folder: &str,
    previous: &Listing,
) -> Result<Option<Listing>, ReadError> {
    list_within(repository, commit, folder, previous, Limits::DEFAULT)
}

pub(super) fn list_within(
    repository: &Repository,
    commit: Oid,
    folder: &str,
    previous: &Listing,
    limits: Limits,
) -> Result<Option<Listing>, ReadError> {
    let Some(root) = folder_tree(repository, commit, folder)? else { return Ok(None) };
    let above = ignore_files_above(repository, commit, folder)?;
    if previous.root == Some(root.id()) && previous.above == above {
        return Ok(Some(previous.clone()));
    }
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    // A tree missing from a rebuilt mirror only means that the whole new tree is walked.
    let old = previous.root.filter(|_| !previous.has_odd_names);
    if let Some(old) = old.and_then(|id| repository.find_tree(id).ok()) {
        match derive_listing(repository, (Some(&old), previous), (&root, &prefix), above.clone(), limits) {
            // Both sides together exceed a limit, or their paths can't be told apart.
            Err(ReadError::TooMuch { .. }) => {}
            Ok(listing) if listing.has_odd_names => {}
            other => return other.map(Some),
        }
    }
    derive_listing(repository, (None, &Listing::default()), (&root, &prefix), above, limits).map(Some)
}

/// Derives the listing of `root` from that of `old`.
fn derive_listing(
    repository: &Repository,
    (old, previous): (Option<&Tree<'_>>, &Listing),
    (root, prefix): (&Tree<'_>, &str),
    above: Vec<(String, Oid)>,
    limits: Limits,
) -> Result<Listing, ReadError> {
    let mut walk = Walk::new(repository, limits);
    let mut listing = previous.clone();
    walk.compare(old, Some(root), FolderPosition { prefix, depth: 0, odd: false })?;
    let rules_changed = old.is_none()
        || listing.above != above
        || walk.changes.iter().any(|(path, _)| path.ends_with(walk::FILE_NAME));
    // Odd names last: where one looks like another file's, the error counts.
    walk.changes.sort_by_key(|(_, entry)| *entry == Some(SourceEntry::OddName));
    for (path, entry) in &walk.changes {
        match entry {
            Some(entry) => listing.entries.insert(Arc::clone(path), *entry),
            None => listing.entries.remove(path),
        };
    }
    if rules_changed {
        listing.rules = read_rules(repository, &above, &listing.entries)?;
        let all = listing.entries.iter().map(|(path, entry)| (path, Some(entry)));
        listing.files = select(OrdMap::new(), &listing.rules, all);
    } else {
        let changed = walk.changes.iter().map(|(path, entry)| (path, entry.as_ref()));
        listing.files = select(listing.files, &listing.rules, changed);
    }
    let notes = listing.entries.iter().filter_map(|(path, entry)| note(path, *entry, &listing.rules));
    listing.notes = notes.take(limits.files + 1).collect();
    if listing.files.len() + listing.notes.len() > limits.files {
        return Err(ReadError::TooMuch { what: "manifest files", most: limits.files });
    }
    listing.root = Some(root.id());
    listing.above = above;
    listing.has_odd_names = walk.has_odd_names;
    Ok(listing)
}

/// Reads a file; `None` if it is too large to be a manifest.
pub fn blob(repository: &Repository, id: Oid) -> Result<Option<Vec<u8>>, git2::Error> {
    // Check the size first: a blob is read whole, and may be larger than memory.
    let (size, _) = repository.odb()?.read_header(id)?;
    if size > BLOB_BYTES_MAX {
        return Ok(None);
    }
    Ok(Some(repository.find_blob(id)?.content().to_vec()))
}

/// Returns the blob at `path` in `commit`, if both exist.
pub fn blob_at(repository: &Repository, commit: &str, path: &str) -> Option<Oid> {
    let commit = repository.find_commit(Oid::from_str(commit).ok()?).ok()?;
    let entry = commit.tree().ok()?.get_path(path.as_ref()).ok()?;
    (entry.kind() == Some(git2::ObjectType::Blob)).then(|| entry.id())
}

/// Lists the files below `folder` that differ between two commits, as paths relative to `folder`, in order.
pub fn changed_below(
    repository: &Repository,
    (before, after): (Oid, Oid),
    folder: &str,
) -> Result<Vec<String>, git2::Error> {
    let folder = if folder == "." { "" } else { folder };
    let [before, after] = [before, after].map(|commit| folder_tree(repository, commit, folder));
    let (Some(before), Some(after)) = (before?, after?) else { return Ok(Vec::new()) };
    let diff = repository.diff_tree_to_tree(Some(&before), Some(&after), None)?;
    let path = |delta: git2::DiffDelta<'_>| {
        delta.new_file().path_bytes().map(|path| String::from_utf8_lossy(path).into_owned())
    };
    Ok(diff.deltas().filter_map(path).collect())
}

/// Returns the tree of `folder` in `commit`; `None` if it is missing or not a folder.
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
        // Only this error means that the folder is missing; others are the mirror's.
        Err(error) if error.code() == ErrorCode::NotFound && error.class() == git2::ErrorClass::Tree => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the ignore files of the folders around `folder`, outermost first.
fn ignore_files_above(
    repository: &Repository,
    commit: Oid,
    folder: &str,
) -> Result<Vec<(String, Oid)>, ReadError> {
    let mut found = Vec::new();
    let mut tree = repository.find_commit(commit)?.tree()?;
    let mut at = String::new();
    for part in folder.split('/').filter(|part| !part.is_empty()) {
        let rules = tree.get_name(walk::FILE_NAME).and_then(|item| classify_entry(walk::FILE_NAME, &item));
        match rules {
            Some(SourceEntry::Ignore(id)) => found.push((at.clone(), id)),
            Some(SourceEntry::IgnoreLink) => return Err(unreadable(&joined(&at), IGNORE_LINK)),
            _ => {}
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
    entries: &OrdMap<Arc<str>, SourceEntry>,
) -> Result<IgnoreRules, ReadError> {
    let mut files = Vec::new();
    let mut broken = Vec::new();
    for (folder, id) in above {
        let text = read_ignore_file(repository, *id)?;
        files.push((folder.as_str(), text.map_err(|why| unreadable(&joined(folder), why))?));
    }
    for (path, entry) in entries {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        match entry {
            SourceEntry::Ignore(id) => match read_ignore_file(repository, *id)? {
                Ok(text) => files.push((folder, text)),
                Err(why) => broken.push((path, unreadable(path, why))),
            },
            SourceEntry::IgnoreLink => broken.push((path, unreadable(path, IGNORE_LINK))),
            _ => {}
        }
    }
    let rules = IgnoreRules::new(files.into_iter());
    match broken.into_iter().find(|(path, _)| !rules.ignores(path)) {
        Some((_, error)) => Err(error),
        None => Ok(rules),
    }
}

fn joined(folder: &str) -> String {
    let name = walk::FILE_NAME;
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Reads an ignore file; the inner error is what is wrong with it.
fn read_ignore_file(repository: &Repository, id: Oid) -> Result<Result<String, &'static str>, ReadError> {
    let bytes = blob(repository, id)?;
    Ok(bytes.map_or(Err(IGNORE_TOO_LARGE), |bytes| walk::ignore_text(&bytes)))
}

fn unreadable(file: &str, why: &'static str) -> ReadError {
    ReadError::IgnoreFile { file: file.to_owned(), why }
}

fn select<'a>(
    mut files: OrdMap<Arc<str>, Oid>,
    rules: &IgnoreRules,
    changes: impl Iterator<Item = (&'a Arc<str>, Option<&'a SourceEntry>)>,
) -> OrdMap<Arc<str>, Oid> {
    for (path, entry) in changes {
        match entry {
            Some(SourceEntry::Manifest(id)) if !rules.ignores(path) => files.insert(Arc::clone(path), *id),
            _ => files.remove(path),
        };
    }
    files
}

fn note(path: &str, entry: SourceEntry, rules: &IgnoreRules) -> Option<Violation> {
    match entry {
        SourceEntry::Link => Some(SkippedEntry::Link.note(path)),
        SourceEntry::Submodule => Some(SkippedEntry::Submodule.note(path)),
        SourceEntry::TooDeep => Some(SkippedEntry::TooDeep.note(path)),
        SourceEntry::OddName if !rules.ignores(path) => Some(SkippedEntry::OddName.note(path)),
        SourceEntry::OddName
        | SourceEntry::Manifest(_)
        | SourceEntry::Ignore(_)
        | SourceEntry::IgnoreLink => None,
    }
}

/// Entries that are never read, wherever files come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkippedEntry {
    Link,
    Submodule,
    /// A folder more than [`super::DEPTH_MAX`] levels down.
    TooDeep,
    /// A manifest whose path is not UTF-8.
    OddName,
}

impl SkippedEntry {
    /// Returns the note that reports the skipped entry.
    pub fn note(self, path: &str) -> Violation {
        let (rule, message) = match self {
            Self::Link => {
                (&rules::SYMLINK, "symbolic link skipped: only files of the commit itself are read")
            }
            Self::Submodule => (&rules::SUBMODULE, "submodule skipped: make it a separate source"),
            Self::TooDeep => (&rules::FOLDER_TOO_DEEP, "folder skipped: more than 64 levels deep"),
            Self::OddName => {
                (&rules::FILE_NAME, "the name is not UTF-8, so the file can't be read; rename it")
            }
        };
        Violation::new(rule, path, (0, 0), message)
    }
}
