//! Things removed by hand are restored.
//!
//! The rules' story fails when the network loop checks every 300 s (`NETWORK_INTERVAL`).

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, PodView, Result, ensure, eventually, run, secs};

#[test]
fn a_container_removed_by_hand_is_back_and_its_neighbours_stay() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").with_sidecar().to_string())], "Open")?;
        cluster.running("shop", &["files", "web"])?;
        let before = cluster.serving("shop", "hello from shop")?;
        cluster.node().docker.run(&["rm", "-f", &before.container("web")?.id])?;
        let after = another_web(cluster, &before.container("web")?.id)?;
        ensure!(after.pause == before.pause);
        ensure!(after.container("files")? == before.container("files")?);

        // A container that dies is restarted in the same pod.
        cluster.node().docker.run(&["kill", &after.container("web")?.id])?;
        let again = another_web(cluster, &after.container("web")?.id)?;
        ensure!(again.pause == before.pause);
        Ok(())
    })
}

/// The pod, once a container other than `former` serves as `web`.
fn another_web(cluster: &Cluster, former: &str) -> Result<PodView> {
    eventually("another container serves", secs(40), || {
        let (code, body) = cluster.get_from_node(cluster.pod("shop")?.address()?, 8080, "/")?;
        ensure!(code == 200 && body.trim() == "hello from shop", "{code} {body}");
        // After the answer: by then the process that gave it is listed.
        let pod = cluster.pod("shop")?;
        let web = pod.container("web")?;
        ensure!(web.id != former && web.running, "{web:?}");
        Ok(pod)
    })
}

#[test]
fn a_pod_whose_pause_container_is_removed_is_back_whole_and_reachable() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let port = cluster.slot().port(7);
        let shop = web("shop").host_port(port).with_sidecar().to_string();
        cluster.push(&[Change::write("shop.yaml", shop)], "Open")?;
        cluster.running("shop", &["files", "web"])?;
        let before = cluster.serving("shop", "hello from shop")?;
        cluster.node().docker.run(&["rm", "-f", &before.pause.id])?;
        let after = eventually("a new pod serves", secs(40), || {
            let pod = cluster.pod("shop")?;
            ensure!(pod.pause.id != before.pause.id && pod.containers.len() == 2);
            let (code, body) = cluster.get_from_node(pod.address()?, 8080, "/")?;
            ensure!(code == 200 && body.trim() == "hello from shop", "{code} {body}");
            Ok(pod)
        })?;
        ensure!(after.lives().keys().all(|id| !before.lives().contains_key(id)), "a container stayed");
        let running = cluster.containers()?.into_iter().filter(|container| container.running);
        ensure!(running.count() == 3, "something of the old pod still runs");
        let veths = format!("{}v", cluster.slot().instance());
        let links: Vec<_> =
            cluster.node().net.links()?.into_iter().filter(|l| l.starts_with(&veths)).collect();
        ensure!(links.len() == 1, "{links:?}");
        eventually("the host port leads to the new pod", secs(20), || {
            let (code, _) = cluster.get_from_node("127.0.0.1", port, "/")?;
            ensure!(code == 200, "{code}");
            Ok(())
        })
    })
}

#[test]
fn rules_flushed_by_hand_are_back() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let port = cluster.slot().port(7);
        cluster.push(&[Change::write("shop.yaml", web("shop").host_port(port).to_string())], "Open")?;
        cluster.serving("shop", "hello from shop")?;
        let chain = format!("{}HOSTPORT", cluster.slot().chain_prefix());
        let reached = || -> Result<()> {
            let (code, _) = cluster.get_from_node("127.0.0.1", port, "/")?;
            ensure!(code == 200, "{code}");
            Ok(())
        };
        eventually("the host port leads to the pod", secs(20), reached)?;
        run("iptables", &["-w", "-t", "nat", "-F", &chain])?;
        eventually("the flushed rules are back", secs(20), reached)
    })
}

// A plan that checks only the name of a pod's link leaves the new bridge without ports.
#[test]
fn a_bridge_deleted_by_hand_is_back_with_its_pods() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let before = cluster.serving("shop", "hello from shop")?;
        run("ip", &["link", "del", &format!("{}0", cluster.slot().instance())])?;
        eventually("the pod answers again", secs(30), || {
            let (code, body) = cluster.get_from_node(before.address()?, 8080, "/")?;
            ensure!(code == 200 && body.trim() == "hello from shop", "{code} {body}");
            Ok(())
        })?;
        ensure!(cluster.pod("shop")?.lives() == before.lives(), "a container was started again");
        Ok(())
    })
}
