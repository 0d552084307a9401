//! Webhooks: time from the hook to etcd for one of many files, and memory use with a hundred large bodies.

use std::time::Instant;

use harness::hooks::{LARGE, hook, memory_kib, send_all_large, with_hooks};
use harness::{Cluster, Result, ensure, eventually, secs};

use crate::Scale;
use crate::figures::{Row, Table};
use crate::files::{changed_files, fill, settled};

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let cluster = with_hooks(1)?;
    let commit = fill(&cluster, scale.files)?;
    hook(&cluster, 0, "fill", &commit)?;
    eventually("the commit is applied", secs(120), || cluster.applied(&commit))?;
    settled(&cluster)?;
    changed_files(&cluster, scale, table, "hook", |index, commit| {
        // Signing takes openssl longer than everything else, so it is not measured.
        let hook = harness::hooks::signed(&cluster, &format!("change-{index}"), commit)?;
        let start = Instant::now();
        let (code, answer) = hook.send(&cluster, 0)?;
        ensure!(code == 202, "{code} {answer}");
        Ok(start)
    })?;
    memory(&cluster, table)
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
