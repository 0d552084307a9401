//! Reads a folder on disk as a commit of it would be read, for `minik8s validate`.
//!
//! Reads files and `.minik8signore`, decides which files a commit would hold, writes nothing. Links are never
//! followed, not even a requested one that a repository holds, and no file is read beyond the loader's limit. Paths
//! are relative to the Git repository around the folder, so that annotations of a pull request fit; without one, to
//! the folder itself. Several folders and files are read as one. Files that `.gitignore` keeps out of commits are
//! left out, unless the requested folder is itself kept out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::Repository;
use schema::file_text::without_mark;
use schema::manifest::is_manifest_path;
use schema::violation::{Rule, Violation, rules};

use super::definitions::with_definitions;
use super::files::{self, OnDisk, SourceFolder};
use crate::git::content::{self, ContentError, ContentTree as _, EntryKind, Found};
use crate::git::{
    BLOB_BYTES_MAX, DEPTH_MAX, IGNORE_FILE, IGNORE_LINK, IGNORE_TOO_LARGE, IgnoreRules, ReadError,
    SkippedEntry, SourceEntryKind, WorkTree, ignore_text, regular_bytes,
};
use crate::gitops::load::{self, BATCH_MIN_BYTES, Manifests};

/// Limit on files and folders: more than this are a disk, not a repository of manifests.
const ENTRIES_MAX: usize = 1_000_000;

/// Manifests of a folder.
#[derive(Debug, Default)]
pub struct Folder {
    /// Base of all paths.
    pub root: PathBuf,
    /// The files below `root`, as a commit would hold them.
    pub tree: WorkTree,
    pub manifests: Manifests,
    /// Skipped entries, with the reason.
    pub passed_over: Vec<Violation>,
    /// Files requested by name.
    pub named: Vec<String>,
}

impl Folder {
    /// Reads the text of a file as a commit would hold it; `None` without such a file.
    pub fn text(&self, file: &str) -> Option<String> {
        content::text(&self.tree, file, BLOB_BYTES_MAX as u64)
    }
}

/// Reason why a folder can't be read at all.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Missing, or can't be opened.
    #[error("cannot open {path}: {source}")]
    Open { path: String, source: io::Error },
    /// A file that is no manifest.
    #[error("{0} is not a manifest; manifests end with .yaml, .yml or .json")]
    NoManifest(String),
    /// A device, socket or pipe.
    #[error("{0} is neither a file nor a folder")]
    Special(String),
    /// A symbolic link that a commit holds as such; a pull request may have made it one.
    #[error(
        "{path} goes through the symbolic link {link}, and links are not followed: name the link's target"
    )]
    Link { path: String, link: String },
    /// More than `ENTRIES_MAX` entries.
    #[error("{0} holds more than {ENTRIES_MAX} files; name the folder of the manifests")]
    TooMany(String),
}

/// Reads a folder with all below it, or one file.
#[cfg(test)]
fn read(path: &Path) -> Result<Folder, FolderError> {
    read_all(&[path])
}

/// Reads folders with everything below them, and single files, as one. Paths are relative to their repository or,
/// without one, to the nearest folder that contains them all.
pub fn read_all(paths: &[impl AsRef<Path>]) -> Result<Folder, FolderError> {
    let mut homes = Vec::new();
    for path in paths {
        let open = |source| FolderError::Open { path: path.as_ref().display().to_string(), source };
        refuse_link(path.as_ref()).map_err(open)??;
        let at = fs::canonicalize(path).map_err(open)?;
        let home = if at.is_dir() { at.as_path() } else { at.parent().unwrap_or(&at) };
        homes.push(repository_around(home).unwrap_or_else(|| home.to_owned()));
    }
    let root = homes.into_iter().reduce(|one, other| common(&one, &other)).unwrap_or_default();
    let (mut tree, fault) = WorkTree::open(&root);
    let mut all = Folder { root, ..Folder::default() };
    all.passed_over.extend(fault.map(|fault| {
        let message = format!("what .gitignore and Git's filters do to these files is unknown: {fault}");
        Violation::new(&rules::REPOSITORY_UNREADABLE, ".", (0, 0), message)
    }));
    for path in paths {
        all.read_below(path.as_ref(), &mut tree)?;
    }
    all.manifests = load::with_kustomizations(&all.manifests);
    all.tree = tree;
    Ok(all)
}

/// Rejects a link that a repository holds, which is none of its folders. An untracked link is the user's own, such
/// as `~/work` where `~` is a repository, or a link on the way to a repository.
fn refuse_link(path: &Path) -> io::Result<Result<(), FolderError>> {
    // Without a trailing slash, which would follow the last link.
    let full: PathBuf = std::path::absolute(path)?.components().collect();
    let mut ways: Vec<&Path> = full.ancestors().collect();
    ways.reverse();
    for link in ways {
        let (Some(name), Some(parent)) = (link.file_name(), link.parent()) else { continue };
        if !link.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            continue;
        }
        // Its real location, whatever `..` and links lead there.
        let link = fs::canonicalize(parent)?.join(name);
        let around = link.ancestors().skip(1).filter(|folder| folder.join(".git").symlink_metadata().is_ok());
        for root in around {
            if tracks(root, &link) {
                let link = relative(root, &link);
                return Ok(Err(FolderError::Link { path: path.display().to_string(), link }));
            }
        }
    }
    Ok(Ok(()))
}

/// True if the repository at `root` tracks a file or link at `path`, or can't be read.
fn tracks(root: &Path, path: &Path) -> bool {
    let Ok(index) = Repository::open(root).and_then(|repository| repository.index()) else { return true };
    let Ok(below) = path.strip_prefix(root) else { return true };
    // Including unmerged ones.
    (0..=3).any(|stage| index.get_path(below, stage).is_some())
}

/// Returns the nearest folder that contains both.
fn common(one: &Path, other: &Path) -> PathBuf {
    one.ancestors().find(|folder| other.starts_with(folder)).unwrap_or(Path::new("/")).to_owned()
}

impl Folder {
    /// Adds a folder with all below it, or one file.
    fn read_below(&mut self, path: &Path, tree: &mut WorkTree) -> Result<(), FolderError> {
        let asked = path.display().to_string();
        let open = |source| FolderError::Open { path: asked.clone(), source };
        let at = fs::canonicalize(path).map_err(open)?;
        let kind = fs::metadata(&at).map_err(open)?;
        let below = relative(&self.root, &at);
        tree.request(&below);
        if kind.is_file() {
            if !is_manifest_path(&at.to_string_lossy()) {
                return Err(FolderError::NoManifest(asked));
            }
            let (mut manifests, unreadable) = parse(vec![below.clone()], tree);
            self.passed_over.extend(unreadable);
            // The future surroundings of a stand-alone file are unknown.
            if repository_around(at.parent().unwrap_or(&at)).is_some() {
                let (resolved, unresolved) = with_files(tree, &below, manifests);
                self.passed_over.extend(unresolved);
                manifests = resolved;
            }
            self.manifests.extend(manifests);
            self.named.push(below);
            return Ok(());
        }
        if !kind.is_dir() {
            return Err(FolderError::Special(asked));
        }
        // Fails early if the folder itself can't be listed: no findings would look like success.
        fs::read_dir(&at).map_err(open)?;
        let mut walk = Walk {
            tree,
            files: Vec::new(),
            ignore_files: IgnoreFiles::default(),
            passed_over: Vec::new(),
            entries: 0,
        };
        walk.ignore_files.read_above(tree, &below);
        let prefix = if below.is_empty() { String::new() } else { format!("{below}/") };
        let position = Position { folder: Path::new(&below), prefix: &prefix, depth: 0, is_odd: false };
        walk.folder(position).map_err(|EntryLimitExceeded| FolderError::TooMany(asked))?;
        let Walk { files, ignore_files, mut passed_over, .. } = walk;
        let rules = ignore_files.rules(&mut passed_over);
        let files = files.into_iter().filter(|file| !rules.ignores(file)).collect();
        passed_over.retain(|violation| !rules.ignores(&violation.file));
        let (manifests, unreadable) = parse(files, tree);
        let (manifests, unresolved) = with_files(tree, &below, manifests);
        self.manifests.extend(manifests);
        passed_over.extend(unreadable);
        passed_over.extend(unresolved);
        passed_over.sort();
        self.passed_over.extend(passed_over);
        Ok(())
    }
}

/// Adds violations of manifests that name files or secrets which a commit would not hold. `below` is the requested
/// path, anything from a single file to the whole repository, so secrets are searched for in every folder that may
/// be the source's.
fn with_files(tree: &WorkTree, below: &str, manifests: Manifests) -> (Manifests, Vec<Violation>) {
    let mut lookup = OnDisk(tree);
    let (manifests, without) = or_noted(with_definitions(&manifests, &mut lookup), manifests, below);
    let resolved = files::resolve(&manifests, "", SourceFolder::AroundManifest, &mut lookup);
    let (manifests, unresolved) = or_noted(resolved, manifests, below);
    (manifests, without.into_iter().chain(unresolved).collect())
}

/// Turns an error that ends everything into a violation: manifests must not pass as valid because nothing they name
/// was read. A single unreadable file is reported at the field that names it.
fn or_noted(
    resolved: Result<Manifests, ContentError>,
    manifests: Manifests,
    below: &str,
) -> (Manifests, Option<Violation>) {
    match resolved {
        Ok(resolved) => (resolved, None),
        Err(error) => {
            let message = format!("files that the manifests name can't be read: {error}");
            (manifests, Some(Violation::new(&rules::UNREADABLE, below, (0, 0), message)))
        }
    }
}

/// Reads the text of one of the folder's files, for excerpts; `None` if it can no longer be read.
pub fn text(root: &Path, file: &str) -> Option<String> {
    let bytes = regular_bytes(&root.join(file), BLOB_BYTES_MAX as u64).ok().flatten()?;
    Some(String::from_utf8_lossy(without_mark(&bytes)).into_owned())
}

/// Reads a file that was named, whatever its extension.
pub fn read_file(path: &Path) -> Result<Vec<u8>, FolderError> {
    let read = regular_bytes(path, BLOB_BYTES_MAX as u64);
    let read = read.and_then(|bytes| bytes.ok_or_else(|| io::ErrorKind::FileTooLarge.into()));
    read.map_err(|source| FolderError::Open { path: path.display().to_string(), source })
}

/// Returns the nearest folder from `at` upwards that is a Git work tree.
pub fn repository_around(at: &Path) -> Option<PathBuf> {
    at.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
}

/// Returns the `/`-separated path below `root`; empty for `root` itself.
fn relative(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    below.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn joined(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Ignore files that were found.
#[derive(Default)]
struct IgnoreFiles {
    /// Folder and text of each.
    texts: Vec<(String, String)>,
    /// Ignore files whose rules are unknown, with the reason.
    broken: Vec<(String, &'static str)>,
}

impl IgnoreFiles {
    fn rules_of_texts(&self) -> IgnoreRules {
        IgnoreRules::new(self.texts.iter().map(|(folder, text)| (folder.as_str(), text.clone())))
    }

    /// Compiles the rules. An ignore file that can't be read is an error, unless another one excludes it, as in a
    /// commit.
    fn rules(self, violations: &mut Vec<Violation>) -> IgnoreRules {
        let known = self.rules_of_texts();
        for (file, why) in self.broken.into_iter().filter(|(file, _)| !known.ignores(file)) {
            let message = ReadError::IgnoreFile { file: file.clone(), why }.to_string();
            violations.push(Violation::new(&rules::UNREADABLE, file, (0, 0), message));
        }
        known
    }

    fn add(&mut self, tree: &WorkTree, folder: &str, kind: SourceEntryKind) {
        let path = joined(folder, IGNORE_FILE);
        let read = || {
            let bytes = tree.file(Path::new(&path), BLOB_BYTES_MAX as u64).map_err(|_| "can't be read")?;
            ignore_text(&bytes.ok_or(IGNORE_TOO_LARGE)?)
        };
        let text = if kind == SourceEntryKind::IgnoreLink { Err(IGNORE_LINK) } else { read() };
        match text {
            Ok(text) => self.texts.push((folder.to_owned(), text)),
            Err(why) => self.broken.push((path, why)),
        }
    }

    /// Adds those of the folders around the requested one: they apply to a commit as well. None if they ignore the
    /// folder itself: a user who names it wants it read.
    fn read_above(&mut self, tree: &WorkTree, below: &str) {
        for folder in Path::new(below).ancestors().skip(1) {
            let folder = folder.to_string_lossy();
            let found = tree.child(&PathBuf::from(&*folder), IGNORE_FILE).ok().flatten();
            if let Some(kind) = found.and_then(|found| SourceEntryKind::of(IGNORE_FILE, found.kind)) {
                self.add(tree, &folder, kind);
            }
        }
        // A name below the folder stands for its contents.
        if self.rules_of_texts().ignores(&joined(below, "any.yaml")) {
            *self = Self::default();
        }
    }
}

struct Walk<'a> {
    tree: &'a WorkTree,
    /// Manifest files by path from the root.
    files: Vec<String>,
    ignore_files: IgnoreFiles,
    passed_over: Vec<Violation>,
    entries: usize,
}

struct EntryLimitExceeded;

#[derive(Clone, Copy)]
struct Position<'p> {
    folder: &'p Path,
    /// Path as shown, with a trailing slash; empty for the root.
    prefix: &'p str,
    depth: usize,
    /// Set if a name on the path is not UTF-8.
    is_odd: bool,
}

impl Walk<'_> {
    fn folder(&mut self, at: Position<'_>) -> Result<(), EntryLimitExceeded> {
        let entries = match self.tree.entries(&at.folder.to_owned()) {
            Ok(entries) => entries,
            Err(error) => {
                self.pass_over(at.prefix.trim_end_matches('/'), &rules::UNREADABLE, &error.to_string());
                return Ok(());
            }
        };
        for (name, Found { kind, entry }) in entries {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(EntryLimitExceeded);
            }
            let is_odd = at.is_odd || str::from_utf8(&name).is_err();
            let name = String::from_utf8_lossy(&name);
            let path = format!("{}{name}", at.prefix);
            match SourceEntryKind::of(&name, kind) {
                Some(SourceEntryKind::Manifest) if is_odd => {
                    self.passed_over.push(SkippedEntry::OddName.note(&path));
                }
                Some(SourceEntryKind::Manifest) => self.files.push(path),
                Some(kind @ (SourceEntryKind::IgnoreFile | SourceEntryKind::IgnoreLink)) => {
                    self.ignore_files.add(self.tree, at.prefix.trim_end_matches('/'), kind);
                }
                Some(SourceEntryKind::Link) => self.passed_over.push(SkippedEntry::Link.note(&path)),
                Some(SourceEntryKind::Submodule) => {
                    self.passed_over.push(SkippedEntry::Submodule.note(&path));
                }
                None if kind == EntryKind::Folder && at.depth == DEPTH_MAX => {
                    self.passed_over.push(SkippedEntry::TooDeep.note(&path));
                }
                None if kind == EntryKind::Folder => {
                    let prefix = format!("{path}/");
                    self.folder(Position { folder: &entry, prefix: &prefix, depth: at.depth + 1, is_odd })?;
                }
                None => {}
            }
        }
        Ok(())
    }

    fn pass_over(&mut self, path: &str, rule: &Rule, message: &str) {
        self.passed_over.push(Violation::new(rule, path, (0, 0), message));
    }
}

/// Reads and parses files in bounded batches. Files that can't be read are reported.
fn parse(files: Vec<String>, tree: &WorkTree) -> (Manifests, Vec<Violation>) {
    let (mut manifests, mut violations) = (Manifests::new(), Vec::new());
    let (mut batch, mut batch_bytes): (Vec<load::Blob>, usize) = (Vec::new(), 0);
    for path in files {
        match tree.file(Path::new(&path), BLOB_BYTES_MAX as u64) {
            Ok(bytes) => {
                batch_bytes += bytes.as_ref().map_or(0, Vec::len);
                batch.push((Arc::from(path), bytes));
            }
            Err(error) => {
                let message = format!("the file can't be read: {error}");
                violations.push(Violation::new(&rules::UNREADABLE, path, (0, 0), message));
            }
        }
        if batch_bytes >= BATCH_MIN_BYTES {
            manifests.extend(load::parse_all(&batch));
            batch.clear();
            batch_bytes = 0;
        }
    }
    manifests.extend(load::parse_all(&batch));
    (manifests, violations)
}

#[cfg(test)]
mod tests;
