//! The agent is killed with SIGKILL at random moments while ten pods are created and while they are
//! removed. The next agent creates exactly these ten, as an undisturbed agent does: not a container,
//! link, mount, rule or folder more or less; and at the end none. `MINIK8S_ROUNDS` is the number of rounds (one
//! by default, 20 in a soak), `MINIK8S_SEED` replays the moments.
//!
//! `agent/src/converge/pods/tests/crash.rs` tests the same at every single call, on scripted worlds.
//!
//! Fails when a container that was created but not started counts as running (`State::Created` in
//! `agent/src/converge/pods/container/machine.rs`).

use std::time::Duration;

use harness::manifests::{rich, web};
use harness::{
    Chance, Change, Cluster, ClusterOptions, IMAGE, Listing, Result, Where, ensure, eventually, rounds, secs,
};

const PODS: u16 = 10;
/// Kills in each creation, and as many in each removal.
const KILLS: usize = 3;
/// Duration of creating ten pods on a quiet machine, within which the kills happen.
const MOMENTS: Duration = Duration::from_millis(1500);

#[test]
fn an_agent_killed_at_any_moment_leaves_no_orphan_and_no_double() -> Result<()> {
    let (rounds, mut chance) = (rounds(1, 20), Chance::of("crash moments"));
    let options = ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("stays.yaml", web("stays").to_string())], "One that stays")?;
        let stays = cluster.serving("stays", "hello from stays")?;
        let without = Listing::at_rest(cluster.node(), cluster.slot())?.without_layers();
        // Baseline without any kill.
        push_ten(cluster)?;
        let with = eventually("the ten run", secs(60), || {
            ensure!(cluster.containers()?.iter().filter(|c| c.running).count() == 2 + 2 * usize::from(PODS));
            listing(cluster)
        })?;
        remove_ten(cluster)?;
        eventually("the ten are gone", secs(60), || listing(cluster)?.ensure_equals(&without))?;

        for round in 0..rounds {
            push_ten(cluster)?;
            kill_and_start(cluster, &mut chance)?;
            let what = format!("round {round}: exactly the ten");
            eventually(&what, secs(90), || listing(cluster)?.ensure_equals(&with))?;
            remove_ten(cluster)?;
            kill_and_start(cluster, &mut chance)?;
            let what = format!("round {round}: nothing of the ten");
            eventually(&what, secs(90), || listing(cluster)?.ensure_equals(&without))?;
        }
        ensure!(cluster.pod("stays")?.lives() == stays.lives(), "the pod that stays was touched");
        println!("crash moments: {} kills", rounds * KILLS * 2);
        Ok(())
    })
}

fn kill_and_start(cluster: &mut Cluster, chance: &mut Chance) -> Result<()> {
    for _ in 0..KILLS {
        chance.moment(MOMENTS);
        cluster.node_mut().agent.kill()?;
        cluster.start_agent()?;
    }
    Ok(())
}

fn push_ten(cluster: &Cluster) -> Result<()> {
    let ten = (0..PODS).map(|n| rich(&format!("ten-{n}"), IMAGE, (n % 2 == 0).then_some(20_000 + n)));
    let ten: Vec<String> = ten.collect();
    cluster.push(&[Change::write("ten.yaml", ten.join("---\n"))], "Ten").map(|_| ())
}

fn remove_ten(cluster: &Cluster) -> Result<()> {
    cluster.push(&[Change::remove("ten.yaml")], "None\n\nMinik8s-Allow-Prune: true").map(|_| ())
}

fn listing(cluster: &Cluster) -> Result<Listing> {
    Ok(Listing::of(cluster.node(), cluster.slot())?.without_layers())
}
