//! A repository of many files: the first sync, a poll without news, one changed file.

use std::time::Instant;

use harness::manifests::sleeper;
use harness::{Change, Cluster, ClusterOptions, Context, RepoAccess, Result, ensure, eventually, secs};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::ObjectRef;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};
use crate::idle::{cpu_time, resident_mib};
use crate::pods::sync;
use crate::written::NextWrite;

/// Polls whose cost is measured.
const POLLS: usize = 40;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    first_and_changed(scale, table)?;
    unchanged(scale, table)
}

/// A cluster without a node, to measure only gitops and controllers.
fn without_node(options: ClusterOptions) -> Result<Cluster> {
    let mut cluster = Cluster::prepare(options)?;
    cluster.start_etcd()?;
    Ok(cluster)
}

fn file(index: usize) -> String {
    format!("apps/{:03}/pod-{index}.yaml", index / 100)
}

pub(crate) fn fill(cluster: &Cluster, files: usize) -> Result<String> {
    let write = |index| Change::write(file(index), sleeper(&format!("pod-{index}")));
    cluster.repo.push(&(0..files).map(write).collect::<Vec<_>>(), "Many files")
}

fn first_and_changed(scale: Scale, table: &mut Table) -> Result<()> {
    let mut cluster = without_node(ClusterOptions { poll: "1h", ..ClusterOptions::default() })?;
    cluster.reconcilers[0].start()?;
    cluster.wait_reconciler(0)?;
    cluster.source_where("the first look is over", |source| source.observed_commit.is_some())?;
    let commit = fill(&cluster, scale.files)?;
    let start = Instant::now();
    sync(&cluster)?;
    eventually("the commit is applied", secs(120), || cluster.applied(&commit))?;
    table.add(Row {
        what: &format!("first sync of {} objects into etcd", scale.files),
        ours: ms(start.elapsed()),
        bare: "0.12 s (transactions of 100)".to_owned(),
        budget: "≤ 3 s",
        ..Row::default()
    });
    let mut memory = |what: &str| -> Result<()> {
        let memory = resident_mib(cluster.reconcilers[0].pid()?)?;
        table.add(Row { what, ours: format!("{memory:.0} MiB"), budget: "≤ 100 MiB", ..Row::default() });
        Ok(())
    };
    memory("memory of the reconciler with them")?;

    // etcd is quiet once the controllers are done with the 10,000 pods that fit nowhere.
    settled(&cluster)?;
    memory("memory of the reconciler once their pods are written, too")?;
    changed_files(&cluster, scale, table, "sync", |_, _| {
        let start = Instant::now();
        sync(&cluster)?;
        Ok(start)
    })
}

/// Changes one file after another and announces each to the reconciler with `announce`, which returns its start
/// time; measures from then until the pod's object is written.
pub(crate) fn changed_files(
    cluster: &Cluster,
    scale: Scale,
    table: &mut Table,
    how: &str,
    announce: impl Fn(usize, &str) -> Result<Instant>,
) -> Result<()> {
    let mut series = Series::default();
    for index in 0..scale.changes {
        let changed = sleeper(&format!("pod-{index}")).replace("100000", &format!("{}", 200_000 + index));
        let commit = cluster.repo.push(&[Change::write(file(index), changed)], "Change one file")?;
        let pod = ObjectRef { kind: Kind::Pod, namespace: "default".into(), name: format!("pod-{index}") };
        let write = NextWrite::of(cluster, &Key::Object(pod))?;
        let start = announce(index, &commit)?;
        series.add(write.seen()?.duration_since(start));
    }
    let what = format!("one changed file of {}, {how} → etcd, n={}", scale.files, series.count());
    for (percent, budget) in [(50, ""), (95, "≤ 100 ms")] {
        let (what, ours) = (&format!("{what}, p{percent}"), ms(series.percentile(percent)));
        table.add(Row { what, ours, bare: "0.5 ms (a put)".to_owned(), budget, ..Row::default() });
    }
    Ok(())
}

fn unchanged(scale: Scale, table: &mut Table) -> Result<()> {
    // Over HTTP, so that the server can count the polls, which are frequent here.
    let options = ClusterOptions { poll: "100ms", repo: RepoAccess::HttpToken, ..ClusterOptions::default() };
    let mut cluster = without_node(options)?;
    let commit = fill(&cluster, scale.files)?;
    cluster.reconcilers[0].start()?;
    eventually("the commit is applied", secs(120), || cluster.applied(&commit))?;
    settled(&cluster)?;
    let forge = cluster.forge.as_ref().context("the repository is served over HTTP")?;
    let pid = cluster.reconcilers[0].pid()?;
    let (polls, revision, cpu) = (forge.polls(), cluster.etcd.revision()?, cpu_time(pid)?);
    eventually("polls are over", secs(120), || {
        ensure!(forge.polls() >= polls + POLLS, "{} of {POLLS}", forge.polls() - polls);
        Ok(())
    })?;
    let polls = u32::try_from(forge.polls() - polls)?;
    let cpu = (cpu_time(pid)? - cpu) / polls;
    let what = format!("poll of {} unchanged files, CPU time of the reconciler, n={polls}", scale.files);
    table.add(Row { what: &what, ours: ms(cpu), budget: "≤ 20 ms", ..Row::default() });
    let writes = cluster.etcd.revision()? - revision;
    let what = &format!("etcd writes of these {polls} polls");
    table.add(Row { what, ours: writes.to_string(), budget: "0", ..Row::default() });
    Ok(())
}

/// Waits until etcd has had no write for a while.
pub(crate) fn settled(cluster: &Cluster) -> Result<()> {
    let mut seen = (0, Instant::now());
    eventually("etcd is quiet", secs(120), || {
        let revision = cluster.etcd.revision()?;
        if revision != seen.0 {
            seen = (revision, Instant::now());
        }
        ensure!(seen.1.elapsed() > secs(2), "revision {revision}");
        Ok(())
    })
}
