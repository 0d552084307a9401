//! File locks: one agent per instance of a machine and per state directory.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use schema::codec::content_hash;
use schema::control::{FileLock, LockOutcome, is_file_locked, lock_file};

use super::config::MachineConfig;

// Lock on an instance: one agent per instance and Docker engine of a machine, whatever the state directories. The
// kernel releases it when the process dies, however it dies.

/// Directory of the locks of all instances and of connections over SSH, root's alone; gone with the next boot. The
/// reconciler's, `/run/minik8s`, may belong to another user, and ends with it.
pub const RUN_DIR: &str = "/run/minik8s-agent";

/// Maximum number of tries against a holder that removes the file at the same moment.
const TRIES: usize = 100;

/// A held lock; its file is removed when this is dropped.
#[derive(Debug)]
pub struct InstanceLock {
    file: FileLock,
    path: PathBuf,
}

/// Failure to lock the instance.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another agent or a reset holds the lock; `holder` is its process and state directory.
    #[error(
        "another agent of instance {instance} runs on this Docker engine ({holder}); stop it first, or give this one its own --instance"
    )]
    Busy { instance: String, holder: String },
    #[error("cannot write to {}: {source}; the agent needs it to ensure that no second one runs", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Takes the lock of this instance on this engine.
pub fn take_instance_lock(run_dir: &Path, machine: &MachineConfig) -> Result<InstanceLock, InstanceError> {
    let cannot = |path: &Path, source: io::Error| InstanceError::Write { path: path.to_owned(), source };
    fs::create_dir_all(run_dir).map_err(|e| cannot(run_dir, e))?;
    let path = run_dir.join(file_name(machine));
    for _ in 0..TRIES {
        let mut file = match lock_file(&path).map_err(|e| cannot(&path, e))? {
            LockOutcome::Locked(file) => file,
            LockOutcome::Busy(mut held) => {
                let mut holder = String::new();
                let _ = held.read_to_string(&mut holder);
                let holder = if holder.is_empty() { "it is just starting".to_owned() } else { holder };
                return Err(InstanceError::Busy { instance: machine.instance.clone(), holder });
            }
        };
        // If the former holder removed the file between opening and locking, no other process would find this lock.
        let is_at_path = fs::metadata(&path).is_ok_and(|there| {
            file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        });
        if is_at_path {
            let holder =
                format!("process {}, state directory {}", std::process::id(), machine.state_dir.display());
            let written = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
            written.map_err(|e| cannot(&path, e))?;
            return Ok(InstanceLock { file, path });
        }
    }
    Err(cannot(&path, io::Error::other("it keeps being removed")))
}

/// Name of the lock file. Two paths of one socket are the same engine.
fn file_name(machine: &MachineConfig) -> String {
    let path = machine.docker.strip_prefix("unix://").unwrap_or(&machine.docker);
    let path = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    format!("{}-{}.lock", machine.instance, &content_hash(&path.to_string_lossy())[..8])
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Before the lock is released, so that the file is never another holder's.
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            let _ = fs::remove_dir(dir);
        }
        let _ = self.file.sync_all();
    }
}

// Lock on the agent's state directory: one agent at a time. The kernel releases it when the process dies, however
// it dies.

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
        LockOutcome::Locked(lock) => Ok(StateLock { _file: lock, agent_dir: agent_dir.to_owned(), made }),
        LockOutcome::Busy(_) => Err(StateError::Busy(agent_dir.to_owned())),
    }
}

/// True if an agent or a reset holds the directory. Creates nothing.
pub fn is_held(agent_dir: &Path) -> bool {
    is_file_locked(&agent_dir.join("lock"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn machine(instance: &str, state_dir: &str, docker: &Path) -> MachineConfig {
        let docker = format!("unix://{}", docker.display());
        MachineConfig { state_dir: state_dir.into(), instance: instance.into(), docker }
    }

    // Red with the state directory in the file's name, and without `canonicalize`.
    #[test]
    fn one_agent_per_instance_and_engine_whatever_its_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (run, socket) = (dir.path().join("run"), dir.path().join("docker.sock"));
        fs::write(&socket, "").unwrap();
        let alias = dir.path().join("alias.sock");
        std::os::unix::fs::symlink(&socket, &alias).unwrap();
        let first = take_instance_lock(&run, &machine("mk8s", "/a", &socket)).unwrap();
        let error = take_instance_lock(&run, &machine("mk8s", "/b", &alias)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, InstanceError::Busy { .. }) && !text.contains('\n'), "{text}");
        assert!(text.contains("state directory /a") && text.contains("--instance"), "{text}");
        let other = take_instance_lock(&run, &machine("other", "/c", &socket)).unwrap();
        let engine =
            take_instance_lock(&run, &machine("mk8s", "/d", &dir.path().join("second.sock"))).unwrap();
        drop((first, engine));
        drop(take_instance_lock(&run, &machine("mk8s", "/b", &socket)).unwrap());
        drop(other);
        assert!(!run.exists(), "nothing stays");
    }

    // Red without the comparison with the file at the path: both get it.
    #[test]
    fn a_lock_on_a_file_that_is_gone_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = machine("mk8s", "/a", &dir.path().join("docker.sock"));
        let held = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(lock) = take_instance_lock(dir.path(), &wanted) else { continue };
                        assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "two hold the same lock");
                        std::thread::yield_now();
                        held.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod state_lock_tests {
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
