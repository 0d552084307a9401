//! Unpacks archives into folders, and computes the digest of a folder. Blocking.
//!
//! Archives are untrusted: only files and links that stay inside are unpacked, each at its own path, through no
//! link, and no more than the limits allow.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt, PermissionsExt, chown, fchown, lchown, symlink};
use std::path::{Path, PathBuf};

use schema::archive::{Archive, ArchiveError};
use schema::content_refs::{LIMITS, link_stays};
use tar::EntryType;

/// Failure to unpack an archive.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("the archive contains {0:?}, which is not allowed in a folder")]
    Entry(String),
    #[error("the archive contains more than a volume may")]
    TooMuch,
    /// A disk error, or an input that is not an archive.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Unpacks into `dir`, which exists and is empty.
pub fn unpack(archive: impl Read, dir: &Path) -> Result<(), UnpackError> {
    let mut files: BTreeSet<String> = BTreeSet::new();
    let mut bytes = 0_u64;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let refused = || UnpackError::Entry(shown.clone());
        let path = String::from_utf8(entry.path_bytes().into_owned()).map_err(|_| refused())?;
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !path.split('/').all(is_part) || path.contains('\0') {
            return Err(refused());
        }
        // Nothing may be below a file or link, and nothing is written twice.
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        if files.contains(&path) || above.into_iter().any(|folder| files.contains(folder)) {
            return Err(refused());
        }
        let at = dir.join(&path);
        make_folders(dir, &path)?;
        match entry.header().entry_type() {
            EntryType::Regular => {
                bytes = bytes.saturating_add(entry.size());
                if bytes > LIMITS.bytes {
                    return Err(UnpackError::TooMuch);
                }
                let mode = if entry.header().mode()? & 0o100 != 0 { 0o755 } else { 0o644 };
                // Never write through an existing file or link.
                let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&at)?;
                io::copy(&mut entry, &mut file)?;
                // Independent of the umask.
                let (uid, gid) = owner();
                fchown(&file, Some(uid), Some(gid))?;
                file.set_permissions(fs::Permissions::from_mode(mode))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(refused)?.into_owned();
                let target = String::from_utf8(target).map_err(|_| refused())?;
                if !link_stays(&path, &target) {
                    return Err(refused());
                }
                symlink(&target, &at)?;
                let (uid, gid) = owner();
                lchown(&at, Some(uid), Some(gid))?;
            }
            _ => return Err(refused()),
        }
        files.insert(path);
        if files.len() > LIMITS.entries {
            return Err(UnpackError::TooMuch);
        }
    }
    Ok(())
}

/// Creates the parent folders of `path`; none of them is a link, since nothing may be below one.
fn make_folders(dir: &Path, path: &str) -> io::Result<()> {
    let mut at = dir.to_owned();
    let Some((folders, _)) = path.rsplit_once('/') else { return Ok(()) };
    for part in folders.split('/') {
        at.push(part);
        match fs::create_dir(&at) {
            Ok(()) => own_folder(&at)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The agent's own user and group (root): a parent folder must not change the group.
fn owner() -> (u32, u32) {
    (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())
}

/// Sets the owner and mode that all folders of a volume have.
pub fn own_folder(folder: &Path) -> io::Result<()> {
    let (uid, gid) = owner();
    chown(folder, Some(uid), Some(gid))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

/// True if a file, link or folder has the owner and mode that [`unpack`] sets.
pub fn is_as_unpacked(path: &Path) -> bool {
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    let (kind, mode) = (meta.file_type(), meta.mode() & 0o7777);
    let mode_is_right = if kind.is_dir() {
        mode == 0o755
    } else {
        kind.is_symlink() || kind.is_file() && matches!(mode, 0o644 | 0o755)
    };
    mode_is_right && (meta.uid(), meta.gid()) == owner()
}

/// Computes the digest of the current content of `dir`. Anything that [`unpack`] would not have left is an error:
/// another owner or mode, an empty folder.
pub fn digest(dir: &Path) -> Result<String, ArchiveError> {
    let mut paths = Vec::new();
    collect(dir, dir, &mut paths)?;
    paths.sort();
    let mut archive = Archive::new(io::sink());
    for path in paths {
        let at = dir.join(&path);
        let meta = fs::symlink_metadata(&at)?;
        if meta.file_type().is_symlink() {
            let target = fs::read_link(&at)?;
            archive.link(&path, &target.to_string_lossy())?;
        } else {
            let executable = meta.permissions().mode() & 0o100 != 0;
            let file = File::open(&at)?.take(meta.len());
            archive.file(&path, executable, meta.len(), file)?;
        }
    }
    Ok(archive.finish()?.digest)
}

/// Collects all files and links below `dir`, as paths from `root`; anything else is an error.
fn collect(root: &Path, dir: &Path, paths: &mut Vec<String>) -> Result<(), ArchiveError> {
    let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    let before = paths.len();
    for entry in fs::read_dir(dir)? {
        let path: PathBuf = entry?.path();
        let kind = fs::symlink_metadata(&path)?.file_type();
        let below = name(&path);
        if !is_as_unpacked(&path) {
            return Err(ArchiveError::Name(below));
        }
        if kind.is_dir() {
            collect(root, &path, paths)?;
        } else if kind.is_file() || kind.is_symlink() {
            paths.push(below);
        } else {
            return Err(ArchiveError::Name(below));
        }
        // Beyond the limit the content is another one anyway.
        if paths.len() > LIMITS.entries {
            return Err(ArchiveError::TooMany);
        }
    }
    // Archives have no empty folders.
    if dir != root && paths.len() == before {
        return Err(ArchiveError::Name(name(dir)));
    }
    Ok(())
}
