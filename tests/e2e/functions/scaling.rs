//! Scaling from zero to many and back, while callers come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use harness::{Chance, eventually, rounds, secs};
use schema::records::ScaleRecord;

use super::*;

const WORK: &str = "import os, time\n\nWHO = os.urandom(4).hex()\n\n\ndef main(params):\n    time.sleep(params.get('for', 0.05))\n    return {'who': WHO, 'version': 1}\n";

/// Answers to a burst of concurrent calls.
#[derive(Debug)]
struct Burst {
    /// Number of answers by status.
    statuses: BTreeMap<String, usize>,
    /// Replicas that answered.
    who: BTreeSet<String>,
}

/// Makes `calls` concurrent calls from the node.
fn burst(cluster: &Cluster, name: &str, body: &str, calls: usize) -> Result<Burst> {
    let dir = cluster.dir(&format!("burst-{name}"));
    std::fs::create_dir_all(&dir)?;
    let script = format!(
        "cd {}; for part in 1 2 3 4; do curl -s -Z --parallel-immediate --parallel-max 300 -m 120 \
         -w '\\n%{{http_code}}\\n' -d '{body}' 'http://127.0.0.1:8081/default/{name}?[1-{}]' >$part & done; wait; cat ?",
        dir.display(),
        calls / 4
    );
    let said = cluster.node().net.run("sh", &["-c", &script])?;
    let mut statuses = BTreeMap::<String, usize>::new();
    let is_status = |line: &&str| line.len() == 3 && line.parse::<u16>().is_ok();
    said.lines().filter(is_status).for_each(|line| *statuses.entry(line.to_owned()).or_default() += 1);
    let who = said.split("\"who\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    Ok(Burst { who: who.map(str::to_owned).collect(), statuses })
}

/// Desired numbers of replicas, in order, after revision `since`.
fn scales(cluster: &Cluster, name: &str, since: i64) -> Result<Vec<u32>> {
    let changes = cluster.etcd.changes(&format!("/minik8s/scale/Function/default/{name}"), since)?;
    let values = changes.into_iter().filter_map(|change| change.value);
    values.map(|value| Ok(serde_json::from_str::<ScaleRecord>(&value)?.replicas)).collect()
}

// Seen red with a pod for each waiting call, and with calls refused while no replica is ready.
#[test]
fn a_thousand_calls_at_zero_are_all_answered_by_few_replicas() -> Result<()> {
    Cluster::run(three_nodes(), |cluster| {
        let spec = "  scaleToZeroAfterSeconds: 3\n  maxScale: 4\n  concurrency: 10\n";
        let changes = [other_object(), manifest("work", spec), code("work", "main.py", WORK)];
        let commit = cluster.push(&changes, "Work")?;
        cluster.applied(&commit)?;
        ensure!(call(cluster.node(), "work", "{}")?.status == 200, "it is there");
        let asleep = |within: u64| {
            eventually("it sleeps", secs(within), || {
                ensure!(calls::containers(cluster, "work")? == 0, "it runs");
                Ok(())
            })
        };
        asleep(100)?;
        let (began, since) = (Instant::now(), cluster.etcd.revision()?);
        let burst = burst(cluster, "work", r#"{"for": 0.3}"#, 1000)?;
        println!(
            "measured: 1,000 calls at zero were answered in {:?} by {}",
            began.elapsed(),
            burst.who.len()
        );
        ensure!(burst.statuses == BTreeMap::from([("200".to_owned(), 1000)]), "{burst:?}");
        ensure!((2..=4).contains(&burst.who.len()), "{burst:?}");
        let most = calls::containers(cluster, "work")?;
        ensure!((1..=4).contains(&most), "{most} replicas");
        asleep(150)?;
        let scales = scales(cluster, "work", since)?;
        println!("measured: replicas were to be {scales:?}");
        let wakes =
            [&[0][..], &scales].concat().windows(2).filter(|pair| pair[0] == 0 && pair[1] > 0).count();
        ensure!(wakes == 1 && scales.iter().all(|scale| *scale <= 4), "{scales:?}");
        at_random_gaps(cluster)
    })
}

/// Calls around the removal of the last replica, through any node: some calls find it running, some find it
/// ending, some find none.
fn at_random_gaps(cluster: &Cluster) -> Result<()> {
    let (rounds, mut chance) = (rounds(6, 200), Chance::of("gaps"));
    let (mut cold, mut slowest) = (0, Duration::ZERO);
    for round in 0..rounds {
        chance.moment(secs(6));
        let (node, began) = (chance.one_of(&cluster.nodes)?, Instant::now());
        let url = "http://127.0.0.1:8081/default/work";
        let said = node.net.run("curl", &["-s", "-i", "-m", "100", "-H", "X-Timings: 1", "-d", "{}", url])?;
        ensure!(said.starts_with("HTTP/1.1 200 "), "round {round}, {}: {said}", node.name);
        if let Some(timings) = said.lines().find(|line| line.contains("imported;dur=")) {
            cold += 1;
            slowest = slowest.max(began.elapsed());
            add_up(timings)?;
        }
    }
    println!("measured: {rounds} calls at random gaps, {cold} cold, the slowest in {slowest:?}");
    Ok(())
}

/// Checks that the phases of a cold start add up to the whole wait.
fn add_up(timings: &str) -> Result<()> {
    let all = timings.split([' ', ',']).filter_map(|part| part.split_once(";dur="));
    let all: BTreeMap<&str, f64> =
        all.map(|(name, millis)| Ok((name, millis.trim().parse()?))).collect::<Result<_>>()?;
    let phase = |name: &str| all.get(name).copied().with_context(|| format!("no {name} in {timings}"));
    let mut sum = 0.0;
    for name in ["scheduled", "created", "started", "imported", "routed"] {
        sum += phase(name)?;
    }
    ensure!((sum - phase("queued")?).abs() < 1.0, "{timings}");
    ensure!(phase("queued")? + phase("handled")? <= phase("total")?, "{timings}");
    Ok(())
}

/// A client that calls all the time until it is stopped; returns its failures.
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

// Seen red with a rollout that stops the old replica first.
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
        // One replica after another, however many there are.
        for _ in 0..30 {
            ensure!(version()? == 2, "not yet");
        }
        Ok(())
    })?;
    for (mut changes, deadline, said) in broken_pushes(&second) {
        changes.push(progress_deadline(deadline));
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

fn progress_deadline(seconds: u32) -> Change {
    let defaults = format!("{{progressDeadlineSeconds: {seconds}}}");
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec: {{defaults: {defaults}}}\n"
    );
    Change::write("cluster.yaml", text)
}

/// Broken pushes, with the progress deadline in seconds and the expected message: code that can't be
/// parsed, a package that does not exist, a module missing at the start, a failing step of a Dockerfile.
fn broken_pushes(good: &str) -> [(Vec<Change>, u32, &'static str); 4] {
    let file = |name: &str, text: &str| code("work", name, text);
    let at_start = format!("import not_there\n{good}");
    [
        (vec![file("main.py", "def main(params:\n    return {}\n")], 10, "SyntaxError"),
        (
            vec![
                file("main.py", good),
                file("requirements.txt", "nowhere-to-be-found==1\n"),
                file("wheels/README", "None.\n"),
            ],
            10,
            "No matching distribution found for nowhere-to-be-found",
        ),
        (
            vec![Change::remove("code/work/requirements.txt"), file("main.py", &at_start)],
            // It can crash only once its image has reached another node.
            60,
            "No module named 'not_there'",
        ),
        (
            vec![file(
                "Dockerfile",
                &format!("FROM {}\nRUN echo it breaks here && exit 7\n", harness::IMAGE),
            )],
            10,
            "it breaks here",
        ),
    ]
}
