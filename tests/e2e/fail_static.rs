//! Agent, reconciler and etcd die by SIGKILL at random, alone and together, and restart at random,
//! while clients outside the node query its pods without a pause: by their addresses and by a host port.
//! No request fails, no container is touched, no rule changes. `MINIK8S_ROUNDS` is the number of rounds (5 by
//! default, 100 in a soak), `MINIK8S_SEED` replays a walk.
//!
//! Fails when the agent removes its bridge as it starts (`remove_bridge` before the loops in
//! `agent/src/daemon/mod.rs`).

use harness::manifests::web;
use harness::{
    Chance, Change, Clients, Cluster, ClusterOptions, Result, Target, ensure, eventually, rounds, secs,
};
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;

const PODS: [&str; 3] = ["shop", "blog", "wiki"];
/// Answers per client between two faults, so that requests coincide with every fault.
const ANSWERS: u64 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Reconciler,
    Agent,
    Etcd,
}

impl Part {
    fn kill(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Part::Reconciler => cluster.reconcilers[0].kill(),
            Part::Agent => cluster.node_mut().agent.kill(),
            Part::Etcd => cluster.etcd.daemon.kill(),
        }
    }

    /// Starts the part without waiting for it: the next fault may hit it half started.
    fn start(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Part::Reconciler => cluster.reconcilers[0].start(),
            Part::Agent => cluster.node_mut().agent.start(),
            Part::Etcd => cluster.etcd.daemon.start(),
        }
    }
}

/// At least one of the three, in any order.
fn victims(chance: &mut Chance) -> Result<Vec<Part>> {
    let mut left = vec![Part::Reconciler, Part::Agent, Part::Etcd];
    let mut chosen = Vec::new();
    for _ in 0..=chance.below(3) {
        let one = *chance.one_of(&left)?;
        left.retain(|part| *part != one);
        chosen.push(one);
    }
    Ok(chosen)
}

#[test]
fn no_request_fails_while_every_daemon_is_killed_again_and_again() -> Result<()> {
    let (rounds, mut chance) = (rounds(5, 100), Chance::of("fail-static"));
    Cluster::run(ClusterOptions::default(), |cluster| {
        let mut clients = Clients::beyond(cluster.slot())?;
        let port = cluster.slot().port(7);
        let files = [
            Change::write("shop.yaml", web("shop").host_port(port).to_string()),
            Change::write("blog.yaml", web("blog").with_sidecar().to_string()),
            Change::write("wiki.yaml", web("wiki").to_string()),
        ];
        cluster.push(&files, "Three pods")?;
        for pod in PODS {
            let answer = format!("hello from {pod}");
            let address = format!("{}:8080", cluster.serving(pod, &answer)?.address()?);
            clients.ask(Target { name: pod.to_owned(), address, answer })?;
        }
        let address = format!("{}:{port}", clients.machine_address());
        clients.ask(Target {
            name: "host port".to_owned(),
            address,
            answer: "hello from shop".to_owned(),
        })?;
        clients.answered(ANSWERS)?;
        let (lives, rules) = (cluster.lives()?, our_rules(cluster)?);
        ensure!(lives.len() == 7 && rules.iter().any(|rule| rule.contains("DNAT")), "{lives:?} {rules:#?}");

        for round in 0..rounds {
            let mut victims = victims(&mut chance)?;
            for victim in &victims {
                victim.kill(cluster)?;
                chance.moment(secs(1) / 4);
            }
            clients.answered(ANSWERS)?;
            while !victims.is_empty() {
                let next = *chance.one_of(&victims)?;
                victims.retain(|part| *part != next);
                next.start(cluster)?;
                // Up to the time that an agent takes to act on its own disk.
                chance.moment(secs(2));
            }
            clients.answered(ANSWERS)?;
            ensure!(cluster.lives()? == lives, "round {round}: {:?} is not {lives:?}", cluster.lives()?);
            // A freshly started agent may be about to read them.
            let now = our_rules(cluster)?;
            ensure!(now == rules, "round {round}: {now:#?} is not {rules:#?}");
        }
        still_alive(cluster)?;
        ensure!(our_rules(cluster)? == rules, "the rules are others in the end");
        untouched(cluster, &lives)?;
        let requests = clients.end()?;
        println!("fail-static: {rounds} rounds, {requests} requests, none failed");
        Ok(())
    })
}

/// Checks that all three are back and work: a push is applied, and so is its removal.
fn still_alive(cluster: &Cluster) -> Result<()> {
    cluster.etcd.wait_ready()?;
    cluster.wait_reconciler(0)?;
    cluster.node().wait_agent()?;
    cluster.push(&[Change::write("last.yaml", web("last").to_string())], "After all that")?;
    cluster.serving("last", "hello from last")?;
    cluster.push(&[Change::remove("last.yaml")], "And away")?;
    cluster.gone("last")
}

fn untouched(cluster: &Cluster, lives: &std::collections::BTreeMap<String, String>) -> Result<()> {
    ensure!(cluster.lives()? == *lives, "containers were touched");
    for container in cluster.containers()? {
        ensure!(container.running && container.restarts == 0, "{container:?}");
        ensure!(container.label("attempt") == "0", "{} is a second start", container.name);
    }
    for pod in PODS {
        let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", pod));
        eventually(&format!("{pod} is ready and was never restarted"), secs(20), || {
            let status: PodStatus = cluster.etcd.value(&key)?;
            let restarts: u32 = status.container_statuses.iter().map(|c| c.restart_count).sum();
            ensure!(status.is_ready() && restarts == 0, "{status:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The rules of our chains and the rules that lead to them, in order.
fn our_rules(cluster: &Cluster) -> Result<Vec<String>> {
    let (chains, links) = (cluster.slot().chain_prefix(), cluster.slot().instance());
    let rules = cluster.node().net.rules()?;
    Ok(rules.into_iter().filter(|rule| rule.contains(&chains) || rule.contains(&links)).collect())
}
