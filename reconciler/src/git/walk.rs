//! Difference of two trees: the entries that matter to a source, and bounds on their number.
//!
//! Trees may refer to each other many times over: a few kilobytes of them can stand for more paths than fit into
//! memory. So visited entries are counted, and too many are an error of the commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use git2::{Oid, Repository, Tree};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use schema::file_text::without_mark;
use schema::manifest::is_manifest_path;

use super::content::{ContentEntry, DEPTH_MAX, EntryKind};
use super::error::ReadError;

/// Limits on a commit, above which it does not count as a repository of manifests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Files and folders.
    pub(super) entries: usize,
    /// Bytes of all their paths.
    pub(super) path_bytes: usize,
    /// Manifest files, plus entries skipped with a note.
    pub(super) files: usize,
}

impl Limits {
    pub(super) const DEFAULT: Self =
        Self { entries: 1_000_000, path_bytes: 256 * 1024 * 1024, files: 100_000 };
}

/// Tree entry that matters to a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceEntry {
    Manifest(Oid),
    Ignore(Oid),
    /// An ignore file that is a link: its rules are not in the commit.
    IgnoreLink,
    /// A manifest whose path is not UTF-8; stored under its lossy path.
    OddName,
    Link,
    Submodule,
    TooDeep,
}

/// Simultaneous walk over two trees.
pub(super) struct Walk<'r> {
    repository: &'r Repository,
    limits: Limits,
    entries: usize,
    path_bytes: usize,
    pub(super) changes: Vec<(Arc<str>, Option<SourceEntry>)>,
    /// Set if a name on either side is not UTF-8, so that two paths may look the same.
    pub(super) has_odd_names: bool,
}

#[derive(Clone, Copy)]
pub(super) struct FolderPosition<'p> {
    /// Path with a trailing slash; empty for the root.
    pub(super) prefix: &'p str,
    pub(super) depth: usize,
    /// Set if a name on the path is not UTF-8.
    pub(super) odd: bool,
}

impl<'r> Walk<'r> {
    pub(super) fn new(repository: &'r Repository, limits: Limits) -> Self {
        Self { repository, limits, entries: 0, path_bytes: 0, changes: Vec::new(), has_odd_names: false }
    }

    /// Adds the differences between the trees.
    pub(super) fn compare(
        &mut self,
        old: Option<&Tree<'_>>,
        new: Option<&Tree<'_>>,
        at: FolderPosition<'_>,
    ) -> Result<(), ReadError> {
        if at.depth > DEPTH_MAX {
            self.changes.push((at.prefix.trim_end_matches('/').into(), new.map(|_| SourceEntry::TooDeep)));
            return Ok(());
        }
        for side in [Side::Old, Side::New] {
            let (tree, other) = if side == Side::Old { (old, new) } else { (new, old) };
            for item in tree.into_iter().flat_map(Tree::iter) {
                let twin = other.and_then(|tree| tree.get_name_bytes(item.name_bytes()));
                let unchanged =
                    twin.as_ref().is_some_and(|t| t.id() == item.id() && t.filemode() == item.filemode());
                if !unchanged {
                    self.item(side, &item, twin.as_ref(), at)?;
                }
            }
        }
        Ok(())
    }

    fn item(
        &mut self,
        side: Side,
        item: &git2::TreeEntry<'_>,
        twin: Option<&git2::TreeEntry<'_>>,
        at: FolderPosition<'_>,
    ) -> Result<(), ReadError> {
        let name = String::from_utf8_lossy(item.name_bytes());
        let odd = at.odd || matches!(name, std::borrow::Cow::Owned(_));
        self.has_odd_names |= odd;
        let path = format!("{}{name}", at.prefix);
        self.count(&path)?;
        let twin_tree = self.subtree(twin)?;
        let prefix = format!("{path}/");
        let below = FolderPosition { prefix: &prefix, depth: at.depth + 1, odd };
        match (side, self.subtree(Some(item))?) {
            // Folders on both sides are compared once, from the new side.
            (Side::Old, Some(_)) if twin_tree.is_some() => {}
            (Side::Old, Some(tree)) => self.compare(Some(&tree), None, below)?,
            (Side::New, Some(tree)) => self.compare(twin_tree.as_ref(), Some(&tree), below)?,
            (Side::Old, None) => self.changes.push((path.into(), None)),
            (Side::New, None) => match classify_entry(&name, item) {
                Some(SourceEntry::Manifest(_)) if odd => {
                    self.changes.push((path.into(), Some(SourceEntry::OddName)));
                }
                Some(entry) => self.changes.push((path.into(), Some(entry))),
                None => {}
            },
        }
        Ok(())
    }

    fn count(&mut self, path: &str) -> Result<(), ReadError> {
        self.entries += 1;
        self.path_bytes += path.len();
        if self.entries > self.limits.entries {
            return Err(ReadError::TooMuch { what: "files and folders", most: self.limits.entries });
        }
        if self.path_bytes > self.limits.path_bytes {
            return Err(ReadError::TooMuch { what: "bytes of file names", most: self.limits.path_bytes });
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

/// Entry of interest that is not a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceEntryKind {
    Manifest,
    IgnoreFile,
    IgnoreLink,
    Link,
    Submodule,
}

impl SourceEntryKind {
    /// Classifies an entry of a commit, or of a folder on disk; `None` for a folder, and for files of no interest.
    pub fn of(name: &str, kind: EntryKind) -> Option<Self> {
        match kind {
            EntryKind::Submodule => Some(Self::Submodule),
            EntryKind::Link if name == FILE_NAME => Some(Self::IgnoreLink),
            EntryKind::Link => Some(Self::Link),
            EntryKind::File { .. } if name == FILE_NAME => Some(Self::IgnoreFile),
            EntryKind::File { .. } if is_manifest_path(name) => Some(Self::Manifest),
            EntryKind::File { .. } | EntryKind::Folder => None,
        }
    }
}

/// Classifies an entry that is not a folder.
pub(super) fn classify_entry(name: &str, item: &git2::TreeEntry<'_>) -> Option<SourceEntry> {
    let found = ContentEntry::found(item)?;
    Some(match SourceEntryKind::of(name, found.kind)? {
        SourceEntryKind::Manifest => SourceEntry::Manifest(item.id()),
        SourceEntryKind::IgnoreFile => SourceEntry::Ignore(item.id()),
        SourceEntryKind::IgnoreLink => SourceEntry::IgnoreLink,
        SourceEntryKind::Link => SourceEntry::Link,
        SourceEntryKind::Submodule => SourceEntry::Submodule,
    })
}

// `.minik8signore`: gitignore syntax in any folder; the deeper file wins, but nothing below an excluded folder comes
// back, as in Git.

pub const FILE_NAME: &str = ".minik8signore";

/// Returns the text of an ignore file, or what keeps its rules from being known.
pub fn ignore_text(bytes: &[u8]) -> Result<String, &'static str> {
    // Lines that are not UTF-8 match no path of a manifest, but a text in UTF-16 would have no readable line at all.
    if bytes.contains(&0) {
        return Err("is not UTF-8 text");
    }
    Ok(String::from_utf8_lossy(without_mark(bytes)).into_owned())
}

/// Ignore rules of a commit by folder (without a trailing slash; empty for the root).
#[derive(Debug, Clone, Default)]
pub struct IgnoreRules(BTreeMap<String, Gitignore>);

impl IgnoreRules {
    /// Compiles rules from pairs of folder and text; unreadable lines are skipped, as in Git.
    pub fn new<'a>(files: impl Iterator<Item = (&'a str, String)>) -> Self {
        Self(files.map(|(folder, text)| (folder.to_owned(), compiled(&text))).collect())
    }

    /// True if a file, or a folder around it, is excluded.
    pub fn ignores(&self, path: &str) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let mut folders = path.match_indices('/').map(|(end, _)| &path[..end]);
        folders.any(|folder| self.excludes(folder, true)) || self.excludes(path, false)
    }

    /// True if the nearest ignore file with a pattern for an entry excludes it.
    fn excludes(&self, path: &str, is_folder: bool) -> bool {
        let mut folder = path;
        while !folder.is_empty() {
            folder = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
            let Some(rules) = self.0.get(folder) else { continue };
            let below = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
            match rules.matched(below, is_folder) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }
}

/// Patterns that select paths, with the syntax of ignore files. Unlike there, a pattern with `!` also takes back a
/// file of a selected folder.
#[derive(Debug, Clone)]
pub struct PathPatterns(Gitignore);

impl PathPatterns {
    pub fn new(patterns: &[String]) -> Self {
        Self(compiled(&patterns.join("\n")))
    }

    pub fn selects(&self, path: &str) -> bool {
        self.0.matched_path_or_any_parents(path, false).is_ignore()
    }
}

fn compiled(text: &str) -> Gitignore {
    let mut builder = GitignoreBuilder::new("");
    for line in text.lines() {
        let _ = builder.add_line(None, line);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_ignored_as_git_would() {
        let files = [
            ("", "*.tmp.yaml\n/drafts/\n# comment\n".to_owned()),
            ("apps", "secret.yaml\n!keep.tmp.yaml\n".to_owned()),
        ];
        let rules = IgnoreRules::new(files.into_iter());
        for (path, ignored) in [
            ("a.yaml", false),
            ("a.tmp.yaml", true),
            ("deep/er/a.tmp.yaml", true),
            ("drafts/x/y.yaml", true),
            ("apps/drafts/y.yaml", false),
            ("apps/secret.yaml", true),
            ("apps/x/secret.yaml", true),
            ("secret.yaml", false),
            ("apps/keep.tmp.yaml", false),
        ] {
            assert_eq!(rules.ignores(path), ignored, "{path}");
        }
    }

    #[test]
    fn nothing_below_an_excluded_folder_comes_back() {
        let files = [
            ("", "/drafts/\n!/drafts/kept.yaml\nlogs/*\n!logs/kept.yaml\n".to_owned()),
            ("drafts", "!d.yaml\n".to_owned()),
        ];
        let rules = IgnoreRules::new(files.into_iter());
        for (path, ignored) in [
            ("drafts/d.yaml", true),
            ("drafts/kept.yaml", true),
            ("logs/a.yaml", true),
            ("logs/kept.yaml", false),
            ("drafts.yaml", false),
        ] {
            assert_eq!(rules.ignores(path), ignored, "{path}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_pattern_and_utf_16_is_refused() {
        let text = ignore_text(b"\xEF\xBB\xBFdrafts/\r\n*.tmp.yaml\r\n").unwrap();
        let rules = IgnoreRules::new([("", text)].into_iter());
        assert!(rules.ignores("drafts/d.yaml") && rules.ignores("a.tmp.yaml") && !rules.ignores("a.yaml"));
        assert!(ignore_text(b"\xFF\xFEd\0r\0").is_err());
    }
}
