//! The system's ssh: a master connection for each login, over which the crate openssh runs the commands.
//!
//! Secrets are in files below `/run`, readable for root alone, only while a master logs in.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use openssh::Session;
use schema::codec::hex;
use schema::control::{error_chain, lock};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::settings::{LOGIN, LoginPaths, config, known_hosts};
use super::{Credential, LoginHost, RemoteCommand, RemoteOutput, Ssh, SshError};

/// Longest time for a login, a jump host included.
const LOGIN_MAX: Duration = Duration::from_secs(40);
/// Time that a master waits for the next command.
const IDLE_MAX: &str = "ControlPersist=600";
/// Concurrent commands of a login: sshd allows 10 sessions per connection (MaxSessions).
const COMMANDS_MAX: usize = 8;
/// Longest time for a master on this machine to answer.
const MASTER_MAX: Duration = Duration::from_secs(10);
/// Mark before a command's output: the text before it comes from the shell's start files.
const BEGIN: &str = "==> minik8s begins";
/// Maximum bytes of output from the start files.
const NOISE_MAX: u64 = 256 * 1024;
/// Maximum bytes kept of standard error.
const STDERR_MAX: u64 = 8 * 1024;

/// Prints the password. The environment holds the path of its file, never the password.
const ASKPASS: &str = "#!/bin/sh\nexec cat \"$MINIK8S_PASSWORD_FILE\"\n";

/// The system's ssh.
pub struct RealSsh {
    /// Directory of this agent, in memory, with a folder per login.
    run_dir: PathBuf,
    /// Directory for what outlives the agent: `known_hosts` and the askpass program.
    agent_dir: PathBuf,
    logins: Mutex<BTreeMap<String, Arc<LoginState>>>,
}

struct LoginState {
    /// Held during a login; time and reason of the last failed login.
    opening: tokio::sync::Mutex<Option<(Instant, String)>>,
    commands: Semaphore,
}

impl RealSsh {
    /// Creates a client with sockets and settings below `run_dir`, which is in memory, and permanent files in
    /// `agent_dir`.
    pub fn new(run_dir: &Path, agent_dir: &Path) -> Self {
        let run_dir = own_dir(run_dir, agent_dir);
        sweep(&run_dir);
        Self { run_dir, agent_dir: agent_dir.to_owned(), logins: Mutex::default() }
    }

    /// Folder of a login; its name is short, since socket paths have at most 107 bytes.
    fn folder(&self, host: &LoginHost) -> PathBuf {
        let secret = match &host.credential {
            Credential::Key(secret) | Credential::Password(secret) => secret,
        };
        let login = serde_json::to_vec(&host.login).unwrap_or_default();
        let mut hash = Sha256::new();
        for part in [&login, secret] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        self.run_dir.join(&hex(&hash.finalize())[..16])
    }

    fn login(&self, folder: &Path) -> Arc<LoginState> {
        let mut logins = lock(&self.logins);
        let name = folder.display().to_string();
        let new =
            || LoginState { opening: tokio::sync::Mutex::default(), commands: Semaphore::new(COMMANDS_MAX) };
        Arc::clone(logins.entry(name).or_insert_with(|| Arc::new(new())))
    }

    /// Returns a session over the master, starting it if needed.
    async fn session(
        &self,
        host: &LoginHost,
        folder: &Path,
        login: &LoginState,
    ) -> Result<Session, SshError> {
        let socket = folder.join("master");
        let asked = Instant::now();
        let mut failed = login.opening.lock().await;
        // Callers that waited for a login that failed meanwhile do not each try another.
        if let Some((_, why)) = failed.as_ref().filter(|(at, _)| *at > asked) {
            return Err(SshError::Unreachable(why.clone()));
        }
        let session = || Session::resume_mux(socket.clone().into_boxed_path(), None);
        if socket.exists() && timeout(MASTER_MAX, session().check()).await.is_ok_and(|alive| alive.is_ok()) {
            return Ok(session());
        }
        let unreachable = |error: io::Error| SshError::Unreachable(error.to_string());
        self.prepare(host, folder).map_err(unreachable)?;
        let opened = self.open(host, folder, &socket).await;
        remove_secrets(folder);
        *failed = match &opened {
            Err(SshError::Unreachable(why)) => Some((Instant::now(), why.clone())),
            _ => None,
        };
        opened.map(|()| session())
    }

    /// Writes the files that ssh reads.
    fn prepare(&self, host: &LoginHost, folder: &Path) -> io::Result<()> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let places = LoginPaths { folder, known_hosts: &self.agent_dir.join("known_hosts") };
        write(&folder.join("config"), config(&host.login, &host.credential, &places).as_bytes())?;
        write(&folder.join("known_hosts"), known_hosts(&host.login).as_bytes())?;
        match &host.credential {
            Credential::Key(key) => {
                write(&folder.join("key"), key)?;
                // ssh rejects a key without a newline at its end.
                let mut file = OpenOptions::new().append(true).open(folder.join("key"))?;
                if !key.ends_with(b"\n") {
                    file.write_all(b"\n")?;
                }
            }
            Credential::Password(password) => {
                write(&folder.join("password"), password.trim_ascii_end())?;
                // Not below /run, which is mounted noexec on many machines.
                let askpass = self.agent_dir.join("askpass");
                if fs::read(&askpass).ok().as_deref() != Some(ASKPASS.as_bytes()) {
                    // A temporary file with a unique name, unlike that of a `DiskRecord`: another login may run at
                    // the same time.
                    let mut draft = tempfile::NamedTempFile::new_in(&self.agent_dir)?;
                    draft.write_all(ASKPASS.as_bytes())?;
                    fs::set_permissions(draft.path(), fs::Permissions::from_mode(0o700))?;
                    draft.persist(askpass)?;
                }
            }
        }
        Ok(())
    }

    /// Starts the master, which detaches once it is logged in.
    async fn open(&self, host: &LoginHost, folder: &Path, socket: &Path) -> Result<(), SshError> {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(folder.join("config")).arg("-S").arg(socket).arg("-E").arg(folder.join("log"));
        ssh.args(["-M", "-N", "-f", "-o", IDLE_MAX, LOGIN]);
        ssh.env_remove("SSH_AUTH_SOCK").env("SSH_ASKPASS_REQUIRE", "never");
        if let Credential::Password(_) = host.credential {
            ssh.env("SSH_ASKPASS", self.agent_dir.join("askpass")).env("SSH_ASKPASS_REQUIRE", "force");
            ssh.env("DISPLAY", ":0").env("MINIK8S_PASSWORD_FILE", folder.join("password"));
        }
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let ended = timeout(LOGIN_MAX, ssh.status()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(_)) => {
                // The log lacks the reason of a jump host's refusal.
                let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
                let lines: Vec<&str> =
                    log.lines().map(str::trim).filter(|line| is_message_line(line)).collect();
                let end = lines[lines.len().saturating_sub(2)..].join("; ");
                Err(SshError::Unreachable(if end.is_empty() { "ssh gave no reason".to_owned() } else { end }))
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(SshError::Unreachable("this node has no ssh; install openssh-client".to_owned()))
            }
            Ok(Err(error)) => Err(SshError::Unreachable(error.to_string())),
            Err(_) => Err(SshError::Unreachable(format!("no login within {LOGIN_MAX:?}"))),
        }
    }
}

/// True unless the line belongs to a drawing or banner.
fn is_message_line(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('@') && line.chars().any(char::is_alphabetic)
}

/// Creates a file in a new folder, which no ssh reads yet, so it need not be replaced atomically.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Directory of an agent; its name is short, since socket paths have at most 107 bytes.
fn own_dir(run_dir: &Path, agent_dir: &Path) -> PathBuf {
    let hash = hex(&Sha256::digest(agent_dir.as_os_str().as_encoded_bytes()));
    run_dir.join("ssh").join(&hash[..8])
}

fn remove_secrets(folder: &Path) {
    for secret in ["key", "password"] {
        let _ = fs::remove_file(folder.join(secret));
    }
}

fn folders(run_dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(run_dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Removes secrets left by an agent that ended during a login, and logins without a master. Masters stay.
fn sweep(run_dir: &Path) {
    for folder in folders(run_dir) {
        remove_secrets(&folder);
        if !folder.join("master").exists() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Ends an agent's connections and removes their files; true if there were any.
pub fn end_all(run_dir: &Path, agent_dir: &Path) -> io::Result<bool> {
    let run_dir = own_dir(run_dir, agent_dir);
    for folder in folders(&run_dir).iter().filter(|folder| folder.join("master").exists()) {
        let mut ssh = std::process::Command::new("ssh");
        ssh.arg("-F").arg(folder.join("config")).arg("-S").arg(folder.join("master"));
        ssh.args(["-O", "exit", LOGIN]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A failure is harmless: the master is gone, or ends when idle, with its socket's folder.
        let _ = ssh.status();
    }
    match fs::remove_dir_all(&run_dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl RealSsh {
    async fn run_now(&self, host: &LoginHost, command: RemoteCommand) -> Result<RemoteOutput, SshError> {
        let folder = self.folder(host);
        let login = self.login(&folder);
        let closed = |_| SshError::Unreachable("the agent is stopping".to_owned());
        let _permit = login.commands.acquire().await.map_err(closed)?;
        let session = self.session(host, &folder, &login).await?;
        let limit = command.timeout;
        let ended = timeout(limit, carry_out(&session, command)).await;
        let output = ended
            .map_err(|_| SshError::TimedOut(limit))?
            .map_err(|error| SshError::BrokenOff(error_chain(&error)))?;
        output.ok_or_else(|| {
            let user = host.login.username.as_deref().unwrap_or_default();
            let why =
                format!("the shell of user {user} ended before it ran the command; see its startup files");
            SshError::Unreachable(why)
        })
    }
}

#[async_trait]
impl Ssh for RealSsh {
    async fn run(&self, host: &LoginHost, command: RemoteCommand) -> Result<RemoteOutput, SshError> {
        // The limit includes waiting for other commands.
        let limit = LOGIN_MAX + command.timeout;
        timeout(limit, self.run_now(host, command)).await.unwrap_or(Err(SshError::TimedOut(limit)))
    }
}

/// Returns the output after the mark, cut to `max` bytes; `None` without the mark.
fn behind_mark(mut bytes: Vec<u8>, max: u64) -> Option<Vec<u8>> {
    let mark = format!("\n{BEGIN}\n");
    let at = bytes.windows(mark.len()).position(|part| part == mark.as_bytes())?;
    bytes.drain(..at + mark.len());
    bytes.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    Some(bytes)
}

/// Runs a command; `None` if the shell ended before it.
async fn carry_out(
    session: &Session,
    command: RemoteCommand,
) -> Result<Option<RemoteOutput>, openssh::Error> {
    let piped = openssh::Stdio::piped;
    let text = format!("printf '\\n%s\\n' '{BEGIN}'; printf '\\n%s\\n' '{BEGIN}' >&2\n{}", command.text);
    let mut child = session.shell(&text);
    let mut child = child.stdin(piped()).stdout(piped()).stderr(piped()).spawn().await?;
    let (stdin, stdout, stderr) = (child.stdin().take(), child.stdout().take(), child.stderr().take());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read everything has its reasons, and reports them.
            let _ = stdin.write_all(&command.stdin).await;
            let _ = stdin.shutdown().await;
        }
        Ok::<(), io::Error>(())
    };
    let read_out = async {
        let Some(mut stdout) = stdout else { return Ok(()) };
        (&mut stdout).take(command.stdout_max.saturating_add(NOISE_MAX)).read_to_end(&mut out).await?;
        tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await.map(drop)
    };
    let read_err = async {
        let Some(mut stderr) = stderr else { return Ok(()) };
        (&mut stderr).take(STDERR_MAX + NOISE_MAX).read_to_end(&mut err).await?;
        tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await.map(drop)
    };
    tokio::try_join!(write, read_out, read_err).map_err(openssh::Error::ChildIo)?;
    let code = match child.wait().await {
        Ok(status) => status.code().unwrap_or(-1),
        // The crate turns exit code 127 into this error.
        Err(openssh::Error::Remote(error)) if error.kind() == io::ErrorKind::NotFound => 127,
        Err(error) => return Err(error),
    };
    let Some(stdout) = behind_mark(out, command.stdout_max) else { return Ok(None) };
    let stderr = behind_mark(err, STDERR_MAX).unwrap_or_default();
    Ok(Some(RemoteOutput { code, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }))
}
