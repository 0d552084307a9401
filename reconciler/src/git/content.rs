//! Archives of files and folders of a commit, for volumes to mount and secrets to decrypt.
//!
//! Reads the object database (or, for `minik8s validate`, the disk) and rejects content that can't be mounted: links
//! out of the folder, submodules, Git LFS pointers, files that git-crypt encrypted. Ignore files affect only manifests,
//! never mounts.

use std::io::{self, Write};

use git2::{ObjectType, Oid, Repository, TreeEntry};
use schema::archive::{Archive, ArchiveError, FinishedArchive};
use schema::content_refs::{
    BlobKind, IDENTITY_FOLDER, LIMITS, RECIPIENTS_FILE, file_name, is_ciphertext, is_identity_path,
    is_lfs_pointer, is_sops,
};
use schema::file_text::{file_text, is_git_crypt};
use schema::secrets::format::sops::{SopsError, SopsFile};

use crate::crypt;

/// Folders that may be nested.
pub const DEPTH_MAX: usize = 64;
const FOLDER: i32 = 0o040_000;
const LINK: i32 = 0o120_000;
const EXECUTABLE: i32 = 0o100;
/// Longest target of a symbolic link: Linux' own limit of a path.
const LINK_BYTES_MAX: u64 = 4096;

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
    #[error("{0} is encrypted by git-crypt")]
    GitCrypt(String),
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
            ContentError::GitCrypt(_) => {
                "Minik8s has no key of git-crypt: make it a secret with 'minik8s secrets seal', or leave it unencrypted"
            }
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

/// Kind of an entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Folder,
    File { is_executable: bool },
    Link,
    Submodule,
}

/// An entry, and what reads it.
#[derive(Debug, Clone)]
pub struct Found<E> {
    pub kind: EntryKind,
    pub entry: E,
}

/// An entry by its name.
pub type NamedEntry<E> = (Vec<u8>, Found<E>);

/// Folders and files of a commit, or of a disk as a commit of it would hold them. Both are read by the functions of
/// this file, so `minik8s validate` refuses what a push refuses.
pub trait ContentTree {
    type Entry: Clone;

    fn root(&self) -> Result<Self::Entry, ContentError>;

    /// Lists a folder in the order of Git, which is that of the paths of all files below it.
    fn entries(&self, folder: &Self::Entry) -> Result<Vec<NamedEntry<Self::Entry>>, ContentError>;

    fn child(&self, folder: &Self::Entry, name: &str) -> Result<Option<Found<Self::Entry>>, ContentError>;

    /// Bytes of a file, or of a link's target: an upper bound for a file on disk.
    fn size(&self, entry: &Self::Entry) -> Result<u64, ContentError>;

    /// Passes on the content of a file, or the target of a link.
    fn read<R>(&self, entry: &Self::Entry, take: impl FnOnce(&[u8]) -> R) -> Result<R, ContentError>;
}

/// The files of a commit.
#[derive(Clone, Copy)]
pub struct CommitTree<'r> {
    pub repository: &'r Repository,
    pub commit: Oid,
}

/// Tree entry at a path: entries of equal id and mode have equal content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentEntry {
    pub id: Oid,
    pub mode: i32,
}

impl ContentEntry {
    pub(super) fn found(item: &TreeEntry<'_>) -> Option<Found<Self>> {
        let mode = item.filemode();
        let kind = match item.kind() {
            Some(ObjectType::Tree) => EntryKind::Folder,
            Some(ObjectType::Blob) if mode == LINK => EntryKind::Link,
            Some(ObjectType::Blob) => EntryKind::File { is_executable: mode & EXECUTABLE != 0 },
            Some(ObjectType::Commit) => EntryKind::Submodule,
            _ => return None,
        };
        Some(Found { kind, entry: Self { id: item.id(), mode } })
    }
}

impl ContentTree for CommitTree<'_> {
    type Entry = ContentEntry;

    fn root(&self) -> Result<ContentEntry, ContentError> {
        let root = self.repository.find_commit(self.commit)?.tree()?;
        Ok(ContentEntry { id: root.id(), mode: FOLDER })
    }

    fn entries(&self, folder: &ContentEntry) -> Result<Vec<NamedEntry<ContentEntry>>, ContentError> {
        let tree = self.repository.find_tree(folder.id)?;
        let found =
            tree.iter().filter_map(|item| Some((item.name_bytes().to_vec(), ContentEntry::found(&item)?)));
        Ok(found.collect())
    }

    fn child(&self, folder: &ContentEntry, name: &str) -> Result<Option<Found<ContentEntry>>, ContentError> {
        let tree = self.repository.find_tree(folder.id)?;
        Ok(tree.get_name(name).and_then(|item| ContentEntry::found(&item)))
    }

    fn size(&self, entry: &ContentEntry) -> Result<u64, ContentError> {
        let (size, _) = self.repository.odb()?.read_header(entry.id)?;
        Ok(size as u64)
    }

    fn read<R>(&self, entry: &ContentEntry, take: impl FnOnce(&[u8]) -> R) -> Result<R, ContentError> {
        Ok(take(self.repository.find_blob(entry.id)?.content()))
    }
}

/// Finds `path` (normalized as by `schema::content_refs::normalize_path`): a file or a folder.
pub fn find<T: ContentTree>(tree: &T, path: &str) -> Result<Found<T::Entry>, ContentError> {
    let absent = || ContentError::Absent(path.to_owned());
    // No entry has such a name, and libgit2 reports it as if the mirror were broken.
    if path.contains('\0') || path.split('/').any(|part| matches!(part, "" | "..")) {
        return Err(absent());
    }
    let mut at = Found { kind: EntryKind::Folder, entry: tree.root()? };
    for part in path.split('/').filter(|_| path != ".") {
        if at.kind != EntryKind::Folder {
            return Err(absent());
        }
        at = tree.child(&at.entry, part)?.ok_or_else(absent)?;
    }
    match at.kind {
        EntryKind::Folder | EntryKind::File { .. } => Ok(at),
        EntryKind::Link => Err(ContentError::IsLink(path.to_owned())),
        EntryKind::Submodule => Err(ContentError::Submodule(path.to_owned())),
    }
}

/// Reads the file at `path`; `None` for a folder, or for a file of more than `most` bytes.
pub fn bytes(tree: &impl ContentTree, path: &str, most: u64) -> Result<Option<Vec<u8>>, ContentError> {
    let found = find(tree, path)?;
    // Check the size first: a file is read whole, and may be larger than memory.
    if found.kind == EntryKind::Folder || tree.size(&found.entry)? > most {
        return Ok(None);
    }
    tree.read(&found.entry, <[u8]>::to_vec).map(Some)
}

/// Reads the text at `path`; `None` without such a file, or if it is larger or not UTF-8.
pub fn text(tree: &impl ContentTree, path: &str, most: u64) -> Option<String> {
    let bytes = bytes(tree, path, most).ok()??;
    file_text(&bytes).map(str::to_owned)
}

/// Writes the archive of the entry found at `path`; a secret must be an encrypted file.
pub fn archive<T: ContentTree, W: Write>(
    tree: &T,
    found: &Found<T::Entry>,
    path: &str,
    is_secret: bool,
    writer: W,
) -> Result<(FinishedArchive<W>, BlobKind), ContentError> {
    // Only secrets may be read from the identity's folder.
    if !is_secret && is_identity_path(path) {
        return Err(ContentError::Absent(path.to_owned()));
    }
    let mut walk = Walk { tree, archive: Archive::new(writer), entries: 0, top: path };
    let kind = match (found.kind, is_secret) {
        (EntryKind::Folder, true) => return Err(ContentError::NoFile(path.to_owned())),
        (EntryKind::Folder, false) => {
            walk.folder(&found.entry, "", 0)?;
            BlobKind::Folder
        }
        (_, true) => {
            walk.secret(found)?;
            BlobKind::Secret
        }
        (_, false) => {
            walk.file(found, file_name(path), path)?;
            BlobKind::File
        }
    };
    let made = walk.archive.finish().map_err(|error| refused(error, path, path))?;
    Ok((made, kind))
}

struct Walk<'t, T, W: Write> {
    tree: &'t T,
    archive: Archive<W>,
    /// Number of files and folders: trees may refer to each other many times over without containing any file.
    entries: usize,
    top: &'t str,
}

impl<T: ContentTree, W: Write> Walk<'_, T, W> {
    fn folder(&mut self, folder: &T::Entry, prefix: &str, depth: usize) -> Result<(), ContentError> {
        let items = self.tree.entries(folder)?;
        let holds_identity = items.iter().any(|(name, _)| name == IDENTITY_FOLDER.as_bytes());
        for (name, item) in items {
            let Ok(name) = str::from_utf8(&name) else {
                let name = String::from_utf8_lossy(&name);
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
            if is_identity_path(&path) || (name == RECIPIENTS_FILE && holds_identity) {
                continue;
            }
            match item.kind {
                EntryKind::Folder => self.folder(&item.entry, &format!("{below}/"), depth + 1)?,
                EntryKind::Link => self.link(&item.entry, &below, &path)?,
                EntryKind::File { .. } => self.file(&item, &below, &path)?,
                EntryKind::Submodule => return Err(ContentError::Submodule(path)),
            }
        }
        Ok(())
    }

    fn file(&mut self, found: &Found<T::Entry>, name: &str, path: &str) -> Result<(), ContentError> {
        let top = self.top;
        // Check the size first: a file is read whole, and may be larger than memory.
        if self.tree.size(&found.entry)? > LIMITS.bytes {
            return Err(refused(ArchiveError::TooLarge, path, top));
        }
        let is_executable = matches!(found.kind, EntryKind::File { is_executable: true });
        let archive = &mut self.archive;
        self.tree.read(&found.entry, |content| {
            refuse_substitute(path, content)?;
            let added = archive.file(name, is_executable, content.len() as u64, content);
            added.map_err(|error| refused(error, path, top))
        })?
    }

    fn secret(&mut self, found: &Found<T::Entry>) -> Result<(), ContentError> {
        let path = self.top;
        if self.tree.size(&found.entry)? > LIMITS.secret_bytes {
            let why = format!("a secret has at most {} KiB", LIMITS.secret_bytes / 1024);
            return Err(ContentError::TooMuch { path: path.to_owned(), why });
        }
        self.tree.read(&found.entry, |content| {
            refuse_substitute(path, content)?;
            check_ciphertext(path, content)
        })??;
        self.file(found, file_name(path), path)
    }

    fn link(&mut self, link: &T::Entry, name: &str, path: &str) -> Result<(), ContentError> {
        let (top, archive) = (self.top, &mut self.archive);
        let leads_out = || ContentError::LinkOut(path.to_owned());
        if self.tree.size(link)? > LINK_BYTES_MAX {
            return Err(leads_out());
        }
        self.tree.read(link, |target| {
            let target = str::from_utf8(target).map_err(|_| leads_out())?;
            archive.link(name, target).map_err(|error| refused(error, path, top))
        })?
    }
}

/// Refuses what stands in a commit in place of a file that only a filter of Git restores.
fn refuse_substitute(path: &str, content: &[u8]) -> Result<(), ContentError> {
    if is_lfs_pointer(content) {
        return Err(ContentError::Lfs(path.to_owned()));
    }
    if is_git_crypt(content) {
        return Err(ContentError::GitCrypt(path.to_owned()));
    }
    Ok(())
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
