//! Webhooks: from the hook to etcd for one of many files, and the memory of a hundred large bodies.

use std::time::{Duration, Instant};

use futures::StreamExt;
use harness::hooks::{LARGE, hook, memory_kib, send_all_large, with_hooks};
use harness::manifests::sleeper;
use harness::{Change, Cluster, Context, Result, ensure, eventually, secs};
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::store::etcd::EtcdStore;
use schema::store::{Store, WatchEvent};
use tokio::runtime::Runtime;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};
use crate::files::{file, fill, settled};

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let cluster = with_hooks(1)?;
    let commit = fill(&cluster, scale.files)?;
    hook(&cluster, 0, "fill", &commit)?;
    eventually("the commit is applied", secs(120), || cluster.applied(&commit))?;
    settled(&cluster)?;
    let mut series = Series::default();
    for index in 0..scale.changes {
        let changed = sleeper(&format!("pod-{index}")).replace("100000", &format!("{}", 200_000 + index));
        let commit = cluster.repo.push(&[Change::write(file(index), changed)], "Change one file")?;
        series.add(until_written(&cluster, index, &commit)?);
    }
    let what = format!("one changed file of {}, hook → etcd, n={}", scale.files, series.count());
    for (percent, budget) in [(50, ""), (95, "≤ 100 ms")] {
        let (what, ours) = (&format!("{what}, p{percent}"), ms(series.percentile(percent)));
        table.add(Row { what, ours, bare: "0.5 ms (a put)".to_owned(), budget, ..Row::default() });
    }
    memory(&cluster, table)
}

/// Sends the hook of `commit`; how long after it the pod's object was written.
fn until_written(cluster: &Cluster, index: usize, commit: &str) -> Result<Duration> {
    let name = format!("pod-{index}");
    let object = ObjectRef { kind: Kind::Pod, namespace: "default".into(), name };
    let wanted = Key::Object(object).to_string();
    let runtime = Runtime::new()?;
    let endpoint = cluster.etcd.endpoint().to_owned();
    let store = runtime.block_on(EtcdStore::connect(&[endpoint], secs(5)))?;
    let from = cluster.etcd.revision()? + 1;
    let mut changes = runtime.block_on(store.watch(prefix::OBJECTS, from))?;
    // The signature takes openssl longer than all the rest: it is none of ours.
    let hook = harness::hooks::signed(cluster, &format!("change-{index}"), commit)?;
    let start = Instant::now();
    let (code, answer) = hook.send(cluster, 0)?;
    ensure!(code == 202, "{code} {answer}");
    runtime.block_on(async {
        let seen = tokio::time::timeout(secs(30), async {
            while let Some(batch) = changes.next().await {
                let is_it = |event: &WatchEvent| matches!(event, WatchEvent::Put(put) if put.key == wanted);
                if batch?.events.iter().any(is_it) {
                    return Ok(start.elapsed());
                }
            }
            Err(harness::Error::msg("the watch ended"))
        });
        seen.await.context("not written within 30 s")?
    })
}

fn memory(cluster: &Cluster, table: &mut Table) -> Result<()> {
    let pid = cluster.reconcilers[0].pid()?;
    let idle = memory_kib(pid, "VmRSS")?;
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    send_all_large(cluster)?;
    let more = memory_kib(pid, "VmHWM")?.saturating_sub(idle) / 1024;
    let what = &format!("memory of {LARGE} hooks of 50 MB at once, above idle");
    table.add(Row { what, ours: format!("{more} MiB"), budget: "≤ 64 MiB", ..Row::default() });
    Ok(())
}
