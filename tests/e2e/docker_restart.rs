//! Docker restarts with live-restore: the pods go on, and the agent goes on with them.
//!
//! Red when the harness starts dockerd without `--live-restore`.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, Where, ensure};

#[test]
fn pods_live_through_a_restart_of_docker() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").with_sidecar().to_string())], "Open")?;
        cluster.running("shop", &["files", "web"])?;
        let before = cluster.serving("shop", "hello from shop")?;
        let address = before.address()?.to_owned();

        cluster.node_mut().stop_docker()?;
        let (code, body) = cluster.get_from_node(&address, 8080, "/")?;
        ensure!(code == 200 && body.trim() == "hello from shop", "while Docker is away: {code} {body}");
        // Something to do as soon as Docker is back.
        cluster.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
        cluster.node_mut().start_docker()?;

        cluster.serving("blog", "hello from blog")?;
        ensure!(cluster.pod("shop")?.lives() == before.lives(), "the restart of Docker touched the pod");
        ensure!(cluster.containers()?.len() == 5, "there are others than the two pods' containers");
        ensure!(cluster.node_mut().agent.is_running(), "the agent died with Docker");
        Ok(())
    })
}
