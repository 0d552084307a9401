//! The lock on the agent's state directory: one agent at a time. The kernel lets it go when the
//! process dies, however it dies.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// The held lock; let go when dropped.
#[derive(Debug)]
pub struct StateLock {
    file: Flock<File>,
    path: PathBuf,
}

impl StateLock {
    /// Lets go and takes the lock file away, with the folders that are empty then: for a start that
    /// failed before it had anything to keep.
    pub fn discard(self) {
        // Removed while held: who opened it meanwhile finds that it is no longer there (`is_at`).
        let _ = fs::remove_file(&self.path);
        // The state directory and `agent` in it; one that holds something stays.
        for folder in self.path.ancestors().skip(1).take(2) {
            let _ = fs::remove_dir(folder);
        }
    }

    /// The held file is still the one at its path.
    fn is_at(&self) -> bool {
        let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|m| (m.dev(), m.ino())).ok();
        let here = inode(self.file.metadata());
        here.is_some() && here == inode(fs::metadata(&self.path))
    }
}

/// Why the state directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another agent, or a reset, holds it.
    #[error(
        "another agent runs on {}; stop it first, or give this one its own --state-dir and --instance",
        .0.display()
    )]
    Busy(PathBuf),
    /// It can't be made or written.
    #[error("cannot write to {}: {source}; give a writable --state-dir", path.display())]
    Write {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Makes the directory `agent_dir` if it is not there, makes sure it can be written, and takes the
/// lock.
///
/// # Errors
/// [`StateError::Busy`] at once when another process holds it.
pub fn take(agent_dir: &Path) -> Result<StateLock, StateError> {
    let cannot = |path: &Path| {
        let path = path.to_owned();
        move |source| StateError::Write { path, source }
    };
    let path = agent_dir.join("lock");
    // A second round is needed only if another start failed and discarded the file in between.
    loop {
        fs::create_dir_all(agent_dir).map_err(cannot(agent_dir))?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(cannot(&path))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => StateLock { file, path: path.clone() },
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Err(StateError::Busy(agent_dir.to_owned())),
            Err((_, errno)) => return Err(cannot(&path)(errno.into())),
        };
        if lock.is_at() {
            return Ok(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_on_the_same_directory_is_refused_until_the_first_ends() {
        let dir = tempfile::tempdir().unwrap();
        let agent_dir = dir.path().join("state/agent");
        let first = take(&agent_dir).unwrap();
        let error = take(&agent_dir).unwrap_err();
        assert!(matches!(error, StateError::Busy(_)) && !error.to_string().contains('\n'), "{error}");
        drop(first);
        take(&agent_dir).unwrap();
    }

    #[test]
    fn a_discarded_lock_leaves_nothing_and_can_be_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let agent_dir = dir.path().join("state/agent");
        take(&agent_dir).unwrap().discard();
        assert!(!dir.path().join("state").exists());
        let lock = take(&agent_dir).unwrap();
        fs::write(agent_dir.join("kept"), "").unwrap();
        lock.discard();
        assert!(agent_dir.join("kept").exists() && !agent_dir.join("lock").exists());
        take(&agent_dir).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = take(&file.join("agent")).unwrap_err().to_string();
        assert!(error.contains("file/agent") && error.contains("--state-dir"), "{error}");
    }
}
