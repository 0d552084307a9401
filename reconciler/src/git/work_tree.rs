//! A folder on disk, as a commit of it would hold it: without what Git keeps out, and with what its filters store.
//!
//! Reads the disk, the index and the attributes of the repository around the folder; runs no filter and no hook.
//! Links are never followed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use git2::{AttrCheckFlags, ErrorCode, Index, Repository};
use nix::fcntl::OFlag;
use schema::archive::LIMITS;
use schema::content_refs::is_lfs_pointer;
use schema::file_text::is_git_crypt;

use super::content::{ContentError, ContentTree, EntryKind, Found, NamedEntry};
use super::error::LocalFault;

/// Files below a folder of the disk.
#[derive(Default)]
pub struct WorkTree {
    root: PathBuf,
    git: Option<OpenRepository>,
    /// True if what Git keeps out of commits is left out.
    excludes: bool,
}

/// The repository whose work tree the folder is.
struct OpenRepository {
    repository: Repository,
    index: Index,
    /// For each filter that attributes name, whether this machine runs it.
    filters: RefCell<BTreeMap<String, bool>>,
}

impl std::fmt::Debug for WorkTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WorkTree").field(&self.root).finish()
    }
}

impl WorkTree {
    /// Opens the folder at `root`. Also returns what keeps its repository, if it has one, from being read: then
    /// nothing is left out.
    pub fn open(root: &Path) -> (Self, Option<LocalFault>) {
        let opened = Repository::open(root).and_then(|repository| {
            let index = repository.index()?;
            Ok(OpenRepository { repository, index, filters: RefCell::default() })
        });
        let (git, fault) = match opened {
            Ok(git) => (Some(git), None),
            Err(error) if error.code() == ErrorCode::NotFound => (None, None),
            Err(error) => (None, Some(LocalFault::new(root, &error))),
        };
        (Self { root: root.to_owned(), git, excludes: true }, fault)
    }

    /// Leaves nothing out if Git keeps out the requested path itself: a user who names it wants it read.
    pub fn request(&mut self, path: &str) {
        self.excludes = true;
        self.excludes = path.is_empty() || !self.keeps_out(Path::new(path), true);
    }

    /// Reads a file of at most `most` bytes as a commit would hold it; `None` if it is larger.
    pub fn file(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        let bytes = regular_bytes(&self.root.join(path), most)?;
        Ok(bytes.map(|bytes| self.committed(path, bytes)))
    }

    /// True if the path is ignored and nothing of it was added anyway.
    fn keeps_out(&self, path: &Path, is_folder: bool) -> bool {
        let Some(git) = self.git.as_ref().filter(|_| self.excludes) else { return false };
        let is_ignored = |path: &Path| git.repository.is_path_ignored(path).unwrap_or(false);
        if is_folder {
            let path = PathBuf::from(OsStr::from_bytes(&[path.as_os_str().as_bytes(), b"/"].concat()));
            return is_ignored(&path) && git.index.find_prefix(&path).is_err();
        }
        is_ignored(path) && git.index.get_path(path, 0).is_none()
    }

    /// Returns what Git would store for a file with these bytes.
    fn committed(&self, path: &Path, bytes: Vec<u8>) -> Vec<u8> {
        let Some(git) = &self.git else { return bytes };
        if let Some(filter) = git.attribute(path, "filter").filter(|filter| git.runs(filter)) {
            return git.filtered(path, &filter).unwrap_or(bytes);
        }
        let encoding = git.attribute(path, "working-tree-encoding");
        encoding.and_then(|encoding| utf8_of(&encoding, &bytes)).unwrap_or(bytes)
    }

    fn found(&self, path: PathBuf, kind: fs::FileType) -> Option<Found<PathBuf>> {
        let at = self.root.join(&path);
        let kind = if kind.is_symlink() {
            EntryKind::Link
        } else if kind.is_dir() {
            let is_repository = at.join(".git").symlink_metadata().is_ok();
            if is_repository { EntryKind::Submodule } else { EntryKind::Folder }
        } else if kind.is_file() {
            let mode = at.symlink_metadata().map_or(0, |meta| meta.permissions().mode());
            EntryKind::File { is_executable: mode & 0o100 != 0 }
        } else {
            // No commit holds a pipe or device, and opening one may block forever.
            return None;
        };
        let is_folder = matches!(kind, EntryKind::Folder | EntryKind::Submodule);
        (!self.keeps_out(&path, is_folder)).then_some(Found { kind, entry: path })
    }

    /// True if a commit holds anything of the folder: Git keeps no empty ones.
    fn is_kept(&self, folder: &PathBuf) -> Result<bool, ContentError> {
        for (_, found) in self.entries(folder)? {
            if found.kind != EntryKind::Folder || self.is_kept(&found.entry)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl OpenRepository {
    /// Returns the value of an attribute; libgit2's own words if it is set or unset without one.
    fn attribute(&self, path: &Path, name: &str) -> Option<String> {
        let found = self.repository.get_attr(path, name, AttrCheckFlags::FILE_THEN_INDEX);
        found.ok()?.map(str::to_owned)
    }

    /// True if this machine runs the filter; without its configuration, Git stores files as they are.
    fn runs(&self, filter: &str) -> bool {
        let is_set = |key: &str| {
            let config = self.repository.config().and_then(|mut config| config.snapshot());
            config.is_ok_and(|config| config.get_str(&format!("filter.{filter}.{key}")).is_ok())
        };
        let mut filters = self.filters.borrow_mut();
        *filters.entry(filter.to_owned()).or_insert_with(|| is_set("clean") || is_set("process"))
    }

    /// Returns what a filter that is not run here stores in place of a file; `None` if that is unknown or the file
    /// itself. The committed version tells, else the filter's name.
    fn filtered(&self, path: &Path, filter: &str) -> Option<Vec<u8>> {
        if let Some(entry) = self.index.get_path(path, 0) {
            let blob = self.repository.find_blob(entry.id).ok()?;
            let is_substitute = is_lfs_pointer(blob.content()) || is_git_crypt(blob.content());
            return is_substitute.then(|| blob.content().to_vec());
        }
        match filter {
            "lfs" => Some(b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
            _ if filter == "git-crypt" || filter.starts_with("git-crypt-") => Some(b"\0GITCRYPT\0".to_vec()),
            _ => None,
        }
    }
}

impl ContentTree for WorkTree {
    type Entry = PathBuf;

    fn root(&self) -> Result<PathBuf, ContentError> {
        Ok(PathBuf::new())
    }

    fn entries(&self, folder: &PathBuf) -> Result<Vec<NamedEntry<PathBuf>>, ContentError> {
        let failed = |source| unreadable(folder, source);
        let mut found = Vec::new();
        for entry in fs::read_dir(self.root.join(folder)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            // An entry that disappeared meanwhile would not be committed.
            let Ok(kind) = entry.file_type() else { continue };
            if name != ".git"
                && let Some(entry) = self.found(folder.join(&name), kind)
            {
                found.push((name.into_vec(), entry));
            }
        }
        let order = |(name, found): &(Vec<u8>, Found<PathBuf>)| {
            let end: &[u8] = if found.kind == EntryKind::Folder { b"/" } else { b"" };
            [name.as_slice(), end].concat()
        };
        found.sort_by_cached_key(order);
        Ok(found)
    }

    fn child(&self, folder: &PathBuf, name: &str) -> Result<Option<Found<PathBuf>>, ContentError> {
        let path = folder.join(name);
        let meta = match self.root.join(&path).symlink_metadata() {
            Ok(meta) if name != ".git" => meta,
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(unreadable(&path, error)),
        };
        match self.found(path, meta.file_type()) {
            Some(found) if found.kind == EntryKind::Folder => {
                Ok(self.is_kept(&found.entry)?.then_some(found))
            }
            found => Ok(found),
        }
    }

    fn size(&self, entry: &PathBuf) -> Result<u64, ContentError> {
        let meta = self.root.join(entry).symlink_metadata();
        meta.map(|meta| meta.len()).map_err(|source| unreadable(entry, source))
    }

    fn read<R>(&self, entry: &PathBuf, take: impl FnOnce(&[u8]) -> R) -> Result<R, ContentError> {
        let at = self.root.join(entry);
        let read = match at.symlink_metadata() {
            Ok(meta) if meta.is_symlink() => {
                fs::read_link(&at).map(|target| target.into_os_string().into_vec())
            }
            _ => self
                .file(entry, LIMITS.bytes)
                .and_then(|bytes| bytes.ok_or(io::ErrorKind::FileTooLarge.into())),
        };
        read.map(|bytes| take(&bytes)).map_err(|source| unreadable(entry, source))
    }
}

fn unreadable(path: &Path, source: io::Error) -> ContentError {
    ContentError::Unreadable { path: path.display().to_string(), source }
}

/// Reads a regular file; `None` if it has more than `most` bytes.
pub fn regular_bytes(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    // A file may have become a link or pipe since it was listed: never follow it, never block on it.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let size = file.metadata()?.len();
    if size > most {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Converts UTF-16 to UTF-8 as Git does for a `working-tree-encoding`; `None` for other encodings, which are read as
/// they are, and for text that is not of this encoding, which Git refuses to add.
fn utf8_of(encoding: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (is_little, bytes) = match (encoding.to_ascii_uppercase().as_str(), bytes) {
        ("UTF-16" | "UTF-16LE-BOM", [0xFF, 0xFE, rest @ ..]) => (true, rest),
        ("UTF-16" | "UTF-16BE-BOM", [0xFE, 0xFF, rest @ ..]) => (false, rest),
        ("UTF-16LE", _) => (true, bytes),
        ("UTF-16BE", _) => (false, bytes),
        _ => return None,
    };
    let (units, rest) = bytes.as_chunks::<2>();
    let units = units
        .iter()
        .map(|unit| if is_little { u16::from_le_bytes(*unit) } else { u16::from_be_bytes(*unit) });
    let text: Result<String, _> = char::decode_utf16(units).collect();
    text.ok().filter(|_| rest.is_empty()).map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_utf_16_is_stored_as_utf_8_and_other_text_as_it_is() {
        let of = |units: &[u8]| units.to_vec();
        for (encoding, bytes, text) in [
            ("UTF-16", of(b"\xFF\xFEa\0"), Some("a")),
            ("utf-16", of(b"\xFE\xFF\0a"), Some("a")),
            ("UTF-16LE-BOM", of(b"\xFF\xFEa\0"), Some("a")),
            ("UTF-16LE", of(b"a\0\x3D\xD8\x00\xDE"), Some("a😀")),
            ("UTF-16BE", of(b"\0a"), Some("a")),
            ("UTF-16", of(b"a\0"), None),
            ("UTF-16LE", of(b"a\0b"), None),
            ("windows-1252", of(b"a"), None),
        ] {
            let stored = utf8_of(encoding, &bytes);
            assert_eq!(stored.as_deref(), text.map(str::as_bytes), "{encoding} {bytes:?}");
        }
    }
}
