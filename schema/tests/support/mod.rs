//! A private etcd for each test, and bounded waits.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schema::store::SharedStore;
use schema::store::etcd::{Access, EtcdStore, Login};
use tempfile::TempDir;

use self::ports::free_port;

mod ports;

/// Longest wait for anything in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A private etcd on loopback, killed (only its own pid) when dropped.
pub(crate) struct PrivateEtcd {
    child: Child,
    flags: &'static [&'static str],
    client_port: u16,
    peer_port: u16,
    data: PathBuf,
    _dir: TempDir,
}

impl PrivateEtcd {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts etcd with further flags.
    pub(crate) fn start_with(flags: &'static [&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let (client_port, peer_port) = (free_port(), free_port());
        let child = spawn(&data, client_port, peer_port, flags);
        Self { child, flags, client_port, peer_port, data, _dir: dir }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn access(&self, login: Option<Login>) -> Access {
        Access { endpoints: vec![self.endpoint()], login, tls: None, prefers_first: false }
    }

    /// Runs `etcdctl`.
    pub(crate) fn ctl(&self, args: &[&str]) {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint()])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }

    pub(crate) async fn connect(&self) -> EtcdStore {
        EtcdStore::connect(&self.access(None), PATIENCE).await.unwrap()
    }

    /// Kills etcd with SIGKILL and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts etcd again on the same data and port.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.data, self.client_port, self.peer_port, self.flags);
    }

    /// Deletes all data; start etcd again with [`PrivateEtcd::restart`].
    pub(crate) fn wipe(&mut self) {
        std::fs::remove_dir_all(&self.data).unwrap();
    }

    /// Sends a signal by name to etcd's own pid: `STOP`, `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Returns the number of streams of watches that etcd serves, and of their watches.
    pub(crate) fn watch_counts(&self) -> [u32; 2] {
        let mut connection = TcpStream::connect(("127.0.0.1", self.client_port)).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        ["watch_stream_total", "watcher_total"].map(|name| {
            let name = format!("etcd_debugging_mvcc_{name} ");
            text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
        })
    }

    /// Compacts the history up to `revision`, as an operator would.
    pub(crate) fn compact(&self, revision: i64) {
        self.ctl(&["compact", &revision.to_string()]);
    }
}

impl Drop for PrivateEtcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(data: &std::path::Path, client_port: u16, peer_port: u16, flags: &[&str]) -> Child {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    Command::new("etcd")
        .args(["--name", "test", "--log-level", "error", "--logger", "zap", "--data-dir"])
        .arg(data)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("test={peer}")])
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("these tests need the etcd binary in PATH: apt-get install etcd-server etcd-client (tests/run.sh does it)")
}

/// Waits until `check` returns true; panics with `what` after [`PATIENCE`].
pub(crate) async fn eventually<F, Fut>(what: &str, mut check: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let started = Instant::now();
    while !check().await {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A store under test: etcd or in memory.
pub(crate) trait Backend: Send + Sync {
    fn store(&self) -> SharedStore;
    fn compact(&self, revision: i64);
}

pub(crate) struct OnEtcd {
    etcd: PrivateEtcd,
    store: SharedStore,
}

impl OnEtcd {
    pub(crate) async fn start() -> Self {
        let etcd = PrivateEtcd::start();
        let store = Arc::new(etcd.connect().await);
        Self { etcd, store }
    }
}

impl Backend for OnEtcd {
    fn store(&self) -> SharedStore {
        Arc::clone(&self.store)
    }
    fn compact(&self, revision: i64) {
        self.etcd.compact(revision);
    }
}

pub(crate) struct InMemory(schema::store::memory::MemoryStore);

impl InMemory {
    pub(crate) async fn start() -> Self {
        Self(schema::store::memory::MemoryStore::new())
    }
}

impl Backend for InMemory {
    fn store(&self) -> SharedStore {
        Arc::new(self.0.clone())
    }
    fn compact(&self, revision: i64) {
        self.0.compact(revision);
    }
}
