//! From zero to many and back, while callers come and go.

use std::time::{Duration, Instant};

use harness::{eventually, secs};

use super::*;

const WORK: &str = "import os, time\n\nWHO = os.urandom(4).hex()\n\n\ndef main(params):\n    time.sleep(params.get('for', 0.05))\n    return {'who': WHO, 'version': 1}\n";

/// Calls all at once, from the node; the statuses, by how often each came.
fn burst(node: &Node, name: &str, body: &str, calls: usize) -> Result<Vec<(String, usize)>> {
    let script = format!(
        "for part in 1 2 3 4; do curl -s -Z --parallel-immediate --parallel-max 300 -m 120 -o /dev/null \
         -w '%{{http_code}}\\n' -d '{body}' 'http://127.0.0.1:8081/default/{name}?[1-{}]' & done; wait",
        calls / 4
    );
    let said = node.net.run("sh", &["-c", &script])?;
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    said.lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
    Ok(counts.into_iter().collect())
}

// Seen red with a pod for each call that waits, and with calls that are refused while none is ready.
#[test]
fn a_thousand_calls_at_zero_are_all_answered_by_few_replicas() -> Result<()> {
    Cluster::run(three_nodes(), |cluster| {
        let spec = "  scaleToZeroAfterSeconds: 3\n  maxScale: 4\n  concurrency: 10\n";
        let changes = [other_object(), manifest("work", spec), code("work", "main.py", WORK)];
        let commit = cluster.push(&changes, "Work")?;
        cluster.applied(&commit)?;
        ensure!(call(cluster.node(), "work", "{}")?.status == 200, "it is there");
        eventually("it sleeps", secs(100), || {
            ensure!(calls::containers(cluster, "work")? == 0, "it runs");
            Ok(())
        })?;
        let began = Instant::now();
        let counts = burst(cluster.node(), "work", "{}", 1000)?;
        println!("measured: 1,000 calls at zero were answered in {:?}", began.elapsed());
        ensure!(counts == [("200".to_owned(), 1000)], "{counts:?}");
        let most = calls::containers(cluster, "work")?;
        ensure!((1..=4).contains(&most), "{most} replicas");
        eventually("it sleeps again", secs(150), || {
            ensure!(calls::containers(cluster, "work")? == 0, "it runs");
            Ok(())
        })
    })
}

/// A client that calls all the time until it is stopped; what went wrong.
fn steady(
    cluster: &Cluster,
    name: &str,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<(usize, Vec<String>)> {
    let (mut answered, mut failed) = (0, Vec::new());
    while !stop.load(std::sync::atomic::Ordering::SeqCst) {
        match call(cluster.node(), name, r#"{"for": 0.02}"#) {
            Ok(answer) if answer.status == 200 => answered += 1,
            other => failed.push(format!("{other:?}")),
        }
    }
    Ok((answered, failed))
}

// Seen red with a rollout that ends the old replica first.
#[test]
fn new_code_takes_over_without_a_failed_call_and_broken_code_does_not() -> Result<()> {
    Cluster::run(three_nodes(), |cluster| {
        let spec = "  minScale: 1\n";
        let changes = [other_object(), manifest("work", spec), code("work", "main.py", WORK)];
        let commit = cluster.push(&changes, "Work")?;
        cluster.applied(&commit)?;
        ensure!(call(cluster.node(), "work", "{}")?.body["version"] == 1, "it is there");
        let stop = std::sync::atomic::AtomicBool::new(false);
        let cluster = &*cluster;
        std::thread::scope(|threads| {
            let callers: Vec<_> = (0..3).map(|_| threads.spawn(|| steady(cluster, "work", &stop))).collect();
            let changed = change(cluster);
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            let mut answered = 0;
            for caller in callers {
                let Ok(done) = caller.join() else { harness::bail!("a caller panicked") };
                let (calls, failed) = done?;
                ensure!(
                    failed.is_empty(),
                    "{} of {calls} calls failed: {:?}",
                    failed.len(),
                    &failed[..failed.len().min(3)]
                );
                answered += calls;
            }
            println!("measured: {answered} calls during two pushes, none failed");
            changed
        })
    })
}

fn change(cluster: &Cluster) -> Result<()> {
    let second = WORK.replace("'version': 1", "'version': 2");
    cluster.push(&[code("work", "main.py", &second)], "Better work")?;
    let version = || -> Result<Value> { Ok(call(cluster.node(), "work", "{}")?.body["version"].clone()) };
    eventually("the new code alone answers", secs(90), || {
        // One replica after the other, however many there are.
        for _ in 0..30 {
            ensure!(version()? == 2, "not yet");
        }
        Ok(())
    })?;
    let soon = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec:\n  defaults: {progressDeadlineSeconds: 10}\n";
    cluster.push(&[Change::write("cluster.yaml", soon)], "Verdicts come soon")?;
    for (changes, said) in broken_pushes(&second) {
        cluster.push(&changes, "Broken work")?;
        eventually(&format!("{said} is said of the function and in the verdict"), secs(120), || {
            let function = cluster.cli(&["describe", "function/work"])?.ok()?;
            ensure!(function.contains(said), "{function}");
            let history: Value = serde_json::from_str(&cluster.cli(&["history", "-o", "json"])?.ok()?)?;
            let newest = &history["items"][0];
            ensure!(newest["status"] == "Bad" && newest.to_string().contains(said), "{newest}");
            Ok(())
        })?;
        ensure!(version()? == 2, "another version answers than the one before");
    }
    harness::holds("the old code answers", Duration::from_secs(3), || {
        ensure!(version()? == 2, "another version answers");
        Ok(())
    })
}

/// What can be wrong with a push, and what is said of it: code that can't be parsed, a package that is nowhere, a module that
/// is missing at the start, a step of a Dockerfile that fails.
fn broken_pushes(good: &str) -> [(Vec<Change>, &'static str); 4] {
    let file = |name: &str, text: &str| code("work", name, text);
    let at_start = format!("import not_there\n{good}");
    [
        (vec![file("main.py", "def main(params:\n    return {}\n")], "SyntaxError"),
        (
            vec![
                file("main.py", good),
                file("requirements.txt", "nowhere-to-be-found==1\n"),
                file("wheels/README", "None.\n"),
            ],
            "No matching distribution found for nowhere-to-be-found",
        ),
        (
            vec![Change::remove("code/work/requirements.txt"), file("main.py", &at_start)],
            "No module named 'not_there'",
        ),
        (
            vec![file(
                "Dockerfile",
                &format!("FROM {}\nRUN echo it breaks here && exit 7\n", harness::IMAGE),
            )],
            "it breaks here",
        ),
    ]
}
