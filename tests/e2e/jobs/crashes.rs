//! An agent that is killed around a submission submits once.

use std::time::Duration;

use harness::{Chance, Result, ensure, eventually, rounds, secs};
use schema::kinds::job::JobPhase;

use super::with_slurm;

/// A submission takes about 0.4 s from its order on.
const SUBMISSION: Duration = Duration::from_millis(700);

#[test]
fn an_agent_killed_around_sbatch_submits_exactly_once() -> Result<()> {
    with_slurm(|site| {
        let mut chance = Chance::of("an agent killed around sbatch");
        for round in 0..rounds(6, 60) {
            let name = format!("once{round}");
            let job = site.manifest(&name, "  runCommands: [\"sleep 1\"]\n");
            site.cluster.push(&[job], &name)?;
            eventually("the job has an order", secs(30), || site.order(&name).map(drop))?;
            chance.moment(SUBMISSION);
            site.cluster.node_mut().agent.kill()?;
            site.cluster.start_agent()?;
            let done = site.reaches(&name, JobPhase::Succeeded)?;
            let jobs = site.in_accounts(&done)?;
            ensure!(jobs.len() == 1, "round {round}: {jobs:?}");
        }
        Ok(())
    })
}
