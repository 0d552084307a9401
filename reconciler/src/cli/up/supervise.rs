//! Children of `up`: starts, watches and restarts them, and ends them in reverse order.

use std::fs::{self, File};
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::state::{END_WITHIN, StateDir};

/// Longest wait for the answer of a child that has started.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(30);
/// Backoff before a dead child is restarted: doubles from the first to the second value.
const RESTART_AFTER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Uptime after which a child has recovered, which resets its backoff.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);
const LOG_MAX_BYTES: u64 = 16 << 20;
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Variable with the operator's own identity for `minik8s secrets`. An agent would take it for its node's.
pub(super) const OPERATOR_IDENTITY: &str = "MINIK8S_AGE_IDENTITY";

#[derive(Debug, Clone)]
pub(super) struct ChildCommand {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
}

/// A child that runs or waits for its restart.
pub(super) struct Child {
    command: ChildCommand,
    process: tokio::process::Child,
    log: PathBuf,
    pid_file: PathBuf,
    started: Instant,
    wait: Duration,
}

impl Child {
    /// Starts a child in its own process group, so that Ctrl-C reaches only `up`, which ends its children in order.
    pub(super) fn spawn(command: ChildCommand, state: &StateDir) -> Result<Self> {
        let log = state.log(command.name);
        let pid_file = state.run_file(&format!("{}.pid", command.name));
        let process = start(&command, &log, &pid_file)?;
        Ok(Self { command, process, log, pid_file, started: Instant::now(), wait: RESTART_AFTER.0 })
    }

    /// Waits for `ready`; if the child ends first, returns an error with its last log line.
    pub(super) async fn until_ready(&mut self, ready: impl Future<Output = ()>) -> Result<()> {
        match self.is_ready_within(READY_WITHIN, ready).await? {
            true => Ok(()),
            false => Err(self.late(READY_WITHIN)),
        }
    }

    /// Waits for `ready`, and starts a child again that ends first, up to `tries` times in all.
    pub(super) async fn until_ready_with<F: Future<Output = ()>>(
        &mut self,
        tries: u32,
        ready: impl Fn() -> F,
    ) -> Result<()> {
        for _ in 1..tries {
            if self.is_ready_within(READY_WITHIN, ready()).await.is_ok_and(|is_ready| is_ready) {
                return Ok(());
            }
            if self.process.try_wait().context("cannot wait for a child")?.is_none() {
                return Err(self.late(READY_WITHIN));
            }
            sleep(self.wait).await;
            self.process = start(&self.command, &self.log, &self.pid_file)?;
            self.started = Instant::now();
        }
        self.until_ready(ready()).await
    }

    /// Waits for `ready`; returns false if that takes longer. Fails if the child ends first.
    pub(super) async fn is_ready_within(
        &mut self,
        within: Duration,
        ready: impl Future<Output = ()>,
    ) -> Result<bool> {
        tokio::select! {
            // Cancel-safe: `wait` may be called again.
            status = self.process.wait() => Err(self.exit_error(status.context("cannot wait for a child")?)),
            outcome = timeout(within, ready) => Ok(outcome.is_ok()),
        }
    }

    /// Error of a child that did not answer in time.
    pub(super) fn late(&self, within: Duration) -> anyhow::Error {
        let (name, log) = (self.command.name, self.log.display());
        anyhow!("{name} did not answer within {} s of its start; see {log}", within.as_secs())
    }

    fn exit_error(&self, status: ExitStatus) -> anyhow::Error {
        match last_error_line(&self.log) {
            Some(words) => anyhow!("{words}"),
            None => anyhow!("{} ended with {status}; see {}", self.command.name, self.log.display()),
        }
    }

    /// Waits for the end of the child, then restarts it after the backoff.
    async fn keep_alive(&mut self) {
        let status = self.process.wait().await;
        // Somebody ended it, as the reconciler does with etcd in a roll.
        let was_asked = status.as_ref().is_ok_and(|status| status.signal() == Some(Signal::SIGTERM as i32));
        self.wait = if was_asked || self.started.elapsed() >= RECOVERED_AFTER {
            RESTART_AFTER.0
        } else {
            (self.wait * 2).min(RESTART_AFTER.1)
        };
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        eprintln!("{} ended with {status}; restarting it in {:?}", self.command.name, self.wait);
        sleep(self.wait).await;
        self.started = Instant::now();
        match start(&self.command, &self.log, &self.pid_file) {
            Ok(process) => self.process = process,
            Err(error) => eprintln!("cannot restart {}: {error:#}", self.command.name),
        }
    }
}

/// Copies an oversized log and truncates it; the child appends. Lines written in between are lost.
fn rotate(log: &PathBuf) {
    if fs::metadata(log).is_ok_and(|meta| meta.len() > LOG_MAX_BYTES)
        && let Err(error) = fs::copy(log, log.with_extension("log.1"))
            .and_then(|_| File::options().write(true).open(log)?.set_len(0))
    {
        eprintln!("cannot limit the size of {}: {error}", log.display());
    }
}

fn start(command: &ChildCommand, log: &PathBuf, pid_file: &PathBuf) -> Result<tokio::process::Child> {
    let out = File::options().create(true).append(true).open(log);
    let out = out.with_context(|| format!("cannot write {}", log.display()))?;
    let err = out.try_clone().with_context(|| format!("cannot write {}", log.display()))?;
    let process = with_settings(command)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        // An untracked child would run alongside the next one.
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", command.program.display()))?;
    let pid =
        process.id().ok_or_else(|| anyhow!("{} ended immediately; see {}", command.name, log.display()))?;
    fs::write(pid_file, pid.to_string()).with_context(|| format!("cannot write {}", pid_file.display()))?;
    Ok(process)
}

/// The program with its arguments and its environment.
fn with_settings(child: &ChildCommand) -> Command {
    let mut command = Command::new(&child.program);
    command.args(&child.args).envs(child.env.iter().cloned()).env_remove(OPERATOR_IDENTITY);
    command
}

/// Last log line in which a program of Minik8s reports why it ended, without the program's name.
fn last_error_line(log: &PathBuf) -> Option<String> {
    const TAIL_BYTES: u64 = 16 << 10;
    let file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(length - from).ok()?];
    file.read_exact_at(&mut tail, from).ok()?;
    let tail = String::from_utf8_lossy(&tail).into_owned();
    let line = tail
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("minik8s: ").or_else(|| line.strip_prefix("minik8s-agent: ")))?;
    Some(line.to_owned())
}

/// Children in the order in which they were started.
#[derive(Default)]
pub(super) struct Children(Vec<Child>);

impl Children {
    /// Adds a child, which [`Children::end_all`] ends with the others.
    pub(super) fn add(&mut self, child: Child) -> &mut Child {
        self.0.push(child);
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Restarts dead children, forever.
    pub(super) async fn keep_alive(&mut self) {
        if self.0.is_empty() {
            std::future::pending::<()>().await;
        }
        let logs: Vec<PathBuf> = self.0.iter().map(|child| child.log.clone()).collect();
        let rotation = async {
            loop {
                sleep(LOG_CHECK_INTERVAL).await;
                logs.iter().for_each(rotate);
            }
        };
        // Children are watched independently, so that one in backoff does not delay another.
        let watches = self.0.iter_mut().map(|child| {
            Box::pin(async move {
                loop {
                    child.keep_alive().await;
                }
            })
        });
        tokio::join!(join_all(watches), rotation);
    }

    /// Ends the children in reverse order and removes their pid files.
    pub(super) async fn end_all(&mut self) {
        for child in self.0.iter_mut().rev() {
            if let Some(pid) = child.process.id().and_then(|pid| i32::try_from(pid).ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
                if timeout(END_WITHIN, child.process.wait()).await.is_err() {
                    let _ = child.process.kill().await;
                }
            }
            let _ = fs::remove_file(&child.pid_file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    /// True if a process has `word` on its command line.
    fn is_running(word: &str) -> bool {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
        lines.any(|line| String::from_utf8_lossy(&line).split('\0').any(|part| part == word))
    }

    // Would fail if a child got the whole environment of `up`.
    #[test]
    fn the_operators_identity_is_not_for_a_child() {
        let env = vec![("MINIK8S_REPO".to_owned(), "/a".to_owned())];
        let child = ChildCommand { name: "agent", program: "agent".into(), args: Vec::new(), env };
        let command = with_settings(&child);
        let changed: Vec<_> = command.as_std().get_envs().collect();
        let repo = (OsStr::new("MINIK8S_REPO"), Some(OsStr::new("/a")));
        assert_eq!(changed, [(OsStr::new(OPERATOR_IDENTITY), None), repo]);
    }

    #[tokio::test]
    async fn a_child_that_is_late_runs_on_and_one_that_ends_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::create(dir.path()).unwrap();
        let child = |program: &str, args: Vec<String>| {
            let command = ChildCommand { name: "idle", program: program.into(), args, env: Vec::new() };
            Child::spawn(command, &state).unwrap()
        };
        let within = Duration::from_millis(10);
        let mut late = child("/usr/bin/tail", vec!["-f".to_owned(), "/dev/null".to_owned()]);
        assert!(!late.is_ready_within(within, std::future::pending()).await.unwrap());
        assert!(late.is_ready_within(within, std::future::ready(())).await.unwrap());
        let mut ended = child("/usr/bin/false", Vec::new());
        assert!(ended.is_ready_within(READY_WITHIN, std::future::pending()).await.is_err());
    }

    #[tokio::test]
    async fn a_child_whose_number_cannot_be_kept_does_not_run_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("idle");
        fs::write(&file, b"").unwrap();
        let file = file.to_str().unwrap().to_owned();
        let args = vec!["-f".to_owned(), file.clone()];
        let command = ChildCommand { name: "idle", program: "/usr/bin/tail".into(), args, env: Vec::new() };
        let outcome = start(&command, &dir.path().join("log"), &dir.path().join("none/idle.pid"));
        assert!(outcome.unwrap_err().to_string().contains("idle.pid"));
        let deadline = Instant::now() + Duration::from_secs(5);
        while is_running(&file) {
            assert!(Instant::now() < deadline, "it would run beside the one that is started next");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
