//! Probes and preStop on a real engine. Fails where there is none.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod support;

use std::time::{Duration, Instant};

use schema::kinds::pod::{PodSpec, PodStatus};
use serde_json::{Value, json};
use support::Node;
use support::ports::free_port;

/// A script that exits cleanly on SIGTERM.
const STAY: &str = "trap 'echo term >> /mark/log; exit 0' TERM; while :; do sleep 0.1; done";

fn spec(container: &Value, more: &Value) -> PodSpec {
    let mut base = json!({"name": "a", "image": support::IMAGE, "imagePullPolicy": "Never",
        "volumeMounts": [{"name": "mark", "mountPath": "/mark"}], "command": ["sh", "-c", STAY]});
    base.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let mut spec = json!({"terminationGracePeriodSeconds": 5, "containers": [base],
        "volumes": [{"name": "mark", "emptyDir": {}}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn probe(script: &str, failures: u32) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 5,
        "failureThreshold": failures})
}

fn first(status: Option<&PodStatus>) -> (bool, bool, u32) {
    let container = status.and_then(|status| status.container_statuses.first());
    container.map_or((false, false, 0), |c| (c.started, c.ready, c.restart_count))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_liveness_probe_runs_the_hook_ends_and_restarts() {
    let mut node = Node::new().await;
    node.start().await;
    let hook = json!({"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /mark/log"]}}});
    let sick = json!({"livenessProbe": probe("test ! -f /tmp/sick", 1), "lifecycle": hook});
    let uid = node.bind("web", spec(&sick, &json!({})));
    node.until_ready("web").await;
    node.exec("web", "a", "touch /tmp/sick");
    let took = node.until("web", "restarted", |s| first(s) == (true, true, 1)).await;
    println!("from the failure to the new start: {took:?}");
    let last = node.status("web").unwrap().container_statuses[0].last_state.clone().unwrap();
    assert_eq!((last.exit_code, last.message.as_str()), (0, "stopped: it failed its liveness probe"));
    let log = node.state.path().join(format!("agent/pods/{uid}/volumes/mark/log"));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "hook\nterm\n");

    // A removal also runs the hook of a pod whose binding the agent has never loaded.
    let seen = std::fs::File::open(&log).unwrap();
    node.kill().await;
    node.unbind("web");
    node.start().await;
    let began = Instant::now();
    while !node.containers().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", node.containers());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(std::io::read_to_string(seen).unwrap(), "hook\nterm\nhook\nterm\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn startup_gates_readiness_toggles_and_a_new_agent_believes_the_former() {
    let mut node = Node::new().await;
    node.start().await;
    let probes = json!({"startupProbe": probe("test -f /tmp/started", 60),
        "readinessProbe": probe("echo asked >> /mark/asked; test -f /tmp/ready", 1)});
    let uid = node.bind("web", spec(&probes, &json!({})));
    node.until("web", "runs", |s| s.is_some_and(|s| s.pod_ip.is_some() && s.start_time.is_some())).await;
    node.until("web", "is started", |s| {
        let running = s.is_some_and(|s| {
            matches!(s.container_statuses[0].state, schema::kinds::pod::ContainerState::Running(_))
        });
        running && first(s) == (false, false, 0)
    })
    .await;
    let asked = node.state.path().join(format!("agent/pods/{uid}/volumes/mark/asked"));
    assert!(!asked.exists(), "startup has not succeeded");
    node.exec("web", "a", "touch /tmp/started");
    node.until("web", "started", |s| first(s) == (true, false, 0)).await;
    node.exec("web", "a", "touch /tmp/ready");
    node.until_ready("web").await;

    node.kill().await;
    node.start().await;
    node.until("web", "reported", |s| {
        let reported = s.is_some();
        assert!(!reported || first(s) == (true, true, 0), "a ready container stays ready: {s:#?}");
        reported
    })
    .await;
    node.exec("web", "a", "rm /tmp/ready");
    node.until("web", "unready", |s| s.is_some_and(|s| !s.is_ready()) && first(s) == (true, false, 0)).await;
    node.exec("web", "a", "touch /tmp/ready");
    node.until_ready("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_is_ready_while_it_answers_well() {
    let mut node = Node::new().await;
    node.start().await;
    let port = free_port();
    // The test's pods have no link, so this one is on the host's network.
    let script = format!("mkdir /tmp/www; touch /tmp/www/ok; exec httpd -f -p 127.0.0.1:{port} -h /tmp/www");
    let server = json!({"command": ["sh", "-c", script], "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": {"httpGet": {"host": "127.0.0.1", "port": "http", "path": "/ok"},
            "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
        "livenessProbe": {"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1,
            "timeoutSeconds": 5}});
    node.bind("web", spec(&server, &json!({"hostNetwork": true})));
    node.until_ready("web").await;
    node.exec("web", "a", "rm /tmp/www/ok");
    node.until("web", "404", |s| first(s) == (true, false, 0) && s.is_some_and(|s| !s.is_ready())).await;
    node.exec("web", "a", "touch /tmp/www/ok");
    node.until("web", "ready again", |s| first(s) == (true, true, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_hangs_is_killed_with_its_children() {
    let mut node = Node::new().await;
    node.start().await;
    let mut hangs = probe("echo x >> /mark/n; sleep 777 & wait", 100);
    hangs["timeoutSeconds"] = json!(1);
    let uid = node.bind("web", spec(&json!({"readinessProbe": hangs}), &json!({})));
    let count = node.state.path().join(format!("agent/pods/{uid}/volumes/mark/n"));
    let began = Instant::now();
    let rounds = || std::fs::read_to_string(&count).map_or(0, |text| text.lines().count());
    while rounds() < 4 {
        assert!(began.elapsed() < Duration::from_secs(60), "asked {} times", rounds());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let left = node.exec("web", "a", "ps -o args | grep -c '^sleep 777$' || true");
    assert!(left.parse::<u32>().unwrap() <= 1, "{left} are left of {}", rounds());
}
