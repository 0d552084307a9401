//! Ends of jobs on a real Slurm, and events that end none. OUT_OF_MEMORY needs cgroups v1, which newer machines
//! lack; Slurm's output for it is also in the tests of `parse.rs`.

use harness::{Change, ClusterOptions, Context, Result, Slurm, ensure, eventually, holds, secs};
use nix::sys::signal::Signal;
use schema::kinds::job::{FailureClass, JobPhase};
use schema::records::JobReport;

use super::{Site, settings, with, with_slurm};

#[test]
fn every_end_of_a_job_is_distinguished_from_the_others() -> Result<()> {
    with(ClusterOptions::default(), Slurm::start_with_memory_limits, |site| {
        let job = |name: &str, command: &str, more: &str| {
            site.manifest(name, &format!("  runCommands:\n  - |\n    {command}\n{more}"))
        };
        let pushed = [
            job("killed", "kill -9 $$", ""),
            job("late", "sleep 600", "  timeLimit: \"30\"\n"),
            job("stuck", "sleep 600", ""),
            job("again", "[ ${SLURM_JOB_NAME##*.} = 2 ] || sleep 600", "  nodeFailureRetries: 1\n"),
            job("after-again", "true", "  dependency: {job: again}\n"),
            // One process: of several, the kernel may end another one than the shell, and the job would go on.
            job("large", "exec dd if=/dev/zero of=/dev/null bs=200M count=1", "  memory: 20Mi\n"),
        ];
        site.cluster.push(&pushed, "Jobs that end in their ways")?;
        let class = |report: &JobReport| report.status.class;
        let killed = site.reaches("killed", JobPhase::Failed)?;
        ensure!(class(&killed) == Some(FailureClass::Signal), "{killed:?}");
        ensure!(killed.status.reason == "signal 9", "{killed:?}");
        // Slurm's limit is at least a minute; an end set by its administrator comes sooner. Slurm refuses an end that
        // has passed by its clock, and `now` has if a second ends before Slurm reads the request.
        let late = number(&site.reaches("late", JobPhase::Running)?)?;
        site.slurm.slurm("scontrol", &["update", &format!("JobId={late}"), "EndTime=now+5"])?;
        // Slurm checks for such jobs twice a minute.
        accounting_stopped(site)?;
        let late = site.reaches("late", JobPhase::Failed)?;
        ensure!(class(&late) == Some(FailureClass::Timeout), "{late:?}");
        if site.slurm.has_memory_limits() {
            let large = site.reaches("large", JobPhase::Failed)?;
            ensure!(class(&large) == Some(FailureClass::OutOfMemory), "{large:?}");
            ensure!(large.status.state == "OUT_OF_MEMORY", "{large:?}");
        } else {
            println!("OUT_OF_MEMORY is not seen: this machine has no cgroups for Slurm");
            site.cluster.push(&[Change::remove("jobs/large.yaml")], "No limits of memory")?;
        }
        node_lost(site)?;
        controller_stopped(site)
    })
}

/// Loses Slurm's node with two jobs: one is submitted again, as often as its manifest says.
fn node_lost(site: &mut Site<'_>) -> Result<()> {
    for name in ["stuck", "again"] {
        site.reaches(name, JobPhase::Running)?;
    }
    let node = format!("NodeName={}", site.slurm.node_name()?);
    site.slurm.node().kill()?;
    site.slurm.slurm("scontrol", &["update", &node, "State=DOWN", "Reason=lost"])?;
    let stuck = site.reaches("stuck", JobPhase::Failed)?;
    ensure!(stuck.status.class == Some(FailureClass::NodeFailure), "{stuck:?}");
    site.slurm.node().start()?;
    eventually("the node is back", secs(30), || {
        site.slurm.slurm("scontrol", &["update", &node, "State=RESUME"]).map(drop)
    })?;
    let again = site.reaches("again", JobPhase::Succeeded)?;
    ensure!(again.status.attempt == 2, "{again:?}");
    // It was not lost with the first attempt.
    site.reaches("after-again", JobPhase::Succeeded).map(drop)
}

/// Follows a job with squeue while there is no accounting.
fn accounting_stopped(site: &mut Site<'_>) -> Result<()> {
    site.slurm.accounting().end(Signal::SIGTERM, secs(20))?;
    let jobs = [
        site.manifest("uncounted", "  runCommands: [\"sleep 2; echo done\"]\n"),
        site.manifest("uncounted-three", "  runCommands: [exit 3]\n"),
    ];
    site.cluster.push(&jobs, "While nobody counts")?;
    site.reaches("uncounted", JobPhase::Succeeded)?;
    let three = site.reaches("uncounted-three", JobPhase::Failed)?;
    ensure!(three.status.exit_code.as_deref() == Some("3:0"), "{three:?}");
    site.slurm.accounting().start()
}

/// A job pushed while the controller is away is submitted exactly once after its return.
fn controller_stopped(site: &mut Site<'_>) -> Result<()> {
    site.slurm.controller().end(Signal::SIGTERM, secs(20))?;
    let job = site.manifest("patient", "  runCommands: [\"true\"]\n");
    site.cluster.push(&[job], "While the controller is away")?;
    eventually("the job meets the controller that is away", secs(60), || {
        let reason = site.report("patient")?.status.reason;
        ensure!(reason.contains("Slurm does not answer"), "{reason}");
        Ok(())
    })?;
    holds("that is not an end", secs(3), || {
        let phase = site.report("patient")?.status.phase;
        ensure!(!phase.is_final(), "{phase:?}");
        Ok(())
    })?;
    site.slurm.controller().start()?;
    let done = site.reaches("patient", JobPhase::Succeeded)?;
    ensure!(site.in_accounts(&done)?.len() == 1, "{:?}", site.in_accounts(&done)?);
    Ok(())
}

fn number(report: &JobReport) -> Result<String> {
    Ok(report.status.slurm_id.context("no number")?.to_string())
}

#[test]
fn jobs_go_on_at_the_next_login_host_of_a_pool_and_through_a_jump_host() -> Result<()> {
    with_slurm(|site| {
        let (port, key) = (site.slurm.ssh_port(), site.slurm.host_key()?);
        let pool = format!("{}, loginPool: [127.0.0.2]", site.slurm.login(port)?);
        site.slurm.second_sshd().start()?;
        let job = site.manifest("long", "  runCommands: [\"sleep 8; echo done\"]\n");
        // The login host of another cluster, which does not answer.
        let dead = site.manifest(
            "dead",
            "  runCommands: [\"true\"]\n  login: {host: 127.0.0.3, username: root, sshKey: {name: slurm, key: id}}\n",
        );
        let jump = site.manifest(
            "jump",
            &format!(
                "  runCommands: [echo jumped]\n  login:\n    host: 127.0.0.2\n    port: {port}\n    username: root\n    \
                 sshKey: {{name: slurm, key: id}}\n    hostKeys: [{key}]\n    \
                 jumpHost: {{host: 127.0.0.1, port: {port}, hostKeys: [{key}]}}\n"
            ),
        );
        let commit = site.cluster.push(&[settings(&pool)], "A pool")?;
        site.cluster.applied(&commit)?;
        site.cluster.push(&[job, dead, jump], "Jobs of three logins")?;
        site.reaches("long", JobPhase::Running)?;
        site.reaches("jump", JobPhase::Succeeded)?;
        ensure!(site.cluster.cli(&["logs", "job/jump"])?.ok()? == "jumped\n");
        // Its connections are in separate processes.
        let pid = site.slurm.sshd().pid()?.to_string();
        let sessions = harness::run("pgrep", &["-P", &pid])?;
        site.slurm.sshd().kill()?;
        for session in sessions.lines() {
            harness::run("kill", &["-9", session])?;
        }
        let late = site.manifest("late", "  runCommands: [\"true\"]\n");
        site.cluster.push(&[late], "With the first login host down")?;
        for name in ["late", "long"] {
            let done = site.reaches(name, JobPhase::Succeeded)?;
            ensure!(site.in_accounts(&done)?.len() == 1, "{done:?}");
        }
        let dead = site.report("dead")?;
        ensure!(dead.status.reason.contains("cannot log in") && dead.status.slurm_id.is_none(), "{dead:?}");
        // A login that never worked blocks nothing: the job starts with the corrected one.
        let corrected = site.manifest("dead", "  runCommands: [\"true\"]\n");
        site.cluster.push(&[corrected], "The login corrected")?;
        site.reaches("dead", JobPhase::Succeeded).map(drop)
    })
}
