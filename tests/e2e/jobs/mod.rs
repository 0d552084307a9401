//! Slurm jobs from Git: a real Slurm with accounting, behind a real sshd.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;

use harness::{
    Change, Cluster, ClusterOptions, Context, Result, Slurm, ensure, eventually, recipient, sealed, secs,
};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::job::{FailureClass, JobPhase};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{JobOrder, JobReport};

mod cuts;
mod ends;
mod many;
mod outages;

/// A cluster with its own Slurm.
struct Site<'c> {
    cluster: &'c mut Cluster,
    slurm: Slurm,
}

/// Runs a story of jobs.
fn with_slurm(story: impl FnOnce(&mut Site<'_>) -> Result<()>) -> Result<()> {
    with(ClusterOptions::default(), Slurm::start, story)
}

/// Like `with_slurm`, on another cluster, with a Slurm started differently.
fn with(
    options: ClusterOptions,
    start: fn(&Path, u16) -> Result<Slurm>,
    story: impl FnOnce(&mut Site<'_>) -> Result<()>,
) -> Result<()> {
    Cluster::run(options, |cluster| {
        let slurm = start(&cluster.dir(""), cluster.slot().port(14))?;
        let key: String = slurm.key()?.lines().map(|line| format!("  {line}\n")).collect();
        let secret = sealed(&recipient(cluster)?, "*", "slurm", &format!("id: |\n{key}"))?;
        let settings = settings(&slurm.login(slurm.ssh_port())?);
        cluster.push(&[settings, Change::write("secrets/slurm.age", secret)], "The login host")?;
        let mut site = Site { cluster, slurm };
        story(&mut site).inspect_err(|_| site.slurm.show_logs())
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
        self.of_nodes(|node| Key::JobReport(node, NamespacedName::new("default", name)))
    }

    fn order(&self, name: &str) -> Result<JobOrder> {
        self.of_nodes(|node| Key::Job(node, NamespacedName::new("default", name)))
    }

    /// Value in etcd at the key of whichever node has it.
    fn of_nodes<T: serde::de::DeserializeOwned>(&self, key: impl Fn(String) -> Key) -> Result<T> {
        let found = self.cluster.nodes.iter().map(|node| self.cluster.etcd.value(key(node.name.clone())));
        found.reduce(Result::or).context("no node")?
    }

    /// Waits until a job reaches a phase.
    fn reaches(&self, name: &str, phase: JobPhase) -> Result<JobReport> {
        eventually(&format!("job {name} is {phase:?}"), secs(60), || {
            let report = self.report(name)?;
            ensure!(report.status.phase == phase, "{:?}", report.status);
            Ok(report)
        })
    }

    /// Jobs with a report's name in Slurm's accounting, once it knows of them: it lags behind.
    fn in_accounts(&self, report: &JobReport) -> Result<Vec<String>> {
        eventually("Slurm's accounts know the job", secs(30), || {
            let jobs = self.slurm.accounts(&report.slurm_name)?;
            ensure!(!jobs.is_empty(), "none");
            Ok(jobs)
        })
    }
}

/// Checks that the folder of a job has its script, and nothing of the login key.
fn keeps_the_login_out_of(folder: &Path, key: &str) -> Result<()> {
    let script = std::fs::read_to_string(folder.join(".minik8s/script.sh"))?;
    ensure!(script.contains("\neval -- 'exit 3'\n"), "{script}");
    let canary = key.lines().nth(1).context("no key")?;
    let found = Command::new("grep").args(["-rlF", "--", canary]).arg(folder).output()?;
    ensure!(found.status.code() == Some(1), "{found:?}");
    Ok(())
}

#[test]
fn a_job_is_compiled_and_run_on_slurm_and_its_results_come_back() -> Result<()> {
    let options = ClusterOptions::default();
    with(options, Slurm::start, |site| {
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
        keeps_the_login_out_of(&site.slurm.jobs().join(&failed.slurm_name), &site.slurm.key()?)?;
        let refused = site.reaches("refused", JobPhase::Failed)?;
        ensure!(refused.status.class == Some(FailureClass::Submission), "{refused:?}");
        ensure!(refused.status.reason.contains("partition"), "{refused:?}");
        let (head, page) = listing(site, "text/html")?;
        ensure!(head.contains("text/html") && page.contains(">out/a.txt<"), "{head}{page}");
        let (_, items) = listing(site, "application/json")?;
        ensure!(items.contains("\"path\":\"out/a.txt\""), "{items}");
        let href = page
            .split("href=\"")
            .filter_map(|part| part.split('"').next())
            .find(|href| href.contains("a.txt"));
        let (head, text) = fetched(site, href.context("no link")?, "*/*")?;
        ensure!(text == "1\n2\n3\n", "{text}");
        for part in ["attachment; filename*=UTF-8''a.txt", "nosniff", "default-src 'none'", "text/plain"] {
            ensure!(head.contains(part), "no {part}: {head}");
        }
        let table = cli(&["get", "jobs"])?;
        ensure!(table.contains("ExitCode: exit code 3") && table.contains("Succeeded"), "{table}");
        let page = cli(&["describe", "job/sum"])?;
        ensure!(page.contains("#SBATCH --output=log-%j.txt") && page.contains("out/b.txt"), "{page}");
        for report in [&done, &failed] {
            ensure!(site.in_accounts(report)?.len() == 1, "{:?}", site.in_accounts(report)?);
        }
        follow_over_a_restart(site)?;
        let cli = |args: &[&str]| site.cluster.cli(args)?.ok();
        // Removed: the folder is deleted, and the order with it.
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

/// Head and body of the listing of the results of `sum`, in this content type.
fn listing(site: &Site<'_>, kind: &str) -> Result<(String, String)> {
    fetched(site, "results", kind)
}

fn fetched(site: &Site<'_>, below: &str, kind: &str) -> Result<(String, String)> {
    let socket = site.cluster.socket(0).to_string_lossy().into_owned();
    let (accept, url) = (format!("Accept: {kind}"), format!("http://localhost/v1/jobs/default/sum/{below}"));
    let words = ["-sSi", "--unix-socket", &socket, "-H", &accept, &url];
    let answer = harness::run("curl", &words)?.replace("\r\n", "\n");
    let (head, body) = answer.split_once("\n\n").context("no head")?;
    Ok((head.to_owned(), body.to_owned()))
}

/// Follows a job's output while the reconciler restarts.
fn follow_over_a_restart(site: &mut Site<'_>) -> Result<()> {
    let counts =
        site.manifest("counting", "  runCommands:\n  - for i in $(seq 12); do echo line $i; sleep 1; done\n");
    site.cluster.push(&[counts], "One to follow")?;
    site.reaches("counting", JobPhase::Running)?;
    let mut follow = site.cluster.cli_command(&["logs", "job/counting", "-f"]);
    let mut follow =
        follow.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(follow.stdout.take().context("no output")?).lines();
    let mut said = vec![lines.next().context("it ended")??];
    site.cluster.reconcilers[0].kill()?;
    // The CLI notices before the reconciler is back.
    let mut notes = BufReader::new(follow.stderr.take().context("no notes")?).lines();
    let lost = notes.by_ref().map_while(Result::ok).find(|note| note.contains("retrying"));
    ensure!(lost.is_some(), "the connection was not lost");
    site.cluster.reconcilers[0].start()?;
    for line in lines {
        said.push(line?);
    }
    let ended = follow.wait()?;
    let wanted: Vec<String> = (1..=12).map(|number| format!("line {number}")).collect();
    ensure!(ended.success() && said == wanted, "{ended}: {said:?}");
    site.cluster.wait_reconciler(0)
}

#[test]
fn a_change_and_a_removal_cancel_what_runs_and_what_waits_in_the_queue_is_well() -> Result<()> {
    with_slurm(|site| {
        let sleeps = |site: &Site<'_>, name: &str, spec: &str| {
            site.manifest(name, &format!("  runCommands: [\"echo begun; sleep 600\"]\n{spec}"))
        };
        // The array has a separate login, which is removed with it.
        let login = site.slurm.login(site.slurm.ssh_port())?;
        let own = format!("  array: 0-2\n  login: {{{login}, sshKey: {{name: own, key: id}}}}\n");
        let key: String = site.slurm.key()?.lines().map(|line| format!("  {line}\n")).collect();
        let secret = sealed(&recipient(site.cluster)?, "*", "own", &format!("id: |\n{key}"))?;
        let pushed = [
            sleeps(site, "long", ""),
            sleeps(site, "array", &own),
            sleeps(site, "hit", ""),
            Change::write("secrets/own.age", secret),
        ];
        let held = site.manifest("held", "  runCommands: [\"true\"]\n  extraOptions: [--hold]\n");
        let after =
            site.manifest("after", "  runCommands: [\"true\"]\n  dependency: {job: hit, type: afternotok}\n");
        let noted = Change::write(
            "noted.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: noted, dependsOn: [Job/long]}\ndata: {a: b}\n",
        );
        let commit = site.cluster.push(&[pushed.as_slice(), &[held, after, noted]].concat(), "Long jobs")?;
        let long = site.reaches("long", JobPhase::Running)?;
        eventually("what depends on a job is applied once Slurm has the job", secs(30), || {
            let (namespace, name) = ("default".to_owned(), "noted".to_owned());
            let noted = ObjectRef { kind: Kind::ConfigMap, namespace, name };
            site.cluster.etcd.value::<serde_json::Value>(Key::Object(noted))
        })?;
        let array = site.reaches("array", JobPhase::Running)?;
        let hit = site.reaches("hit", JobPhase::Running)?;
        site.reaches("held", JobPhase::Queued)?;
        site.reaches("after", JobPhase::Queued)?;
        // It is queued once accepted; the reason for waiting comes with the next query of the queue.
        eventually("it says that it is held", secs(30), || {
            let held = site.reaches("held", JobPhase::Queued)?;
            ensure!(held.status.reason.contains("JobHeldUser"), "{held:?}");
            Ok(())
        })?;
        // Running and queued jobs are healthy: the commit is good.
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
        // A changed spec: the former job is cancelled before the next is submitted.
        let other = site.manifest("long", "  runCommands: [\"echo again\"]\n");
        // The node has lost its copy of the login, and it is no longer in Git.
        std::fs::remove_dir_all(site.cluster.node().state_dir().join("agent/blobs"))?;
        let removed = [Change::remove("jobs/array.yaml"), Change::remove("secrets/own.age")];
        site.cluster.push(&[&[other], removed.as_slice()].concat(), "Change one, remove one")?;
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
