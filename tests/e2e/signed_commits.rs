//! Only signed commits: an unsigned one on the branch changes nothing, and the next signed one is applied.
//!
//! Fails when `check_commit` is not called in `reconciler/src/gitops/read.rs`.

use std::fs;
use std::process::Command;

use harness::manifests::sleeper;
use harness::{Change, Cluster, ClusterOptions, GitRepo, Result, ensure, outcome, run, secs};
use schema::keys::prefix;
use schema::records::{SourceErrorKind, SourceState};

use crate::serving::{self, flags};

#[test]
fn an_unsigned_commit_changes_nothing_until_a_signed_one_follows() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.start_etcd()?;
    let key = cluster.dir("signer").display().to_string();
    run("ssh-keygen", &["-q", "-N", "", "-C", "", "-t", "ed25519", "-f", &key])?;
    let public = fs::read_to_string(format!("{key}.pub"))?;
    let signers = cluster.dir("signers").display().to_string();
    fs::write(&signers, format!("ada@example.test namespaces=\"git\" {public}"))?;
    let sign = |on: &str| -> Result<()> {
        for (name, value) in
            [("gpg.format", "ssh"), ("user.signingkey", key.as_str()), ("commit.gpgsign", on)]
        {
            let done = Command::new("git")
                .arg("-C")
                .arg(cluster.repo.work())
                .args(["config", name, value])
                .status()?;
            ensure!(done.success());
        }
        Ok(())
    };
    let push = |file: &str, name: &str| {
        cluster.repo.push(&[Change::write(file, sleeper(name))], &format!("Add {name}"))
    };
    sign("true")?;
    let first = push("a.yaml", "a")?;
    let url = format!("file://{}", cluster.repo.bare().display());
    let all = flags(&[("--repo", &url), ("--poll", "500ms"), ("--allowed-signers", &signers)]);
    serving::with(&cluster, "signed", &all, |_| {
        serving::source(&cluster, "main", |s| s.applied_commit.as_deref() == Some(&first))?;
        sign("false")?;
        let unsigned = push("b.yaml", "b")?;
        let invalid = |s: &schema::records::SourceStatus| {
            s.state == SourceState::Failed
                && s.error.as_ref().is_some_and(|e| e.kind == SourceErrorKind::SignatureInvalid)
        };
        let status = serving::source(&cluster, "main", invalid)?;
        let message = status.error.map(|error| error.message).unwrap_or_default();
        for word in
            [&unsigned[..12], "Ada Tester <ada@example.test>", "it is not signed", "commit --amend -S"]
        {
            ensure!(message.contains(word), "{word} is not in {message}");
        }
        ensure!(status.applied_commit.as_ref() == Some(&first));
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 1);

        sign("true")?;
        let signed = push("c.yaml", "c")?;
        serving::source(&cluster, "main", |s| {
            s.applied_commit.as_deref() == Some(&signed) && s.error.is_none()
        })?;
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 3);

        // The key's time is over, so it signs nothing new, whatever date its commit claims. What was applied stays.
        let line =
            fs::read_to_string(&signers)?.replace("namespaces", "valid-before=\"20200101Z\",namespaces");
        fs::write(&signers, line)?;
        let backdated = backdated(&cluster.repo)?;
        let status = serving::source(&cluster, "main", |s| {
            invalid(s) && s.error.as_ref().is_some_and(|error| error.message.contains(&backdated[..12]))
        })?;
        let message = status.error.map(|error| error.message).unwrap_or_default();
        ensure!(message.contains("key has expired"), "{message}");
        ensure!(status.applied_commit.as_ref() == Some(&signed));
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 3);

        // Without signers no commit is trusted, not even a signed one; the applied state remains.
        fs::write(&signers, "")?;
        push("d.yaml", "d")?;
        serving::source(&cluster, "main", invalid)?;
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 3);
        Ok(())
    })
}

/// Pushes a commit that is signed, and claims to be of a time at which the key was valid.
fn backdated(repo: &GitRepo) -> Result<String> {
    let date = "2019-06-01T00:00:00Z";
    fs::write(repo.work().join("old.yaml"), sleeper("old"))?;
    repo.git(&["add", "-A"])?;
    let mut commit = Command::new("git");
    commit.arg("-C").arg(repo.work()).args([
        "-c",
        "user.name=Ada Tester",
        "-c",
        "user.email=ada@example.test",
    ]);
    commit
        .args(["commit", "-q", "-m", "Add old"])
        .env("GIT_AUTHOR_DATE", date)
        .env("GIT_COMMITTER_DATE", date);
    outcome(&mut commit, secs(30))?.ok()?;
    ensure!(repo.git(&["log", "-1", "--format=%cI"])?.starts_with("2019-06-01"));
    repo.git(&["push", "-q", "origin", "HEAD:refs/heads/main"])?;
    Ok(repo.git(&["rev-parse", "HEAD"])?.trim().to_owned())
}
