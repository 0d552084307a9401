//! A repository behind a real sshd: the right key and host key, and every way of lacking them.
//!
//! Fails when `check_host_key` of `reconciler/src/git/transport/credentials.rs` accepts any key.

use harness::manifests::sleeper;
use harness::{Change, Cluster, ClusterOptions, Context as _, GitSsh, Result, ensure};
use schema::records::SourceErrorKind;

use crate::serving::{self, flags};

#[test]
fn ssh_takes_the_right_keys_and_refuses_every_other_with_its_remedy() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.etcd.start()?;
    let server = GitSsh::serve(&cluster.dir(""), cluster.slot().port(12))?;
    let url = server.url(cluster.repo.bare());
    let head = cluster.repo.push(&[Change::write("a.yaml", sleeper("a"))], "One")?;
    let with = |source: &str, key: &str, hosts: &str| {
        let (key, hosts) = (server.key(key), server.known_hosts(hosts));
        flags(&[
            ("--repo", &url),
            ("--source", source),
            ("--poll", "500ms"),
            ("--ssh-key", &key.display().to_string()),
            ("--known-hosts", &hosts.display().to_string()),
        ])
    };
    for (name, key, hosts) in [("plain", "ed25519", ""), ("hashed", "ed25519", "hashed"), ("rsa", "rsa", "")]
    {
        serving::with(&cluster, name, &with(name, key, hosts), |_| {
            let seen = serving::source(&cluster, name, |s| s.observed_commit.as_deref() == Some(&head));
            seen.map(drop)
        })
        .context(name)?;
    }
    for (name, key, hosts, says) in [
        ("stranger", "stranger", "", &["refused access", "--ssh-key"] as &[&str]),
        ("nokey", "none", "", &["cannot be read", "id_none"]),
        ("unknown", "ed25519", "empty", &["is not in", "ssh-keyscan"]),
        ("elsewhere", "ed25519", "elsewhere", &["is not in", "ssh-keyscan"]),
        ("nohosts", "ed25519", "none", &["cannot be read", "known_hosts_none"]),
    ] {
        serving::refused(&cluster, name, &with(name, key, hosts), says)?;
    }
    // The server has two types of keys; the type that it shows decides between the two messages.
    serving::refused(&cluster, "changed", &with("changed", "ed25519", "other"), &["a different key than"])?;
    Ok(())
}

#[test]
fn a_server_that_goes_away_deletes_nothing_and_is_followed_again() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.etcd.start()?;
    let mut remote = harness::Remote::ssh(&cluster.dir("remote"), cluster.slot().port(12))?;
    let head = remote.repo.push(&[Change::write("a.yaml", sleeper("a"))], "One")?;
    let mut all = flags(&[("--repo", &remote.url()), ("--poll", "500ms")]);
    all.extend(remote.credentials_flags());
    serving::with(&cluster, "away", &all, |_| {
        serving::source(&cluster, "main", |s| s.applied_commit.as_deref() == Some(&head))?;
        remote.sshd().context("it is SSH")?.stop()?;
        serving::source(&cluster, "main", |s| {
            s.error.as_ref().is_some_and(|e| e.kind == SourceErrorKind::RemoteUnreachable)
        })?;
        ensure!(cluster.etcd.list(schema::keys::prefix::OBJECTS)?.len() == 1);
        remote.sshd().context("it is SSH")?.start()?;
        let next = remote.repo.push(&[Change::write("b.yaml", sleeper("b"))], "Two")?;
        serving::source(&cluster, "main", |s| s.applied_commit.as_deref() == Some(&next)).map(drop)
    })
}
