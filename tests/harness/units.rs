//! Units of systemd without systemd: their commands, run as it would run them, and a socket for their messages.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use schema::control::lock;

/// A unit, parsed.
#[derive(Debug)]
pub struct Unit(Vec<(String, String)>);

impl Unit {
    /// Reads the text of a unit.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
        let pairs = lines.filter_map(|line| line.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// The last value of `key`, if there is one.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Words of all values of `key`.
    pub fn words(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(name, _)| name == key).flat_map(|(_, value)| value.split_whitespace())
    }

    /// A shell script that runs the unit's command with its settings, user, capabilities and state directory.
    pub fn script(&self) -> Result<String> {
        let mut script = String::new();
        let mut setpriv = vec!["setpriv --pdeathsig KILL --inh-caps=-all".to_owned()];
        if let Some(user) = self.value("User") {
            for dir in self.words("StateDirectory") {
                let dir = format!("/var/lib/{dir}");
                script += &format!("mkdir -p {dir}; chown -R {user}:{user} {dir}; chmod 700 {dir}; ");
            }
            for dir in self.words("RuntimeDirectory") {
                script += &format!("mkdir -p /run/{dir}; chown {user}:{user} /run/{dir}; ");
            }
            setpriv.push(format!("--reuid {user} --regid {user} --clear-groups"));
        }
        if self.value("NoNewPrivileges") == Some("yes") {
            setpriv.push("--no-new-privs".to_owned());
        }
        let mut capabilities = vec!["-all".to_owned()];
        let kept = self.words("CapabilityBoundingSet");
        capabilities.extend(kept.map(|name| name.replace("CAP_", "+").to_lowercase()));
        setpriv.push(format!("--bounding-set={}", capabilities.join(",")));
        for (_, command) in self.0.iter().filter(|(key, _)| key == "ExecStartPre") {
            script += &format!("{}; ", command.strip_prefix('+').context("a command of another user")?);
        }
        // With `-`, the file may be missing.
        let settings = self.value("EnvironmentFile").context("no EnvironmentFile")?.trim_start_matches('-');
        let command = self.value("ExecStart").context("no ExecStart")?;
        script += &format!("set -a; . {settings}; set +a; exec {} -- {command}", setpriv.join(" "));
        Ok(script)
    }
}

/// A socket to which daemons report, as to systemd.
#[derive(Debug)]
pub struct NotifySocket {
    path: PathBuf,
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
    ended: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl NotifySocket {
    /// Listens at this path, for every user.
    pub fn listen(path: &Path) -> Result<Self> {
        let socket =
            UnixDatagram::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ended = Arc::new(AtomicBool::new(false));
        let (messages, end) = (Arc::clone(&heard), Arc::clone(&ended));
        let listener = spawn(move || {
            let mut bytes = [0; 4096];
            while !end.load(Ordering::SeqCst) {
                if let Ok(length) = socket.recv(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    lock(&messages).extend(text.lines().map(|line| (Instant::now(), line.to_owned())));
                }
            }
        });
        Ok(Self { path: path.to_owned(), heard, ended, listener: Some(listener) })
    }

    /// Time of the last message with these words.
    pub fn last(&self, words: &str) -> Option<Instant> {
        lock(&self.heard).iter().rev().find(|(_, line)| line == words).map(|(at, _)| *at)
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}
