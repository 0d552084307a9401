//! An etcd that is lost and comes back empty stops no pod: it is filled from Git again, and the
//! agent adopts what runs, even if its own disk is lost as well.
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
            ensure!(cluster.lives()? == before, "with nobody to fill etcd: {:?}", cluster.lives()?);
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
