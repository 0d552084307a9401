//! Several real nodes, each with its own Docker, kernel network and agent: pods reach each other across
//! them with their own addresses.
//!
//! Seen red, in `agent/src/converge/network/tunnel.rs`: the first story without the forwarding entry, the
//! second with a `senders` that names no node.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Node, PodView, Result, Where, ensure, eventually, secs};

fn three() -> ClusterOptions {
    ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() }
}

/// Starts a pod on each node: `web-1` to `web-3`.
fn on_each_node(cluster: &Cluster) -> Result<Vec<PodView>> {
    let pod = |number: usize, node: &Node| {
        let name = format!("web-{number}");
        Change::write(format!("{name}.yaml"), web(&name).verbose().on(&node.name).to_string())
    };
    let pods: Vec<Change> = cluster.nodes.iter().enumerate().map(|(i, node)| pod(i + 1, node)).collect();
    cluster.push(&pods, "One pod on each node")?;
    let serving =
        |number: usize| cluster.serving(&format!("web-{number}"), &format!("hello from web-{number}"));
    (1..=pods.len()).map(serving).collect()
}

/// Answer that a pod gets from another's address.
fn asks(from: &PodView, address: &str) -> Result<String> {
    Cluster::net_of(from).run("curl", &["-s", "-m", "3", &format!("http://{address}:8080/")])
}

fn each_reaches_each(pods: &[PodView]) -> Result<()> {
    for from in pods {
        for (number, to) in (1..).zip(pods) {
            let said = asks(from, to.address()?)?;
            ensure!(said.trim() == format!("hello from web-{number}"), "{said}");
        }
    }
    Ok(())
}

#[test]
fn pods_of_three_nodes_reach_each_other_with_their_own_addresses() -> Result<()> {
    Cluster::run(three(), |cluster| {
        let pods = on_each_node(cluster)?;
        each_reaches_each(&pods)?;
        // Each got the others' real addresses: nothing is masqueraded within the cluster.
        for to in &pods {
            let log = cluster.node_of(to)?.docker.outcome(&["logs", &to.container("web")?.id])?.stderr;
            for from in &pods {
                let line = format!("{}]:", from.address()?);
                ensure!(log.contains(&line), "{line} is not in {log}");
            }
        }
        for node in &cluster.nodes {
            for (number, pod) in (1..).zip(&pods) {
                let url = format!("http://{}:8080/", pod.address()?);
                let said = node.net.run("curl", &["-s", "-m", "5", &url])?;
                ensure!(said.trim() == format!("hello from web-{number}"), "{}: {said}", node.name);
            }
        }

        // The data path is the kernel's: it works without agents, reconciler and etcd, and agents that
        // restart without etcd leave it unchanged.
        let lives = cluster.lives()?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        for node in &mut cluster.nodes {
            node.agent.kill()?;
        }
        each_reaches_each(&pods)?;
        let tunnels = |cluster: &Cluster| -> Result<Vec<String>> {
            cluster.nodes.iter().map(|node| tunnel_of(cluster, node)).collect()
        };
        let before = tunnels(cluster)?;
        for node in &mut cluster.nodes {
            node.agent.start()?;
            node.wait_agent()?;
        }
        each_reaches_each(&pods)?;
        ensure!(tunnels(cluster)? == before, "{:?} is not {before:?}", tunnels(cluster)?);

        // A tunnel removed by hand is recreated from the agent's own disk, with all entries.
        let tunnel = format!("{}.1", cluster.slot().instance());
        cluster.numbered(2)?.net.run("ip", &["link", "del", &tunnel])?;
        eventually("the tunnel is back", secs(20), || each_reaches_each(&pods))?;
        ensure!(cluster.lives()? == lives, "containers were touched");
        Ok(())
    })
}

/// Entries of a node's tunnel, as the kernel shows them.
fn tunnel_of(cluster: &Cluster, node: &Node) -> Result<String> {
    let name = format!("{}.1", cluster.slot().instance());
    let mut text = String::new();
    for command in [
        ["ip", "neigh", "show", "nud", "permanent", "dev", &name].as_slice(),
        &["bridge", "fdb", "show", "dev", &name],
        &["ip", "route", "show", "dev", &name],
    ] {
        text.push_str(&node.net.run(command[0], &command[1..])?);
    }
    Ok(text)
}

#[test]
fn a_node_that_is_cut_off_or_moves_is_reached_again_at_once() -> Result<()> {
    Cluster::run(three(), |cluster| {
        let pods = on_each_node(cluster)?;
        let lives = cluster.lives()?;
        let second = cluster.numbered(2)?;
        second.cut_off()?;
        ensure!(asks(&pods[0], pods[1].address()?).is_err(), "it is cut off");
        // Traffic on the node itself continues.
        let said =
            second.net.run("curl", &["-s", "-m", "5", &format!("http://{}:8080/", pods[1].address()?)])?;
        ensure!(said.trim() == "hello from web-2", "{said}");
        second.reconnect()?;
        eventually("it is reached again", secs(10), || each_reaches_each(&pods))?;
        ensure!(cluster.lives()? == lives, "containers were touched");

        // Only nodes send into the tunnel.
        let rules = second.net.rules()?;
        let port = cluster.slot().port(8).to_string();
        let first = cluster.numbered(1)?.address()?.to_owned();
        let accepts = format!("-s {first}/32 -p udp -m udp --dport {port} -j ACCEPT");
        ensure!(rules.iter().any(|rule| rule.ends_with(&accepts)), "{rules:#?}");
        ensure!(rules.iter().any(|rule| rule.ends_with(&format!("--dport {port} -j DROP"))), "{rules:#?}");
        Ok(())
    })
}
