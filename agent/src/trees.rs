//! Removes folders as deep and wide as the disk allows, with five descriptors and constant memory.
//!
//! Non-empty folders are moved up to the top one, so nothing is ever more than two levels down. No symbolic link is
//! followed and no mount entered.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Maximum number of passes over a folder: a further one is needed only if something was added meanwhile.
const PASSES: usize = 8;

/// A folder that could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {path}: {source}", path = .path.display())]
pub(crate) struct TreeError {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

impl TreeError {
    fn new(path: PathBuf, source: impl Into<io::Error>) -> Self {
        Self { path, source: source.into() }
    }

    /// True if something is mounted there.
    pub(crate) fn is_mount(&self) -> bool {
        matches!(self.source.raw_os_error().map(Errno::from_raw), Some(Errno::EXDEV | Errno::EBUSY))
    }
}

/// Checks that the kernel has `openat2`, which opens paths that can't lead elsewhere; without it no folder of a pod
/// is removed and no `subPath` mounted.
pub(crate) fn require_openat2() -> Result<(), OldKernel> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    match openat2(nix::fcntl::AT_FDCWD, "/", how) {
        Err(Errno::ENOSYS | Errno::EPERM) => Err(OldKernel),
        _ => Ok(()),
    }
}

/// Error of a kernel without `openat2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this kernel has no openat2; boot Linux 5.6 or later, such as Debian 11's 5.10")]
pub(crate) struct OldKernel;

/// Removes `name` in the folder `parent` with everything in it; no error if it is missing.
pub(crate) fn remove(parent: &Path, name: &str) -> Result<(), TreeError> {
    let path = parent.join(name);
    let failed = |e: Errno| TreeError::new(path.clone(), e);
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = open(parent, flags, Mode::empty()).map_err(failed)?;
    for _ in 0..PASSES {
        if is_gone(&parent, OsStr::new(name)).map_err(failed)? {
            return Ok(());
        }
        let Some(folder) = open_folder(&parent, OsStr::new(name)).map_err(failed)? else { return Ok(()) };
        TopFolder { folder, path: &path, moved: 0 }.clear()?;
    }
    Err(failed(Errno::ENOTEMPTY))
}

/// Empties a folder, which may itself be a mount or behind a link, but keeps it.
pub(crate) fn clear(path: &Path) -> Result<(), TreeError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let folder = open(path, flags, Mode::empty()).map_err(|e| TreeError::new(path.to_owned(), e))?;
    TopFolder { folder, path, moved: 0 }.clear()
}

/// The top folder, to which all others are moved.
struct TopFolder<'a> {
    folder: OwnedFd,
    path: &'a Path,
    /// Number of folders moved up, which gives each its name.
    moved: u64,
}

impl TopFolder<'_> {
    fn clear(&mut self) -> Result<(), TreeError> {
        let at = self.path.to_owned();
        for entry in entries(&self.folder, &at)? {
            let entry = entry?;
            if !self.is_gone(&entry)? {
                self.flatten(&entry)?;
            }
        }
        // Each of these may add more.
        let mut done = 0;
        while done < self.moved {
            self.flatten(&name_of(done))?;
            done += 1;
        }
        Ok(())
    }

    fn is_gone(&self, name: &OsStr) -> Result<bool, TreeError> {
        is_gone(&self.folder, name).map_err(|e| TreeError::new(self.path.join(name), e))
    }

    /// Removes a folder of the heap, and moves the folders in it to the heap.
    fn flatten(&mut self, name: &OsStr) -> Result<(), TreeError> {
        let at = self.path.join(name);
        let failed = |e: Errno| TreeError::new(at.clone(), e);
        for _ in 0..PASSES {
            let Some(folder) = open_folder(&self.folder, name).map_err(failed)? else { return Ok(()) };
            for entry in entries(&folder, &at)? {
                let entry = entry?;
                let failed = |e: Errno| TreeError::new(at.join(&entry), e);
                if !is_gone(&folder, &entry).map_err(failed)? {
                    self.move_up(&folder, &entry).map_err(failed)?;
                }
            }
            if self.is_gone(name)? {
                return Ok(());
            }
        }
        Err(failed(Errno::ENOTEMPTY))
    }

    fn move_up(&mut self, from: &OwnedFd, name: &OsStr) -> nix::Result<()> {
        loop {
            let number = self.moved;
            self.moved += 1;
            match renameat(from, name, &self.folder, name_of(number).as_os_str()) {
                // Left by an interrupted removal; removed too when its number comes.
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
                Err(Errno::ENOENT) => return Ok(()),
                other => return other,
            }
        }
    }
}

/// Name of a folder that was moved up. No volume's name begins with a dot.
fn name_of(number: u64) -> OsString {
    OsString::from(format!(".removing-{number}"))
}

/// Removes a file, a link or an empty folder; true if nothing of that name is left. A non-empty folder stays.
fn is_gone(folder: &OwnedFd, name: &OsStr) -> nix::Result<bool> {
    let refused = match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(true),
        // Linux returns EISDIR for a folder, POSIX specifies EPERM.
        Err(refused @ (Errno::EISDIR | Errno::EPERM)) => refused,
        Err(other) => return Err(other),
    };
    match unlinkat(folder, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        Err(Errno::ENOTDIR) => Err(refused),
        Err(other) => Err(other),
    }
}

/// Opens a subfolder; `None` if it is gone.
fn open_folder(parent: &OwnedFd, name: &OsStr) -> nix::Result<Option<OwnedFd>> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(parent.as_fd(), name, how) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::ENOENT) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Iterates over the names in a folder as they are read, never holding all of them.
fn entries(
    folder: &OwnedFd,
    at: &Path,
) -> Result<impl Iterator<Item = Result<OsString, TreeError>> + use<>, TreeError> {
    let at = at.to_owned();
    let read = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let read = read.map_err(|e| TreeError::new(at.clone(), e))?;
    Ok(read.map(move |entry| entry.map(|e| e.file_name()).map_err(|e| TreeError::new(at.clone(), e))))
}

#[cfg(test)]
pub(crate) mod tests {
    use nix::sys::stat::mkdirat;

    use super::*;

    /// Creates nested folders, each with a file, deeper than any path could name.
    pub(crate) fn nest(root: &Path, levels: usize) {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut folder = open(root, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&folder, "d", Mode::from_bits_truncate(0o755)).unwrap();
            fs::write(format!("/proc/self/fd/{}/file", folder.as_raw_fd()), "x").unwrap();
            folder = nix::fcntl::openat(&folder, "d", flags, Mode::empty()).unwrap();
        }
    }

    // Seen red with one call for each level: the test thread's stack overflowed, which ended the tests.
    #[test]
    fn twenty_thousand_folders_in_each_other_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("pod/volumes/data")).unwrap();
        nest(&dir.path().join("pod/volumes/data"), 20_000);
        // Leftovers of an interrupted removal.
        fs::create_dir_all(dir.path().join("pod/.removing-1/left")).unwrap();
        fs::write(dir.path().join("pod/.removing-3"), "left").unwrap();
        remove(dir.path(), "pod").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        remove(dir.path(), "pod").unwrap();
    }

    // Seen red with a `take_apart` that moves nothing up.
    #[test]
    fn wide_folders_go_and_what_links_show_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (pod, outside) = (dir.path().join("pod"), dir.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        for one in 0..60 {
            for other in 0..20 {
                let folder = pod.join(format!("volumes/{one}/{other}/deeper"));
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("file"), "x").unwrap();
                std::os::unix::fs::symlink(&outside, folder.join("link")).unwrap();
            }
        }
        std::os::unix::fs::symlink(&outside, pod.join("link")).unwrap();
        clear(&pod).unwrap();
        assert_eq!(fs::read_dir(&pod).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
        // A link in the place of the folder itself.
        fs::remove_dir(&pod).unwrap();
        std::os::unix::fs::symlink(&outside, &pod).unwrap();
        remove(dir.path(), "pod").unwrap();
        assert!(!pod.exists() && outside.join("file").exists());
    }
}
