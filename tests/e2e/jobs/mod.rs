//! Slurm jobs from Git: a real Slurm with accounts, behind a real sshd.

use harness::{
    Change, Cluster, ClusterOptions, Context, Result, Slurm, ensure, eventually, recipient, sealed, secs,
};
use schema::keys::Key;
use schema::kinds::job::{FailureClass, JobPhase};
use schema::meta::NamespacedName;
use schema::records::{JobOrder, JobReport};

mod cuts;
mod ends;
mod many;
mod outages;

/// A cluster that submits to a Slurm of its own.
struct Site<'c> {
    cluster: &'c mut Cluster,
    slurm: Slurm,
}

/// Tells a story of jobs.
fn with_slurm(story: impl FnOnce(&mut Site<'_>) -> Result<()>) -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let slurm = Slurm::start(&cluster.dir(""), cluster.slot().port(14))?;
        let key: String = slurm.key()?.lines().map(|line| format!("  {line}\n")).collect();
        let secret = sealed(&recipient(cluster)?, "*", "slurm", &format!("id: |\n{key}"))?;
        let settings = settings(&slurm.login(slurm.ssh_port())?);
        cluster.push(&[settings, Change::write("secrets/slurm.age", secret)], "The login host")?;
        story(&mut Site { cluster, slurm })
    })
}

/// The Cluster object with a login.
fn settings(login: &str) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  slurm:\n    login: {{{login}, \
         sshKey: {{name: slurm, key: id}}}}\n"
    );
    Change::write("cluster.yaml", text)
}

impl Site<'_> {
    /// A job's manifest, with further lines of its spec.
    fn manifest(&self, name: &str, spec: &str) -> Change {
        let jobs = self.slurm.jobs();
        let text = format!(
            "apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  workDir: {}\n{spec}",
            jobs.display()
        );
        Change::write(format!("jobs/{name}.yaml"), text)
    }

    fn report(&self, name: &str) -> Result<JobReport> {
        let node = self.cluster.node().name.clone();
        self.cluster.etcd.value(Key::JobReport(node, NamespacedName::new("default", name)))
    }

    fn order(&self, name: &str) -> Result<JobOrder> {
        let node = self.cluster.node().name.clone();
        self.cluster.etcd.value(Key::Job(node, NamespacedName::new("default", name)))
    }

    /// Waits until a job is in a phase.
    fn reaches(&self, name: &str, phase: JobPhase) -> Result<JobReport> {
        eventually(&format!("job {name} is {phase:?}"), secs(60), || {
            let report = self.report(name)?;
            ensure!(report.status.phase == phase, "{:?}", report.status);
            Ok(report)
        })
    }

    /// The jobs that Slurm's accounts have of a report's name, once they know of it: they lag behind.
    fn in_accounts(&self, report: &JobReport) -> Result<Vec<String>> {
        eventually("Slurm's accounts know the job", secs(30), || {
            let jobs = self.slurm.accounts(&report.slurm_name)?;
            ensure!(!jobs.is_empty(), "none");
            Ok(jobs)
        })
    }
}

#[test]
fn a_job_is_compiled_and_run_on_slurm_and_its_results_come_back() -> Result<()> {
    with_slurm(|site| {
        let sum = site.manifest(
            "sum",
            "  files: code/sum\n  compileCommands: [\"sh make.sh\"]\n  runCommands:\n    - echo \"it's $(cat made) \
             on $SLURM_JOB_NAME\"\n    - echo trouble >&2\n    - mkdir -p out && seq 3 > out/a.txt && echo b > out/b.txt\n  \
             ttlSecondsAfterFinished: 0\n  outputFile: log-%j.txt\n  errorFile: log-%j.err\n  outputs: [out/*.txt, none]\n",
        );
        let code = Change::write("code/sum/make.sh", "echo compiled > made\n");
        let three = site.manifest("three", "  runCommands: [echo first, exit 3, echo never]\n");
        let refused = site.manifest("refused", "  partition: nowhere\n  runCommands: [\"true\"]\n");
        let commit = site.cluster.push(&[sum, code, three, refused], "Three jobs")?;
        site.cluster.applied(&commit)?;
        let followed = site.cluster.cli(&["logs", "job/three", "-f"])?;
        ensure!(followed.ok()? == "first\n");
        let done = site.reaches("sum", JobPhase::Succeeded)?;
        ensure!(done.results.len() == 4 && done.status.exit_code.as_deref() == Some("0:0"), "{done:?}");
        let cli = |args: &[&str]| site.cluster.cli(args)?.ok();
        let said = cli(&["logs", "job/sum"])?;
        ensure!(said == format!("it's compiled on {}\n", done.slurm_name), "{said}");
        ensure!(cli(&["logs", "job/sum", "--stderr"])? == "trouble\n");
        let dir = site.cluster.dir("results");
        cli(&["results", "job/sum", "-d", &dir.display().to_string()])?;
        ensure!(std::fs::read_to_string(dir.join("out/a.txt"))? == "1\n2\n3\n");
        let failed = site.reaches("three", JobPhase::Failed)?;
        ensure!(failed.status.class == Some(FailureClass::ExitCode), "{failed:?}");
        ensure!(failed.status.exit_code.as_deref() == Some("3:0"), "{failed:?}");
        ensure!(cli(&["logs", "job/three"])? == "first\n");
        let refused = site.reaches("refused", JobPhase::Failed)?;
        ensure!(refused.status.class == Some(FailureClass::Submission), "{refused:?}");
        ensure!(refused.status.reason.contains("partition"), "{refused:?}");
        let table = cli(&["get", "jobs"])?;
        ensure!(table.contains("ExitCode: exit code 3") && table.contains("Succeeded"), "{table}");
        let page = cli(&["describe", "job/sum"])?;
        ensure!(page.contains("#SBATCH --output=log-%j.txt") && page.contains("out/b.txt"), "{page}");
        for report in [&done, &failed] {
            ensure!(site.in_accounts(report)?.len() == 1, "{:?}", site.in_accounts(report)?);
        }
        // Removed: the folder goes, and the order with it.
        let folder = site.slurm.jobs().join(&done.slurm_name);
        eventually("its files go from the login host, as the manifest says", secs(30), || {
            ensure!(!folder.join("made").exists() && folder.join(".minik8s/id").exists());
            Ok(())
        })?;
        ensure!(cli(&["logs", "job/sum", "--stderr"])? == "trouble\n", "what was fetched stays");
        site.cluster.push(&[Change::remove("jobs/sum.yaml")], "Remove one")?;
        eventually("the job is gone", secs(60), || {
            ensure!(!folder.exists() && site.order("sum").is_err() && site.report("sum").is_err());
            Ok(())
        })
    })
}

#[test]
fn a_change_and_a_removal_cancel_what_runs_and_what_waits_in_the_queue_is_well() -> Result<()> {
    with_slurm(|site| {
        let sleeps = |site: &Site<'_>, name: &str, spec: &str| {
            site.manifest(name, &format!("  runCommands: [\"echo begun; sleep 600\"]\n{spec}"))
        };
        let pushed =
            [sleeps(site, "long", ""), sleeps(site, "array", "  array: 0-2\n"), sleeps(site, "hit", "")];
        let held = site.manifest("held", "  runCommands: [\"true\"]\n  extraOptions: [--hold]\n");
        let after =
            site.manifest("after", "  runCommands: [\"true\"]\n  dependency: {job: hit, type: afternotok}\n");
        let commit = site.cluster.push(&[pushed.as_slice(), &[held, after]].concat(), "Long jobs")?;
        let long = site.reaches("long", JobPhase::Running)?;
        let array = site.reaches("array", JobPhase::Running)?;
        let hit = site.reaches("hit", JobPhase::Running)?;
        let held = site.reaches("held", JobPhase::Queued)?;
        site.reaches("after", JobPhase::Queued)?;
        ensure!(held.status.reason.contains("JobHeldUser"), "{held:?}");
        // What runs and what waits in Slurm's queue is well: the commit is good.
        eventually("the commit is good", secs(30), || {
            let history = site.cluster.cli(&["history"])?.ok()?;
            let line = history.lines().find(|line| line.contains(&commit[..7])).context("no line")?;
            ensure!(line.contains("Good"), "{line}");
            Ok(())
        })?;
        eventually("what it wrote so far is read", secs(20), || {
            let said = site.cluster.cli(&["logs", "job/long"])?.ok()?;
            ensure!(said == "begun\n", "{said}");
            Ok(())
        })?;
        let number = hit.status.slurm_id.context("a number")?.to_string();
        site.slurm.slurm("scancel", &[&number])?;
        site.reaches("hit", JobPhase::Cancelled)?;
        site.reaches("after", JobPhase::Succeeded)?;
        // Another spec: the former job is cancelled before the next is submitted.
        let other = site.manifest("long", "  runCommands: [\"echo again\"]\n");
        site.cluster.push(&[other, Change::remove("jobs/array.yaml")], "Change one, remove one")?;
        let again = site.reaches("long", JobPhase::Succeeded)?;
        ensure!(again.slurm_name != long.slurm_name);
        eventually("the former job is cancelled", secs(30), || {
            let jobs = site.in_accounts(&long)?;
            ensure!(jobs.len() == 1 && jobs[0].contains("CANCELLED"), "{jobs:?}");
            Ok(())
        })?;
        eventually("the array is cancelled", secs(60), || {
            let tasks = site.in_accounts(&array)?;
            ensure!(tasks.len() == 3 && tasks.iter().all(|task| task.contains("CANCELLED")), "{tasks:?}");
            ensure!(site.order("array").is_err(), "its order is there");
            Ok(())
        })
    })
}
