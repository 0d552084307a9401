//! Each key of the contract, tried by a reconciler, its node and another node: they may do what the contract says, and
//! nothing else. Users and strangers do not get as far as that.
//!
//! What agents may is written down here, not taken from `node_role`, so that a fault of that function shows.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use harness::{
    Cluster, Context, Result, Trust, bail, ensure, http_get, secs, tls_connect, tls_connect_as_nobody,
    tls_post_body,
};
use schema::keys::CONTRACT;
use schema::store::etcd::EtcdStore;
use schema::store::{Op, Store as _, StoreError};
use schema::trust::TrustDir;
use tokio::runtime::Runtime;

use self::May::{Nothing, Read, Write};

/// Access to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum May {
    Nothing,
    Read,
    Write,
}

/// What agents may do with keys: with those that name their node, and with all others. The rest of the contract is
/// closed to them.
const AGENTS: [(&str, May, May); 22] = [
    ("/minik8s/leader", Read, Read),
    ("/minik8s/events/<reporter>/<ns>/<id>", Write, Nothing),
    ("/minik8s/bindings/<node>/<ns>/<pod>", Read, Nothing),
    ("/minik8s/bindings/<node>/settled", Read, Nothing),
    ("/minik8s/settings", Read, Read),
    ("/minik8s/services/<ns>/<name>", Read, Read),
    ("/minik8s/routes/<ns>/<name>", Read, Read),
    ("/minik8s/functions/<ns>/<name>", Read, Read),
    ("/minik8s/work/<node>/builds/<image>", Read, Nothing),
    ("/minik8s/status/<node>/images/<image>", Write, Nothing),
    ("/minik8s/work/<node>/jobs/<ns>/<name>", Read, Nothing),
    ("/minik8s/status/<node>/jobs/<ns>/<name>", Write, Nothing),
    ("/minik8s/demand/<node>", Write, Nothing),
    ("/minik8s/nodes/<node>", Write, Read),
    ("/minik8s/subnets/<node>", Read, Read),
    ("/minik8s/heartbeats/<node>", Write, Read),
    ("/minik8s/status/<node>/pods/<ns>/<name>", Write, Nothing),
    ("/minik8s/usage/<node>", Write, Nothing),
    ("/minik8s/rules/<node>", Write, Nothing),
    ("/minik8s/programmed", Read, Read),
    ("/minik8s/trust", Read, Read),
    ("/minik8s/etcd/upkeep", Read, Read),
];

/// Somebody with a certificate.
struct Actor {
    who: &'static str,
    pki: TrustDir,
    store: EtcdStore,
    may: fn(&str) -> May,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Get,
    Put,
    Delete,
    Watch,
}

impl Act {
    fn needs(self) -> May {
        match self {
            Self::Get | Self::Watch => Read,
            Self::Put | Self::Delete => Write,
        }
    }
}

fn of_agents(pattern: &str, is_own: bool) -> May {
    let row = AGENTS.iter().find(|(known, _, _)| *known == pattern);
    row.map_or(Nothing, |(_, own, other)| if is_own { *own } else { *other })
}

/// A key of the pattern. If it names a node, then this one.
fn sample(pattern: &str, node: &str) -> String {
    let part = |part: &str| match part {
        "<node>" | "<reporter>" => node.to_owned(),
        "<kind>" => "Pod".to_owned(),
        "<seq>" | "<n>" => "0000000001".to_owned(),
        part if part.starts_with('<') => "x".to_owned(),
        part => part.to_owned(),
    };
    pattern.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Tries all keys. Nothing else may use etcd: the keys are overwritten and removed.
pub(super) fn is_what_the_contract_says(cluster: &Cluster) -> Result<()> {
    for (pattern, _, _) in AGENTS {
        ensure!(CONTRACT.iter().any(|row| row.pattern == pattern), "the contract has no {pattern}");
    }
    let (runtime, trust) = (Runtime::new()?, &cluster.trust);
    let store = |pki: &TrustDir| runtime.block_on(EtcdStore::connect(&cluster.etcd.access(pki), secs(5)));
    let reconciler = trust.reconciler("r0")?;
    let (own, other) = (cluster.numbered(1)?.name.clone(), trust.node(&cluster.numbered(2)?.name)?);
    let own_pki = trust.node(&own)?;
    let actors = [
        Actor { who: "the reconciler", store: store(&reconciler)?, pki: reconciler, may: |_| Write },
        Actor {
            who: "its node",
            store: store(&own_pki)?,
            pki: own_pki,
            may: |pattern| of_agents(pattern, true),
        },
        Actor {
            who: "another node",
            store: store(&other)?,
            pki: other,
            may: |pattern| of_agents(pattern, false),
        },
    ];
    let since = cluster.etcd.revision()? + 1;
    let mut faults = Vec::new();
    for row in CONTRACT {
        let key = sample(row.pattern, &own);
        for actor in &actors {
            cluster.etcd.put(&key, &"before")?;
            for act in [Act::Get, Act::Watch, Act::Put, Act::Delete] {
                let (may, wanted) = ((actor.may)(row.pattern), act.needs());
                let is_let = match act {
                    Act::Watch => actor.watches(cluster, &key, since)?,
                    _ => actor.acts(&runtime, act, &key)?,
                };
                if is_let != (may >= wanted) {
                    faults.push(format!("{} and {act:?} of {key}: {is_let}", actor.who));
                }
            }
            let left = cluster.etcd.key(&key)?.map(|key| key.value);
            let expected = ((actor.may)(row.pattern) < Write).then(|| "\"before\"".to_owned());
            if left != expected {
                faults.push(format!("{} left {left:?} at {key}", actor.who));
            }
        }
    }
    ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    a_node_administers_nothing(cluster, &actors[1].pki)?;
    nobody_is_let_in(cluster)
}

/// A node changes neither users nor members, and copies nothing.
fn a_node_administers_nothing(cluster: &Cluster, node: &TrustDir) -> Result<()> {
    let copy = cluster.dir("copy").to_string_lossy().into_owned();
    let own = cluster.trust.reconciler("r0")?;
    let name = |pki: &TrustDir| Ok::<_, harness::Error>(pki.certificate()?.identity()?.to_string());
    let (node_role, member) = (name(node)?, cluster.etcd.etcdctl(&["member", "list"])?);
    let member = member.split(',').next().context("no member")?;
    for words in [
        &["auth", "disable"][..],
        &["user", "list"],
        &["user", "add", "eve", "--no-password"],
        &["user", "delete", &name(&own)?],
        &["user", "grant-role", &node_role, "root"],
        &["role", "grant-permission", &node_role, "readwrite", "--prefix", "/minik8s/"],
        &["member", "add", "eve", "--peer-urls=https://127.0.0.9:7080"],
        &["member", "remove", member],
        &["snapshot", "save", &copy],
        &["defrag"],
    ] {
        let said = cluster.etcd.etcdctl_as(node, words);
        let is_refused = said.as_ref().is_err_and(|why| format!("{why:#}").contains("permission denied"));
        ensure!(is_refused, "{words:?}: {said:?}");
    }
    Ok(())
}

impl Actor {
    /// Returns true if etcd does it.
    fn acts(&self, runtime: &Runtime, act: Act, key: &str) -> Result<bool> {
        let store = &self.store;
        let done = runtime.block_on(async {
            let op = match act {
                Act::Get | Act::Watch => return store.get(key).await.map(drop),
                Act::Put => Op::put(key, "after"),
                Act::Delete => Op::delete(key),
            };
            store.txn(Vec::new(), vec![op]).await.map(drop)
        });
        match done {
            Ok(()) => Ok(true),
            Err(StoreError::Denied { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if etcd shows the key's changes since a revision; there is one.
    fn watches(&self, cluster: &Cluster, key: &str, since: i64) -> Result<bool> {
        let mut words = cluster.etcd.etcdctl_command(&self.pki);
        words.extend(["watch".to_owned(), format!("--rev={since}"), key.to_owned()]);
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (send, first) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
            let _ = send.send(line);
        });
        let first = first.recv_timeout(secs(20));
        child.kill()?;
        child.wait()?;
        let mut said = String::new();
        stderr.context("no errors")?.read_to_string(&mut said)?;
        match first?.trim() {
            "PUT" | "DELETE" => Ok(true),
            "" if said.contains("permission denied") => Ok(false),
            line => bail!("{} and a watch of {key}: {line:?} {said:?}", self.who),
        }
    }
}

/// Without a certificate of the cluster there is no connection, and so no key; and no way around.
fn nobody_is_let_in(cluster: &Cluster) -> Result<()> {
    let address = cluster.etcd.endpoint().trim_start_matches("https://");
    let own = cluster.trust.reconciler("r0")?;
    let connected = || -> Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(secs(5)))?;
        Ok(stream)
    };
    let stranger = Trust::create(&cluster.dir("strangers"), &[])?.reconciler("r0")?;
    stranger.write_authorities(&own.authorities()?)?;
    let user = cluster.trust.user()?;
    let nobodies = [
        tls_connect_as_nobody(connected()?, &own),
        tls_connect(connected()?, &stranger),
        tls_connect(connected()?, &user),
    ];
    for nobody in nobodies {
        // With TLS 1.3 a client learns it from the first answer.
        let said = nobody.and_then(|mut stream| Ok(stream.read(&mut [0; 64])?));
        ensure!(said.is_err(), "etcd let somebody in who is neither a node nor a reconciler: {said:?}");
    }
    let said = http_get(address, "/health");
    ensure!(!matches!(said, Ok((200, _))), "etcd answers in clear: {said:?}");
    let put = r#"{"key": "eA==", "value": "eA=="}"#;
    let (code, said) = tls_post_body(address, "/v3/kv/put", &own, put)?;
    ensure!(code == 404, "etcd has a gateway: {code} {said}");
    Ok(())
}
