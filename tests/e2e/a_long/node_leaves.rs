//! A node leaves for good: by `minik8s-agent reset --leave` a reconciler deletes its keys in etcd and revokes its key, its
//! pods start on another node, and the other nodes remove the route to it.
//!
//! Seen red with an agent that knew no `--leave`.

use std::process::Command;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, Where, ensure, eventually, outcome, secs};
use nix::sys::signal::Signal;

#[test]
fn a_node_that_leaves_for_good_is_forgotten_and_its_pods_start_elsewhere() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let names = ["a", "b", "c", "d"].map(|letter| format!("web-{letter}"));
        let pods = names.each_ref().map(|name| Change::write(format!("{name}.yaml"), web(name).to_string()));
        cluster.push(&pods, "Four pods, wherever")?;
        for name in &names {
            cluster.running(name, &["web"])?;
        }
        let leaving = cluster.numbered(2)?.name.clone();
        ensure!(
            !cluster.numbered(2)?.docker.containers(&cluster.slot().instance())?.is_empty(),
            "nothing is there"
        );

        let instance = cluster.slot().instance();
        let mut command = cluster.numbered(2)?.agent_command("reset", "");
        command.push("--leave".to_owned());
        // A node whose agent still runs cannot leave.
        let said = outcome(Command::new(&command[0]).args(&command[1..]), secs(60))?;
        ensure!(
            said.code == 1 && !cluster.etcd.list(&format!("/minik8s/nodes/{leaving}"))?.is_empty(),
            "{said:?}"
        );
        cluster.nodes[1].agent.end(Signal::SIGTERM, secs(20))?;
        let said = outcome(Command::new(&command[0]).args(&command[1..]), secs(60))?;
        ensure!(
            said.code == 0 && said.stdout.contains(&format!("removed node-{leaving} from the cluster")),
            "{said:?}"
        );
        let files = cluster.numbered(2)?.state_dir().join("agent");
        ensure!(!files.exists(), "{} is left", files.display());

        let first = cluster.numbered(1)?;
        eventually("all pods run on the node that stays", secs(45), || {
            let there = first.docker.containers(&instance)?;
            for name in &names {
                let runs = |c: &harness::ContainerView| {
                    c.label("pod") == *name && c.label("container") == "web" && c.running
                };
                ensure!(there.iter().any(runs), "{name} does not");
            }
            Ok(())
        })?;
        eventually("nothing of it is left", secs(20), || {
            let keys = cluster.etcd.list("/minik8s/")?;
            let left: Vec<&str> =
                keys.iter().map(|key| key.key.as_str()).filter(|key| key.contains(&leaving)).collect();
            // Its key may not come back.
            let stays = |key: &&str| key.contains("/events/") || key.contains("/revoked/");
            ensure!(left.iter().all(stays), "{left:?}");
            Ok(())
        })?;
        // The agent might have been about to register again: a minute of grace.
        eventually("the way to it is forgotten", secs(90), || {
            // It was the only other node, so the tunnel is removed, too.
            let links = first.net.run("ip", &["-o", "link"])?;
            ensure!(!links.contains(&format!("{instance}.1")), "{links}");
            Ok(())
        })?;
        let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
        ensure!(nodes.contains(&first.name) && !nodes.contains(&leaving), "{nodes}");
        Ok(())
    })
}
