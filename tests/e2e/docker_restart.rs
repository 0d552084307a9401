//! Docker restarts with live-restore: the pods keep running, and the agent keeps managing them; no address is
//! lost, leaked or assigned twice. `MINIK8S_ROUNDS` is the number of restarts (2 by default, 6 in a soak).
//!
//! Fails when the harness starts dockerd without `--live-restore`.

use std::collections::{BTreeMap, BTreeSet};

use harness::manifests::{sleeper, web};
use harness::{
    Change, Cluster, ClusterOptions, Context, NetWorld, Result, Where, ensure, eventually, rounds, secs,
};

const PODS: usize = 30;

#[test]
fn pods_live_through_restarts_of_docker_with_their_addresses() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let many: Vec<String> = (1..PODS).map(|index| sleeper(&format!("pod-{index}"))).collect();
        let files = [
            Change::write("shop.yaml", web("shop").with_sidecar().to_string()),
            Change::write("many.yaml", many.join("---\n")),
        ];
        cluster.push(&files, "Open")?;
        eventually("all pods run", secs(120), || addresses(cluster, PODS))?;
        let mut shop = cluster.serving("shop", "hello from shop")?;
        let (lives, given) = (cluster.lives()?, addresses(cluster, PODS)?);

        for round in 0..rounds(2, 6) {
            cluster.node_mut().stop_docker()?;
            let (code, body) = cluster.get_from_node(shop.address()?, 8080, "/")?;
            ensure!(code == 200 && body.trim() == "hello from shop", "while Docker is away: {code} {body}");
            // Work for the agent as soon as Docker is back.
            let (name, greeting) = ("news", format!("round {round}"));
            cluster
                .push(&[Change::write("news.yaml", web(name).greeting(&greeting).to_string())], &greeting)?;
            cluster.node_mut().start_docker()?;

            let news = cluster.serving(name, &greeting)?;
            let mut now = cluster.lives()?;
            now.retain(|id, _| !news.lives().contains_key(id));
            ensure!(
                now == lives,
                "round {round}: the restart of Docker touched pods: {now:?} is not {lives:?}"
            );
            let mut all = eventually("one link for each pod", secs(20), || addresses(cluster, PODS + 1))?;
            let own = all.remove(name).context("the new pod has no address")?;
            ensure!(all == given, "round {round}: {all:?} is not {given:?}");
            ensure!(!given.values().any(|other| *other == own), "{own} is given twice");
            ensure!(cluster.node_mut().agent.is_running(), "the agent died with Docker");
            shop = cluster.serving("shop", "hello from shop")?;
        }
        Ok(())
    })
}

/// Address of every pod, if there are this many and all sources agree: the label, the link in the pod's
/// own namespace, and the number of host-side link ends.
fn addresses(cluster: &Cluster, pods: usize) -> Result<BTreeMap<String, String>> {
    let containers = cluster.containers()?;
    let pauses = containers.iter().filter(|c| c.label("container") == "POD");
    let mut given = BTreeMap::new();
    for pause in pauses {
        let (pod, address) = (pause.label("pod"), pause.label("ip"));
        ensure!(pause.running, "{} does not run", pause.name);
        let inside = NetWorld::of_process(pause.pid).addresses()?;
        let own: Vec<_> = inside.iter().filter_map(|line| line.strip_prefix("eth0 ")).collect();
        ensure!(own == [address], "{pod} is labelled {address} and has {inside:?}");
        ensure!(given.insert(pod.to_owned(), address.to_owned()).is_none(), "{pod} has two pause containers");
    }
    ensure!(given.len() == pods, "{} pods have an address", given.len());
    let running = containers.iter().filter(|c| c.running && c.label("container") != "POD");
    let running: BTreeSet<&str> = running.map(|c| c.label("pod")).collect();
    ensure!(running.len() == pods, "{} pods run", running.len());
    let different: BTreeSet<&String> = given.values().collect();
    ensure!(different.len() == pods, "an address is given twice: {given:?}");
    let prefix = format!("{}v", cluster.slot().instance());
    let links = cluster.node().net.links()?.into_iter().filter(|link| link.starts_with(&prefix)).count();
    ensure!(links == pods, "{links} links");
    Ok(given)
}
