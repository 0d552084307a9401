//! A push and its webhook, with polls too far apart to matter: the hook alone brings the
//! commit to the node, whichever reconciler gets it, and its request shows that after a restart.

use harness::hooks::{LARGE, hook, memory_kib, send_all_large, with_hooks};
use harness::manifests::web;
use harness::{Change, Cluster, Context, Result, ensure, eventually, secs};
use schema::keys::Key;
use serde_json::Value;

/// Memory that all large requests may take together, on top of the process's former size.
const MEMORY_MAX_KIB: u64 = 64 * 1024;

/// Waits until the request of `id` shows a person that `commit` is applied.
fn request_shows(cluster: &Cluster, id: &str, commit: &str) -> Result<Value> {
    eventually("the request shows the commit", secs(45), || {
        let name = format!("main-github-{id}");
        let shown = cluster.cli(&["get", "requests", &name, "-o", "json"])?;
        let row: Value = serde_json::from_str(&shown.stdout)?;
        ensure!(row["status"] == "Synced" && row["answer"]["commit"] == commit, "{row}");
        Ok(row)
    })
}

#[test]
fn a_push_with_its_hook_runs_without_a_poll_and_the_request_outlives_a_restart() -> Result<()> {
    let mut cluster = with_hooks(1)?;
    cluster.run_story(|cluster| {
        cluster.start_agent()?;
        let commit = cluster.repo.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let (code, answer) = hook(cluster, 0, "d1", &commit)?;
        ensure!(code == 202 && answer["request"] == "main-github-d1", "{code} {answer}");
        cluster.serving("shop", "hello from shop")?;
        let before = request_shows(cluster, "d1", &commit)?;
        let (code, answer) = hook(cluster, 0, "d1", &commit)?;
        ensure!(code == 200 && answer["outcome"] == "duplicate", "{code} {answer}");

        cluster.reconcilers[0].kill()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let after = request_shows(cluster, "d1", &commit)?;
        ensure!(after["answer"] == before["answer"], "{before} {after}");
        let (code, _) = hook(cluster, 0, "d1", &commit)?;
        ensure!(code == 200, "it is known after a restart, too: {code}");
        let table = cluster.cli(&["get", "requests", "-o", "wide"])?;
        println!("{}", table.stdout);
        Ok(())
    })
}

#[test]
fn a_hook_and_a_sync_at_a_follower_wake_the_leader() -> Result<()> {
    let mut cluster = with_hooks(2)?;
    cluster.run_story(|cluster| {
        let leader = cluster.etcd.key(Key::Leader)?.context("no reconciler leads")?;
        ensure!(leader.value.contains("\"r0\""), "{}", leader.value);
        let commit = cluster.repo.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let (code, answer) = hook(cluster, 1, "d1", &commit)?;
        ensure!(code == 202, "{code} {answer}");
        cluster.applied(&commit)?;
        let row = request_shows(cluster, "d1", &commit)?;
        ensure!(row["by"] == "r1", "{row}");

        let commit = cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
        let mut sync = cluster.cli_command(&["sync", "main", "--wait"]);
        let done = sync.env("MINIK8S_SERVER", cluster.server(1)).output()?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        ensure!(done.status.success() && said.contains(&commit[..7]), "{said} {done:?}");
        Ok(())
    })
}

#[test]
fn a_hundred_large_bodies_at_once_take_no_memory_to_speak_of() -> Result<()> {
    let mut cluster = with_hooks(1)?;
    cluster.run_story(|cluster| {
        let pid = cluster.reconcilers[0].pid()?;
        let idle = memory_kib(pid, "VmRSS")?;
        // The kernel's own peak from here on, so nothing is missed between two checks.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
        let answers = send_all_large(cluster)?;
        let peak = memory_kib(pid, "VmHWM")?;
        println!("idle {idle} KiB, peak {peak} KiB, answers {answers:?}");
        ensure!(peak.saturating_sub(idle) <= MEMORY_MAX_KIB, "idle {idle} KiB, peak {peak} KiB");
        let status = cluster.cli(&["status", "-o", "json"])?;
        let counts = serde_json::from_str::<Value>(&status.stdout)?["webhooks"].clone();
        let of = |name: &str| counts[name].as_u64().unwrap_or_default();
        // The speed of this machine decides which of them.
        ensure!(of("accepted") == 0 && of("tooLarge") + of("slow") > 0, "{counts}");
        ensure!(of("tooLarge") + of("busy") + of("slow") == LARGE as u64, "{counts}");
        // It still accepts a valid request.
        let commit = cluster.repo.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let (code, answer) = hook(cluster, 0, "d1", &commit)?;
        ensure!(code == 202, "{code} {answer}");
        cluster.applied(&commit).map(|_| ())
    })
}
