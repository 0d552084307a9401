//! Login on a machine: a master connection of the system's ssh, over which the crate openssh runs commands.
//!
//! ssh uses the configuration, the known hosts and the keys of the user, and asks at the terminal for what it lacks.

use std::process::{self, Stdio};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, Result, bail, ensure};
use openssh::Session;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

/// Longest time for a login, in which a person types a password.
const LOGIN_MAX: Duration = Duration::from_secs(120);
/// Longest time for a command; a copy of the agent over a slow link takes minutes.
const COMMAND_MAX: Duration = Duration::from_secs(600);
/// Maximum bytes kept of each output.
const OUTPUT_MAX: u64 = 1 << 20;
/// Options of the master, after those of the user, which precede them.
const OPTIONS: [&str; 3] = ["ControlPersist=300", "ConnectTimeout=20", "ServerAliveInterval=15"];

/// Machine with a login.
pub(super) struct Remote {
    destination: String,
    /// Folder of the master's socket and log.
    dir: TempDir,
    session: Session,
}

/// Output of a command that ended.
pub(super) struct Output {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Output {
    /// Returns standard output.
    ///
    /// # Errors
    /// The exit code is not 0; the error ends with the command's last lines.
    pub(super) fn ok(self) -> Result<String> {
        let why = || last_lines(&self.stderr).unwrap_or_else(|| format!("exit code {}", self.code));
        ensure!(self.code == 0, "{}", why());
        Ok(self.stdout)
    }
}

impl Remote {
    /// Logs in.
    ///
    /// # Errors
    /// ssh refuses, with its words.
    pub(super) async fn log_in(destination: &str, options: &[String]) -> Result<Self> {
        ensure!(
            !destination.is_empty() && !destination.starts_with('-'),
            "{destination:?} is no machine; write root@HOST"
        );
        let dir = tempfile::tempdir().context("cannot make a folder for the connection of ssh")?;
        let (socket, log) = (dir.path().join("master"), dir.path().join("log"));
        let mut ssh = Command::new("ssh");
        ssh.arg("-S").arg(&socket).arg("-E").arg(&log);
        for option in options.iter().map(String::as_str).chain(OPTIONS) {
            ssh.args(["-o", option]);
        }
        ssh.args(["-M", "-N", "-f", "--", destination]);
        // A prompt is read from the terminal itself.
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        match timeout(LOGIN_MAX, ssh.status()).await {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(_)) => {
                let log = fs::read_to_string(&log).unwrap_or_default();
                let why = last_lines(&log).unwrap_or_else(|| "ssh gave no reason".to_owned());
                bail!("cannot log in: {why}");
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                bail!("this machine has no ssh; install openssh-client")
            }
            Ok(Err(error)) => return Err(error).context("cannot run ssh"),
            Err(_) => bail!("no login within {} s", LOGIN_MAX.as_secs()),
        }
        let session = Session::resume_mux(socket.into_boxed_path(), None);
        Ok(Self { destination: destination.to_owned(), dir, session })
    }

    /// Runs a script in a shell of the machine, with this standard input.
    pub(super) async fn run(&self, script: &str, stdin: &[u8]) -> Result<Output> {
        let ended = timeout(COMMAND_MAX, carry_out(&self.session, script, stdin)).await;
        let ended = ended.with_context(|| format!("no answer within {} s", COMMAND_MAX.as_secs()))?;
        ended.context("the connection broke")
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let mut ssh = process::Command::new("ssh");
        ssh.arg("-S").arg(self.dir.path().join("master")).args(["-O", "exit", "--", &self.destination]);
        // A failure is harmless: the master is gone, or ends when idle.
        let _ = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

async fn carry_out(session: &Session, script: &str, stdin: &[u8]) -> Result<Output, openssh::Error> {
    let piped = openssh::Stdio::piped;
    let mut command = session.shell(script);
    let mut child = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn().await?;
    let (input, stdout, stderr) = (child.stdin().take(), child.stdout().take(), child.stderr().take());
    let write = async {
        if let Some(mut input) = input {
            // A command that does not read everything has its reasons, and reports them.
            let _ = input.write_all(stdin).await;
            let _ = input.shutdown().await;
        }
        Ok::<(), io::Error>(())
    };
    let ((), stdout, stderr) =
        tokio::try_join!(write, read(stdout), read(stderr)).map_err(openssh::Error::ChildIo)?;
    let code = match child.wait().await {
        Ok(status) => status.code().unwrap_or(-1),
        // The crate turns exit code 127 into this error.
        Err(openssh::Error::Remote(error)) if error.kind() == io::ErrorKind::NotFound => 127,
        Err(error) => return Err(error),
    };
    Ok(Output { code, stdout, stderr })
}

/// Reads a pipe to its end, and keeps the beginning.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(OUTPUT_MAX).read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Last two lines of a text that have words, as one; `None` if there are none.
fn last_lines(text: &str) -> Option<String> {
    let is_message = |line: &&str| line.chars().any(char::is_alphabetic) && !line.starts_with('@');
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_message).collect();
    (!lines.is_empty()).then(|| lines[lines.len().saturating_sub(2)..].join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_last_words_of_its_command() {
        let output =
            |code, stderr: &str| Output { code, stdout: "out".to_owned(), stderr: stderr.to_owned() };
        assert_eq!(output(0, "warning").ok().unwrap(), "out");
        let failed = |stderr| output(3, stderr).ok().unwrap_err().to_string();
        assert_eq!(failed("one\ntwo\n@@@ @@@\n  three\n\n"), "two; three");
        assert_eq!(failed("\n"), "exit code 3");
    }

    #[tokio::test]
    async fn a_destination_is_no_flag_of_ssh() {
        for wrong in ["-oProxyCommand=touch /tmp/x", ""] {
            let error = Remote::log_in(wrong, &[]).await.err().unwrap().to_string();
            assert!(error.contains("is no machine"), "{error}");
        }
    }
}
