//! Archives of files and folders of a commit, for volumes to mount and secrets to decrypt.
//!
//! Reads the object database and rejects content that can't be mounted: links out of the folder, submodules, Git
//! LFS pointers. Ignore files affect only manifests, never mounts.

use std::io::{self, Write};

use git2::{ErrorCode, ObjectType, Oid, Repository, Tree};
use schema::archive::{Archive, ArchiveError, FinishedArchive};
use schema::content_refs::{
    BlobKind, IDENTITY_FOLDER, LIMITS, RECIPIENTS_FILE, file_name, is_ciphertext, is_identity_path,
    is_lfs_pointer, is_sops,
};
use schema::secrets::format::sops::{SopsError, SopsFile};

use super::walk::DEPTH_MAX;
use crate::crypt;

const LINK: i32 = 0o120_000;
const EXECUTABLE: i32 = 0o100;

/// Reason why a path of a commit can't be given to a pod.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error("there is no {0} in the repository")]
    Absent(String),
    #[error("{0} is a symbolic link")]
    IsLink(String),
    #[error("{0} is a symbolic link that points outside the folder")]
    LinkOut(String),
    #[error("{0} is a submodule, whose files are not in this repository")]
    Submodule(String),
    #[error("{0} is a Git LFS pointer, not the file itself")]
    Lfs(String),
    #[error("the file name {0:?} can't be used")]
    Name(String),
    #[error("{path} can't be mounted: {why}")]
    TooMuch { path: String, why: String },
    #[error("{0} is not encrypted")]
    Plain(String),
    #[error("{path} {why}")]
    Sops { path: String, why: SopsError },
    #[error("{path} is a damaged age file: {why}")]
    Damaged { path: String, why: String },
    #[error("{0} is a folder, not an encrypted file")]
    NoFile(String),
    #[error("{path} can't be read: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error(transparent)]
    Git(#[from] git2::Error),
    #[error("cannot write the content of {path}: {source}")]
    Write { path: String, source: io::Error },
}

impl ContentError {
    pub fn help(&self) -> &'static str {
        match self {
            ContentError::Absent(_) => "paths are from the root of the repository; commit what is missing",
            ContentError::IsLink(_) => "name its target",
            ContentError::LinkOut(_) => "replace it with the file itself",
            ContentError::Submodule(_) => "commit its files here",
            ContentError::Lfs(_) => "commit the file itself: `git lfs untrack` it, or bake it into the image",
            ContentError::Name(_) => "rename it",
            ContentError::TooMuch { .. } => "name a smaller folder, or bake large files into the image",
            ContentError::Plain(_) => {
                "encrypt it with 'minik8s secrets seal', and rotate its values: they stay in Git's history"
            }
            ContentError::Damaged { path, .. } if is_identity_path(path) => {
                "restore the previous version from Git, then 'minik8s secrets recipients add' the nodes that it lacks"
            }
            ContentError::Damaged { .. } => "restore the previous version from Git, or seal it again",
            ContentError::Sops { .. } => "docs/security.md, \"SOPS files\", has an example",
            ContentError::Unreadable { .. } => "let this user read it",
            ContentError::NoFile(_) => "put the encrypted file there",
            ContentError::Git(_) | ContentError::Write { .. } => "",
        }
    }

    /// True if the error concerns the reconciler rather than the commit.
    pub fn is_ours(&self) -> bool {
        matches!(self, ContentError::Git(_) | ContentError::Write { .. })
    }
}

/// Tree entry at a path: entries of equal id and mode have equal content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentEntry {
    pub id: Oid,
    pub mode: i32,
}

/// Finds `path` (normalized as by `schema::files::normal_path`) in `commit`.
pub fn find(repository: &Repository, commit: Oid, path: &str) -> Result<ContentEntry, ContentError> {
    // No tree entry has such a name, and libgit2 reports it as if the mirror were broken.
    if path.contains('\0') || path.split('/').any(|part| matches!(part, "" | "..")) {
        return Err(ContentError::Absent(path.to_owned()));
    }
    let root = repository.find_commit(commit)?.tree()?;
    if path == "." {
        return Ok(ContentEntry { id: root.id(), mode: 0o040_000 });
    }
    let entry = match root.get_path(path.as_ref()) {
        Ok(entry) => entry,
        Err(error) if error.code() == ErrorCode::NotFound && error.class() == git2::ErrorClass::Tree => {
            return Err(ContentError::Absent(path.to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    match entry.kind() {
        Some(ObjectType::Tree) => Ok(ContentEntry { id: entry.id(), mode: entry.filemode() }),
        Some(ObjectType::Blob) if entry.filemode() == LINK => Err(ContentError::IsLink(path.to_owned())),
        Some(ObjectType::Blob) => Ok(ContentEntry { id: entry.id(), mode: entry.filemode() }),
        Some(ObjectType::Commit) => Err(ContentError::Submodule(path.to_owned())),
        _ => Err(ContentError::Absent(path.to_owned())),
    }
}

/// Writes the archive of the entry found at `path`; a secret must be an encrypted file.
pub fn archive<W: Write>(
    repository: &Repository,
    found: ContentEntry,
    path: &str,
    is_secret: bool,
    writer: W,
) -> Result<(FinishedArchive<W>, BlobKind), ContentError> {
    // Only secrets may be read from the identity's folder.
    if !is_secret && is_identity_path(path) {
        return Err(ContentError::Absent(path.to_owned()));
    }
    let mut walk = Walk { repository, archive: Archive::new(writer), entries: 0, top: path };
    let is_folder = repository.find_object(found.id, None)?.kind() == Some(ObjectType::Tree);
    let kind = match (is_folder, is_secret) {
        (true, true) => return Err(ContentError::NoFile(path.to_owned())),
        (true, false) => {
            walk.folder(&repository.find_tree(found.id)?, "", 0)?;
            BlobKind::Folder
        }
        (false, true) => {
            walk.secret(found)?;
            BlobKind::Secret
        }
        (false, false) => {
            walk.file(found, file_name(path), path)?;
            BlobKind::File
        }
    };
    let made = walk.archive.finish().map_err(|error| refused(error, path, path))?;
    Ok((made, kind))
}

struct Walk<'r, W: Write> {
    repository: &'r Repository,
    archive: Archive<W>,
    /// Number of files and folders: trees may refer to each other many times over without containing any file.
    entries: usize,
    top: &'r str,
}

impl<W: Write> Walk<'_, W> {
    fn folder(&mut self, tree: &Tree<'_>, prefix: &str, depth: usize) -> Result<(), ContentError> {
        for item in tree {
            let Ok(name) = str::from_utf8(item.name_bytes()) else {
                let name = String::from_utf8_lossy(item.name_bytes());
                return Err(ContentError::Name(format!("{prefix}{name}")));
            };
            let below = format!("{prefix}{name}");
            let path = if self.top == "." { below.clone() } else { format!("{}/{below}", self.top) };
            self.entries += 1;
            if self.entries > LIMITS.entries || depth > DEPTH_MAX {
                return Err(refused(ArchiveError::TooMany, &path, self.top));
            }
            // A new version of the identity, for a new node, must not change pods that mount a folder around it.
            // The list of recipients next to it changes as well.
            let is_list = name == RECIPIENTS_FILE && tree.get_name(IDENTITY_FOLDER).is_some();
            if is_identity_path(&path) || is_list {
                continue;
            }
            match item.kind() {
                Some(ObjectType::Tree) => {
                    let tree = self.repository.find_tree(item.id())?;
                    self.folder(&tree, &format!("{below}/"), depth + 1)?;
                }
                Some(ObjectType::Blob) if item.filemode() == LINK => self.link(item.id(), &below, &path)?,
                Some(ObjectType::Blob) => {
                    self.file(ContentEntry { id: item.id(), mode: item.filemode() }, &below, &path)?;
                }
                _ => return Err(ContentError::Submodule(path)),
            }
        }
        Ok(())
    }

    fn file(&mut self, found: ContentEntry, name: &str, path: &str) -> Result<(), ContentError> {
        let top = self.top;
        // Check the size first: a blob is read whole, and may be larger than memory.
        let (size, _) = self.repository.odb()?.read_header(found.id)?;
        if size as u64 > LIMITS.bytes {
            return Err(refused(ArchiveError::TooLarge, path, top));
        }
        let blob = self.repository.find_blob(found.id)?;
        if is_lfs_pointer(blob.content()) {
            return Err(ContentError::Lfs(path.to_owned()));
        }
        let added = self.archive.file(name, found.mode & EXECUTABLE != 0, size as u64, blob.content());
        added.map_err(|error| refused(error, path, top))
    }

    fn secret(&mut self, found: ContentEntry) -> Result<(), ContentError> {
        let path = self.top;
        let (size, _) = self.repository.odb()?.read_header(found.id)?;
        if size as u64 > LIMITS.secret_bytes {
            let why = format!("a secret has at most {} KiB", LIMITS.secret_bytes / 1024);
            return Err(ContentError::TooMuch { path: path.to_owned(), why });
        }
        check_ciphertext(path, self.repository.find_blob(found.id)?.content())?;
        self.file(found, file_name(path), path)
    }

    fn link(&mut self, id: Oid, name: &str, path: &str) -> Result<(), ContentError> {
        let (size, _) = self.repository.odb()?.read_header(id)?;
        if size > 4096 {
            return Err(ContentError::LinkOut(path.to_owned()));
        }
        let blob = self.repository.find_blob(id)?;
        let Ok(target) = str::from_utf8(blob.content()) else {
            return Err(ContentError::LinkOut(path.to_owned()));
        };
        let top = self.top;
        self.archive.link(name, target).map_err(|error| refused(error, path, top))
    }
}

/// Checks that a secret's file is encrypted: for age, as far as visible without an identity; for SOPS, in every
/// value.
pub fn check_ciphertext(path: &str, bytes: &[u8]) -> Result<(), ContentError> {
    if is_sops(path) {
        let sealed = SopsFile::parse(bytes).map(drop);
        return sealed.map_err(|why| ContentError::Sops { path: path.to_owned(), why });
    }
    if !is_ciphertext(bytes) {
        return Err(ContentError::Plain(path.to_owned()));
    }
    let damaged = |why: anyhow::Error| ContentError::Damaged { path: path.to_owned(), why: why.to_string() };
    crypt::without_armour(bytes).map(drop).map_err(damaged)
}

/// Translates an archive error into terms of the commit. `top` is the requested path.
pub fn refused(error: ArchiveError, path: &str, top: &str) -> ContentError {
    match error {
        ArchiveError::TooLarge | ArchiveError::TooMany => {
            ContentError::TooMuch { path: top.to_owned(), why: error.to_string() }
        }
        ArchiveError::Name(name) => ContentError::Name(name),
        ArchiveError::Link { .. } => ContentError::LinkOut(path.to_owned()),
        ArchiveError::Io(source) => ContentError::Write { path: path.to_owned(), source },
    }
}
