//! The command line against a running cluster: output and exit codes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, holds, secs};
use schema::keys::prefix;

#[test]
fn readers_and_logs_of_a_running_pod() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        readers_show_the_cluster_in_every_format(cluster)?;
        logs_follow_and_errors_end_with_one_line(cluster)
    })
}

fn readers_show_the_cluster_in_every_format(cluster: &Cluster) -> Result<()> {
    let pod = web("shop").with_sidecar().to_string();
    let commit = cluster.push(&[Change::write("apps/shop.yaml", pod)], "Open the shop")?;
    cluster.running("shop", &["files", "web"])?;
    let address = cluster.serving("shop", "hello from shop")?.address()?.to_owned();
    let node = cluster.node().name.clone();
    eventually("the pod is ready in the table", secs(20), || {
        let table = cluster.cli(&["get", "pods"])?.ok()?;
        let (head, row) = table.split_once('\n').context("one line only")?;
        let columns: Vec<&str> = head.split_whitespace().collect();
        ensure!(columns.starts_with(&["NAME", "READY", "STATUS", "RESTARTS"]), "{table}");
        let cells: Vec<&str> = row.split_whitespace().collect();
        ensure!(cells.starts_with(&["shop", "2/2", "Running", "0"]), "{table}");
        Ok(())
    })?;
    let said = |args: &[&str]| cluster.cli(args)?.ok();
    let status = said(&["status"])?;
    for part in ["Synced", &commit[..7], "1/1"] {
        ensure!(status.contains(part), "no {part} in {status}");
    }
    let wide = said(&["get", "pods", "-o", "wide"])?;
    ensure!(wide.contains(&address) && wide.contains(&node), "{wide}");
    ensure!(said(&["get", "pods", "-o", "name"])?.trim() == "pod/shop");
    ensure!(said(&["get", "pods", "-A"])?.contains("default"));
    let json: serde_json::Value = serde_json::from_str(&said(&["get", "pods", "-o", "json"])?)?;
    ensure!(json.to_string().contains(&address), "{json}");
    ensure!(said(&["get", "pod", "shop", "-o", "yaml"])?.contains(&address));
    ensure!(!said(&["get", "pods", "-n", "elsewhere"])?.contains("shop"));
    let nodes = said(&["get", "nodes"])?;
    ensure!(nodes.contains(&node) && nodes.contains("Ready"), "{nodes}");

    let described = said(&["describe", "pod/shop"])?;
    for part in ["apps/shop.yaml:1", &commit[..7], &address, &node, "web", "files"] {
        ensure!(described.contains(part), "no {part} in {described}");
    }
    let history = said(&["history"])?;
    for part in [&commit[..7], "Open the shop", "Ada Tester"] {
        ensure!(history.contains(part), "no {part} in {history}");
    }
    let events = said(&["events"])?;
    ensure!(events.contains("Scheduled") && events.contains("Started"), "{events}");
    Ok(())
}

fn logs_follow_and_errors_end_with_one_line(cluster: &Cluster) -> Result<()> {
    let pod = cluster.serving("shop", "hello from shop")?;
    eventually("the log is there", secs(20), || {
        let log = cluster.cli(&["logs", "shop", "-c", "web"])?.ok()?;
        ensure!(log == "serving\n", "{log:?}");
        Ok(())
    })?;

    let mut follow = cluster
        .cli_command(&["logs", "-f", "shop", "-c", "web"])
        .stdout(Stdio::piped())
        .spawn()
        .context("minik8s logs -f does not start")?;
    let mut lines = BufReader::new(follow.stdout.take().context("no output")?).lines();
    let mut next = || lines.next().context("the log ended").and_then(|line| Ok(line?));
    ensure!(next()? == "serving");
    // Later output of the container arrives without another request.
    cluster.node().docker.exec(pod.container("web")?, &["sh", "-c", "echo more > /proc/1/fd/1"])?;
    let more = next();
    follow.kill()?;
    follow.wait()?;
    ensure!(more? == "more");

    // No such object, no server, wrong usage: one line, exit codes 1, 1 and 2.
    for args in [&["get", "pod", "nope"][..], &["describe", "pod/nope"], &["logs", "nope"]] {
        let said = cluster.cli(args)?;
        ensure!(said.code == 1 && said.stderr.lines().count() == 1, "{args:?}: {said:?}");
        ensure!(said.stderr.contains("nope") && said.stdout.is_empty(), "{args:?}: {said:?}");
    }
    let said = cluster.cli(&["get", "pods", "--server", "http://127.0.0.1:1"])?;
    ensure!(said.code == 1 && said.stderr.lines().count() == 1, "{said:?}");
    ensure!(said.stderr.contains("127.0.0.1:1") && said.stderr.contains("--server"), "{said:?}");
    ensure!(cluster.cli(&["get"])?.code == 2);
    ensure!(cluster.cli(&["no-such-command"])?.code == 2);
    Ok(())
}

#[test]
fn sync_asks_for_a_look_now_and_wait_ends_when_the_commit_is_healthy() -> Result<()> {
    // Without polls, only `sync` triggers the reconciler.
    Cluster::run(ClusterOptions { poll: "1h", ..ClusterOptions::default() }, |cluster| {
        cluster.source_where("the first look is over", |source| source.observed_commit.is_some())?;
        let commit = cluster.repo.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        holds("no client looks", secs(1), || {
            ensure!(cluster.etcd.list(prefix::OBJECTS)?.is_empty());
            Ok(())
        })?;
        let early = cluster.cli(&["wait", "--for", "synced", "--commit", &commit, "--timeout", "300ms"])?;
        ensure!(early.code == 1 && early.stderr.lines().count() == 1, "{early:?}");
        // The trouble of the source says more than the commit: so far it has no manifest.
        ensure!(early.stderr.contains("not synced after 0.3s"), "{early:?}");

        cluster.cli(&["sync"])?.ok()?;
        cluster.cli(&["wait", "--for", "synced", "--commit", &commit, "--timeout", "20s"])?.ok()?;
        ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 1);
        cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "30s"])?.ok()?;
        ensure!(cluster.pod("shop").is_ok(), "healthy, but Docker has no such pod");

        let version = cluster.cli(&["version"])?.ok()?;
        ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        for shell in ["bash", "zsh", "fish"] {
            ensure!(cluster.cli(&["completion", shell])?.ok()?.contains("minik8s"));
        }
        Ok(())
    })
}
