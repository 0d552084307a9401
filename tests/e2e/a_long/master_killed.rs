//! The leading reconciler is killed at random moments of rollouts and scalings, and another of the three takes
//! over. The outcome is that of an undisturbed reconciler: no extra pod was ever started, none twice.
//! `MINIK8S_ROUNDS` is the number of rounds (3 by default, 20 in a soak), `MINIK8S_SEED` replays the moments.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{
    Chance, Cluster, ClusterOptions, Context, EtcdKey, Result, Timeline, Where, ensure, eventually, rounds,
    secs,
};
use schema::keys::{Key, prefix};

use crate::workloads::{Runs, Workload, started_once};

/// Duration of a rollout on a quiet machine, within which the kills happen.
const MOMENTS: Duration = Duration::from_secs(5);

fn leader(cluster: &Cluster, not: Option<&EtcdKey>) -> Result<EtcdKey> {
    eventually("one leads", secs(45), || {
        let leader = cluster.etcd.key(Key::Leader)?.context("none leads")?;
        ensure!(
            not.is_none_or(|former| former.create_revision != leader.create_revision),
            "still the former"
        );
        Ok(leader)
    })
}

/// Kills the leader. In every other round its lease ends immediately, so that the successor takes over without
/// waiting.
pub(crate) fn kill_leader(cluster: &mut Cluster, round: usize) -> Result<()> {
    let former = leader(cluster, None)?;
    let index = (0..cluster.reconcilers.len()).find(|index| former.value.contains(&format!("\"r{index}\"")));
    let index = index.with_context(|| former.value.clone())?;
    cluster.reconcilers[index].kill()?;
    if round.is_multiple_of(2) {
        cluster.etcd.end_lease_of(&former)?;
    }
    let next = leader(cluster, Some(&former))?;
    println!("round {round}: {} was killed, then {} led", former.value, next.value);
    cluster.reconcilers[index].start()?;
    cluster.wait_reconciler(index)
}

/// Checks that no pod is bound or reported twice, and that every pod runs.
fn is_clean(cluster: &Cluster, shop: &Workload, running: &[Runs]) -> Result<()> {
    let names: BTreeSet<&str> = running.iter().map(|runs| runs.pod.as_str()).collect();
    eventually("records are those of what runs", secs(20), || {
        for below in [prefix::PODS, prefix::BINDINGS, prefix::STATUS] {
            let mut found = Vec::new();
            for key in cluster.etcd.list(below)? {
                match key.key.parse() {
                    Ok(Key::Pod(pod) | Key::Binding(_, pod) | Key::PodStatus(_, pod))
                        if shop.owns(&pod.name) =>
                    {
                        found.push(pod.name);
                    }
                    _ => {}
                }
            }
            found.sort();
            ensure!(
                found.iter().map(String::as_str).eq(names.iter().copied()),
                "{below}: {found:?}, not {names:?}"
            );
        }
        Ok(())
    })
}

// Seen red with pods without a node left out of `Planned::living`: 7 pods at once, not 5.
#[test]
fn a_leader_killed_during_rollouts_and_scalings_leaves_no_pod_too_many() -> Result<()> {
    let (rounds, mut chance) = (rounds(3, 20), Chance::of("master killed"));
    let options = ClusterOptions { place: Where::Namespaces(3), reconcilers: 3, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let mut shop = Workload::new("shop", 4);
        shop.more = "  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}\n".to_owned();
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        shop.serves(cluster)?;
        let mut started = 4;
        for round in 0..rounds {
            let since = cluster.etcd.revision()?;
            let former = shop.replicas;
            // A rollout, a scale-up, a rollout, and a scale-down.
            let change = match round % 4 {
                0 | 2 => shop.roll(),
                1 => shop.scale(7),
                _ => shop.scale(4),
            };
            started += if round % 2 == 0 { shop.replicas } else { shop.replicas.saturating_sub(former) };
            let commit = cluster.repo.push(&[change], "Change")?;
            if round % 3 != 2 {
                cluster.applied(&commit)?;
            }
            chance.moment(MOMENTS);
            kill_leader(cluster, round)?;
            cluster.applied(&commit)?;
            let running = shop.serves(cluster)?;
            is_clean(cluster, &shop, &running)?;
            let most = shop.most_records(cluster, since)?;
            let allowed = former.max(shop.replicas) + 1;
            ensure!(most <= allowed, "round {round}: {most} pods at once, not {allowed}");
            let moments = timeline.moments()?;
            let all = started_once(&shop.moments(&moments))?;
            ensure!(all == started, "round {round}: {all} pods were started, not {started}");
        }
        println!("master killed: {rounds} kills, {started} pods started, each once");
        Ok(())
    })
}
