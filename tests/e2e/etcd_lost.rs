//! An etcd that is lost and comes back empty stops no pod: it is filled from Git again, and the
//! agent adopts what runs, even if its own disk is lost as well. One that takes long to come back is waited
//! for, also by a reconciler that started meanwhile.
//!
//! Red without the agent's wait for a settled etcd (`Desired::is_settled`): every pod goes at once.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure, eventually, secs};
use schema::keys::Key;

#[test]
fn an_empty_etcd_is_filled_from_git_and_no_container_notices() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let files = [
            Change::write("shop.yaml", web("shop").with_sidecar().to_string()),
            Change::write("blog.yaml", web("blog").to_string()),
        ];
        cluster.push(&files, "Two pods")?;
        cluster.running("shop", &["files", "web"])?;
        cluster.serving("blog", "hello from blog")?;
        let before = cluster.lives()?;

        for agent_disk_too in [false, true] {
            cluster.reconcilers[0].kill()?;
            cluster.etcd.daemon.kill()?;
            std::fs::remove_dir_all(cluster.etcd.data_dir())?;
            if agent_disk_too {
                cluster.node_mut().agent.kill()?;
                std::fs::remove_dir_all(cluster.node().state_dir().join("agent/desired"))?;
            }
            cluster.etcd.start()?;
            if agent_disk_too {
                cluster.start_agent()?;
            }
            // The agent follows the empty etcd: it has registered there.
            let node = Key::Node(cluster.node().name.clone());
            eventually("the agent registers anew", secs(60), || {
                ensure!(cluster.etcd.key(&node)?.is_some(), "no {node}");
                Ok(())
            })?;
            ensure!(cluster.lives()? == before, "with no reconciler to fill etcd: {:?}", cluster.lives()?);
            cluster.reconcilers[0].start()?;
            cluster.wait_reconciler(0)?;
            let settled = Key::Settled(cluster.node().name.clone());
            eventually("etcd is settled", secs(60), || {
                ensure!(cluster.etcd.key(&settled)?.is_some(), "no {settled}");
                Ok(())
            })?;
            ensure!(cluster.lives()? == before, "after etcd was filled: {:?}", cluster.lives()?);
        }

        // From now on what is not there is a removal again.
        cluster.push(&[Change::remove("blog.yaml")], "Drop blog")?;
        cluster.gone("blog")?;
        Ok(())
    })
}

// Seen red with `open_store` of `reconciler/src/daemon.rs` that never lets a reconciler start without etcd.
#[test]
fn a_reconciler_that_is_back_before_etcd_waits_for_it() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        cluster.serving("shop", "hello from shop")?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        cluster.reconcilers[0].start()?;
        // Longer than a first start waits, as its log says.
        eventually("it goes on without etcd", secs(30), || {
            ensure!(cluster.reconcilers[0].is_running(), "it ended");
            let log = cluster.reconcilers[0].log_tail();
            ensure!(log.contains("goes on as soon as it answers"), "{log}");
            Ok(())
        })?;
        cluster.etcd.start()?;
        cluster.wait_reconciler(0)?;
        cluster.push(&[Change::write("blog.yaml", web("blog").to_string())], "And more")?;
        cluster.serving("blog", "hello from blog").map(|_| ())
    })
}
