//! A run of thousands of transitions: it has few and small keys in etcd, and the reconciler needs no more memory
//! for it than for a short one.

use harness::hooks::memory_kib;
use harness::manifests::COUNTS;
use harness::{Change, Cluster, ClusterOptions, Result, ensure, eventually, rounds, secs};
use schema::codec::VALUE_MAX_BYTES;
use schema::keys::prefix;
use serde_json::Value;

use crate::workflows::run;

/// Growth above this is more than allocator noise.
const NOISE_KIB: u64 = 24 * 1024;

#[test]
fn a_loop_of_thousands_of_transitions_stays_small() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        cluster.etcd.start()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let text =
            format!("apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: loop}}\nspec:{COUNTS}");
        cluster.push(&[Change::write("loop.yaml", text)], "A loop")?;
        eventually("the workflow is known", secs(30), || {
            ensure!(cluster.etcd.list(prefix::WORKFLOWS)?.len() == 1, "not yet");
            Ok(())
        })?;
        let input = |until: usize| format!("{{\"n\": 0, \"until\": {until}}}");
        let (ok, output) = run(cluster, "loop", &input(50), "short")?;
        ensure!(ok && output == 50, "{output}");
        let pid = cluster.reconcilers[0].pid()?;
        let before = memory_kib(pid, "VmRSS")?;

        let (count, begun) = (500 * rounds(2, 10), std::time::Instant::now());
        cluster.cli(&["run", "loop", "-d", &input(count), "--id", "long"])?.ok()?;
        let journal = format!("{}default/loop/long/", prefix::RUN_JOURNALS);
        let mut most = 0;
        eventually("the run ends", secs(300), || {
            most = most.max(memory_kib(pid, "VmRSS")?);
            let head: Value = cluster.etcd.value(format!("{}default/loop/long", prefix::RUN_HEADS))?;
            ensure!(head["phase"] == "Succeeded", "it is {}", head["phase"]);
            ensure!(head["steps"] == 2 * count + 1, "{head}");
            Ok(())
        })?;
        let keys = cluster.etcd.list(&journal)?;
        let (largest, all) = keys.iter().fold((0, 0), |(largest, all), key| {
            (key.value.len().max(largest), all + key.value.len())
        });
        println!(
            "{} transitions in {:?}: {} keys, the largest of {largest} bytes, {all} in all; {before} KiB of memory \
             before and {most} KiB at most",
            2 * count + 1,
            begun.elapsed(),
            keys.len(),
        );
        // The start, one per hundred, and those since the last hundred.
        ensure!(keys.len() <= 1 + (2 * count + 1) / 100 + 100, "{} keys", keys.len());
        ensure!(largest <= VALUE_MAX_BYTES, "a key has {largest} bytes");
        ensure!(most <= before + NOISE_KIB, "{before} KiB of memory grew to {most}");
        let page: Value = serde_json::from_str(&cluster.cli(&["get", "run", "loop/long", "-o", "json"])?.ok()?)?;
        ensure!(page["output"] == count, "{}", page["output"]);
        Ok(())
    })
}
