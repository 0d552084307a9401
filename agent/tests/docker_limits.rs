//! A container's limits, read from the cgroup files that the kernel enforces, and the fate of a container that
//! exceeds
//! them. Fails where there is no Docker.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use agent::converge::usage::{UsageDeps, UsageLoop};
use agent::names;
use agent::worlds::cgroups::{Cgroups as _, RealCgroups};
use agent::worlds::docker::{LogLimits, NewContainer};
use schema::control::{Loop as _, Observation};
use schema::kinds::pod::{ContainerState, PodSpec, RestartPolicy};
use schema::meta::NamespacedName;
use support::{Node, docker, pod, shell};

/// Finds the folder of a process in the hierarchy of a v1 controller, or in that of v2, independently of the agent's
/// own code.
fn folder(pid: &str, controller: &str) -> (PathBuf, bool) {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for line in table.lines() {
        let parts: Vec<&str> = line.splitn(3, ':').collect();
        if parts[1].split(',').any(|name| name == controller) {
            return (Path::new("/sys/fs/cgroup").join(parts[1]).join(&parts[2][1..]), true);
        }
    }
    let path = table.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    (Path::new("/sys/fs/cgroup").join(path), false)
}

fn file(pid: &str, controller: &str, v1: &str, v2: &str) -> String {
    let (folder, is_v1) = folder(pid, controller);
    let path = folder.join(if is_v1 { v1 } else { v2 });
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

/// Red without `memory_swap`, `pids_limit` or `cpu_period` in `host_config`, each in its line.
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_what_the_kernel_enforces() {
    let mut node = Node::new().await;
    node.container_limits.pids = 99;
    node.start().await;
    let mut one = shell("a", "sleep 1000");
    one.resources = serde_json::from_value(serde_json::json!({
        "requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "250m", "memory": "32Mi"}
    }))
    .unwrap();
    node.bind("web", pod(vec![one]));
    node.until_ready("web").await;
    let name = node.container("web", "a");
    let pid = docker(&["inspect", "-f", "{{.State.Pid}}", &name]);
    let v1 = folder(&pid, "memory").1;
    let mut expected = vec![
        ("memory", "memory.limit_in_bytes", "memory.max", "33554432"),
        ("pids", "pids.max", "pids.max", "99"),
    ];
    if v1 {
        expected.extend([
            // The same as the memory limit: not a byte of swap.
            ("memory", "memory.memsw.limit_in_bytes", "", "33554432"),
            // 100m of 1024 per core, and a quarter of each 100 ms.
            ("cpu", "cpu.shares", "", "102"),
            ("cpu", "cpu.cfs_quota_us", "", "25000"),
            ("cpu", "cpu.cfs_period_us", "", "100000"),
        ]);
    } else {
        expected.extend([("memory", "", "memory.swap.max", "0"), ("cpu", "", "cpu.max", "25000 100000")]);
    }
    for (controller, v1, v2, value) in expected {
        assert_eq!(file(&pid, controller, v1, v2), value, "{v1} {v2}");
    }
    // The agent itself finds the same folder and reads plausible values there.
    let id = docker(&["inspect", "-f", "{{.Id}}", &name]);
    let cgroups = RealCgroups::new();
    let place = cgroups.place(pid.parse().unwrap(), &id).unwrap();
    assert_eq!(place.memory, folder(&pid, "memory").0);
    let sample = cgroups.read(&place).unwrap();
    assert!(sample.cpu_ns > 0 && (4096..32 << 20).contains(&sample.memory_bytes), "{sample:?}");
    let machine = cgroups.machine().unwrap();
    assert!(machine.cpu_ns > sample.cpu_ns && machine.memory_bytes > sample.memory_bytes, "{machine:?}");
}

fn hungry(script: &str) -> PodSpec {
    // The engine watches for OOM kills only once the container runs: a process that dies within its first
    // milliseconds is
    // reported with code 137 and nothing else.
    let mut one = shell("a", &format!("sleep 1; {script}"));
    one.resources = serde_json::from_value(serde_json::json!({"limits": {"memory": "16Mi"}})).unwrap();
    PodSpec { restart_policy: RestartPolicy::Never, ..pod(vec![one]) }
}

/// Red when `ended` in status.rs ignores the engine's flag.
#[tokio::test(flavor = "multi_thread")]
async fn who_wants_too_much_memory_is_oom_killed_also_when_it_is_a_child() {
    let mut node = Node::new().await;
    node.start().await;
    let cases = [
        ("itself", "exec tail /dev/zero", 137),
        ("child", "tail /dev/zero; exit $?", 137),
        ("handled", "tail /dev/zero; exit 3", 3),
    ];
    for (name, script, _) in cases {
        node.bind(name, hungry(script));
    }
    for (name, _, code) in cases {
        node.until(name, "OOMKilled", |status| {
            status.is_some_and(|status| match &status.container_statuses[0].state {
                ContainerState::Terminated(end) => {
                    (end.reason.as_str(), end.exit_code) == ("OOMKilled", code)
                }
                _ => false,
            })
        })
        .await;
    }
}

/// Red when the body of the create request has no log limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_end_leaves_bounded_files() {
    let mut node = Node::new().await;
    node.container_limits.log = LogLimits { max_bytes: 64 << 10, max_files: 2 };
    node.start().await;
    let line = "x".repeat(99);
    node.bind("web", pod(vec![shell("a", &format!("yes {line} | head -n 20000; echo the end; sleep 1000"))]));
    node.until_ready("web").await;
    let name = node.container("web", "a");
    let began = std::time::Instant::now();
    while docker(&["logs", "--tail", "1", &name]) != "the end" {
        assert!(began.elapsed().as_secs() < 30, "2 MB are not written in 30 s");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let path = PathBuf::from(docker(&["inspect", "-f", "{{.LogPath}}", &name]));
    let folder = fs::read_dir(path.parent().unwrap()).unwrap().flatten();
    let logs = folder.filter(|entry| entry.file_name().to_string_lossy().contains("-json.log"));
    let sizes: Vec<u64> = logs.map(|entry| entry.metadata().unwrap().len()).collect();
    // The line that crosses the limit is written whole.
    assert!(sizes.len() == 2 && sizes.iter().all(|size| *size < (64 << 10) + 1024), "{sizes:?}");
}

/// CPU time of this process so far, in milliseconds.
fn own_cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// Prints a figure and asserts no time: `cargo test -p minik8s-agent --test docker_limits -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_a_run_of_the_usage_loop_with_30_pods() {
    const RUNS: u64 = 50;
    let node = Node::new().await;
    for number in 0..30 {
        let labels = [
            (names::INSTANCE, node.instance.clone()),
            (names::NAMESPACE, "default".to_owned()),
            (names::POD, format!("pod-{number}")),
            (names::UID, format!("uid{number}")),
            (names::CONTAINER, "main".to_owned()),
            (names::ATTEMPT, "0".to_owned()),
        ];
        let reference = NamespacedName::new("default", format!("pod-{number}"));
        let new = NewContainer {
            name: names::container_name(&node.instance, "main", &reference, &format!("uid{number}"), 0),
            image: support::IMAGE.to_owned(),
            labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            command: vec!["sleep".to_owned(), "1000".to_owned()],
            ..NewContainer::default()
        };
        let id = node.docker.create(&new).await.unwrap();
        node.docker.start(&id).await.unwrap();
    }
    let mut usage = UsageLoop::new(UsageDeps {
        instance: node.instance.clone(),
        state_dir: node.state.path().to_owned(),
        docker: node.docker.clone(),
        cgroups: std::sync::Arc::new(RealCgroups::new()),
        disk: std::sync::Arc::new(agent::worlds::host::RealDisk),
        memory_bytes: 0,
        records: tokio::sync::watch::channel(None).0,
        resources: tokio::sync::watch::channel(None).0,
    });
    let (mut before, began) = (0, std::time::Instant::now());
    for run in 0..=RUNS {
        let Observation::Ready(observed) = usage.observe().await.unwrap() else { panic!("ready") };
        let plan = UsageLoop::plan(&observed, jiff::Timestamp::now());
        assert_eq!(observed.containers.len(), 30);
        let outcome = usage.act(&observed, plan).await;
        usage.report(observed, outcome).await.unwrap();
        // The first run inspects each container, which happens once per container.
        before = if run == 0 { own_cpu_ms() } else { before };
    }
    let spent = own_cpu_ms() - before;
    println!("{RUNS} runs: {spent} ms of CPU, {:?} in all", began.elapsed());
    println!("a run each 15 s: {:.3} % of a core", spent as f64 / RUNS as f64 / 150.0);
}
