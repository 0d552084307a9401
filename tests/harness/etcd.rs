//! A private etcd that knows its clients by their certificates, and its content as the reconciler `r0` reads it.

use std::fmt;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schema::control::lock;
use schema::store::etcd::{Access, EtcdStore};
use schema::store::{KeyValue, Op, Store as _, StoreError, TxnOutcome};
use schema::trust::{Identity, TrustDir};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::process::{Daemon, run};
use crate::trust::Trust;
use crate::wait::{eventually, secs};

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// An etcd member with its own ports and directory.
pub struct Etcd {
    /// The process.
    pub daemon: Daemon,
    client: String,
    data_dir: PathBuf,
    /// Certificate of the reconciler `r0`, etcd's root.
    root: TrustDir,
    /// Connection, once there is one. Before the runtime, which it needs.
    store: Mutex<Option<Arc<EtcdStore>>>,
    runtime: Runtime,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("client", &self.client).finish_non_exhaustive()
    }
}

/// A key of the tests themselves, sorted just before the product's.
const MARKER: &str = "/minik8s-tests";

/// A key as stored in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdKey {
    /// Full key.
    pub key: String,
    /// Value, as text.
    pub value: String,
    /// Revision at which it was created.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdChange {
    /// Revision of the transaction, shared by its changes.
    pub revision: i64,
    /// Full key.
    pub key: String,
    /// New value; `None` if the key was deleted.
    pub value: Option<String>,
}

/// Output of etcdctl for a watch.
#[derive(Deserialize)]
struct Watched {
    #[serde(rename = "Events", default)]
    events: Vec<WatchedEvent>,
}

#[derive(Deserialize)]
struct WatchedEvent {
    /// 0 or missing for a put.
    #[serde(default, rename = "type")]
    kind: u8,
    kv: RawKey,
}

/// Output of etcdctl for a read.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    kvs: Vec<RawKey>,
}

#[derive(Deserialize)]
struct RawKey {
    key: String,
    #[serde(default)]
    value: String,
    mod_revision: i64,
    #[serde(default)]
    lease: i64,
}

impl Etcd {
    /// An etcd that is not started yet, on 127.0.0.1 at `client_port`, and at `also`, where nodes reach it, if given.
    pub fn new(
        dir: &Path,
        client_port: u16,
        peer_port: u16,
        also: Option<&str>,
        trust: &Trust,
    ) -> Result<Self> {
        let client = format!("https://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        let far = also.map(|address| format!("https://{address}:{client_port}"));
        let listen = far.iter().fold(client.clone(), |all, url| format!("{all},{url}"));
        let data = dir.join("etcd").to_string_lossy().into_owned();
        let own = trust.of(&Identity::etcd())?;
        let file = |path: PathBuf| path.to_string_lossy().into_owned();
        let mut command = vec!["etcd".to_owned()];
        for (flag, value) in [
            ("name", "test"),
            ("data-dir", &data),
            ("listen-client-urls", &listen),
            ("advertise-client-urls", far.as_deref().unwrap_or(&client)),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &format!("test={peer}")),
            ("client-cert-auth", "true"),
            ("trusted-ca-file", &file(own.authorities_file())),
            ("cert-file", &file(own.certificate_file())),
            ("key-file", &file(own.key_file())),
            // It would take everyone for itself.
            ("enable-grpc-gateway", "false"),
        ] {
            command.push(format!("--{flag}={value}"));
        }
        Ok(Self {
            daemon: Daemon::new("etcd", dir, command),
            client,
            data_dir: dir.join("etcd"),
            root: trust.reconciler("r0")?,
            store: Mutex::default(),
            runtime: Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// An etcd that others run, read with the certificate of one of their reconcilers.
    pub(crate) fn foreign(dir: &Path, client: String, root: TrustDir) -> Result<Self> {
        Ok(Self {
            daemon: Daemon::new("etcd", dir, Vec::new()),
            client,
            data_dir: dir.join("etcd"),
            root,
            store: Mutex::default(),
            runtime: Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// Starts it and waits until it answers.
    pub fn start(&mut self) -> Result<()> {
        self.daemon.start()?;
        self.wait_ready()
    }

    /// Waits until it answers.
    pub fn wait_ready(&self) -> Result<()> {
        eventually("etcd answers", secs(20), || match self.revision() {
            // It does not know its users any more, or not yet.
            Err(error) if format!("{error:#}").contains("permission denied") => Ok(()),
            answer => answer.map(drop),
        })
    }

    /// Directory of its data.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// `https://127.0.0.1:port`.
    pub fn endpoint(&self) -> &str {
        &self.client
    }

    /// Access as somebody.
    pub fn access(&self, pki: &TrustDir) -> Access {
        Access::anonymous(std::slice::from_ref(&self.client)).with_tls(Some(pki.tls_files()))
    }

    /// Access as etcd's root.
    pub fn root(&self) -> Access {
        self.access(&self.root)
    }

    /// Sends a request as etcd's root, over a new connection if the present one is of no use.
    pub fn ask<T>(&self, request: &impl AsyncFn(&EtcdStore) -> Result<T, StoreError>) -> Result<T> {
        let known = lock(&self.store).clone();
        self.runtime.block_on(async {
            if let Some(store) = known
                && let Ok(answer) = request(store.as_ref()).await
            {
                return Ok(answer);
            }
            let store = Arc::new(Box::pin(EtcdStore::connect(&self.root(), CONNECT_MAX)).await?);
            let answer = request(store.as_ref()).await?;
            *lock(&self.store) = Some(store);
            Ok(answer)
        })
    }

    /// Writes a key.
    pub fn put(&self, key: impl Display, value: &impl Serialize) -> Result<()> {
        let put = Op::put(key, serde_json::to_string(value)?);
        let written = self.ask(&async |store: &EtcdStore| store.txn(Vec::new(), vec![put.clone()]).await)?;
        ensure!(matches!(written, TxnOutcome::Committed(_)), "not written");
        Ok(())
    }

    /// Revision of the store, which counts every write.
    pub fn revision(&self) -> Result<i64> {
        Ok(self.ask(&async |store: &EtcdStore| store.list(MARKER).await)?.revision)
    }

    /// A key; `None` if it does not exist.
    pub fn key(&self, key: impl Display) -> Result<Option<EtcdKey>> {
        let key = key.to_string();
        self.ask(&async |store: &EtcdStore| store.get(&key).await)?.map(decode).transpose()
    }

    /// Decoded value of a key.
    pub fn value<T: DeserializeOwned>(&self, key: impl Display) -> Result<T> {
        let found = self.key(&key)?.with_context(|| format!("etcd has no {key}"))?;
        serde_json::from_str(&found.value).with_context(|| format!("{key} is {}", found.value))
    }

    /// Last value of a key that existed after revision `since`, even if it is deleted now.
    pub fn last_value<T: DeserializeOwned>(&self, key: impl Display, since: i64) -> Result<T> {
        let key = key.to_string();
        let mut changes = self.changes(&key, since)?;
        changes.retain(|change| change.key == key);
        let last = changes.into_iter().rev().find_map(|change| change.value);
        let text = last.map_or_else(|| self.value_at(&key, since), Ok)?;
        serde_json::from_str(&text).with_context(|| format!("{key} was odd: {text}"))
    }

    /// Value that a key had at a revision.
    fn value_at(&self, key: &str, revision: i64) -> Result<String> {
        let then = self.raw(&["get", "--rev", &revision.to_string(), key])?;
        text(&then.with_context(|| format!("etcd had no {key} at revision {revision}"))?.value)
    }

    /// The key that etcdctl reads.
    fn raw(&self, words: &[&str]) -> Result<Option<RawKey>> {
        let answer: Answer = serde_json::from_str(&self.etcdctl(&[&["-w", "json"][..], words].concat())?)?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Every key below a prefix.
    pub fn list(&self, prefix: &str) -> Result<Vec<EtcdKey>> {
        self.ask(&async |store: &EtcdStore| store.list(prefix).await)?.items.into_iter().map(decode).collect()
    }

    /// Every change of the product's keys below a prefix after revision `since`, in order.
    pub fn changes(&self, prefix: &str, since: i64) -> Result<Vec<EtcdChange>> {
        // A watch does not report that it is complete: it is, once it shows a key that is written last.
        let last = self.revision()?;
        self.etcdctl(&["put", MARKER, &last.to_string()])?;
        let mut command = self.etcdctl_command(&self.root);
        command.extend(["watch", "-w", "json"].map(str::to_owned));
        command.extend([
            "--rev".to_owned(),
            (since + 1).to_string(),
            MARKER.to_owned(),
            "/minik8s0".to_owned(),
        ]);
        let dir = self.data_dir.parent().context("etcd's data lies in no folder")?;
        let mut watch = Daemon::new(format!("etcd-watch-{last}"), dir, command);
        watch.start()?;
        let shown = eventually("etcd has shown all", secs(20), || {
            let text = std::fs::read_to_string(watch.log_path())?;
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let mut changes = Vec::new();
            for line in whole.lines() {
                let shown: Watched =
                    serde_json::from_str(line).with_context(|| format!("etcdctl says {line}"))?;
                changes.extend(shown.events.iter().map(change).collect::<Result<Vec<_>>>()?);
            }
            let end = changes.iter().any(|change| change.key == MARKER && change.revision > last);
            end.then_some(changes).context("the last one is missing")
        })?;
        Ok(shown.into_iter().filter(|change| change.key.starts_with(prefix)).collect())
    }

    /// Revokes the lease of a key, as if its owner had been away for its whole duration.
    pub fn end_lease_of(&self, key: &EtcdKey) -> Result<()> {
        let found = self.raw(&["get", &key.key])?.with_context(|| format!("etcd has no {}", key.key))?;
        self.etcdctl(&["lease", "revoke", &format!("{:x}", found.lease)]).map(|_| ())
    }

    /// Output of etcdctl as etcd's root.
    pub fn etcdctl(&self, args: &[&str]) -> Result<String> {
        self.etcdctl_as(&self.root, args)
    }

    /// Output of etcdctl as somebody.
    pub fn etcdctl_as(&self, pki: &TrustDir, args: &[&str]) -> Result<String> {
        let command = self.etcdctl_command(pki);
        let words: Vec<&str> = command.iter().map(String::as_str).chain(args.iter().copied()).collect();
        run(words[0], &words[1..])
    }

    /// Command line of etcdctl as somebody, without its verb.
    pub fn etcdctl_command(&self, pki: &TrustDir) -> Vec<String> {
        let files = [
            ("--cacert", pki.authorities_file()),
            ("--cert", pki.certificate_file()),
            ("--key", pki.key_file()),
        ];
        let words = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &self.client];
        let times = ["--command-timeout=10s", "--dial-timeout=5s"];
        let files = files.map(|(flag, file)| format!("{flag}={}", file.display()));
        words.into_iter().chain(times).map(str::to_owned).chain(files).collect()
    }
}

fn change(event: &WatchedEvent) -> Result<EtcdChange> {
    let value = text(&event.kv.value)?;
    Ok(EtcdChange {
        revision: event.kv.mod_revision,
        key: text(&event.kv.key)?,
        value: (event.kind == 0).then_some(value),
    })
}

/// Decodes a field of etcdctl's output.
fn text(field: &str) -> Result<String> {
    Ok(String::from_utf8(STANDARD.decode(field).context("etcdctl's base64 is broken")?)?)
}

fn decode(found: KeyValue) -> Result<EtcdKey> {
    Ok(EtcdKey {
        value: String::from_utf8(found.value.to_vec())?,
        key: found.key,
        create_revision: found.create_revision,
        mod_revision: found.mod_revision,
    })
}
