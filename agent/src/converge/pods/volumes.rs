//! Volumes on the node: folders, tmpfs, checks of host paths, `subPath` mounts, and their removal.
//!
//! All of it blocks and is called on a blocking thread. All of it may be done again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat2, renameat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, UnlinkatFlags, chown, fchown, unlinkat};
use schema::kinds::pod::HostPathType;

use super::names;
use super::render::{SubPath, VolumePrep};
use crate::{mounts, trees};

/// A volume could not be made, checked or removed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A folder or file could not be made.
    #[error("cannot make {path}: {source}")]
    Make {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something could not be mounted.
    #[error("cannot mount {path}: {source}")]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host path is not what its type says.
    #[error("hostPath {path} is not {wanted}; create it on the node or change its type")]
    NotThere {
        /// Which.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// The path leads out of its volume, or can't be opened.
    #[error("subPath {path} cannot be used: {source}; it must stay within its volume")]
    SubPath {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A mount could not be taken away.
    #[error("{path} is still mounted, so its folder is not removed")]
    StillMounted {
        /// Which.
        path: PathBuf,
    },
    /// A folder could not be removed.
    #[error("cannot remove {path}: {source}")]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Makes or checks one volume.
pub fn prepare(volume: &VolumePrep) -> Result<(), VolumeError> {
    match volume {
        VolumePrep::EmptyDir { path, tmpfs_bytes, group } => empty_dir(path, *tmpfs_bytes, *group),
        VolumePrep::HostPath { path, kind } => host_path(path, *kind),
        // Only its decrypted keys make it; see [`secret`].
        VolumePrep::Secret { .. } => Ok(()),
    }
}

/// Writes the keys of a secret as files of a tmpfs, readable for root and the group alone. What is there
/// already stays: a changed secret is another pod.
pub fn secret(
    path: &Path,
    entries: &BTreeMap<String, Vec<u8>>,
    group: Option<u32>,
) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Make { path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(failed)?;
    if !mounts::at_or_below(path).map_err(failed)?.iter().any(|m| m == path) {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let options = format!("size={SECRET_TMPFS_BYTES},mode=0755");
        let mounted = |options: &str| mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options));
        // Kernels before 6.4 know no `noswap` and refuse it.
        mounted(&format!("{options},noswap"))
            .or_else(|_| mounted(&options))
            .map_err(|e| VolumeError::Mount { path: path.to_owned(), source: e.into() })?;
    }
    for (key, value) in entries {
        secret_file(path, key, value, group).map_err(failed)?;
    }
    Ok(())
}

/// One key: under its name only when owner and mode are right, so that a crash leaves none that its
/// readers can't read.
fn secret_file(folder: &Path, key: &str, value: &[u8], group: Option<u32>) -> io::Result<()> {
    let at = folder.join(key);
    let mode = if group.is_some() { 0o440 } else { 0o400 };
    let is_right = |there: &fs::Metadata| {
        there.is_file() && there.mode() & 0o7777 == mode && group.is_none_or(|group| there.gid() == group)
    };
    if fs::symlink_metadata(&at).is_ok_and(|there| is_right(&there))
        && fs::read(&at).is_ok_and(|there| there == value)
    {
        return Ok(());
    }
    // No key begins with two dots.
    let fresh = folder.join("..new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(&fresh)?;
    file.write_all(value)?;
    if let Some(group) = group {
        chown(&fresh, None, Some(Gid::from_raw(group)))?;
    }
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, &at)
}

/// Four times what a secret may have: its keys take pages of their own.
const SECRET_TMPFS_BYTES: u64 = 4 * 1024 * 1024;

fn empty_dir(path: &Path, tmpfs_bytes: Option<u64>, group: Option<u32>) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Make { path: path.to_owned(), source };
    // With a group, new files get it too.
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    // Mode and group are set once: what the pod makes of them stays when a container is started again.
    if !path.try_exists().map_err(failed)? {
        // Its name last, so that one that is there has its mode; no volume's name begins with a dot.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let new = path.with_file_name(format!(".{name}.new"));
        fs::create_dir_all(&new).map_err(failed)?;
        if let Some(group) = group {
            chown(&new, None, Some(Gid::from_raw(group))).map_err(|e| failed(e.into()))?;
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(failed)?;
        fs::rename(&new, path).map_err(failed)?;
    }
    if let Some(bytes) = tmpfs_bytes
        && !mounts::at_or_below(path).map_err(failed)?.iter().any(|m| m == path)
    {
        let size = if bytes == 0 { String::new() } else { format!("size={bytes},") };
        let owner = group.map(|group| format!(",gid={group}")).unwrap_or_default();
        let options = format!("{size}mode={mode:o}{owner}");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(|e| VolumeError::Mount { path: path.to_owned(), source: e.into() })?;
    }
    Ok(())
}

fn host_path(path: &Path, kind: HostPathType) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Make { path: path.to_owned(), source };
    let kind_of = || fs::metadata(path).map(|m| m.file_type()).ok();
    let is = |right: bool, wanted: &'static str| {
        if right { Ok(()) } else { Err(VolumeError::NotThere { path: path.to_owned(), wanted }) }
    };
    match kind {
        // Docker refuses a bind whose source is absent, and Kubernetes makes a folder then.
        HostPathType::Unset if kind_of().is_none() => fs::create_dir_all(path).map_err(failed),
        HostPathType::Unset => Ok(()),
        HostPathType::DirectoryOrCreate => {
            if kind_of().is_none() {
                fs::create_dir_all(path).map_err(failed)?;
            }
            is(kind_of().is_some_and(|k| k.is_dir()), "a directory")
        }
        HostPathType::FileOrCreate => {
            if kind_of().is_none() {
                fs::OpenOptions::new().create_new(true).write(true).open(path).map_err(failed)?;
            }
            is(kind_of().is_some_and(|k| k.is_file()), "a file")
        }
        HostPathType::Directory => is(kind_of().is_some_and(|k| k.is_dir()), "a directory that is there"),
        HostPathType::File => is(kind_of().is_some_and(|k| k.is_file()), "a file that is there"),
        HostPathType::Socket => is(kind_of().is_some_and(|k| k.is_socket()), "a socket that is there"),
        HostPathType::CharDevice => is(kind_of().is_some_and(|k| k.is_char_device()), "a character device"),
        HostPathType::BlockDevice => is(kind_of().is_some_and(|k| k.is_block_device()), "a block device"),
    }
}

/// Mounts a path within a volume at its own place, resolved by the kernel so that it can't leave the
/// volume. What is not there becomes a folder, with mode and group of the volume itself: the kubelet
/// gives it its mode, so that who may write in the volume may write in there.
pub fn mount_sub_path(sub: &SubPath) -> Result<(), VolumeError> {
    let inner = |e: nix::Error| VolumeError::SubPath { path: sub.path.clone(), source: e.into() };
    let opened = open_beneath(sub).map_err(inner)?;
    let failed = |source| VolumeError::Make { path: sub.target.clone(), source };
    let source = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    unmount_below(&sub.target)?;
    if fs::metadata(&source).map_err(failed)?.is_dir() {
        fs::create_dir_all(&sub.target).map_err(failed)?;
    } else {
        if let Some(parent) = sub.target.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::File::create(&sub.target).map_err(failed)?;
    }
    mount(Some(&source), &sub.target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| VolumeError::Mount { path: sub.target.clone(), source: e.into() })
}

fn open_beneath(sub: &SubPath) -> nix::Result<OwnedFd> {
    let root = open(&sub.root, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let volume = fstat(&root)?;
    let path = sub.path.as_str();
    match openat2(&root, path, beneath(OFlag::O_PATH)) {
        Err(nix::Error::ENOENT) if sub.create => {}
        other => return other,
    }
    let fresh = fresh_name(&sub.target);
    let mut folder = root;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let open_part = || openat2(folder.as_fd(), part, beneath(OFlag::O_PATH | OFlag::O_DIRECTORY));
        let next = match open_part() {
            Err(nix::Error::ENOENT) => {
                match make_open(&folder, part, &fresh, &volume) {
                    // Another container of the pod has the same path.
                    Ok(()) | Err(nix::Error::EEXIST) => {}
                    Err(error) => return Err(error),
                }
                open_part()?
            }
            other => other?,
        };
        folder = next;
    }
    Ok(folder)
}

fn beneath(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_BENEATH)
}

/// What a folder is called while it is made: nobody else makes one of this name, neither another container
/// nor another pod with the same volume, and the same container's next try finds it.
fn fresh_name(target: &Path) -> String {
    let name = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    // See [`names::sub_path_dir`].
    let uid = target.parent().and_then(Path::parent);
    format!(".{}_{}.new", name(uid), name(Some(target)))
}

/// Makes a folder that is as open as its volume: under its name only when it is, so that one whose making is
/// cut off is made anew.
fn make_open(folder: &OwnedFd, part: &str, fresh: &str, volume: &FileStat) -> nix::Result<()> {
    make(folder, fresh, volume)?;
    let renamed = renameat2(folder, fresh, folder, part, RenameFlags::RENAME_NOREPLACE);
    if renamed.is_err() {
        // An empty folder in the volume harms nobody, so nothing is said of one that stays.
        let _ = unlinkat(folder, fresh, UnlinkatFlags::RemoveDir);
    }
    match renamed {
        // NFS and others know no such rename; one that replaces could take a folder from under another
        // container.
        Err(nix::Error::EINVAL | nix::Error::ENOSYS | nix::Error::EOPNOTSUPP) => {
            mkdirat(folder, part, MADE_MODE)?;
            open_to(volume, &openat2(folder, part, beneath(MADE))?)
        }
        other => other,
    }
}

/// The folder under the name that it has meanwhile; one that is left of a former try is gone on with.
fn make(folder: &OwnedFd, fresh: &str, volume: &FileStat) -> nix::Result<()> {
    match mkdirat(folder, fresh, MADE_MODE) {
        Ok(()) | Err(nix::Error::EEXIST) => {}
        Err(error) => return Err(error),
    }
    open_to(volume, &openat2(folder, fresh, beneath(MADE))?)
}

/// Before it is as open as the volume.
const MADE_MODE: Mode = Mode::from_bits_truncate(0o755);

/// A folder that was just made: no symbolic link that a container puts in its place.
const MADE: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW);

/// Opens a folder to those to whom the volume is open; what the umask takes is given back.
fn open_to(volume: &FileStat, folder: &OwnedFd) -> nix::Result<()> {
    if fstat(folder)?.st_gid != volume.st_gid {
        match fchown(folder, None, Some(Gid::from_raw(volume.st_gid))) {
            // A network share that takes root for nobody: the folder is the share's as it is.
            Ok(()) | Err(nix::Error::EPERM) => {}
            Err(error) => return Err(error),
        }
    }
    // After the group, whose change may take the setgid bit.
    fchmod(folder, Mode::from_bits_truncate(volume.st_mode & 0o7777))
}

/// Takes away the `subPath` mounts of one start of one container.
pub fn remove_sub_paths(state_dir: &Path, uid: &str, container: &str, attempt: u32) {
    let folder = names::sub_path_dir(state_dir, uid, container, attempt, 0);
    let Some(parent) = folder.parent() else { return };
    let Ok(entries) = fs::read_dir(parent) else { return };
    let prefix = format!("{container}_{attempt}_");
    for path in entries.flatten().map(|e| e.path()) {
        let ours = path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix));
        // What stays behind goes with the pod's folder.
        if ours && unmount_below(&path).is_ok() {
            let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}

/// Takes a pod's folder away, with all that is mounted in it. Nothing is removed below a mount.
pub fn remove_pod(state_dir: &Path, uid: &str) -> Result<(), VolumeError> {
    if !is_uid(uid) {
        return Ok(());
    }
    let folder = names::pods_dir(state_dir).join(uid);
    if !folder.exists() {
        return Ok(());
    }
    unmount_below(&folder)?;
    remove_tree_of(state_dir, uid)
}

/// Removes a pod's folder as long as nothing is mounted in it.
pub(super) fn remove_tree_of(state_dir: &Path, uid: &str) -> Result<(), VolumeError> {
    trees::remove(&names::pods_dir(state_dir), uid).map_err(|error| match error.is_mount() {
        true => VolumeError::StillMounted { path: error.path },
        false => VolumeError::Remove { path: error.path, source: error.source },
    })
}

/// Takes away all that is mounted in a pod's folder, and leaves its files on disk.
pub fn unmount_pod(state_dir: &Path, uid: &str) -> Result<(), VolumeError> {
    if is_uid(uid) { unmount_below(&names::pods_dir(state_dir).join(uid)) } else { Ok(()) }
}

fn unmount_below(folder: &Path) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Remove { path: folder.to_owned(), source };
    for mounted in mounts::at_or_below(folder).map_err(failed)?.iter().rev() {
        let _ = mounts::detach(mounted);
    }
    match mounts::at_or_below(folder).map_err(failed)?.into_iter().next() {
        Some(path) => Err(VolumeError::StillMounted { path }),
        None => Ok(()),
    }
}

/// Uids that have a folder. What no pod made is not among them: it is not ours to remove.
pub fn folders(state_dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(names::pods_dir(state_dir)) else { return Vec::new() };
    let folders = entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|e| e.file_name().into_string().ok()).filter(|name| is_uid(name)).collect()
}

/// Nothing that leads elsewhere on the disk.
fn is_uid(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '.'])
}
