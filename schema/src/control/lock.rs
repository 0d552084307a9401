//! Locks of files that one process at a time holds.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The kernel releases it when the process ends, however it ends.
pub type FileLock = Flock<File>;

/// What came of locking a file.
#[derive(Debug)]
pub enum FileLocking {
    /// This process has it.
    Locked(FileLock),
    /// Another process has it; the file, to read who.
    Busy(File),
}

/// Locks the file at `path`, which is made if it is not there, and not changed. Does not wait.
///
/// # Errors
/// The disk's.
pub fn lock_file(path: &Path) -> io::Result<FileLocking> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => Ok(FileLocking::Locked(locked)),
        Err((file, Errno::EWOULDBLOCK)) => Ok(FileLocking::Busy(file)),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Another process has the file at `path`. Makes nothing.
pub fn is_file_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}
