//! Reads a folder on disk as a commit of it would be read, for `minik8s validate`.
//!
//! Reads files and `.minik8signore`, decides which files a commit would hold, writes nothing. Links are never
//! followed, not even a requested one that a repository holds, and no file is read beyond the loader's limit. Paths
//! are relative to the Git repository around the folder, so that annotations of a pull request fit; without one, to
//! the folder itself. Several folders and files are read as one. Files that `.gitignore` keeps out of commits are
//! left out, unless the requested folder is itself kept out.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::Repository;
use nix::fcntl::OFlag;
use schema::manifest::is_manifest_path;
use schema::violation::{Rule, Violation, rules};

use super::definitions::with_definitions;
use super::files::{self, OnDisk, SourceFolder};
use crate::git::content::ContentError;
use crate::git::{BLOB_BYTES_MAX, DEPTH_MAX, IGNORE_FILE, IgnoreRules, SkippedEntry};
use crate::gitops::load::{self, BATCH_MIN_BYTES, Manifests};

/// Limit on files and folders: more than this are a disk, not a repository of manifests.
const ENTRIES_MAX: usize = 1_000_000;

/// Manifests of a folder.
#[derive(Debug, Default)]
pub struct Folder {
    /// Base of all paths.
    pub root: PathBuf,
    pub manifests: Manifests,
    /// Skipped entries, with the reason.
    pub passed_over: Vec<Violation>,
    /// Files requested by name.
    pub named: Vec<String>,
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
    let mut all = Folder { root: root.clone(), ..Folder::default() };
    for path in paths {
        let Folder { manifests, passed_over, named, .. } = read_below(path.as_ref(), root.clone())?;
        all.manifests.extend(manifests);
        all.passed_over.extend(passed_over);
        all.named.extend(named);
    }
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

fn read_below(path: &Path, root: PathBuf) -> Result<Folder, FolderError> {
    let asked = path.display().to_string();
    let open = |source| FolderError::Open { path: asked.clone(), source };
    let at = fs::canonicalize(path).map_err(open)?;
    let kind = fs::metadata(&at).map_err(open)?;
    let below = relative(&root, &at);
    if kind.is_file() {
        if !is_manifest_path(&at.to_string_lossy()) {
            return Err(FolderError::NoManifest(asked));
        }
        let (manifests, passed_over) = parse(vec![below.clone()], &root);
        // The future surroundings of a stand-alone file are unknown.
        let in_repository = repository_around(at.parent().unwrap_or(&at)).is_some();
        let (manifests, unresolved) =
            if in_repository { with_files(&root, &below, manifests) } else { (manifests, Vec::new()) };
        let passed_over = [passed_over, unresolved].concat();
        return Ok(Folder { root, manifests, passed_over, named: vec![below] });
    }
    if !kind.is_dir() {
        return Err(FolderError::Special(asked));
    }
    // Fails early if the folder itself can't be listed: no findings would look like success.
    fs::read_dir(&at).map_err(open)?;
    let mut walk = Walk {
        root: &root,
        kept_out: GitExclusions::for_request(&root, &below),
        files: Vec::new(),
        ignore_files: ignore_files_above(&root, &at),
        passed_over: Vec::new(),
        entries: 0,
    };
    walk.folder(&at, 0).map_err(|EntryLimitExceeded| FolderError::TooMany(asked))?;
    let Walk { files, ignore_files, mut passed_over, .. } = walk;
    let ignored = IgnoreRules::new(ignore_files.iter().map(|(folder, text)| (folder.as_str(), text.clone())));
    let files = files.into_iter().filter(|file| !ignored.ignores(file)).collect();
    passed_over.retain(|violation| !ignored.ignores(&violation.file));
    let (manifests, unreadable) = parse(files, &root);
    let (manifests, unresolved) = with_files(&root, &below, manifests);
    passed_over.extend(unreadable);
    passed_over.extend(unresolved);
    passed_over.sort();
    Ok(Folder { root, manifests, passed_over, named: Vec::new() })
}

/// Adds violations of manifests that name files or secrets which a commit would not hold. `below` is the requested
/// path, anything from a single file to the whole repository, so secrets are searched for in every folder that may
/// be the source's.
fn with_files(root: &Path, below: &str, manifests: Manifests) -> (Manifests, Vec<Violation>) {
    let kept_out = GitExclusions::for_request(root, below);
    let is_kept_out =
        |path: &str| kept_out.as_ref().is_some_and(|kept_out| kept_out.holds(path, root.join(path).is_dir()));
    let mut lookup = OnDisk { root, is_kept_out };
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
    let bytes = bytes(&root.join(file)).ok().flatten()?;
    Some(String::from_utf8_lossy(bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes)).into_owned())
}

/// Reads a file that was named, whatever its extension.
pub fn read_file(path: &Path) -> Result<Vec<u8>, FolderError> {
    let read = bytes(path).and_then(|bytes| bytes.ok_or_else(|| io::ErrorKind::FileTooLarge.into()));
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

/// Returns the ignore files of the folders around `at`, up to the root: they apply to a commit as well. Empty if
/// they ignore `at` itself: a user who names it wants it read.
fn ignore_files_above(root: &Path, at: &Path) -> Vec<(String, String)> {
    let around = at.ancestors().skip(1).take_while(|folder| folder.starts_with(root));
    let read = |folder: &Path| Some((relative(root, folder), lossy(&folder.join(IGNORE_FILE))?));
    let found: Vec<_> = around.filter_map(read).collect();
    let rules = IgnoreRules::new(found.iter().map(|(folder, text)| (folder.as_str(), text.clone())));
    // A name below the folder stands for its contents.
    if rules.ignores(&joined(&relative(root, at), "any.yaml")) { Vec::new() } else { found }
}

fn lossy(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&bytes(path).ok()??).into_owned())
}

/// Paths that Git keeps out of commits.
struct GitExclusions {
    repository: Repository,
    index: git2::Index,
}

impl GitExclusions {
    /// Returns `None` without a repository that can be opened, or if it keeps out the requested path.
    fn for_request(root: &Path, below: &str) -> Option<Self> {
        let repository = Repository::open(root).ok()?;
        let index = repository.index().ok()?;
        let kept_out = Self { repository, index };
        (below.is_empty() || !kept_out.holds(below, true)).then_some(kept_out)
    }

    /// True if the path is ignored and nothing of it was added anyway.
    fn holds(&self, path: &str, is_folder: bool) -> bool {
        if is_folder {
            let path = format!("{path}/");
            return self.repository.is_path_ignored(&path).unwrap_or(false)
                && self.index.find_prefix(&path).is_err();
        }
        self.repository.is_path_ignored(path).unwrap_or(false)
            && self.index.get_path(Path::new(path), 0).is_none()
    }
}

struct Walk<'a> {
    root: &'a Path,
    kept_out: Option<GitExclusions>,
    /// Manifest files by path from the root.
    files: Vec<String>,
    /// Folder and text of each ignore file.
    ignore_files: Vec<(String, String)>,
    passed_over: Vec<Violation>,
    entries: usize,
}

struct EntryLimitExceeded;

impl Walk<'_> {
    fn folder(&mut self, at: &Path, depth: usize) -> Result<(), EntryLimitExceeded> {
        let folder = relative(self.root, at);
        let entries = match fs::read_dir(at) {
            Ok(entries) => entries,
            Err(error) => {
                self.pass_over(&folder, &rules::UNREADABLE, &format!("the folder can't be listed: {error}"));
                return Ok(());
            }
        };
        for entry in entries.flatten() {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(EntryLimitExceeded);
            }
            let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
            let Some(name) = name.to_str() else {
                let shown = joined(&folder, &name.to_string_lossy());
                let holds_manifest = kind.is_file() && is_manifest_path(&shown);
                if holds_manifest || kind.is_dir() && self.holds_manifest(&entry.path(), depth + 1)? {
                    self.passed_over.push(SkippedEntry::OddName.note(&shown));
                }
                continue;
            };
            let path = joined(&folder, name);
            if kind.is_symlink() && name == IGNORE_FILE {
                self.pass_over(&path, &rules::UNREADABLE, "an ignore file must not be a symbolic link");
            } else if kind.is_symlink() {
                self.passed_over.push(SkippedEntry::Link.note(&path));
            } else if kind.is_dir() {
                self.subfolder(&entry.path(), name, &path, depth + 1)?;
            } else if kind.is_file() {
                self.file(&entry.path(), name, &folder, path);
            }
        }
        Ok(())
    }

    /// Searches a folder whose name can't be decoded for a file that could be a manifest.
    fn holds_manifest(&mut self, at: &Path, depth: usize) -> Result<bool, EntryLimitExceeded> {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(EntryLimitExceeded);
            }
            let Ok(kind) = entry.file_type() else { continue };
            let is_manifest = || is_manifest_path(&entry.file_name().to_string_lossy());
            if kind.is_file() && is_manifest()
                || kind.is_dir() && depth <= DEPTH_MAX && self.holds_manifest(&entry.path(), depth + 1)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn subfolder(
        &mut self,
        at: &Path,
        name: &str,
        path: &str,
        depth: usize,
    ) -> Result<(), EntryLimitExceeded> {
        if name == ".git" || self.is_kept_out(path, true) {
            return Ok(());
        }
        if at.join(".git").symlink_metadata().is_ok() {
            self.passed_over.push(SkippedEntry::Submodule.note(path));
        } else if depth > DEPTH_MAX {
            self.passed_over.push(SkippedEntry::TooDeep.note(path));
        } else {
            self.folder(at, depth)?;
        }
        Ok(())
    }

    fn file(&mut self, at: &Path, name: &str, folder: &str, path: String) {
        if name == IGNORE_FILE {
            self.ignore_files.extend(lossy(at).map(|text| (folder.to_owned(), text)));
        } else if is_manifest_path(name) && !self.is_kept_out(&path, false) {
            self.files.push(path);
        }
    }

    fn is_kept_out(&self, path: &str, is_folder: bool) -> bool {
        self.kept_out.as_ref().is_some_and(|kept_out| kept_out.holds(path, is_folder))
    }

    fn pass_over(&mut self, path: &str, rule: &Rule, message: &str) {
        self.passed_over.push(Violation::new(rule, path, (0, 0), message));
    }
}

/// Reads and parses files in bounded batches. Files that can't be read are reported.
fn parse(files: Vec<String>, root: &Path) -> (Manifests, Vec<Violation>) {
    let (mut manifests, mut violations) = (Manifests::new(), Vec::new());
    let (mut batch, mut batch_bytes): (Vec<load::Blob>, usize) = (Vec::new(), 0);
    for path in files {
        match bytes(&root.join(&path)) {
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

/// Reads a regular file; `None` if it is too large to be a manifest.
fn bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A file may have become a link or pipe since it was listed: never follow it, never block on it.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let size = file.metadata()?.len();
    let limit = u64::try_from(BLOB_BYTES_MAX).unwrap_or(u64::MAX);
    if size > limit {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= BLOB_BYTES_MAX).then_some(bytes))
}

#[cfg(test)]
mod tests;
