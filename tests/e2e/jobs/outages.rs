//! What does not answer ends no job: the controller, the accounts, the login host, etcd.

use harness::{Result, ensure, eventually, holds, secs};
use nix::sys::signal::Signal;
use schema::kinds::job::JobPhase;

use super::with_slurm;

#[test]
fn a_slurm_that_is_away_ends_no_job_and_a_lost_etcd_submits_none_again() -> Result<()> {
    with_slurm(|site| {
        let job = |name: &str, seconds: u32| {
            site.manifest(name, &format!("  runCommands: [\"sleep {seconds}; echo done\"]\n"))
        };
        let pushed = [job("short", 1), job("long", 25)];
        site.cluster.push(&pushed, "Two jobs")?;
        let short = site.reaches("short", JobPhase::Succeeded)?;
        let long = site.reaches("long", JobPhase::Running)?;
        site.slurm.accounting().end(Signal::SIGTERM, secs(20))?;
        site.slurm.controller().end(Signal::SIGTERM, secs(20))?;
        holds("nothing ends while Slurm is away", secs(6), || {
            let report = site.report("long")?;
            ensure!(report.status.phase == JobPhase::Running, "{report:?}");
            Ok(())
        })?;
        site.slurm.accounting().start()?;
        site.slurm.controller().start()?;
        // The login host goes, too, and comes back.
        site.slurm.sshd().kill()?;
        site.slurm.sshd().start()?;
        site.cluster.lose_etcd()?;
        eventually("both jobs are known again", secs(60), || {
            let (again, report) = (site.report("short")?, site.report("long")?);
            ensure!(again.uid == short.uid && report.uid == long.uid, "{again:?} {report:?}");
            Ok(())
        })?;
        let done = site.reaches("long", JobPhase::Succeeded)?;
        for report in [&short, &done] {
            ensure!(site.in_accounts(report)?.len() == 1, "{:?}", site.in_accounts(report)?);
        }
        // No other attempt either.
        let all = site.slurm.slurm("sacct", &["-nPX", "-o", "JobName"])?;
        ensure!(all.lines().count() == 2, "{all}");
        Ok(())
    })
}
