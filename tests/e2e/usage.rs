//! Usage of pods as shown to users, compared with the kernel's own counters; logs and pages.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use harness::{Change, Cluster, ClusterOptions, Context, IMAGE, Result, ensure, eventually, holds, secs};
use jiff::Timestamp;
use schema::keys::Key;
use schema::quantity::Memory;
use schema::records::NodeUsage;

fn pod(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n{spec}"
    )
}

/// File with the CPU time of a process's cgroup; true if it counts nanoseconds.
fn counter(pid: u32) -> Result<(PathBuf, bool)> {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    for line in table.lines() {
        let parts: Vec<&str> = line.splitn(3, ':').collect();
        if let [_, controllers, path] = parts.as_slice()
            && controllers.split(',').any(|name| name == "cpuacct")
        {
            return Ok((PathBuf::from(format!("/sys/fs/cgroup/{controllers}{path}/cpuacct.usage")), true));
        }
    }
    let path = table.lines().find_map(|line| line.strip_prefix("0::")).context("no cgroup")?;
    Ok((PathBuf::from(format!("/sys/fs/cgroup{path}/cpu.stat")), false))
}

fn cpu_ns((path, v1): &(PathBuf, bool)) -> Result<f64> {
    let text = fs::read_to_string(path)?;
    if *v1 {
        return Ok(text.trim().parse()?);
    }
    let us = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).context("no usage_usec")?;
    Ok(us.trim().parse::<f64>()? * 1000.0)
}

/// Counter at a moment, interpolated between the two readings around it.
fn at(readings: &[(Timestamp, f64)], moment: Timestamp) -> Result<f64> {
    let next = readings.iter().position(|(time, _)| *time >= moment).context("no reading after it")?;
    let before = next.checked_sub(1).context("no reading before it")?;
    let ((t0, v0), (t1, v1)) = (readings[before], readings[next]);
    let share = moment.duration_since(t0).as_secs_f64() / t1.duration_since(t0).as_secs_f64();
    Ok(v0 + (v1 - v0) * share)
}

/// Seen red when the walk over volumes finds nothing.
#[test]
fn top_shows_what_the_kernel_counted_and_what_a_volume_holds() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let busy = format!(
            "  volumes: [{{name: data, emptyDir: {{}}}}]\n  initContainers:\n  - name: fill\n    image: {IMAGE}\n    \
             command: [sh, -c, 'dd if=/dev/zero of=/data/blob bs=1M count=8; sync']\n    \
             volumeMounts: [{{name: data, mountPath: /data}}]\n  containers:\n  - name: main\n    image: {IMAGE}\n    \
             command: [sh, -c, 'while :; do :; done']\n    \
             resources: {{requests: {{cpu: 50m}}, limits: {{cpu: 200m, memory: 32Mi}}}}\n    \
             volumeMounts: [{{name: data, mountPath: /data}}]\n"
        );
        let idle =
            format!("  containers:\n  - name: main\n    image: {IMAGE}\n    command: [sleep, '100000']\n");
        let files =
            [Change::write("busy.yaml", pod("busy", &busy)), Change::write("idle.yaml", pod("idle", &idle))];
        cluster.push(&files, "A busy pod and an idle one")?;
        let counter = counter(cluster.running("busy", &["main"])?.container("main")?.pid)?;
        let node = cluster.node().name.clone();

        // Our own readings, until the agent has written a sample whose window they enclose.
        let mut readings: Vec<(Timestamp, f64)> = Vec::new();
        let sample = eventually("a sample lies within our readings", secs(90), || {
            readings.push((Timestamp::now(), cpu_ns(&counter)?));
            let sample: NodeUsage = cluster.etcd.value(Key::Usage(node.clone()))?;
            let began =
                sample.at - jiff::SignedDuration::from_secs(i64::try_from(sample.window_seconds)? + 1);
            ensure!(readings.first().is_some_and(|(time, _)| *time < began), "the window began before");
            ensure!(readings.last().is_some_and(|(time, _)| *time > sample.at), "no reading after it yet");
            Ok(sample)
        })?;
        let window = jiff::SignedDuration::from_secs(i64::try_from(sample.window_seconds)?);
        let counted = at(&readings, sample.at)? - at(&readings, sample.at - window)?;
        let counted = counted / window.as_secs_f64() / 1e6;
        let shown = sample.pods["default/busy"].containers["main"].cpu as f64;
        println!("top says {shown}m, the kernel counted {counted:.0}m over {}s", sample.window_seconds);
        ensure!((shown - counted).abs() < counted * 0.1 + 10.0, "{shown}m is not the kernel's {counted:.0}m");
        ensure!(shown < 220.0, "{shown}m is above the limit of 200m");

        let table = cluster.cli(&["top", "pods", "--sort-by", "cpu", "-o", "wide"])?.ok()?;
        let rows: Vec<&str> = table.lines().collect();
        ensure!(rows.len() == 3 && rows[1].starts_with("busy ") && rows[2].starts_with("idle "), "{table}");
        ensure!(
            rows[1].contains("50m/200m") && rows[1].contains("-/32Mi") | rows[1].contains("32Mi/32Mi"),
            "{table}"
        );
        let json: serde_json::Value =
            serde_json::from_str(&cluster.cli(&["top", "pods", "-o", "json"])?.ok()?)?;
        let bytes: Memory = serde_json::from_value(json["items"][0]["volumes"]["data"].clone())?;
        ensure!((8 << 20..9 << 20).contains(&bytes.bytes), "{json}");
        let containers = cluster.cli(&["top", "pods", "--containers", "-A"])?.ok()?;
        ensure!(
            containers.lines().nth(1).is_some_and(|row| row.contains("busy") && row.contains("main")),
            "{containers}"
        );
        let nodes = cluster.cli(&["top", "nodes"])?.ok()?;
        ensure!(
            nodes.lines().nth(1).is_some_and(|row| row.starts_with(&node) && row.contains('%')),
            "{nodes}"
        );
        let page = cluster.cli(&["describe", "pod", "busy"])?.ok()?;
        ensure!(page.contains("emptyDir, 8") && page.contains("Uses:"), "{page}");

        // At most one write per 15 s.
        let mut times = std::collections::BTreeSet::from([sample.at]);
        holds("samples are 15 s apart", secs(20), || {
            times.insert(cluster.etcd.value::<NodeUsage>(Key::Usage(node.clone()))?.at);
            let apart =
                times.iter().zip(times.iter().skip(1)).map(|(a, b)| b.duration_since(*a).as_secs_f64());
            let least = apart.fold(f64::MAX, f64::min);
            ensure!(least > 14.9, "{least} s between two samples");
            Ok(())
        })?;
        ensure!(times.len() > 1, "no second sample in 20 s");
        Ok(())
    })
}

#[test]
fn logs_take_every_flag_and_say_what_there_is_not() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let talks = format!(
            "  containers:\n  - name: main\n    image: {IMAGE}\n    \
             command: [sh, -c, 'for i in 1 2 3 4 5; do echo line $i; done; sleep 100000']\n  \
             - name: other\n    image: {IMAGE}\n    command: [sleep, '100000']\n"
        );
        let fails = format!(
            "  containers:\n  - name: main\n    image: {IMAGE}\n    command: [sh, -c, 'echo start of $HOSTNAME; sleep 2; exit 3']\n"
        );
        let waits = "  containers:\n  - name: main\n    image: nothing/here:1\n    imagePullPolicy: Never\n";
        let files = [
            Change::write("talks.yaml", pod("talks", &talks)),
            Change::write("fails.yaml", pod("fails", &fails)),
            Change::write("waits.yaml", pod("waits", waits)),
        ];
        cluster.push(&files, "Three pods")?;
        cluster.running("talks", &["main", "other"])?;
        let said = |args: &[&str]| cluster.cli(args)?.ok();
        eventually("all lines are there", secs(20), || {
            let log = said(&["logs", "talks", "-c", "main"])?;
            ensure!(log == "line 1\nline 2\nline 3\nline 4\nline 5\n", "{log:?}");
            Ok(())
        })?;
        ensure!(said(&["logs", "talks", "-c", "main", "--tail", "2"])? == "line 4\nline 5\n");
        let stamped = said(&["logs", "talks", "-c", "main", "--tail", "1", "--timestamps", "--since", "1h"])?;
        let (time, line) = stamped.split_once(' ').context("no time")?;
        ensure!(time.parse::<Timestamp>().is_ok() && line == "line 5\n", "{stamped:?}");
        ensure!(said(&["logs", "talks", "-c", "main", "--since", "2100-01-01T00:00:00Z"])?.is_empty());

        let refused = |args: &[&str], code: i32, part: &str| -> Result<()> {
            let outcome = cluster.cli(args)?;
            ensure!(outcome.code == code && outcome.stderr.lines().count() == 1, "{args:?}: {outcome:?}");
            ensure!(outcome.stderr.contains(part), "{args:?}: {outcome:?}");
            Ok(())
        };
        refused(&["logs", "talks"], 1, "main, other")?;
        refused(&["logs", "talks", "-c", "main", "--since", "soon"], 2, "write an age")?;
        refused(&["logs", "talks", "-c", "main", "--previous"], 1, "no previous run")?;
        eventually("the reason is known", secs(20), || {
            refused(&["logs", "waits"], 1, "is waiting to start: ErrImageNeverPull")
        })?;

        eventually("it was started again", secs(30), || {
            let log = said(&["logs", "fails", "--previous"])?;
            ensure!(log.starts_with("start of "), "{log:?}");
            Ok(())
        })?;
        // A followed log ends with its container, and says so; it does not continue with the next start.
        let mut follow = cluster.cli_command(&["logs", "-f", "fails"]);
        let outcome = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        let reported = String::from_utf8_lossy(&outcome.stderr).into_owned();
        ensure!(
            outcome.status.success() && reported.lines().count() == 1 && reported.contains("has ended"),
            "{reported}"
        );
        ensure!(String::from_utf8_lossy(&outcome.stdout).lines().count() == 1, "{outcome:?}");

        let page = eventually("the page knows the end and the wait", secs(60), || {
            let page = said(&["describe", "pod", "fails"])?;
            ensure!(page.contains("CrashLoopBackOff") && page.contains(", until "), "{page}");
            Ok(page)
        })?;
        for part in
            ["Last state:", "Error with code 3", "(ran 2", "Restarts:", "fails.yaml:1", "BackOff", "Events:"]
        {
            ensure!(page.contains(part), "no {part} in {page}");
        }
        Ok(())
    })
}
