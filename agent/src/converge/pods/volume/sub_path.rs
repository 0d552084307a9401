//! Mounts `subPath`s, resolved within their volume, and hostPaths, resolved within their bounds.
//!
//! Every function blocks, is called on a blocking thread, and is safe to repeat.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat2, renameat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, UnlinkatFlags, fchown, unlinkat};
use schema::kinds::cluster::host_paths_overlap;

use super::folders::unmount_below;
use super::spec::{AllowedDirectory, HostPathBounds, SubPath, VolumeError};

/// Mounts a path within a volume at its own mount point, resolved by the kernel so that it can't leave the volume.
/// A missing path becomes a folder with mode and group of the volume itself: the kubelet gives it the volume's
/// mode, so that whoever may write in the volume may write in it.
pub fn mount_sub_path(sub: &SubPath) -> Result<(), VolumeError> {
    let inner = |e: nix::Error| VolumeError::SubPath { path: sub.as_written().to_owned(), source: e.into() };
    let root = match &sub.bounds {
        Some(bounds) => open_host_path(&sub.root, bounds)?,
        None => open_any(&sub.root).map_err(inner)?,
    };
    let is_whole = sub.path.is_empty();
    let opened = if is_whole { root } else { open_beneath(root, sub).map_err(inner)? };
    let failed = |source| VolumeError::Make { path: sub.target.clone(), source };
    let source = descriptor_path(&opened);
    unmount_below(&sub.target)?;
    if fs::metadata(&source).map_err(failed)?.is_dir() {
        fs::create_dir_all(&sub.target).map_err(failed)?;
    } else {
        if let Some(parent) = sub.target.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::File::create(&sub.target).map_err(failed)?;
    }
    // A volume with our mount points in it would show itself again and again: twice as many mounts with each.
    let place = fs::canonicalize(&sub.target).map_err(failed)?;
    let shows_itself = place.starts_with(fs::read_link(&source).map_err(failed)?);
    let mounted = |source: Option<&PathBuf>, flags| {
        mount(source, &sub.target, None::<&str>, flags, None::<&str>)
            .map_err(|e| VolumeError::Mount { path: sub.target.clone(), source: e.into() })
    };
    // As the engine binds volumes: a whole volume with what is mounted in it.
    let mut flags = MsFlags::MS_BIND;
    flags.set(MsFlags::MS_REC, is_whole && !shows_itself);
    mounted(Some(&source), flags)?;
    // What the node mounts in it later is shown, too, and what is unmounted here stays on the node.
    let propagation = if shows_itself { MsFlags::MS_PRIVATE } else { MsFlags::MS_SLAVE };
    mounted(None, propagation | MsFlags::MS_REC)
}

fn open_any(path: &Path) -> nix::Result<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
}

fn open_beneath(root: OwnedFd, sub: &SubPath) -> nix::Result<OwnedFd> {
    let volume = fstat(&root)?;
    let path = sub.path.as_str();
    match openat2(&root, path, beneath(OFlag::O_PATH)) {
        Err(nix::Error::ENOENT) if sub.create => {}
        other => return other,
    }
    let fresh = fresh_name(&sub.target);
    create_beneath(root, path, |folder, part| create_accessible(folder, part, &fresh, &volume))
}

/// Opens a folder, and creates what is missing of its path with `create`.
fn create_beneath(
    root: OwnedFd,
    path: &str,
    create: impl Fn(&OwnedFd, &str) -> nix::Result<()>,
) -> nix::Result<OwnedFd> {
    let mut folder = root;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let open_part = || openat2(folder.as_fd(), part, beneath(OFlag::O_PATH | OFlag::O_DIRECTORY));
        let next = match open_part() {
            Err(nix::Error::ENOENT) => {
                match create(&folder, part) {
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

const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_MAGICLINKS);

fn beneath(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(BENEATH)
}

// A hostPath with bounds.

/// Opens a hostPath within its bounds. The path may change afterwards, but not what is open.
pub(super) fn open_host_path(path: &Path, bounds: &HostPathBounds) -> Result<OwnedFd, VolumeError> {
    let opened = Start::of(path, bounds).and_then(|start| start.open(start.parts.len()));
    let opened = opened.map_err(|error| unusable(path, bounds, error))?;
    check_target(path, bounds, real_path(path, &opened)?)?;
    Ok(opened)
}

/// Creates a hostPath within its bounds: the folder with all above it, or an empty file.
pub(super) fn create_host_path(
    path: &Path,
    bounds: &HostPathBounds,
    is_file: bool,
) -> Result<(), VolumeError> {
    if let Some(allowed) = &bounds.allowed {
        let failed = |source| VolumeError::Make { path: allowed.directory.clone(), source };
        create_allowed(allowed, is_file).map_err(failed)?;
    }
    let failed = |error| unusable(path, bounds, error);
    let start = Start::of(path, bounds).map_err(failed)?;
    let Some(last) = start.parts.len().checked_sub(1) else { return Ok(()) };
    let mut depth = last;
    let folder = loop {
        match start.open(depth) {
            Err(nix::Error::ENOENT) if depth > 0 && !is_file => depth -= 1,
            opened => break opened.map_err(failed)?,
        }
    };
    let missing = start.parts[depth..].join("/");
    check_target(path, bounds, real_path(path, &folder)?.join(&missing))?;
    let made = match is_file {
        false => create_beneath(folder, &missing, make_plain),
        true => {
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY;
            let mode = Mode::from_bits_truncate(0o666);
            openat2(&folder, missing.as_str(), beneath(flags).mode(mode))
        }
    };
    made.map(drop).map_err(failed)
}

/// Creates an allowed directory. The operator names it, so it may be behind any link.
fn create_allowed(allowed: &AllowedDirectory, is_file: bool) -> io::Result<()> {
    if !is_file {
        fs::create_dir_all(&allowed.directory)?;
        if let Some(narrower) = &allowed.narrower {
            create_beneath(open_any(&allowed.directory)?, narrower, make_plain)?;
        }
    } else if allowed.path.is_empty() {
        fs::OpenOptions::new().create_new(true).write(true).open(&allowed.directory)?;
    }
    Ok(())
}

fn make_plain(folder: &OwnedFd, part: &str) -> nix::Result<()> {
    mkdirat(folder, part, Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO)
}

/// The directory where the kernel begins to resolve a hostPath, and how.
struct Start<'a> {
    directory: OwnedFd,
    /// Parts of the path from there.
    parts: Vec<&'a str>,
    resolve: ResolveFlag,
}

impl<'a> Start<'a> {
    fn of(path: &'a Path, bounds: &'a HostPathBounds) -> nix::Result<Self> {
        let (directory, path, resolve) = match &bounds.allowed {
            // Any link is followed, except those of a process: what they lead to has no path of its own.
            None => {
                let path = path.to_str().ok_or(nix::Error::EINVAL)?;
                (open_any(Path::new("/"))?, path, ResolveFlag::RESOLVE_NO_MAGICLINKS)
            }
            Some(allowed) => {
                let outer = open_any(&allowed.directory)?;
                let directory = match &allowed.narrower {
                    None => outer,
                    Some(narrower) => openat2(&outer, narrower.as_str(), beneath(OFlag::O_PATH))?,
                };
                (directory, allowed.path.as_str(), BENEATH)
            }
        };
        let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        Ok(Self { directory, parts, resolve })
    }

    /// Opens the path without the parts from `depth` on.
    fn open(&self, depth: usize) -> nix::Result<OwnedFd> {
        let path = if depth == 0 { ".".to_owned() } else { self.parts[..depth].join("/") };
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(self.resolve);
        openat2(&self.directory, path.as_str(), how)
    }
}

fn real_path(path: &Path, opened: &OwnedFd) -> Result<PathBuf, VolumeError> {
    let failed = |source| VolumeError::Make { path: path.to_owned(), source };
    fs::read_link(descriptor_path(opened)).map_err(failed)
}

/// Checks that what a hostPath leads to is not forbidden.
fn check_target(path: &Path, bounds: &HostPathBounds, target: PathBuf) -> Result<(), VolumeError> {
    let shown = target.to_string_lossy().into_owned();
    let is_forbidden = |one: &String| {
        // A forbidden directory may be behind a link itself.
        let real = fs::canonicalize(one);
        host_paths_overlap(&shown, one)
            || real.is_ok_and(|real| host_paths_overlap(&shown, &real.to_string_lossy()))
    };
    match bounds.forbidden.iter().any(is_forbidden) {
        true => Err(VolumeError::Forbidden { path: path.to_owned(), target }),
        false => Ok(()),
    }
}

fn unusable(path: &Path, bounds: &HostPathBounds, error: nix::Error) -> VolumeError {
    let (path, source) = (path.to_owned(), error.into());
    match &bounds.allowed {
        Some(allowed) => VolumeError::OutOfBounds { path, directory: allowed.narrowest(), source },
        None => VolumeError::Unresolved { path, source },
    }
}

/// Path of what is open, for calls that take no descriptor.
pub(super) fn descriptor_path(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

// Folders for `subPath`s.

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
