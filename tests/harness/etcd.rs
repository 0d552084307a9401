//! A private etcd, and its content read directly: through its HTTP gateway, or with etcdctl where a login is needed.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::http::request;
use crate::process::{Daemon, run};
use crate::wait::{eventually, secs};

/// An etcd member with its own ports and directory.
#[derive(Debug)]
pub struct Etcd {
    /// The process.
    pub daemon: Daemon,
    client: String,
    data_dir: PathBuf,
    /// User for etcdctl: `None` without a login, or root with its password.
    user: Option<&'static str>,
}

/// User and password of etcd's root.
const ROOT_USER: &str = "root:secret-of-root";

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
    /// Lease of the key; 0 for none.
    pub lease: i64,
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

#[derive(Deserialize)]
struct Answer {
    header: Header,
    #[serde(default)]
    kvs: Vec<RawKey>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Deserialize)]
struct RawKey {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default, deserialize_with = "number")]
    create_revision: i64,
    #[serde(deserialize_with = "number")]
    mod_revision: i64,
    #[serde(default, deserialize_with = "number")]
    lease: i64,
}

/// Reads a number written as a number by etcdctl, or as text by the gateway.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| D::Error::custom(format!("{value} is not a number")))
}

impl Etcd {
    /// An etcd that is not started yet, on 127.0.0.1 at `client_port`, and at `also` if given.
    pub fn new(dir: &Path, client_port: u16, peer_port: u16, also: Option<&str>) -> Self {
        let client = format!("http://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        let listen = match also {
            Some(address) => format!("{client},http://{address}:{client_port}"),
            None => client.clone(),
        };
        let data = dir.join("etcd").to_string_lossy().into_owned();
        let mut command = vec!["etcd".to_owned()];
        for (flag, value) in [
            ("name", "test"),
            ("data-dir", &data),
            ("listen-client-urls", &listen),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &format!("test={peer}")),
        ] {
            command.push(format!("--{flag}={value}"));
        }
        Self { daemon: Daemon::new("etcd", dir, command), client, data_dir: dir.join("etcd"), user: None }
    }

    /// Starts it and waits until it answers.
    pub fn start(&mut self) -> Result<()> {
        self.daemon.start()?;
        self.wait_ready()
    }

    /// Waits until it answers.
    pub fn wait_ready(&self) -> Result<()> {
        eventually("etcd answers", secs(20), || self.revision()).map(|_| ())
    }

    /// Directory of its data.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> &str {
        &self.client
    }

    /// Revision of the store, which counts every write.
    pub fn revision(&self) -> Result<i64> {
        Ok(self.ask("/minik8s/none", None, 0)?.header.revision)
    }

    /// A key; `None` if it does not exist.
    pub fn key(&self, key: impl Display) -> Result<Option<EtcdKey>> {
        self.ask(&key.to_string(), None, 0)?.kvs.first().map(decode).transpose()
    }

    /// Decoded value of a key.
    pub fn value<T: DeserializeOwned>(&self, key: impl Display) -> Result<T> {
        let found = self.key(&key)?.with_context(|| format!("etcd has no {key}"))?;
        serde_json::from_str(&found.value).with_context(|| format!("{key} is {}", found.value))
    }

    /// Last value of a key that existed after revision `since`, even if it is deleted now.
    pub fn last_value<T: DeserializeOwned>(&self, key: impl Display, since: i64) -> Result<T> {
        let key = key.to_string();
        for revision in (since..=self.revision()?).rev() {
            let then = self.ask(&key, None, revision)?;
            if let Some(raw) = then.kvs.first() {
                return serde_json::from_str(&decode(raw)?.value).with_context(|| format!("{key} was odd"));
            }
        }
        anyhow::bail!("etcd has had no {key} since revision {since}")
    }

    /// Every key below a prefix.
    pub fn list(&self, prefix: &str) -> Result<Vec<EtcdKey>> {
        // The first key after the prefix.
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().context("the prefix is empty")? += 1;
        self.ask(prefix, Some(&end), 0)?.kvs.iter().map(decode).collect()
    }

    /// Every change of the product's keys below a prefix after revision `since`, in order.
    pub fn changes(&self, prefix: &str, since: i64) -> Result<Vec<EtcdChange>> {
        // A watch does not report that it is complete: it is, once it shows a key that is written last.
        let last = self.revision()?;
        self.etcdctl(self.user, &["put", MARKER, &last.to_string()])?;
        let words = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &self.client, "watch", "-w", "json"];
        let mut command: Vec<String> = words.map(str::to_owned).into();
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
        let lease = format!("{:x}", key.lease);
        self.etcdctl(self.user, &["lease", "revoke", &lease]).map(|_| ())
    }

    /// Adds a user with these rights and the password `secret-of-<name>`.
    pub fn add_user(&self, name: &str, rights: impl IntoIterator<Item = impl Display>) -> Result<()> {
        let ctl = |words: String| {
            let words: Vec<&str> = words.split(' ').collect();
            self.etcdctl(self.user, &words).map(|_| ())
        };
        ctl(format!("role add {name}"))?;
        rights.into_iter().try_for_each(|right| ctl(format!("role grant-permission {name} {right}")))?;
        ctl(format!("user add {name}:secret-of-{name}"))?;
        ctl(format!("user grant-role {name} {name}"))
    }

    /// Enables authentication: etcd then serves only users who log in.
    pub fn switch_auth_on(&mut self) -> Result<()> {
        self.etcdctl(None, &["user", "add", ROOT_USER])?;
        self.etcdctl(None, &["user", "grant-role", "root", "root"])?;
        self.etcdctl(None, &["auth", "enable"])?;
        self.user = Some(ROOT_USER);
        Ok(())
    }

    /// Output of etcdctl as `user`, a name with its password.
    pub fn etcdctl(&self, user: Option<&str>, args: &[&str]) -> Result<String> {
        let mut words = vec!["ETCDCTL_API=3", "etcdctl", "--endpoints", self.client.as_str()];
        // A login costs etcd a slow hash of the password, and more on a busy machine.
        words.extend(match user {
            Some(_) => ["--command-timeout=30s", "--dial-timeout=10s"],
            None => ["--command-timeout=3s", "--dial-timeout=1s"],
        });
        words.extend(user.iter().flat_map(|user| ["--user", user]));
        words.extend(args);
        run("env", &words)
    }

    /// Reads a key, or every key from it up to `end`, at a revision; 0 is the present.
    fn ask(&self, key: &str, end: Option<&[u8]>, revision: i64) -> Result<Answer> {
        let text = if self.user.is_some() {
            let (end, revision) = (end.map(String::from_utf8_lossy), format!("--rev={revision}"));
            let words = ["-w", "json", "get", &revision, key].into_iter();
            self.etcdctl(self.user, &words.chain(end.as_deref()).collect::<Vec<_>>())?
        } else {
            let end = end.map(|end| STANDARD.encode(end)).unwrap_or_default();
            let body = json!({"key": STANDARD.encode(key), "range_end": end, "revision": revision});
            let address = self.client.trim_start_matches("http://");
            let body = body.to_string();
            let head = format!("POST /v3/kv/range HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
            let (code, text) = request(address, &(head + &body))?;
            ensure!(code == 200, "etcd says {code} to {key}: {text}");
            text
        };
        ensure!(!text.trim().is_empty(), "etcd said nothing");
        Ok(serde_json::from_str(&text)?)
    }
}

fn change(event: &WatchedEvent) -> Result<EtcdChange> {
    let EtcdKey { key, value, mod_revision, .. } = decode(&event.kv)?;
    Ok(EtcdChange { revision: mod_revision, key, value: (event.kind == 0).then_some(value) })
}

fn decode(raw: &RawKey) -> Result<EtcdKey> {
    let text = |field: &str| -> Result<String> {
        Ok(String::from_utf8(STANDARD.decode(field).context("etcdctl's base64 is broken")?)?)
    };
    Ok(EtcdKey {
        key: text(&raw.key)?,
        value: text(&raw.value)?,
        create_revision: raw.create_revision,
        mod_revision: raw.mod_revision,
        lease: raw.lease,
    })
}
