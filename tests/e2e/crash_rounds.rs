//! `kill -9` of every process, in turn and together: containers never notice, and a push
//! converges after each restart. `MINIK8S_ROUNDS` is the number of rounds (4 by default, 20 in a soak).
//!
//! Fails when the agent removes its containers as it starts.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure, rounds};

#[derive(Debug, Clone, Copy)]
enum Victim {
    Reconciler,
    Agent,
    Etcd,
    All,
}

const VICTIMS: [Victim; 4] = [Victim::Reconciler, Victim::Agent, Victim::Etcd, Victim::All];

impl Victim {
    fn kill(self, cluster: &mut Cluster) -> Result<()> {
        if matches!(self, Victim::Reconciler | Victim::All) {
            cluster.reconcilers[0].kill()?;
        }
        if matches!(self, Victim::Agent | Victim::All) {
            cluster.node_mut().agent.kill()?;
        }
        if matches!(self, Victim::Etcd | Victim::All) {
            cluster.etcd.daemon.kill()?;
        }
        Ok(())
    }

    fn bring_back(self, cluster: &mut Cluster) -> Result<()> {
        if matches!(self, Victim::Etcd | Victim::All) {
            cluster.etcd.start()?;
        }
        if matches!(self, Victim::Reconciler | Victim::All) {
            cluster.reconcilers[0].start()?;
            cluster.wait_reconciler(0)?;
        }
        if matches!(self, Victim::Agent | Victim::All) {
            cluster.start_agent()?;
        }
        Ok(())
    }
}

#[test]
fn killed_processes_stop_no_container_and_make_no_second_one() -> Result<()> {
    let rounds = rounds(4, 20);
    Cluster::run(ClusterOptions::default(), |cluster| {
        let files = [
            Change::write("shop.yaml", web("shop").with_sidecar().to_string()),
            Change::write("blog.yaml", web("blog").to_string()),
        ];
        cluster.push(&files, "Two pods")?;
        cluster.running("shop", &["files", "web"])?;
        cluster.serving("blog", "hello from blog")?;
        let before = cluster.lives()?;
        ensure!(before.len() == 5, "{before:?}");

        for (round, victim) in VICTIMS.into_iter().cycle().take(rounds).enumerate() {
            // The push comes first in every other round, so that it is under way at the kill.
            let greeting = format!("round {round}");
            let probe = Change::write("probe.yaml", web("probe").greeting(&greeting).to_string());
            if round % 2 == 0 {
                cluster.repo.push(std::slice::from_ref(&probe), &greeting)?;
            }
            victim.kill(cluster)?;
            cluster.serving("shop", "hello from shop")?;
            victim.bring_back(cluster)?;
            if round % 2 == 1 {
                cluster.repo.push(&[probe], &greeting)?;
            }
            let probe = cluster.serving("probe", &greeting)?;
            // Every container: the former five with their start times, and the probe's own two.
            let mut now = cluster.lives()?;
            now.retain(|id, _| !probe.lives().contains_key(id));
            ensure!(now == before, "round {round}, {victim:?}: {now:?} is not {before:?}");
        }
        Ok(())
    })
}
