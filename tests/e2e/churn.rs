//! Pods come and go in crowds and leave nothing behind: not in Docker's lists of containers and volumes,
//! not among links, rules and mounts, not in the agent's folder. By default 30 pods once; a soak creates
//! and removes 100, three times.
//!
//! The pods' image has a `VOLUME`, so Docker creates one for each container. Fails without `v: true`
//! in the removal of a container in `agent/src/worlds/docker/real.rs`.

use harness::manifests::{rich, web};
use harness::{
    Change, Cluster, ClusterOptions, IMAGE, Listing, Result, Where, ensure, eventually, rounds, secs,
};

const IMAGE_WITH_VOLUME: &str = "minik8s-e2e/with-volume:1";

#[test]
fn crowds_of_pods_come_and_go_without_a_trace() -> Result<()> {
    let rounds = rounds(1, 3);
    let pods: u16 = if rounds == 1 { 30 } else { 100 };
    // Time that the slowest machine needs per pod, plus the rest.
    let patience = secs(60 + 3 * u64::from(pods));
    let options = ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        image_with_volume(cluster)?;
        cluster.push(&[Change::write("stays.yaml", web("stays").to_string())], "One that stays")?;
        let stays = cluster.serving("stays", "hello from stays")?;
        let before = Listing::at_rest(cluster.node(), cluster.slot())?;
        for round in 0..rounds {
            let crowd: Vec<String> = (0..pods)
                // A host port for some; the node has its own set of ports.
                .map(|n| rich(&format!("crowd-{n}"), IMAGE_WITH_VOLUME, (n % 10 == 0).then_some(20_000 + n)))
                .collect();
            cluster.push(&[Change::write("crowd.yaml", crowd.join("---\n"))], "A crowd comes")?;
            let wanted = 2 + 3 * usize::from(pods);
            eventually("the crowd runs", patience, || whole(cluster, usize::from(pods), wanted))?;
            let during = listing(cluster)?;
            // The compared items must exist first: otherwise their absence at the end would prove nothing.
            for (what, at_least) in [("volume", pods), ("mount", pods), ("link mt", pods), ("file", pods)] {
                let count = during.count(what) - before.count(what);
                ensure!(count >= usize::from(at_least), "only {count} more lines of {what}");
            }
            let message = format!("The crowd goes, round {round}\n\nMinik8s-Allow-Prune: true");
            cluster.push(&[Change::remove("crowd.yaml")], &message)?;
            eventually("nothing of the crowd is left", patience, || {
                listing(cluster)?.ensure_equals(&before)
            })?;
            println!("churn: round {round}: {pods} pods came and went");
        }
        ensure!(cluster.pod("stays")?.lives() == stays.lives(), "the pod that stays was touched");
        Ok(())
    })
}

fn listing(cluster: &Cluster) -> Result<Listing> {
    Listing::of(cluster.node(), cluster.slot())
}

fn whole(cluster: &Cluster, pods: usize, containers: usize) -> Result<()> {
    let all = cluster.containers()?;
    let running = all.iter().filter(|c| c.running).count();
    ensure!(all.len() == containers, "{} of {containers} containers", all.len());
    ensure!(running == containers - pods, "{running} run");
    Ok(())
}

fn image_with_volume(cluster: &Cluster) -> Result<()> {
    let docker = &cluster.node().docker;
    let id = docker.run(&["create", IMAGE, "true"])?;
    docker.run(&["commit", "--change", "VOLUME /scratch", id.trim(), IMAGE_WITH_VOLUME])?;
    docker.run(&["rm", "-v", id.trim()]).map(|_| ())
}
