//! Restart of this machine's member of etcd: ends its process, which `up` or systemd starts again, and waits until it
//! answers with its vote.
//!
//! Only the process of an etcd whose command line or environment names the own data directory is ended. One that is not
//! found while the member answers is an error: to take that for a restart would leave the member as it was.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::store::StoreError;
use schema::store::etcd::{Access, EtcdStore};
use tokio::time::{Instant, sleep};

/// Longest wait for the end of the process: etcd first answers the requests that it has begun, and passes its lead on.
const END_MAX: Duration = Duration::from_secs(40);
/// Longest wait for the answer of the new one: it reads its log, and `up` waits up to 30 s after it has died repeatedly.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Longest wait for one connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Interval at which both are checked.
const PAUSE: Duration = Duration::from_millis(100);
/// Name of the program, as the kernel has it.
const PROGRAM: &str = "etcd";

/// Failure to restart the member.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestartError {
    #[error(
        "no process of etcd names the data directory {data_dir}, and yet it answers: restart it by hand, or run both as \
         one user"
    )]
    NotFound { data_dir: String },
    #[error("cannot end the process {pid} of etcd: {source}")]
    Kill {
        pid: i32,
        #[source]
        source: Errno,
    },
    #[error("the process {pid} of etcd has not ended within {max:?}", max = END_MAX)]
    StillRuns { pid: i32 },
    #[error("etcd does not answer within {max:?} after its restart: {source}", max = ANSWER_MAX)]
    Silent {
        #[source]
        source: StoreError,
    },
}

/// The member of etcd on this machine.
#[async_trait]
pub(super) trait OwnMember: Send + Sync + 'static {
    /// Restarts the member in this roll, and waits until it answers with its vote. Another attempt in the same roll only
    /// waits if the process has ended: one that is slow to start must not be ended again.
    ///
    /// # Errors
    /// [`RestartError`]; it may or may not have been restarted.
    async fn restart(&self, roll: u64) -> Result<(), RestartError>;
}

/// A real member, with its data in `etcd/` of the state directory.
pub(super) struct RealMember {
    data_dir: PathBuf,
    /// File in which `up` keeps the number of its process.
    pid_file: PathBuf,
    access: Access,
    /// Number of the newest roll in which its process has ended.
    ended_in: AtomicU64,
}

impl RealMember {
    /// Names the member below a state directory, which answers at the addresses of `access`.
    pub(super) fn new(state_dir: &Path, access: Access) -> Self {
        let root = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        Self {
            data_dir: root.join("etcd"),
            pid_file: root.join("run/etcd.pid"),
            access,
            ended_in: AtomicU64::new(0),
        }
    }

    /// Connects and reads a key, for which a member needs its vote and a leader.
    async fn answers(&self) -> Result<(), StoreError> {
        Box::pin(EtcdStore::connect(&self.access, CONNECT_MAX)).await.map(drop)
    }

    /// Returns the process, if it runs.
    fn process(&self) -> Option<i32> {
        let kept = fs::read_to_string(&self.pid_file).ok().and_then(|text| text.trim().parse().ok());
        kept.filter(|pid| self.is_own(*pid)).or_else(|| processes().find(|pid| self.is_own(*pid)))
    }

    fn is_own(&self, pid: i32) -> bool {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let data_dir = self.data_dir.to_string_lossy();
        read("comm").trim_ascii() == PROGRAM.as_bytes()
            && names_data_dir(&data_dir, &read("cmdline"), &read("environ"))
    }

    async fn end(&self, pid: i32) -> Result<(), RestartError> {
        match kill(Pid::from_raw(pid), Signal::SIGTERM) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(source) => return Err(RestartError::Kill { pid, source }),
        }
        let deadline = Instant::now() + END_MAX;
        // A process that has ended has no command line, and neither has one that nobody has waited for yet.
        while self.is_own(pid) {
            if Instant::now() > deadline {
                return Err(RestartError::StillRuns { pid });
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

#[async_trait]
impl OwnMember for RealMember {
    async fn restart(&self, roll: u64) -> Result<(), RestartError> {
        if self.ended_in.load(Ordering::Relaxed) != roll {
            match self.process() {
                Some(pid) => self.end(pid).await?,
                // One that is down anyway starts anew by itself.
                None if self.answers().await.is_ok() => {
                    return Err(RestartError::NotFound { data_dir: self.data_dir.display().to_string() });
                }
                None => {}
            }
            self.ended_in.store(roll, Ordering::Relaxed);
        }
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            match self.answers().await {
                Ok(()) => return Ok(()),
                Err(source) if Instant::now() > deadline => return Err(RestartError::Silent { source }),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(io::Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns true if the arguments or the environment of an etcd, each ended by a NUL, make this its data directory.
fn names_data_dir(data_dir: &str, arguments: &[u8], environment: &[u8]) -> bool {
    let words = |text: &[u8]| -> Vec<String> {
        text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    let arguments = words(arguments);
    let is_flag = |word: &str| word.trim_start_matches('-') == "data-dir" && word.starts_with('-');
    arguments.windows(2).any(|pair| is_flag(&pair[0]) && pair[1] == data_dir)
        || arguments
            .iter()
            .any(|word| word.split_once('=').is_some_and(|(flag, value)| is_flag(flag) && value == data_dir))
        || words(environment).iter().any(|word| word.strip_prefix("ETCD_DATA_DIR=") == Some(data_dir))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use tokio::time::timeout;

    use super::*;

    // Would fail by a member of another state directory that is ended in place of the own one.
    #[test]
    fn a_process_is_known_by_its_data_directory_alone() {
        let names = |arguments: &str, environment: &str| {
            let bytes = |text: &str| text.replace(' ', "\0").into_bytes();
            names_data_dir("/s/etcd", &bytes(arguments), &bytes(environment))
        };
        for (arguments, environment, is_own) in [
            ("etcd --name minik8s --data-dir /s/etcd ", "HOME=/ ", true),
            ("etcd -data-dir=/s/etcd ", "", true),
            ("etcd ", "A=1 ETCD_DATA_DIR=/s/etcd ", true),
            ("etcd --data-dir /s2/etcd ", "", false),
            ("etcd --data-dir /s/etcd2 ", "", false),
            ("etcd --wal-dir /s/etcd ", "OLD_ETCD_DATA_DIR=/s/etcd ", false),
            ("etcd --wal-dir=--data-dir /s ", "ETCD_DATA_DIR=/s/etcd/ ", false),
            ("", "", false),
        ] {
            assert_eq!(names(arguments, environment), is_own, "{arguments} {environment}");
        }
    }

    // Would fail by ending a member again and again that takes its time to start.
    #[tokio::test]
    async fn a_member_that_is_slow_to_start_is_ended_once_in_a_roll() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access::anonymous(&["http://127.0.0.1:1".to_owned()]);
        let member = RealMember::new(dir.path(), access);
        let program = dir.path().join("bin/etcd");
        fs::create_dir(dir.path().join("bin")).unwrap();
        symlink("/bin/sh", &program).unwrap();
        let start = async || {
            let mut command = Command::new(&program);
            command.arg0("sh").args(["-c", "read line"]).env("ETCD_DATA_DIR", dir.path().join("etcd"));
            let child = command.stdin(Stdio::piped()).spawn().unwrap();
            // A process that has just begun has no name yet.
            let shows = async || {
                while member.process() != Some(child.id().cast_signed()) {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(10), shows()).await.unwrap();
            child
        };
        let restart =
            async |roll| assert!(timeout(Duration::from_secs(2), member.restart(roll)).await.is_err());
        let mut first = start().await;
        restart(1).await;
        assert!(first.try_wait().unwrap().is_some(), "it has ended");
        let mut second = start().await;
        restart(1).await;
        assert!(second.try_wait().unwrap().is_none(), "it runs");
        restart(2).await;
        assert!(second.try_wait().unwrap().is_some(), "another roll ends it");
    }

    #[tokio::test]
    async fn a_process_of_another_program_is_not_the_member() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::write(dir.path().join("run/etcd.pid"), std::process::id().to_string()).unwrap();
        let access = Access::anonymous(&["http://127.0.0.1:1".to_owned()]);
        assert_eq!(RealMember::new(dir.path(), access).process(), None);
    }
}
