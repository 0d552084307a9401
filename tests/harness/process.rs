//! Child processes: daemons that a story kills, stops and restarts, and commands that end.
//!
//! A daemon dies with the thread that started it (`setpriv --pdeathsig`), so a killed test run
//! leaves none; its pid and start time are on disk for the sweep anyway.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::wait::eventually;

/// Time limit of a command.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// A long-running child with its log.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    command: Vec<String>,
    env: Vec<(String, String)>,
    dir: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// A daemon that is not started yet. Its log `<name>.log` and its pid file are in `dir`.
    pub fn new(name: impl Into<String>, dir: &Path, command: Vec<String>) -> Self {
        Self { name: name.into(), command, env: Vec::new(), dir: dir.to_owned(), child: None }
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets another environment variable for the next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Replaces the command for the next start.
    pub fn set_command(&mut self, command: Vec<String>) {
        self.command = command;
    }

    /// Starts it; its output is appended to its log.
    pub fn start(&mut self) -> Result<()> {
        ensure!(!self.is_running(), "{} runs already", self.name);
        fs::create_dir_all(&self.dir)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .args(&self.command)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        let pid = child.id();
        fs::write(self.dir.join(format!("{}.pid", self.name)), format!("{pid} {}", start_time(pid)?))?;
        self.child = Some(child);
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id of the running daemon.
    pub fn pid(&self) -> Result<u32> {
        self.child.as_ref().map(Child::id).with_context(|| format!("{} does not run", self.name))
    }

    /// True while it runs, even if stopped by a signal.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.pid()?.cast_signed()), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Kills it with SIGKILL, and waits until it has exited.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait()?;
        }
        Ok(())
    }

    /// Sends `signal`, and waits until it has exited.
    pub fn end(&mut self, signal: Signal, within: Duration) -> Result<ExitStatus> {
        self.signal(signal)?;
        let status = self.wait_end(within)?;
        self.child = None;
        Ok(status)
    }

    /// Waits until it exits by itself.
    pub fn wait_end(&mut self, within: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        let child = self.child.as_mut().with_context(|| format!("{name} does not run"))?;
        eventually(&format!("{name} ends"), within, || {
            child.try_wait()?.with_context(|| format!("{name} still runs"))
        })
    }

    /// File of its output.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// End of its log, at most 16 KiB.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path(), 16 * 1024).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The last `bytes` of a file.
pub(crate) fn tail(path: &Path, bytes: u64) -> Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(bytes)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Start time of a process in clock ticks since boot: together with the pid it identifies the process for ever.
pub(crate) fn start_time(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the name in parentheses and may contain anything; the 22nd is the start time.
    let after_name = stat.rsplit_once(')').context("no name in /proc/PID/stat")?.1;
    let field = after_name.split_whitespace().nth(19).context("/proc/PID/stat is short")?;
    Ok(field.parse()?)
}

/// Result of a command that ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit code; 128 + signal if a signal killed it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Fails unless the exit code is 0; returns standard output.
    pub fn ok(self) -> Result<String> {
        ensure!(self.code == 0, "exit code {}: {}{}", self.code, self.stderr, self.stdout);
        Ok(self.stdout)
    }
}

/// Runs a command for at most two minutes, and fails unless its exit code is 0.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    outcome(Command::new(program).args(args), COMMAND_LIMIT)?
        .ok()
        .with_context(|| format!("{program} {}", args.join(" ")))
}

/// Runs a command that must end `within` the given time.
pub fn outcome(command: &mut Command, within: Duration) -> Result<Outcome> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child, within);
    if status.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let (stdout, stderr) = (join(stdout), join(stderr));
    let status = status.with_context(|| format!("{command:?} said: {stdout}{stderr}"))?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(Outcome { code, stdout, stderr })
}

/// Returns as soon as the child ends: benches time commands from outside.
fn wait(child: &mut Child, within: Duration) -> Result<ExitStatus> {
    let end = pidfd_open(rustix::process::Pid::from_child(child), PidfdFlags::empty())?;
    let ended = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&Timespec::try_from(within)?))?;
    ensure!(ended > 0, "did not end within {within:?}");
    Ok(child.wait()?)
}

type Reader = std::thread::JoinHandle<String>;

fn drain(pipe: Option<impl Read + Send + 'static>) -> Reader {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn join(reader: Reader) -> String {
    reader.join().unwrap_or_default()
}
