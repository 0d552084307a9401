//! File locks, each held by one process at a time.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// A file lock. The kernel releases it when the process ends, however it ends.
pub type FileLock = Flock<File>;

/// Outcome of locking a file.
#[derive(Debug)]
pub enum LockOutcome {
    /// This process holds the lock.
    Locked(FileLock),
    /// Another process holds the lock; the file, which may name that process.
    Busy(File),
}

/// Locks the file at `path` without waiting. Creates the file if it is missing; does not change it.
///
/// # Errors
/// Any I/O error.
pub fn lock_file(path: &Path) -> io::Result<LockOutcome> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => Ok(LockOutcome::Locked(locked)),
        Err((file, Errno::EWOULDBLOCK)) => Ok(LockOutcome::Busy(file)),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// True if another process holds the lock on the file at `path`. Creates nothing.
pub fn is_file_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}
