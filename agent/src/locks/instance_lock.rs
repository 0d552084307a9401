//! Lock on an instance: one agent per instance and Docker engine of a machine, whatever the state directories. The
//! kernel releases it when the process dies, however it dies.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use schema::codec::content_hash;
use schema::control::{FileLock, FileLocking, lock_file};

use crate::config::MachineConfig;

/// Directory of the locks of all instances; gone with the next boot.
pub const RUN_DIR: &str = "/run/minik8s";

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
pub fn take(run_dir: &Path, machine: &MachineConfig) -> Result<InstanceLock, InstanceError> {
    let cannot = |path: &Path, source: io::Error| InstanceError::Write { path: path.to_owned(), source };
    fs::create_dir_all(run_dir).map_err(|e| cannot(run_dir, e))?;
    let path = run_dir.join(file_name(machine));
    for _ in 0..TRIES {
        let mut file = match lock_file(&path).map_err(|e| cannot(&path, e))? {
            FileLocking::Locked(file) => file,
            FileLocking::Busy(mut held) => {
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
    Err(cannot(&path, io::Error::other("it is being removed all the time")))
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
        let first = take(&run, &machine("mk8s", "/a", &socket)).unwrap();
        let error = take(&run, &machine("mk8s", "/b", &alias)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, InstanceError::Busy { .. }) && !text.contains('\n'), "{text}");
        assert!(text.contains("state directory /a") && text.contains("--instance"), "{text}");
        let other = take(&run, &machine("other", "/c", &socket)).unwrap();
        let engine = take(&run, &machine("mk8s", "/d", &dir.path().join("second.sock"))).unwrap();
        drop((first, engine));
        drop(take(&run, &machine("mk8s", "/b", &socket)).unwrap());
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
                        let Ok(lock) = take(dir.path(), &wanted) else { continue };
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
