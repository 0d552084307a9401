//! Time from a push to running containers: one pod at a time, and many at once.

use std::time::SystemTime;

use harness::manifests::sleeper;
use harness::{Change, Cluster, ClusterOptions, Result, ensure, eventually, http_post, secs};

use crate::Scale;
use crate::engine::{Engine, remove_bare};
use crate::figures::{Row, Series, Table, ms, ratio};

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    // There is no poll: every commit is found by the sync right after its push.
    let options = ClusterOptions { poll: "1h", ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let engine = Engine::beside(cluster)?;
        push(cluster, &engine, &["warm-up".to_owned()])?;
        let pause = cluster.running("warm-up", &["main"])?.pause.image;
        one_by_one(cluster, &engine, &pause, scale, table)?;
        restarts(cluster, &engine, &pause, scale, table)?;
        at_once(cluster, &engine, &pause, scale, table)
    })
}

fn one_by_one(
    cluster: &Cluster,
    engine: &Engine,
    pause: &str,
    scale: Scale,
    table: &mut Table,
) -> Result<()> {
    let (mut ours, mut bare) = (Series::default(), Series::default());
    for index in 0..scale.pushes {
        bare.add(engine.bare_pairs(pause, &format!("one-{index}"), 1, 1)?);
        let since = push(cluster, engine, &[format!("one-{index}")])?;
        ours.add(since);
    }
    remove_bare(cluster)?;
    let what = format!("push with sync → container running, n={}", ours.count());
    for (percent, budget) in [(50, "≤ 1.5 × bare pair"), (99, "≤ 1 s")] {
        let (us, them) = (ours.percentile(percent), bare.percentile(percent));
        let what = &format!("{what}, p{percent}");
        table.add(Row { what, ours: ms(us), bare: ms(them), ratio: ratio(us, them), budget });
    }
    clear(cluster)
}

/// Measures from a container's end to the start of its successor: each pod's first restart, because the next one
/// backs off.
fn restarts(cluster: &Cluster, engine: &Engine, pause: &str, scale: Scale, table: &mut Table) -> Result<()> {
    let names: Vec<_> = (0..scale.pushes).map(|index| format!("ends-{index}")).collect();
    push(cluster, engine, &names)?;
    let (mut ours, mut bare) = (Series::default(), Series::default());
    for name in &names {
        bare.add(engine.bare_restart(pause, name)?);
        ours.add(engine.restarted(&cluster.running(name, &["main"])?)?);
    }
    remove_bare(cluster)?;
    let what = format!("restart after exit, n={}", ours.count());
    for percent in [50, 99] {
        let (us, them) = (ours.percentile(percent), bare.percentile(percent));
        let what = &format!("{what}, p{percent}");
        let budget = "≤ 300 ms over bare start";
        table.add(Row { what, ours: ms(us), bare: ms(them), ratio: ratio(us, them), budget });
    }
    clear(cluster)
}

fn at_once(cluster: &Cluster, engine: &Engine, pause: &str, scale: Scale, table: &mut Table) -> Result<()> {
    let bare = engine.bare_pairs(pause, "many", scale.pods, 4)?;
    remove_bare(cluster)?;
    let names: Vec<_> = (0..scale.pods).map(|index| format!("many-{index}")).collect();
    let ours = push(cluster, engine, &names)?;
    table.add(Row {
        what: &format!("{} bare pods in one push, all running", scale.pods),
        ours: ms(ours),
        bare: ms(bare),
        ratio: ratio(ours, bare),
        budget: "≤ 1.15 × bare, 4 in parallel",
    });
    clear(cluster)
}

/// Pushes these pods, requests a sync, and waits until Docker has started them all.
pub(crate) fn push(cluster: &Cluster, engine: &Engine, pods: &[String]) -> Result<std::time::Duration> {
    let write = |name: &String| Change::write(format!("pods/{name}.yaml"), sleeper(name));
    cluster.repo.push(&pods.iter().map(write).collect::<Vec<_>>(), "More pods")?;
    let since = SystemTime::now();
    sync(cluster)?;
    engine.started(pods, since)
}

/// Removes all pods but `warm-up`.
pub(crate) fn clear(cluster: &Cluster) -> Result<()> {
    let files = [Change::remove("pods"), Change::write("pods/warm-up.yaml", sleeper("warm-up"))];
    cluster.repo.push(&files, "Clear\n\nMinik8s-Allow-Prune: true")?;
    sync(cluster)?;
    eventually("the pods are gone", secs(180), || {
        let left = cluster.containers()?.len();
        ensure!(left == 2, "{left} containers are left");
        Ok(())
    })
}

/// Requests a sync, as a webhook does.
pub(crate) fn sync(cluster: &Cluster) -> Result<()> {
    let (code, body) = http_post(&cluster.api(0), "/v1/sync")?;
    ensure!(code == 202, "sync: {code} {body}");
    Ok(())
}
