//! A daemon as a process of its machine: locks, each held by one process at a time, a state directory that only its
//! user reads, precedence when memory is short, and messages to the service manager.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;
use sd_notify::NotifyState;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

// File locks.

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

/// Locks the file at `path` without waiting. Creates the file if it is missing; does not change it, and follows no
/// symbolic link, which another user may have put there.
///
/// # Errors
/// Any I/O error.
pub fn lock_file(path: &Path) -> io::Result<LockOutcome> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(path)?;
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

// The state directory: one for the daemons of a machine, each with folders of its own in it.

/// Folder of the agent, the only one in which others than the daemons have business: containers.
const AGENT_FOLDER: &str = "agent";

/// Entries that the daemons make in a state directory, and the one of a disk of its own.
const STATE_ENTRIES: [&str; 8] =
    [AGENT_FOLDER, "etcd", "logs", "lost+found", "reconciler", "run", "up.json", "up.tmp"];

/// Mode of a folder for its owner alone, and of one in which others reach what they know the name of.
const CLOSED: u32 = 0o700;
const PASSABLE: u32 = 0o711;

/// Closes a daemon's `own` folders of the state directory `root` to other users, and `root` itself unless somebody else
/// keeps something in it. `passable`: containers reach their volumes as other users, because Docker remaps users; if that
/// is not known, `None`, others go on passing through a directory with an agent's folder as they did.
///
/// # Errors
/// Any I/O error, such as of a directory that belongs to another user.
pub fn close_state_dir(root: &Path, own: &[&str], passable: Option<bool>) -> io::Result<()> {
    let mode = |passable| if passable { PASSABLE } else { CLOSED };
    for folder in own.iter().map(|name| root.join(name)).filter(|folder| folder.exists()) {
        set_mode(&folder, mode(passable.unwrap_or_default()))?;
    }
    let there = fs::metadata(root)?;
    let me = geteuid();
    if !me.is_root() && there.uid() != me.as_raw() {
        // Closed by its owner, who lets this user pass.
        return Ok(());
    }
    let was_passable = || there.mode() & PASSABLE == PASSABLE && root.join(AGENT_FOLDER).exists();
    let mut is_passed = passable.unwrap_or_else(was_passable);
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if !STATE_ENTRIES.iter().any(|name| entry.file_name() == *name) {
            return Ok(());
        }
        // A daemon that runs as another user.
        is_passed |= ![0, there.uid()].contains(&entry.metadata()?.uid());
    }
    set_mode(root, mode(is_passed))
}

fn set_mode(folder: &Path, mode: u32) -> io::Result<()> {
    match fs::metadata(folder)?.mode() & 0o7777 == mode {
        true => Ok(()),
        false => fs::set_permissions(folder, Permissions::from_mode(mode)),
    }
}

// The kernel's choice of a process to kill when the machine is out of memory.

/// `oom_score_adj` of daemons, and of their children, which inherit it: below that of Docker (-500), above that of the
/// kubelet (-999). With -1000 a daemon that leaks would never be killed.
const OOM_SCORE_ADJ: i64 = -900;

/// This process's file.
const OOM_FILE: &str = "/proc/self/oom_score_adj";

/// Makes this process and its future children some of the last that the kernel kills when memory is short, unless an
/// operator has set still less. Returns the least `oom_score_adj` that may be set here: -1000, or the present value if
/// this process may not lower it (`CAP_SYS_RESOURCE`).
pub fn spare_from_oom_killer() -> i64 {
    lower_oom_score(Path::new(OOM_FILE)).unwrap_or_else(|(error, present)| {
        tracing::debug!(%error, present, "oom_score_adj stays: this process may not lower it");
        present
    })
}

fn lower_oom_score(file: &Path) -> Result<i64, (io::Error, i64)> {
    let present = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default();
    let wanted = OOM_SCORE_ADJ.min(present);
    fs::write(file, wanted.to_string()).map(|()| -1000).map_err(|error| (error, present))
}

// Messages to the service manager that started this process, such as systemd: ready, alive, stopping. Without one, as when
// `NOTIFY_SOCKET` is not set, nothing is sent. systemd restarts a process that sends no sign of life for longer than its
// `WatchdogSec`, so a daemon falls silent once a loop hangs.

/// Signs of life within the time that the service manager waits for one.
const SIGNS_PER_LIMIT: u32 = 4;

/// Reports until shutdown. `hung` returns the names of the loops that hang by this limit.
pub(super) async fn report_to_service_manager(
    hung: impl Fn(Duration) -> Vec<String> + Send + Sync,
    shutdown: CancellationToken,
) {
    tell_service_manager(NotifyState::Ready);
    match sd_notify::watchdog_enabled() {
        // Cancel-safe: nothing is held between two signs.
        Some(limit) => _ = shutdown.run_until_cancelled(send_signs_of_life(&hung, limit)).await,
        None => shutdown.cancelled().await,
    }
    tell_service_manager(NotifyState::Stopping);
}

/// Sends a sign of life several times within `limit`, while no loop hangs.
async fn send_signs_of_life(hung: &(impl Fn(Duration) -> Vec<String> + Sync), limit: Duration) {
    let mut logged = Vec::new();
    loop {
        let hung = hung(limit);
        if hung.is_empty() {
            tell_service_manager(NotifyState::Watchdog);
        }
        if hung != logged {
            match hung.is_empty() {
                true => tracing::info!("no loop hangs any more"),
                false => {
                    tracing::error!(loops = ?hung, ?limit, "loops hang: the service manager restarts this process");
                }
            }
            logged = hung;
        }
        sleep(limit / SIGNS_PER_LIMIT).await;
    }
}

fn tell_service_manager(state: NotifyState<'_>) {
    // Whoever listens no longer does not need the message.
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "service manager not reached");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// A state directory as earlier versions left it.
    fn open_state(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        dir
    }

    // Would fail by a lock file that root opens through another user's link, and then fills.
    #[test]
    fn a_link_is_not_locked_and_what_it_leads_to_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("lock"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(lock_file(&link).is_err() && !target.exists());
        fs::write(&target, "text").unwrap();
        assert!(lock_file(&link).is_err());
        assert!(matches!(lock_file(&target).unwrap(), LockOutcome::Locked(_)));
    }

    #[test]
    fn an_open_state_directory_is_closed_again() {
        let state = open_state(&["reconciler"]);
        close_state_dir(state.path(), &["reconciler"], None).unwrap();
        assert_eq!((mode(state.path()), mode(&state.path().join("reconciler"))), (0o700, 0o700));

        // A reconciler does not know what the agent's Docker needs; the agent does.
        let state = open_state(&["agent", "reconciler", "etcd"]);
        let agent = state.path().join("agent");
        close_state_dir(state.path(), &["reconciler"], None).unwrap();
        assert_eq!((mode(state.path()), mode(&agent)), (0o711, 0o755));
        for (passable, wanted) in [(true, 0o711), (false, 0o700)] {
            close_state_dir(state.path(), &["agent"], Some(passable)).unwrap();
            close_state_dir(state.path(), &["reconciler", "logs"], None).unwrap();
            assert_eq!((mode(state.path()), mode(&agent)), (wanted, wanted));
            assert_eq!(mode(&state.path().join("reconciler")), 0o700);
        }
    }

    #[test]
    fn a_directory_that_others_use_keeps_its_mode() {
        let state = open_state(&["agent", "photos"]);
        close_state_dir(state.path(), &["agent"], Some(false)).unwrap();
        assert_eq!((mode(state.path()), mode(&state.path().join("agent"))), (0o755, 0o700));
        let state = open_state(&["agent", "reconciler"]);
        std::os::unix::fs::chown(state.path().join("reconciler"), Some(1000), None).unwrap();
        close_state_dir(state.path(), &["agent"], Some(false)).unwrap();
        assert_eq!(mode(state.path()), 0o711, "the other daemon gets to its folder");
    }

    #[test]
    fn a_daemon_lowers_its_score_and_never_raises_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("oom_score_adj");
        for (before, after) in [("0\n", "-900"), ("200\n", "-900"), ("-950\n", "-950")] {
            fs::write(&file, before).unwrap();
            assert_eq!(lower_oom_score(&file).unwrap(), -1000);
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
        // A file that cannot be written: the present value is the least.
        let (_, present) = lower_oom_score(dir.path()).unwrap_err();
        assert_eq!(present, 0);
    }
}
