//! Mounts `subPath`s, resolved within their volume.
//!
//! Every function blocks, is called on a blocking thread, and is safe to repeat.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat2, renameat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, UnlinkatFlags, fchown, unlinkat};

use super::folders::unmount_below;
use super::spec::{SubPath, VolumeError};

/// Mounts a path within a volume at its own mount point, resolved by the kernel so that it can't leave the volume.
/// A missing path becomes a folder with mode and group of the volume itself: the kubelet gives it the volume's
/// mode, so that whoever may write in the volume may write in it.
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
                match create_accessible(&folder, part, &fresh, &volume) {
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

/// Returns the name of a folder while it is being created: nothing else creates one of this name, neither another
/// container nor another pod with the same volume, and the same container's next attempt finds it.
fn fresh_name(target: &Path) -> String {
    let name = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    // See [`names::sub_path_dir`].
    let uid = target.parent().and_then(Path::parent);
    format!(".{}_{}.new", name(uid), name(Some(target)))
}

/// Creates a folder with the access rights of its volume. It gets its name only when it has them, so that an
/// interrupted creation is repeated.
fn create_accessible(folder: &OwnedFd, part: &str, fresh: &str, volume: &FileStat) -> nix::Result<()> {
    make(folder, fresh, volume)?;
    let renamed = renameat2(folder, fresh, folder, part, RenameFlags::RENAME_NOREPLACE);
    if renamed.is_err() {
        // An empty folder in the volume does no harm, so a leftover is not reported.
        let _ = unlinkat(folder, fresh, UnlinkatFlags::RemoveDir);
    }
    match renamed {
        // NFS and others don't support such a rename; one that replaces could take a folder away from another
        // container.
        Err(nix::Error::EINVAL | nix::Error::ENOSYS | nix::Error::EOPNOTSUPP) => {
            mkdirat(folder, part, MADE_MODE)?;
            grant_access(volume, &openat2(folder, part, beneath(MADE))?)
        }
        other => other,
    }
}

/// Creates the folder under its temporary name; a leftover of a former attempt is reused.
fn make(folder: &OwnedFd, fresh: &str, volume: &FileStat) -> nix::Result<()> {
    match mkdirat(folder, fresh, MADE_MODE) {
        Ok(()) | Err(nix::Error::EEXIST) => {}
        Err(error) => return Err(error),
    }
    grant_access(volume, &openat2(folder, fresh, beneath(MADE))?)
}

/// Mode until the folder gets that of the volume.
const MADE_MODE: Mode = Mode::from_bits_truncate(0o755);

/// Flags to open a folder that was just created: never a symbolic link that a container puts in its place.
const MADE: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW);

/// Gives a folder the group and mode of the volume, including bits that the umask took.
fn grant_access(volume: &FileStat, folder: &OwnedFd) -> nix::Result<()> {
    if fstat(folder)?.st_gid != volume.st_gid {
        match fchown(folder, None, Some(Gid::from_raw(volume.st_gid))) {
            // A network share that maps root to the user `nobody`: the folder stays as the share made it.
            Ok(()) | Err(nix::Error::EPERM) => {}
            Err(error) => return Err(error),
        }
    }
    // After the group, whose change may clear the setgid bit.
    fchmod(folder, Mode::from_bits_truncate(volume.st_mode & 0o7777))
}
