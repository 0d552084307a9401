//! Lock on the agent's state directory: one agent at a time. The kernel releases it when the process dies, however
//! it dies.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schema::control::{FileLock, FileLocking, is_file_locked, lock_file};

/// A held lock; released when dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: FileLock,
    agent_dir: PathBuf,
    /// Directories that taking the lock created, innermost first.
    made: Vec<PathBuf>,
}

impl StateLock {
    /// Restores the disk as it was before the lock was taken, after a failed start. Everything that existed before
    /// stays.
    pub fn undo(self) {
        if self.made.contains(&self.agent_dir) {
            // Nothing is mounted in it yet. The next start reports what can't be removed.
            let _ = fs::remove_dir_all(&self.agent_dir);
        }
        for dir in &self.made {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Failure to lock the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another agent or a reset holds the directory.
    #[error(
        "another agent runs on {}; stop it first, or give this one its own --state-dir and --instance",
        .0.display()
    )]
    Busy(PathBuf),
    #[error("cannot write to {}: {source}; give a writable --state-dir", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Creates `agent_dir` if missing, makes sure it is writable, and takes the lock.
pub fn take(agent_dir: &Path) -> Result<StateLock, StateError> {
    let cannot = |path: &Path| {
        let path = path.to_owned();
        move |source| StateError::Write { path, source }
    };
    let made = agent_dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect();
    fs::create_dir_all(agent_dir).map_err(cannot(agent_dir))?;
    let path = agent_dir.join("lock");
    match lock_file(&path).map_err(cannot(&path))? {
        FileLocking::Locked(lock) => Ok(StateLock { _file: lock, agent_dir: agent_dir.to_owned(), made }),
        FileLocking::Busy(_) => Err(StateError::Busy(agent_dir.to_owned())),
    }
}

/// True if an agent or a reset holds the directory. Creates nothing.
pub fn is_held(agent_dir: &Path) -> bool {
    is_file_locked(&agent_dir.join("lock"))
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
        assert!(is_held(&agent_dir));
        drop(first);
        assert!(!is_held(&agent_dir) && !is_held(dir.path()));
        take(&agent_dir).unwrap();
    }

    #[test]
    fn a_start_that_came_to_nothing_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let agent_dir = dir.path().join("state/agent");
        take(&agent_dir).unwrap().undo();
        assert!(!dir.path().join("state").exists());
        fs::create_dir_all(&agent_dir).unwrap();
        fs::write(agent_dir.join("subnet.json"), "{}").unwrap();
        take(&agent_dir).unwrap().undo();
        assert!(agent_dir.join("subnet.json").exists(), "an agent's earlier state stays");
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
