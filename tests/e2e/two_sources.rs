//! Two repositories feed one cluster: each owns its objects, and claiming the other's object is a conflict.

use std::fs;

use harness::manifests::sleeper;
use harness::{Change, Cluster, ClusterOptions, GitRepo, Result, ensure};
use schema::keys::prefix;
use schema::records::SourceState;

use crate::serving::{self, flags};

#[test]
fn two_sources_own_what_is_theirs_and_the_newcomer_gets_a_conflict() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.etcd.start()?;
    let other_dir = cluster.dir("other");
    fs::create_dir_all(&other_dir)?;
    let other = GitRepo::create(&other_dir)?;
    let list = cluster.dir("sources.yaml");
    let entry = |name: &str, repo: &GitRepo| {
        format!("- name: {name}\n  repo: {}\n  poll: 500ms\n", repo.bare().display())
    };
    fs::write(&list, entry("apps", &cluster.repo) + &entry("base", &other))?;
    let apps = cluster.repo.push(&[Change::write("a.yaml", sleeper("a"))], "One")?;
    let base = other.push(&[Change::write("b.yaml", sleeper("b"))], "One")?;
    serving::with(&cluster, "two", &flags(&[("--sources", &list.display().to_string())]), |_| {
        serving::source(&cluster, "apps", |s| s.applied_commit.as_deref() == Some(&apps))?;
        serving::source(&cluster, "base", |s| s.applied_commit.as_deref() == Some(&base))?;
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 2);

        // `base` claims an object of `apps`: reported with its file, and nothing of `apps` changes.
        let greedy = [Change::write("more/a.yaml", sleeper("a"))];
        let greedy = other.push(&greedy, "Mine, too")?;
        let reported = serving::source(&cluster, "base", |s| {
            s.observed_commit.as_deref() == Some(&greedy) && s.state == SourceState::Degraded
        })?;
        ensure!(reported.quarantined.iter().any(|q| q.file == "more/a.yaml"), "{reported:?}");
        let text = format!("{:?}", reported.quarantined);
        ensure!(text.contains("apps"), "it does not say whose it is: {text}");
        serving::source(&cluster, "apps", |s| s.state == SourceState::Synced)?;

        // An unreachable source does not block the other.
        other.reachable(false)?;
        serving::source(&cluster, "base", |s| s.state == SourceState::Failed)?;
        let next = cluster.repo.push(&[Change::write("c.yaml", sleeper("c"))], "Two")?;
        serving::source(&cluster, "apps", |s| s.applied_commit.as_deref() == Some(&next))?;
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 3);
        Ok(())
    })
}
