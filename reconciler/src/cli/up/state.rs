//! The state directory of `up`: its settings, and the children it runs.
//!
//! `up.json` holds the settings; `run/*.pid` hold the children, so that a later `up` ends the processes that a killed one
//! left.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::control::{DiskRecord, FileLock, Fsync, LockOutcome, is_file_locked, lock_file};
use tokio::time::{Instant, sleep};

use super::record::UpRecord;
use crate::state_dir;

pub(super) const RECORD_FILE: &str = "up.json";
/// Every directory that is ever created in the state directory.
pub(super) const KNOWN_DIRS: [&str; 5] = ["etcd", "reconciler", "agent", "logs", "run"];
const LOCK_FILE: &str = "run/up.lock";
/// Longest path of a Unix socket, without the NUL at its end (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// State directory of `up`.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    root: PathBuf,
}

impl StateDir {
    pub(super) fn create(root: &Path) -> Result<Self> {
        let run = root.join("run");
        let made = fs::create_dir_all(root.join("logs"))
            .and_then(|()| fs::create_dir_all(&run))
            .and_then(|()| tempfile::tempfile_in(&run));
        made.map_err(|error| {
            anyhow!(
                "cannot write to the state directory {}: {error}; make it writable, or choose another with \
                 --state-dir",
                root.display()
            )
        })?;
        state_dir::close(root, &["logs", "run"]);
        Self::open(root)
    }

    pub(crate) fn open(root: &Path) -> Result<Self> {
        Ok(Self { root: std::path::absolute(root).context("the state directory has no absolute path")? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    pub(super) fn run_file(&self, name: &str) -> PathBuf {
        self.root.join("run").join(name)
    }

    /// Loads the settings of an earlier `up`.
    pub(crate) fn load(&self) -> Result<Option<UpRecord>> {
        let record = self.record();
        record.read().map_err(|error| {
            let help = match error.kind() {
                std::io::ErrorKind::InvalidData => "; remove the file and pass --repo again",
                _ => "",
            };
            anyhow!("cannot read {}: {error}{help}", record.path().display())
        })
    }

    pub(super) fn save(&self, record: &UpRecord) -> Result<()> {
        let file = self.record();
        file.write(record).with_context(|| format!("cannot write {}", file.path().display()))
    }

    fn record(&self) -> DiskRecord {
        DiskRecord::new(self.root.join(RECORD_FILE)).fsync(Fsync::None)
    }

    /// Locks this directory against a second `up`; the kernel releases the lock when this process ends.
    pub(super) fn lock(&self) -> Result<FileLock> {
        let path = self.root.join(LOCK_FILE);
        let locking = lock_file(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let LockOutcome::Locked(lock) = locking else {
            bail!(
                "another 'minik8s up' (process {}) runs on {}; stop it with 'minik8s down --keep-pods', or \
                 choose another --state-dir and --instance",
                fs::read_to_string(&path).unwrap_or_default().trim(),
                self.root.display()
            );
        };
        fs::write(&path, std::process::id().to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(lock)
    }

    /// Id of the process that holds the lock, if any.
    pub(crate) fn running(&self) -> Option<i32> {
        let path = self.root.join(LOCK_FILE);
        is_file_locked(&path).then(|| fs::read_to_string(&path).ok()?.trim().parse().ok()).flatten()
    }

    /// Id of the `up` that runs, or starts, the reconciler at this socket or address; `None` for another one.
    pub(crate) fn running_at(&self, server: &str) -> Option<i32> {
        let record = self.load().ok().flatten()?;
        [record.server(), record.api_url()].contains(&server.to_owned()).then(|| self.running()).flatten()
    }

    /// Ends the children that a killed `up` left.
    pub(crate) async fn end_leftovers(&self) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.root.join("run")) else { return Ok(()) };
        let mut pid_files: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|p| p.extension().is_some_and(|e| e == "pid"))
            .collect();
        // Agent, etcd, reconciler: a reconciler without etcd just waits.
        pid_files.sort();
        for path in pid_files {
            let pid: Option<i32> = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            if let Some(pid) = pid.filter(|pid| self.is_our_child(*pid)) {
                end_process(pid, Signal::SIGTERM).await;
            }
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// True if the process has this state directory on its command line, so that its id was not reused.
    fn is_our_child(&self, pid: i32) -> bool {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command_line
            .split(|byte| *byte == 0)
            .any(|word| Path::new(OsStr::from_bytes(word)).starts_with(&self.root))
    }
}

// Ends processes.

/// Time between SIGTERM and SIGKILL.
pub(super) const END_WITHIN: Duration = Duration::from_secs(20);

/// Ends a process that is not a child: sends the signal, waits up to [`END_WITHIN`], then sends SIGKILL.
pub(crate) async fn end_process(pid: i32, signal: Signal) {
    let process = Pid::from_raw(pid);
    let _ = kill(process, signal);
    let deadline = Instant::now() + END_WITHIN;
    while is_alive(pid) {
        if Instant::now() >= deadline {
            let _ = kill(process, Signal::SIGKILL);
            return;
        }
        // There is no event for the end of a process that is not a child.
        sleep(Duration::from_millis(50)).await;
    }
}

/// True if the process exists and has not ended (a zombie has).
fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

// The socket of the reconciler's API.

/// Makes the folder of the socket, which others than root reach in the default place.
pub(super) fn make_socket_folder(record: &UpRecord) -> Result<()> {
    let socket = record.socket();
    ensure!(
        socket.as_os_str().len() <= SOCKET_PATH_MAX,
        "cannot listen on {}: a socket's path has at most {SOCKET_PATH_MAX} characters; choose a shorter --state-dir",
        socket.display()
    );
    let folder = socket.parent().context("a socket without a folder")?;
    if folder.is_dir() {
        return Ok(());
    }
    // Whatever the umask.
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot make {}", folder.display()))
}

/// Removes the socket, and its folder if nothing else is in it.
pub(super) fn remove_socket(record: &UpRecord) {
    let socket = record.socket();
    let _ = fs::remove_file(&socket);
    // Not empty, and so left, in a state directory.
    let _ = socket.parent().map(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::UpArgs;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: UpArgs,
    }

    fn record(flags: &[&str]) -> UpRecord {
        let always = ["up", "--repo", "https://ada:s3cret@git.example/a.git", "--node", "n1"];
        UpRecord::merge(&Line::parse_from(always.iter().chain(flags)).args, None).unwrap()
    }

    #[test]
    fn what_up_was_given_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        state.save(&record(&[])).unwrap();
        let mode = fs::metadata(dir.path().join(RECORD_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}: the address may hold a password");
        assert_eq!(state.load().unwrap().unwrap().repo.repo.unwrap(), "https://ada:s3cret@git.example/a.git");
    }

    #[test]
    fn an_up_that_starts_is_found_by_the_address_of_its_reconciler() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::create(dir.path()).unwrap();
        let path = dir.path().to_str().unwrap();
        let record = record(&["--listen", "127.0.0.1:7170", "--state-dir", path]);
        state.save(&record).unwrap();
        let socket = format!("unix://{path}/run/api.sock");
        let servers = [
            socket.as_str(),
            "https://127.0.0.1:7170",
            "unix:///run/minik8s/api.sock",
            "https://127.0.0.1:7070",
        ];
        let found = || servers.map(|server| state.running_at(server));
        assert_eq!(found(), [None; 4]);
        let lock = state.lock().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(found(), [Some(own), Some(own), None, None]);
        drop(lock);
        assert_eq!(found(), [None; 4]);
    }

    // A record of the version before certificates, which knew etcd and both APIs at http.
    #[test]
    fn a_record_of_an_earlier_version_goes_on_with_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let mut json = serde_json::to_value(record(&["--etcd-port", "7179"])).unwrap();
        let fields = json.as_object_mut().unwrap();
        for new in ["advertise", "authorityLifetime", "certificateLifetime", "etcdCa", "etcdCert", "etcdKey"]
        {
            assert!(fields.remove(new).is_some(), "{new}");
        }
        fs::write(dir.path().join(RECORD_FILE), json.to_string()).unwrap();
        let earlier = state.load().unwrap().unwrap();
        let again = UpRecord::merge(&Line::parse_from(["up"]).args, Some(&earlier)).unwrap();
        assert_eq!(again, record(&["--etcd-port", "7179"]));
        assert_eq!(again.etcd_url(), "https://127.0.0.1:7179");
    }

    #[test]
    fn the_socket_is_where_commands_look_for_it_or_they_are_told() {
        let usual = record(&["--state-dir", "/var/lib/minik8s/"]);
        assert_eq!(usual.server(), "unix:///run/minik8s/api.sock");
        assert_eq!(usual.command("status"), "'minik8s status'");
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::create(dir.path()).unwrap();
        let other = record(&["--state-dir", dir.path().to_str().unwrap()]);
        make_socket_folder(&other).unwrap();
        let mode = fs::metadata(other.socket().parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "whoever reaches it may do everything");
        assert_eq!(
            other.command("status"),
            format!("'minik8s status --server unix://{}'", other.socket().display())
        );
        fs::write(other.socket(), b"").unwrap();
        fs::write(state.run_file("agent.pid"), b"1").unwrap();
        remove_socket(&other);
        assert!(!other.socket().exists() && state.run_file("agent.pid").exists());
        let long = record(&["--state-dir", &format!("/{}", "a".repeat(100))]);
        assert!(make_socket_folder(&long).unwrap_err().to_string().contains("--state-dir"));
    }
}
