//! Outages that end no job: the controller, the accounting, the login host, etcd.

use harness::{
    Change, Cluster, ClusterOptions, Result, Slurm, Where, encrypted_to, ensure, eventually, holds,
    recipient_of, secs,
};
use nix::sys::signal::Signal;
use schema::keys::Key;
use schema::kinds::job::JobPhase;

use super::{Site, settings, with_slurm};

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
        // The login host stops, too, and restarts.
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

/// Both are lost twice, each time while another node is away: only the nodes' own state knows of the jobs.
#[test]
fn jobs_are_submitted_once_though_etcd_and_the_masters_disk_are_lost() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let slurm = Slurm::start(&cluster.dir(""), cluster.slot().port(14))?;
        let host = cluster.slot().underlay(1);
        let mut sshd = slurm.sshd_at(&host);
        sshd.start()?;
        let key: String = slurm.key()?.lines().map(|line| format!("  {line}\n")).collect();
        let nodes = [recipient_of(cluster, 1)?, recipient_of(cluster, 2)?];
        let secret = encrypted_to(&nodes, &format!("namespace: \"*\"\nname: slurm\n---\nid: |\n{key}"))?;
        let login = slurm.login(slurm.ssh_port())?.replace("127.0.0.1", &host);
        cluster.push(&[settings(&login), Change::write("secrets/slurm.age", secret)], "The login host")?;
        let site = &mut Site { cluster, slurm };
        let names = ["ended-a", "ended-b", "runs-a", "runs-b"];
        let command = |name: &str| if name.starts_with("ended") { "true" } else { "sleep 45" };
        let job = |name: &&str| site.manifest(name, &format!("  runCommands: [\"{}\"]\n", command(name)));
        let pushed: Vec<Change> = names.iter().map(job).collect();
        site.cluster.push(&pushed, "Jobs of two nodes")?;
        let mut uids = Vec::new();
        for name in names {
            let phase = if name.starts_with("ended") { JobPhase::Succeeded } else { JobPhase::Running };
            uids.push(site.reaches(name, phase)?.uid);
        }
        for away in [0, 1] {
            site.cluster.nodes[away].cut_off()?;
            site.cluster.lose_etcd()?;
            std::fs::remove_dir_all(site.cluster.dir("state-r0"))?;
            // The authority comes from a backup.
            site.cluster.fill_reconciler(0)?;
            site.cluster.reconcilers[0].start()?;
            site.cluster.wait_reconciler(0)?;
            let other = site.cluster.nodes[1 - away].name.clone();
            eventually("the other node is back", secs(30), || {
                site.cluster.etcd.value::<serde_json::Value>(Key::Node(other.clone())).map(drop)
            })?;
            site.cluster.nodes[away].reconnect()?;
            for (name, uid) in names.iter().zip(&uids) {
                eventually(&format!("{name} is ordered again"), secs(60), || {
                    let order = site.order(name)?;
                    ensure!(order.uid == *uid, "{name} is another job now: {order:?}");
                    Ok(())
                })?;
            }
            site.cluster.settled()?;
        }
        for name in names {
            let done = site.reaches(name, JobPhase::Succeeded)?;
            ensure!(site.in_accounts(&done)?.len() == 1, "{:?}", site.in_accounts(&done)?);
        }
        let all = site.slurm.slurm("sacct", &["-nPX", "-o", "JobName"])?;
        ensure!(all.lines().count() == names.len(), "{all}");
        sshd.kill()
    })
}
