//! Slurm jobs on a real Slurm: from a push to sbatch, from the end to the results, an upload, a long queue. Also pods
//! with secrets, because each job has a secret.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use harness::manifests::sleeper;
use harness::{
    Change, Cluster, ClusterOptions, Context, Result, Slurm, ensure, eventually, outcome, recipient, sealed,
    secs,
};

use crate::Scale;
use crate::engine::Engine;
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::idle::Idler;
use crate::pods::sync;

/// Size of the uploaded file: a folder may have 64 MiB.
const UPLOAD: usize = 48 << 20;
/// Secrets of one pod.
const SECRETS: usize = 20;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    // There is no poll: every commit is found by the sync right after its push.
    Cluster::run(ClusterOptions { poll: "1h", ..ClusterOptions::default() }, |cluster| {
        pods_with_secrets(cluster, scale, table)?;
        let slurm = Slurm::start(&cluster.dir(""), cluster.slot().port(14))?;
        let site = Site { cluster, slurm };
        site.log_in()?;
        site.round_trips(scale, table)?;
        site.upload(table)?;
        site.queue(scale, table)
    })
}

/// A pod with many secrets, each as a volume, compared with a pod without any.
fn pods_with_secrets(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let recipient = recipient(cluster)?;
    let secret = |number: usize| -> Result<Change> {
        let sealed = sealed(&recipient, "*", &format!("s{number}"), "password: hunter2\n")?;
        Ok(Change::write(format!("secrets/s{number}.age"), sealed))
    };
    let mut files = (0..SECRETS).map(secret).collect::<Result<Vec<_>>>()?;
    files.push(Change::write("pods/warm-up.yaml", sleeper("warm-up")));
    let engine = Engine::beside(cluster)?;
    let push = |files: &[Change], pod: &str| -> Result<Duration> {
        cluster.repo.push(files, "A pod")?;
        let since = SystemTime::now();
        sync(cluster)?;
        engine.started(&[pod.to_owned()], since)
    };
    push(&files, "warm-up")?;
    let volumes: String =
        (0..SECRETS).map(|n| format!("  - {{name: s{n}, secret: {{secretName: s{n}}}}}\n")).collect();
    let (mut with, mut without) = (Series::default(), Series::default());
    for number in 0..scale.pushes {
        let name = format!("without-{number}");
        let file = Change::write(format!("pods/{name}.yaml"), sleeper(&name));
        without.add(push(&[file], &name)?);
        let name = format!("with-{number}");
        let text = format!("{}  volumes:\n{volumes}", sleeper(&name));
        with.add(push(&[Change::write(format!("pods/{name}.yaml"), text)], &name)?);
    }
    for percent in [50, 95] {
        let (with, without) = (with.percentile(percent), without.percentile(percent));
        let what =
            &format!("push → running of a pod with {SECRETS} secrets, beside one with none, p{percent}");
        table.add(Row { what, ours: ms(with), bare: ms(without), ratio: ratio(with, without), budget: "" });
    }
    Ok(())
}

struct Site<'c> {
    cluster: &'c Cluster,
    slurm: Slurm,
}

impl Site<'_> {
    fn log_in(&self) -> Result<()> {
        let key: String = self.slurm.key()?.lines().map(|line| format!("  {line}\n")).collect();
        let secret = sealed(&recipient(self.cluster)?, "*", "slurm", &format!("id: |\n{key}"))?;
        let settings = format!(
            "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  slurm:\n    login: {{{}, \
             sshKey: {{name: slurm, key: id}}}}\n",
            self.slurm.login(self.slurm.ssh_port())?
        );
        let files = [Change::write("cluster.yaml", settings), Change::write("secrets/slurm.age", secret)];
        let commit = self.cluster.repo.push(&files, "The login host")?;
        sync(self.cluster)?;
        self.cluster.applied(&commit).map(drop)
    }

    fn manifest(&self, name: &str, spec: &str) -> Change {
        let jobs = self.slurm.jobs();
        let text = format!(
            "apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  workDir: {}\n{spec}",
            jobs.display()
        );
        Change::write(format!("jobs/{name}.yaml"), text)
    }

    /// Time at which the Slurm id of the job was written on the login host, and the job's folder there.
    fn accepted(&self, name: &str) -> Result<(SystemTime, PathBuf)> {
        let begins = format!("default.{name}.");
        eventually("sbatch has accepted the job", secs(120), || {
            for entry in fs::read_dir(self.slurm.jobs())?.flatten() {
                let id = entry.path().join(".minik8s/id");
                if entry.file_name().to_string_lossy().starts_with(&begins) && id.exists() {
                    return Ok((fs::metadata(id)?.modified()?, entry.path()));
                }
            }
            harness::bail!("no folder has a number")
        })
    }

    fn round_trips(&self, scale: Scale, table: &mut Table) -> Result<()> {
        let (mut accepted, mut bare, mut readable) =
            (Series::default(), Series::default(), Series::default());
        for number in 0..=scale.pushes {
            let start = Instant::now();
            let mut ssh = Command::new("ssh");
            ssh.args(self.slurm.ssh_options())
                .args(["127.0.0.1", "sbatch -o /dev/null --parsable --wrap true"]);
            outcome(&mut ssh, secs(30))?.ok()?;
            let by_hand = start.elapsed();

            let name = format!("short-{number}");
            let spec = "  runCommands: [\"echo done > result.txt\"]\n  outputs: [result.txt]\n";
            self.cluster.repo.push(&[self.manifest(&name, spec)], "A job")?;
            let since = SystemTime::now();
            sync(self.cluster)?;
            let (at, folder) = self.accepted(&name)?;
            let job = format!("job/{name}");
            eventually("the results can be read", secs(120), || {
                let listed = self.cluster.cli(&["results", &job])?;
                ensure!(listed.code == 0 && listed.stdout.contains("result.txt"), "{listed:?}");
                Ok(())
            })?;
            let read = SystemTime::now();
            // The first job also logs in.
            if number > 0 {
                bare.add(by_hand);
                accepted.add(at.duration_since(since)?);
                readable.add(read.duration_since(fs::metadata(folder.join("result.txt"))?.modified()?)?);
            }
        }
        for percent in [50, 95] {
            let (ours, bare) = (accepted.percentile(percent), bare.percentile(percent));
            let what = &format!("push with sync → sbatch accepted, beside sbatch by ssh, p{percent}");
            table.add(Row { what, ours: ms(ours), bare: ms(bare), ratio: ratio(ours, bare), budget: "" });
            let what = &format!("end of a job → its results can be read, p{percent}");
            table.add(Row { what, ours: ms(readable.percentile(percent)), ..Row::default() });
        }
        Ok(())
    }

    /// Measures an upload. The job is held, so that nothing writes to its folder after the rename.
    fn upload(&self, table: &mut Table) -> Result<()> {
        let file = self.cluster.repo.work().join("data/large.bin");
        fs::create_dir_all(file.parent().context("a folder")?)?;
        let mut bytes = vec![0_u8; UPLOAD];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
        fs::write(&file, bytes)?;
        let spec = "  files: data\n  runCommands: [\"true\"]\n  extraOptions: [--hold]\n";
        self.cluster.repo.push(&[self.manifest("large", spec)], "A large folder")?;
        sync(self.cluster)?;
        let (_, folder) = self.accepted("large")?;
        let meta = fs::metadata(&folder)?;
        let named = SystemTime::UNIX_EPOCH
            + Duration::new(u64::try_from(meta.ctime())?, u32::try_from(meta.ctime_nsec())?);
        let ours = named.duration_since(meta.created()?)?;

        let to = self.cluster.dir("by-sftp.bin");
        let batch = self.cluster.dir("sftp.batch");
        fs::write(&batch, format!("put {} {}\n", file.display(), to.display()))?;
        let mut sftp = Command::new("sftp");
        // The login host has no sftp subsystem.
        sftp.args(self.slurm.ssh_options())
            .args(["-s", "/usr/lib/openssh/sftp-server"])
            .arg("-b")
            .arg(&batch)
            .arg("127.0.0.1");
        let start = Instant::now();
        outcome(&mut sftp, secs(120))?.ok()?;
        let plain = start.elapsed();
        let rate = |time: Duration| format!("{:.0} MB/s", UPLOAD as f64 / 1e6 / time.as_secs_f64());
        table.add(Row {
            what: "upload of 48 MiB to its place on the login host, beside plain sftp with its login",
            ours: rate(ours),
            bare: rate(plain),
            ratio: ratio(ours, plain),
            ..Row::default()
        });
        Ok(())
    }

    fn queue(&self, scale: Scale, table: &mut Table) -> Result<()> {
        let spec = "  runCommands: [\"true\"]\n  extraOptions: [--hold]\n";
        let files: Vec<Change> =
            (0..scale.queued_jobs).map(|n| self.manifest(&format!("held-{n}"), spec)).collect();
        let start = Instant::now();
        self.cluster.repo.push(&files, "Many jobs")?;
        sync(self.cluster)?;
        eventually("all wait in the queue", secs(600), || {
            let queue = self.slurm.slurm("squeue", &["-h", "-o", "%j"])?;
            let mut names: BTreeMap<&str, usize> = BTreeMap::new();
            for name in queue.lines().filter(|name| name.starts_with("default.held-")) {
                *names.entry(name).or_default() += 1;
            }
            ensure!(names.len() == scale.queued_jobs, "{} wait", names.len());
            ensure!(names.values().all(|jobs| *jobs == 1), "one was submitted twice");
            Ok(())
        })?;
        let what = &format!("{} jobs in one push, all accepted", scale.queued_jobs);
        table.add(Row { what, ours: ms(start.elapsed()), ..Row::default() });
        // The agent learns of the last ones at its next query, and queries less often while nothing changes.
        harness::holds("the questions become fewer", secs(60), || Ok(()))?;
        for (who, pid) in
            [("agent", self.cluster.node().agent.pid()?), ("reconciler", self.cluster.reconcilers[0].pid()?)]
        {
            let who = format!("{who} with {} queued jobs", scale.queued_jobs);
            Idler { who, pid, budget: "" }.show(scale, table)?;
        }
        Ok(())
    }
}
