//! Connections that are cut before, during and after sbatch, agents that are killed there, and an etcd that is lost
//! in between: one Slurm job each.

use std::time::Duration;

use harness::{Chance, Change, CutProxy, Result, ensure, eventually, rounds, secs};
use schema::kinds::job::JobPhase;

use super::{Site, settings, with_slurm};

/// Jobs of one round, each of them a trial.
const JOBS: usize = 5;
/// Typical duration of a round, from the order to the end of its jobs.
const ROUND: Duration = Duration::from_millis(2500);
/// Number of rounds between two losses of etcd.
const ETCD_EVERY: usize = 8;

#[test]
fn cut_connections_and_killed_agents_submit_each_job_once() -> Result<()> {
    with_slurm(|site| {
        let proxy = CutProxy::serve(site.slurm.ssh_port())?;
        let login = site.slurm.login(proxy.port())?;
        let commit = site.cluster.push(&[settings(&login)], "Through a link that can be cut")?;
        site.cluster.applied(&commit)?;
        site.slurm.slow_down("sbatch")?;
        let mut chance = Chance::of("cuts around sbatch");
        let rounds = rounds(3, 40);
        let mut trials: usize = 0;
        for round in 0..rounds {
            let names: Vec<String> = (0..JOBS).map(|job| format!("cut{round}-{job}")).collect();
            let pushed: Vec<Change> =
                names.iter().map(|name| site.manifest(name, "  runCommands: [\"sleep 1\"]\n")).collect();
            let begun = site.slurm.calls("sbatch").len();
            site.cluster.push(&pushed, &format!("round {round}"))?;
            eventually("a job has an order", secs(60), || site.order(&names[0]).map(drop))?;
            faults(site, &proxy, &mut chance, (round, begun))?;
            if round % ETCD_EVERY == 1 {
                site.cluster.lose_etcd()?;
                site.cluster.reconcilers[0].start()?;
                site.cluster.wait_reconciler(0)?;
            }
            for name in &names {
                let done = site.reaches(name, JobPhase::Succeeded)?;
                let jobs = site.in_accounts(&done)?;
                ensure!(jobs.len() == 1, "round {round}: {name}: {jobs:?}");
                trials += 1;
            }
        }
        // No attempt under any other name either.
        let all = site.slurm.slurm("sacct", &["-nPX", "-S", "now-1days", "-o", "JobName"])?;
        ensure!(all.lines().count() == trials, "{trials} trials, {} Slurm jobs", all.lines().count());
        println!("{trials} trials, one Slurm job each");
        Ok(())
    })
}

/// Faults of a round: at a call of sbatch, at its end, or at any moment.
fn faults(
    site: &mut Site<'_>,
    proxy: &CutProxy,
    chance: &mut Chance,
    (round, begun): (usize, usize),
) -> Result<()> {
    let called = |word: &str| -> Result<()> {
        eventually(&format!("sbatch: {word}"), secs(30), || {
            let calls = site.slurm.calls("sbatch");
            ensure!(calls.iter().skip(begun).any(|call| call.starts_with(word)), "{calls:?}");
            Ok(())
        })
    };
    match round % 5 {
        // Before sbatch, at any moment from the order on.
        0 => {
            for _ in 0..3 {
                chance.moment(ROUND / 3);
                proxy.cut();
            }
        }
        1 => {
            called("begin")?;
            proxy.cut();
        }
        2 => {
            called("end")?;
            proxy.cut();
        }
        3 => {
            called("begin")?;
            site.cluster.node_mut().agent.kill()?;
            site.cluster.start_agent()?;
        }
        // The connections are cut, and the agent is killed while it determines what became of the calls.
        _ => {
            called("begin")?;
            proxy.cut();
            chance.moment(ROUND);
            site.cluster.node_mut().agent.kill()?;
            proxy.cut();
            site.cluster.start_agent()?;
        }
    }
    Ok(())
}
