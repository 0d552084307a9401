//! Rows of `top` in every case, on snapshots as the writers store them.

use super::*;
use crate::view::testing::*;

fn sample(snapshot: &mut Snapshot, uid: &str, pod: &str) {
    let containers = [("app".to_owned(), ContainerUsage { cpu: 250, memory: 64 << 20 })].into();
    let volumes = [("data".to_owned(), 12 << 20)].into();
    let usage = PodUsage { uid: uid.to_owned(), containers, volumes, at_least: Vec::new() };
    let node = NodeUsage {
        at: at(90),
        window_seconds: 15,
        cpu: 1000,
        memory: 1 << 30,
        disk: None,
        pods: [(format!("default/{pod}"), usage)].into(),
        left_out: String::new(),
    };
    snapshot.usage.insert("n1".to_owned(), versioned(node));
}

#[test]
fn a_pod_has_what_it_uses_and_its_share_of_the_node() {
    let mut snapshot = snapshot();
    let pod = put_pod(&mut snapshot, "web", running());
    sample(&mut snapshot, &pod.uid, "web");
    let rows = pod_usage(&snapshot, None, at(100));
    let [row] = rows.as_slice() else { panic!("{rows:#?}") };
    assert_eq!(row.total.cpu, Some(Cpu { millis: 250 }));
    // 250m of 2 cores, 64Mi of 4Gi.
    assert_eq!((row.total.cpu_percent, row.total.memory_percent), (Some(13), Some(2)));
    assert_eq!((row.sample_age.as_str(), row.why.as_str()), ("10s", ""));
    assert_eq!(row.volumes["data"], Memory { bytes: 12 << 20 });
    assert_eq!(row.containers["app"].cpu, Some(Cpu { millis: 250 }));
    let node = &node_usage(&snapshot, at(100))[0];
    assert_eq!((node.total.cpu_percent, node.total.memory_percent, node.pods), (Some(50), Some(25), 1));
}

/// Seen red without a check of the uid: the former pod of that name had a usage.
#[test]
fn without_a_sample_it_says_why() {
    let mut snapshot = snapshot();
    let pod = put_pod(&mut snapshot, "web", running());
    let why = |snapshot: &Snapshot, now: i64| pod_usage(snapshot, None, at(now))[0].why.clone();
    assert_eq!(why(&snapshot, 100), "node n1 has not reported its usage yet");
    assert_eq!(node_usage(&snapshot, at(100))[0].why, "it has not reported its usage yet");
    sample(&mut snapshot, "another", "web");
    assert_eq!(why(&snapshot, 100), "no container of it was running 10s ago: Running");
    sample(&mut snapshot, &pod.uid, "web");
    assert_eq!(why(&snapshot, 151), "as of 61s ago: the node has not reported since");
    snapshot.heartbeats.remove("n1");
    assert_eq!(why(&snapshot, 400), "as of 5m10s ago: the node has no heartbeat");
    let object = put_object(&mut snapshot, "waits", C2);
    put_instance(&mut snapshot, &object);
    let rows = pod_usage(&snapshot, None, at(100));
    assert!(
        rows.iter().any(|row| row.name == "waits" && row.why.starts_with("on no node yet: ")),
        "{rows:#?}"
    );
}

#[test]
fn one_that_started_after_the_sample_says_when_to_look_again() {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    sample(&mut snapshot, "another", "other");
    let mut usage = snapshot.usage["n1"].value.clone();
    usage.at = at(30);
    snapshot.usage.insert("n1".to_owned(), versioned(usage));
    let rows = pod_usage(&snapshot, None, at(63));
    assert_eq!(rows[0].why, "started after the last sample; the next one is due within 17s");
}
