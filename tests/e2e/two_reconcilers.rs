//! The leader is paused past its lease and replaced; resumed, its late writes are refused.
//!
//! The second story fails without `Guard::CreateRevision` in `Fence::guard`. The first still passes
//! then: a leader that was away for its whole lease also notices by its own clock.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, EtcdKey, Result, ensure, eventually, holds, secs};
use nix::sys::signal::Signal;
use schema::keys::{Key, prefix};

/// Keys written by the leading reconciler, from etcd. Status and heartbeats are the agent's.
fn written_by_leader(cluster: &Cluster) -> Result<Vec<EtcdKey>> {
    let mut keys = Vec::new();
    for below in [prefix::SOURCES, prefix::REVISIONS, prefix::OBJECTS, prefix::PODS, prefix::BINDINGS] {
        keys.extend(cluster.etcd.list(below)?);
    }
    Ok(keys)
}

fn leader_is(cluster: &Cluster, name: &str) -> Result<EtcdKey> {
    eventually(&format!("{name} leads"), secs(45), || {
        let leader = cluster.etcd.key(Key::Leader)?;
        let leads = leader.filter(|key| key.value.contains(&format!("\"{name}\"")));
        leads.ok_or_else(|| harness::Error::msg("another or none leads"))
    })
}

#[test]
fn a_paused_leader_is_replaced_and_its_late_writes_are_refused() -> Result<()> {
    let options = ClusterOptions { reconcilers: 2, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let shop = cluster.serving("shop", "hello from shop")?;
        let first = leader_is(cluster, "r0")?;

        cluster.reconcilers[0].signal(Signal::SIGSTOP)?;
        let second = leader_is(cluster, "r1")?;
        ensure!(second.create_revision > first.create_revision);
        cluster.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
        cluster.serving("blog", "hello from blog")?;

        // Now the new leader is paused, too, within its lease, there is a new commit to apply, and
        // the old leader resumes: it believes that it leads, and it has something to write.
        cluster.reconcilers[1].signal(Signal::SIGSTOP)?;
        let before = written_by_leader(cluster)?;
        let commit = cluster.repo.push(&[Change::write("wiki.yaml", web("wiki").to_string())], "A third")?;
        cluster.reconcilers[0].signal(Signal::SIGCONT)?;
        // It polls every 500 ms; the other's lease lasts at least 10 s more.
        let refused = holds("the old leader writes nothing", secs(6), || {
            let now = written_by_leader(cluster)?;
            ensure!(now == before, "it wrote: {:?}", now.iter().find(|key| !before.contains(key)));
            ensure!(cluster.etcd.key(Key::Leader)?.as_ref() == Some(&second), "the leader changed");
            Ok(())
        });
        cluster.reconcilers[1].signal(Signal::SIGCONT)?;
        refused?;

        // Its own poll finds the commit, and it still leads.
        cluster.applied(&commit)?;
        cluster.serving("wiki", "hello from wiki")?;
        ensure!(leader_is(cluster, "r1")?.create_revision == second.create_revision);
        ensure!(cluster.pod("shop")?.lives() == shop.lives());
        // Both still answer readers.
        cluster.wait_reconciler(0)?;
        cluster.wait_reconciler(1)
    })
}

#[test]
fn a_leader_that_does_not_know_that_it_lost_its_lease_writes_nothing() -> Result<()> {
    let options = ClusterOptions { reconcilers: 2, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        cluster.serving("shop", "hello from shop")?;
        let first = leader_is(cluster, "r0")?;

        // Its lease ends while it is paused for just a moment: by its own clock it leads for seconds
        // more, so only the fence in its writes protects the keys.
        cluster.reconcilers[0].signal(Signal::SIGSTOP)?;
        cluster.etcd.end_lease_of(&first)?;
        let second = leader_is(cluster, "r1")?;
        ensure!(second.create_revision > first.create_revision);
        cluster.reconcilers[1].signal(Signal::SIGSTOP)?;
        let before = written_by_leader(cluster)?;
        let commit = cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
        cluster.reconcilers[0].signal(Signal::SIGCONT)?;
        let refused = holds("the old leader writes nothing", secs(4), || {
            let now = written_by_leader(cluster)?;
            ensure!(now == before, "it wrote: {:?}", now.iter().find(|key| !before.contains(key)));
            Ok(())
        });
        cluster.reconcilers[1].signal(Signal::SIGCONT)?;
        refused?;
        cluster.applied(&commit)?;
        cluster.serving("blog", "hello from blog").map(|_| ())
    })
}
