//! The system's ssh against a real sshd on loopback, with its own keys.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use schema::kinds::job::{JumpHost, SlurmLogin};

use super::{Credential, LoginHost, RealSsh, RemoteCommand, RemoteOutput, Ssh as _, SshError, end_all};

#[path = "../../../../schema/tests/support/ports.rs"]
mod ports;

/// An SSH server that accepts a single key.
struct Server {
    dir: tempfile::TempDir,
    sshd: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Otherwise masters stay for ten minutes, and so do their sessions.
        let _ = end_all(&self.dir.path().join("run"), &self.dir.path().join("agent"));
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

impl Server {
    /// Starts a server; `None` where there is no sshd.
    fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Starts a server that accepts a user's password and no key.
    fn with_passwords() -> Option<Self> {
        Self::start_with("PasswordAuthentication yes\nPubkeyAuthentication no\n")
    }

    /// Starts a server with further settings, in which `DIR` stands for its folder.
    fn start_with(more: &str) -> Option<Self> {
        if !Path::new("/usr/sbin/sshd").exists() {
            eprintln!("skipped: there is no sshd; install openssh-server");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        for key in ["host", "other", "user", "stranger"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-N", "", "-C", "", "-t", "ed25519", "-f", &at(key)]);
            assert!(keygen.status().unwrap().success());
        }
        fs::copy(at("user.pub"), at("authorized")).unwrap();
        let port = ports::free_port();
        let settings = format!(
            "{}ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n",
            // sshd uses the first value of each setting.
            more.replace("DIR", &dir.path().display().to_string()),
            at("host"),
            at("authorized"),
        );
        fs::write(at("config"), settings).unwrap();
        let _ = fs::create_dir_all("/run/sshd");
        let quiet = Stdio::null;
        let mut sshd = Command::new("/usr/sbin/sshd");
        let sshd =
            sshd.args(["-D", "-e", "-f", &at("config")]).stdin(quiet()).stdout(quiet()).stderr(quiet());
        let server = Self { sshd: sshd.spawn().unwrap(), dir, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "sshd does not answer");
            std::thread::yield_now();
        }
        Some(server)
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join(file)).unwrap().trim().to_owned()
    }

    fn login(&self, host_key: &str, key: &str) -> LoginHost {
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let login = SlurmLogin {
            host: Some("127.0.0.1".into()),
            port: Some(self.port),
            username: Some(String::from_utf8(user).unwrap().trim().to_owned()),
            host_keys: vec![self.text(host_key)],
            ..SlurmLogin::default()
        };
        LoginHost { login, credential: Credential::Key(self.text(key).into_bytes()) }
    }

    fn ssh(&self) -> RealSsh {
        let agent_dir = self.dir.path().join("agent");
        fs::create_dir_all(&agent_dir).unwrap();
        RealSsh::new(&self.dir.path().join("run"), &agent_dir)
    }

    /// Folder of the agent's logins.
    fn ssh_dir(&self) -> std::path::PathBuf {
        let mut folders = fs::read_dir(self.dir.path().join("run/ssh")).unwrap();
        folders.next().map_or_else(|| self.dir.path().join("none"), |folder| folder.unwrap().path())
    }

    /// True if ssh's folders on disk contain a secret.
    fn has_secrets(&self) -> bool {
        let output =
            Command::new("grep").args(["-rl", "PRIVATE KEY"]).arg(self.dir.path().join("run")).output();
        !output.unwrap().stdout.is_empty()
    }
}

fn command(text: &str) -> RemoteCommand {
    let timeout = Duration::from_secs(20);
    RemoteCommand { text: text.to_owned(), stdin: Bytes::new(), timeout, stdout_max: 1 << 20 }
}

async fn run(ssh: &RealSsh, host: &LoginHost, text: &str) -> Result<RemoteOutput, SshError> {
    ssh.run(host, command(text)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_with_their_input_output_and_code_over_one_connection() {
    let Some(server) = Server::start() else { return };
    let (ssh, host) = (server.ssh(), server.login("host.pub", "user"));
    let said = run(&ssh, &host, "printf 'a\\0b'; echo oops >&2; exit 3").await.unwrap();
    assert_eq!(said, RemoteOutput { code: 3, stdout: b"a\0b".to_vec(), stderr: "oops\n".to_owned() });
    assert_eq!(run(&ssh, &host, "exit 255").await.unwrap().code, 255, "no broken connection");
    assert_eq!(run(&ssh, &host, "exit 127").await.unwrap().code, 127);
    let large = Bytes::from(vec![7; 3 << 20]);
    let counts = RemoteCommand { stdin: large, ..command("wc -c") };
    assert_eq!(ssh.run(&host, counts).await.unwrap().stdout, b"3145728\n");
    let cut = RemoteCommand { stdout_max: 5, ..command("yes | head -c 3000000") };
    assert_eq!(ssh.run(&host, cut).await.unwrap().stdout.len(), 5);
    let slow = RemoteCommand { timeout: Duration::from_millis(300), ..command("exec sleep 5") };
    assert!(matches!(ssh.run(&host, slow).await, Err(SshError::TimedOut(_))));
    assert!(!server.has_secrets());
    let one = run(&ssh, &host, "echo $PPID").await.unwrap().stdout;
    assert_eq!(run(&ssh, &host, "echo $PPID").await.unwrap().stdout, one, "one connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_key_and_a_key_that_is_not_let_in_are_refused() {
    let Some(server) = Server::start() else { return };
    let ssh = server.ssh();
    let refusal = |host_key, key| {
        let (ssh, host) = (&ssh, server.login(host_key, key));
        async move { run(ssh, &host, "true").await.unwrap_err().to_string() }
    };
    let wrong_host = refusal("other.pub", "user").await;
    assert!(wrong_host.contains("Host key verification failed"), "{wrong_host}");
    let stranger = refusal("host.pub", "stranger").await;
    assert!(stranger.contains("Permission denied"), "{stranger}");
    let mut unknown = server.login("host.pub", "user");
    unknown.login.host_keys.clear();
    let unknown = run(&ssh, &unknown, "true").await.unwrap_err().to_string();
    assert!(unknown.contains("Host key verification failed"), "{unknown}");
    assert!(!server.has_secrets());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_host_is_held_to_its_key_too() {
    let (Some(server), Some(gate)) = (Server::start(), Server::start()) else { return };
    // The jump host accepts the same key.
    fs::copy(server.dir.path().join("user.pub"), gate.dir.path().join("authorized")).unwrap();
    let ssh = server.ssh();
    let through = |key: &str| {
        let mut host = server.login("host.pub", "user");
        let jump = JumpHost {
            host: "127.0.0.1".into(),
            port: Some(gate.port),
            host_keys: vec![gate.text(key)],
            ..JumpHost::default()
        };
        host.login.jump_host = Some(jump);
        host
    };
    let seen = run(&ssh, &through("host.pub"), "echo $SSH_CONNECTION").await.unwrap();
    assert_eq!(seen.code, 0, "{seen:?}");
    assert!(matches!(run(&ssh, &through("other.pub"), "true").await, Err(SshError::Unreachable(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shell_prints_when_it_starts_is_no_answer() {
    let Some(server) = Server::start_with("SetEnv HOME=DIR BASH_ENV=DIR/.bashrc\n") else { return };
    let (ssh, host) = (server.ssh(), server.login("host.pub", "user"));
    let noise = server.dir.path().join(".bashrc");
    fs::write(&noise, "echo Welcome; echo Trouble >&2\n").unwrap();
    let said = run(&ssh, &host, "printf answer; printf why >&2; exit 4").await.unwrap();
    let expected = RemoteOutput { code: 4, stdout: b"answer".to_vec(), stderr: "why".to_owned() };
    assert_eq!(said, expected);
    // A shell that ends in its startup file has not begun the command.
    fs::write(&noise, "exit 0\n").unwrap();
    let ended = run(&ssh, &host, "true").await.unwrap_err();
    assert!(matches!(&ended, SshError::Unreachable(why) if why.contains("before it ran")), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_connections_that_are_ended() {
    let Some(server) = Server::start() else { return };
    let (run_dir, agent_dir) = (server.dir.path().join("run"), server.dir.path().join("agent"));
    let ssh = server.ssh();
    let pid = run(&ssh, &server.login("host.pub", "user"), "echo $PPID").await.unwrap().stdout;
    let pid = String::from_utf8(pid).unwrap();
    // The files of an agent killed during a login are deleted at its next start; a live connection stays.
    let killed = server.ssh_dir().join("0123456789abcdef");
    fs::create_dir_all(&killed).unwrap();
    fs::write(killed.join("key"), "PRIVATE KEY").unwrap();
    let again = server.ssh();
    assert!(!killed.exists() && !server.has_secrets());
    assert_eq!(
        run(&again, &server.login("host.pub", "user"), "echo $PPID").await.unwrap().stdout,
        pid.as_bytes()
    );
    assert!(end_all(&run_dir, &agent_dir).unwrap());
    assert!(!server.ssh_dir().exists());
    let begun = Instant::now();
    while Path::new(&format!("/proc/{}", pid.trim())).exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the connection is still there");
        std::thread::yield_now();
    }
    assert!(!end_all(&run_dir, &agent_dir).unwrap(), "there is nothing any more");
}

// Seen red with a login for each command.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_for_a_login_that_fails_fail_with_it() {
    let Some(server) = Server::start() else { return };
    let ssh = server.ssh();
    let mut host = server.login("host.pub", "user");
    // This server accepts connections and stays silent: ssh gives up after 15 s.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    host.login.port = Some(silent.local_addr().unwrap().port());
    let all = futures::future::join_all((0..6).map(|_| run(&ssh, &host, "true"))).await;
    assert!(all.iter().all(|it| matches!(it, Err(SshError::Unreachable(_)))), "{all:?}");
    silent.set_nonblocking(true).unwrap();
    assert_eq!(std::iter::from_fn(|| silent.accept().ok()).count(), 1, "one after the other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_broke_off_is_made_again() {
    let Some(server) = Server::start() else { return };
    let (ssh, host) = (server.ssh(), server.login("host.pub", "user"));
    let pid = run(&ssh, &host, "echo $PPID").await.unwrap().stdout;
    let pid = String::from_utf8(pid).unwrap();
    // The server's side of the connection ends during a command.
    let broken = run(&ssh, &host, &format!("kill -9 {}; sleep 9", pid.trim())).await;
    assert!(matches!(broken, Err(SshError::BrokenOff(_))), "{broken:?}");
    assert_eq!(run(&ssh, &host, "echo again").await.unwrap().stdout, b"again\n");
}

/// A user of this machine with a password, removed at the end.
struct User {
    name: String,
    password: String,
}

impl User {
    /// Creates a user; `None` where the test may not.
    fn create() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root makes users");
            return None;
        }
        let user = Self {
            name: format!("mk8s-test-{}", std::process::id()),
            password: format!("canary-{}-{}", std::process::id(), Instant::now().elapsed().as_nanos()),
        };
        let made = Command::new("useradd").args(["-M", "-d", "/tmp", "-s", "/bin/sh", &user.name]).status();
        assert!(made.unwrap().success(), "useradd");
        let mut chpasswd = Command::new("chpasswd").stdin(Stdio::piped()).spawn().unwrap();
        let line = format!("{}:{}\n", user.name, user.password);
        std::io::Write::write_all(&mut chpasswd.stdin.take().unwrap(), line.as_bytes()).unwrap();
        assert!(chpasswd.wait().unwrap().success(), "chpasswd");
        Some(user)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = Command::new("userdel").args(["--force", &self.name]).stderr(Stdio::null()).status();
    }
}

/// Finds the word in the command lines and environments of all other processes.
fn processes_with(word: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let name = process.file_name().to_string_lossy().into_owned();
        if name == own || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(process.path().join(file)).unwrap_or_default();
            if bytes.windows(word.len()).any(|part| part == word.as_bytes()) {
                found.push(format!("{name}/{file}: {}", String::from_utf8_lossy(&bytes)));
            }
        }
    }
    found
}

// Seen red with the password in the environment of ssh.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_given_to_ssh_alone() {
    let (Some(server), Some(gate)) = (Server::with_passwords(), Server::with_passwords()) else { return };
    let Some(user) = User::create() else { return };
    let ssh = server.ssh();
    let login = |host_jump: bool| SlurmLogin {
        username: Some(user.name.clone()),
        jump_host: host_jump.then(|| JumpHost {
            host: "127.0.0.1".into(),
            port: Some(gate.port),
            host_keys: vec![gate.text("host.pub")],
            ..JumpHost::default()
        }),
        ..server.login("host.pub", "user").login
    };
    // All processes are checked during the login and while commands run.
    let (is_over, watched) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let watcher = std::thread::spawn({
        let (is_over, watched, word) = (Arc::clone(&is_over), Arc::clone(&watched), user.password.clone());
        move || {
            let mut found = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                found.extend(processes_with(&word));
                watched.fetch_add(1, Ordering::SeqCst);
            }
            found
        }
    });
    for jump in [false, true] {
        let credential = Credential::Password(user.password.clone().into_bytes());
        let host = LoginHost { login: login(jump), credential };
        let said = run(&ssh, &host, "id -un; sleep 0.3").await.unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap().trim(), user.name);
        let left = Command::new("grep").args(["-r", "canary-"]).arg(server.dir.path()).output().unwrap();
        assert!(left.stdout.is_empty(), "the password lies on the disk");
        let wrong = LoginHost { login: login(jump), credential: Credential::Password(b"wrong".to_vec()) };
        let refused = run(&ssh, &wrong, "true").await.unwrap_err().to_string();
        // ssh does not report the answer of its connection to a jump host.
        assert!(
            refused.starts_with("cannot log in") && (jump || refused.contains("Permission denied")),
            "{refused}"
        );
    }
    is_over.store(true, Ordering::SeqCst);
    let found = watcher.join().unwrap();
    assert!(found.is_empty(), "{found:?}");
    assert!(watched.load(Ordering::SeqCst) > 5, "nobody looked");
}
