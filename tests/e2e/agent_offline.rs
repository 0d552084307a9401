//! An agent that starts while etcd is gone heals its pods from its own disk.
//!
//! Fails when `DesiredStore::open` ignores the disk: the agent exits, as it knows nothing.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure};

#[test]
fn an_agent_without_etcd_restores_its_pods_from_its_own_disk() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let files = [
            Change::write("shop.yaml", web("shop").with_sidecar().to_string()),
            Change::write("blog.yaml", web("blog").to_string()),
        ];
        cluster.push(&files, "Two pods")?;
        cluster.running("shop", &["files", "web"])?;
        let shop = cluster.serving("shop", "hello from shop")?;
        let blog = cluster.serving("blog", "hello from blog")?;

        cluster.node_mut().agent.kill()?;
        cluster.etcd.daemon.kill()?;
        // One container dies, one pod disappears entirely.
        let docker = cluster.node().docker.clone();
        docker.run(&["kill", &shop.container("web")?.id])?;
        docker.run(&["rm", "-f", &blog.pause.id, &blog.container("web")?.id])?;
        cluster.start_agent()?;

        let healed = cluster.serving("shop", "hello from shop")?;
        ensure!(healed.pause == shop.pause && healed.container("files")? == shop.container("files")?);
        cluster.serving("blog", "hello from blog")?;
        ensure!(!cluster.etcd.daemon.is_running(), "etcd must be down for this story");

        // With etcd back the same agent follows Git again, and nothing starts twice.
        let before = cluster.lives()?;
        cluster.etcd.start()?;
        cluster.push(&[Change::write("wiki.yaml", web("wiki").to_string())], "A third")?;
        let wiki = cluster.serving("wiki", "hello from wiki")?;
        let mut now = cluster.lives()?;
        now.retain(|id, _| !wiki.lives().contains_key(id));
        // The container that died stays listed until its successor's own end; it must not run.
        ensure!(now == before, "{now:?} is not {before:?}");
        Ok(())
    })
}
