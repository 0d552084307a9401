//! Snapshot changes, and fast look-ups of bindings by node and by pod.

use super::*;
use crate::codec::encode;
use crate::keys::prefix;
use crate::kinds::Kind;
use crate::kinds::job::JobSpec;
use crate::kinds::pod::PodSpec;
use crate::records::JobDependencyState;
use crate::testing;

fn binding(node: &str, pod: &NamespacedName) -> Binding {
    let namespace = pod.namespace.clone();
    let instance = PodInstance { namespace, ..testing::instance(&pod.name, PodSpec::default()) };
    testing::binding(node, &instance)
}

fn bind(snapshot: &mut Snapshot, node: &str, pod: &NamespacedName) {
    let key = Key::Binding(node.to_owned(), pod.clone());
    snapshot.put(&key, &binding(node, pod), 1);
}

fn unbind(snapshot: &mut Snapshot, node: &str, pod: &NamespacedName) {
    let key = Key::Binding(node.to_owned(), pod.clone()).to_string();
    snapshot.apply(&Change::Delete { key });
}

fn node_of<'a>(snapshot: &'a Snapshot, pod: &NamespacedName) -> Option<&'a str> {
    snapshot.binding_of(pod).map(|binding| binding.value.node.as_str())
}

#[test]
fn a_binding_is_found_by_its_pod_on_whatever_node() {
    let (web, db) = (NamespacedName::new("default", "web"), NamespacedName::new("default", "db"));
    let mut snapshot = Snapshot::default();
    bind(&mut snapshot, "n2", &web);
    assert_eq!((node_of(&snapshot, &web), node_of(&snapshot, &db)), (Some("n2"), None));
    // Moved: bound twice for a moment, then only on the other node.
    bind(&mut snapshot, "n1", &web);
    assert_eq!(node_of(&snapshot, &web), Some("n1"));
    unbind(&mut snapshot, "n1", &web);
    assert_eq!(node_of(&snapshot, &web), Some("n2"));
    unbind(&mut snapshot, "n2", &web);
    assert_eq!(node_of(&snapshot, &web), None);
}

#[test]
fn a_name_that_begins_like_another_is_not_mistaken_for_it() {
    let mut snapshot = Snapshot::default();
    bind(&mut snapshot, "n1", &NamespacedName::new("default", "web-2"));
    assert_eq!(node_of(&snapshot, &NamespacedName::new("default", "web")), None);
}

#[test]
fn a_binding_that_became_unreadable_is_no_binding() {
    let web = NamespacedName::new("default", "web");
    let mut snapshot = Snapshot::default();
    bind(&mut snapshot, "n1", &web);
    let key = Key::Binding("n1".into(), web.clone()).to_string();
    snapshot.apply(&Change::Put {
        key: key.clone(),
        value: "][".into(),
        create_revision: 1,
        mod_revision: 2,
    });
    assert_eq!(node_of(&snapshot, &web), None);
    assert!(snapshot.malformed.contains_key(&key));
}

#[test]
fn bindings_put_into_the_table_by_hand_are_found_too() {
    let web = NamespacedName::new("default", "web");
    let mut snapshot = Snapshot::default();
    snapshot.bindings.insert(("n1".into(), web.clone()), testing::versioned(binding("n1", &web)));
    assert_eq!(node_of(&snapshot, &web), Some("n1"));
}

#[test]
fn the_bindings_of_a_node_are_its_own_only() {
    let mut snapshot = Snapshot::default();
    for (node, pod) in [("n1", "a"), ("n1", "b"), ("n10", "c"), ("n0", "d")] {
        bind(&mut snapshot, node, &NamespacedName::new("default", pod));
    }
    let names: Vec<&str> = snapshot.bindings_of("n1").map(|(pod, _)| pod.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(snapshot.pod_status_of("n1").count(), 0);
}

#[test]
fn a_clone_does_not_follow_its_original() {
    let mut snapshot = Snapshot::default();
    bind(&mut snapshot, "n1", &NamespacedName::new("default", "a"));
    let before = snapshot.clone();
    bind(&mut snapshot, "n1", &NamespacedName::new("default", "b"));
    assert_eq!((before.bindings.len(), snapshot.bindings.len()), (1, 2));
}

#[test]
fn strangers_below_our_root_are_passed_over() {
    let mut snapshot = Snapshot::default();
    let key = format!("{}n1/nowhere/a/b", prefix::STATUS);
    snapshot.apply(&Change::Put { key, value: "{}".into(), create_revision: 1, mod_revision: 1 });
    assert_eq!(snapshot, Snapshot::default());
}

/// Prints figures and asserts no time: `cargo test -p minik8s-schema --all-features -- --ignored 30_000 --nocapture`.
#[test]
#[ignore = "a measurement"]
fn measure_30_000_bindings() {
    let pods: Vec<(String, NamespacedName)> = (0..30_000)
        .map(|n| (format!("node-{:04}", n % 1_000), NamespacedName::new("default", format!("pod-{n:05}"))))
        .collect();
    let changes: Vec<Change> = pods
        .iter()
        .map(|(node, pod)| Change::Put {
            key: Key::Binding(node.clone(), pod.clone()).to_string(),
            value: encode(&binding(node, pod)).unwrap().into(),
            create_revision: 1,
            mod_revision: 1,
        })
        .collect();
    let mut snapshot = Snapshot::default();
    let started = std::time::Instant::now();
    for change in &changes {
        snapshot.apply(change);
    }
    println!("apply 30,000 bindings: {:?}", started.elapsed());
    let started = std::time::Instant::now();
    assert!(pods.iter().all(|(_, pod)| snapshot.binding_of(pod).is_some()));
    println!("binding_of 30,000 times: {:?}", started.elapsed());
    let started = std::time::Instant::now();
    let clones: Vec<Snapshot> = (0..1_000).map(|_| snapshot.clone()).collect();
    println!("{} clones: {:?}", clones.len(), started.elapsed());
}

/// Seen red with each of the three among the tables that `is_same_for_plans` compares.
#[test]
fn usage_and_requests_change_no_plan_and_everything_else_does() {
    use crate::records::{NodeUsage, RequestAnswer, SyncRequest};
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let pod = NamespacedName::new("default", "web");
    snapshot.put(&Key::Binding("n1".into(), pod.clone()), &binding("n1", &pod), 1);
    let before = snapshot.clone();
    let at = jiff::Timestamp::UNIX_EPOCH;
    let usage = NodeUsage {
        at,
        window_seconds: 15,
        cpu: 1,
        memory: 2,
        disk: None,
        pods: Default::default(),
        left_out: String::new(),
    };
    snapshot.put(&Key::Usage("n1".into()), &usage, 2);
    assert_eq!(snapshot.usage["n1"].value, usage);
    assert!(snapshot.is_same_for_plans(&before));
    let text = r#"{"id":"d1","provider":"github","event":"push","source":"main","receivedAt":"2026-01-02T03:04:05Z","peer":"192.0.2.1","by":"r0","outcome":{"state":"accepted"}}"#;
    let request: SyncRequest = serde_json::from_str(text).unwrap();
    snapshot.put(&Key::Request("d1".into()), &request, 2);
    assert!(snapshot.is_same_for_plans(&before) && snapshot.requests.contains_key("d1"));
    snapshot.put(&Key::Answer("d1".into()), &RequestAnswer { request_revision: 2, at, commit: None }, 2);
    assert!(snapshot.is_same_for_plans(&before) && snapshot.answers.contains_key("d1"));
    snapshot.put(&Key::Binding("n1".into(), pod.clone()), &binding("n1", &pod), 3);
    assert!(!snapshot.is_same_for_plans(&before));
}

#[test]
fn a_workflow_is_complete_once_its_record_and_those_of_its_triggers_are_here() {
    use crate::meta::ObjectRef;
    use serde_json::json;

    let schedule = json!({"cron": "0 3 * * *", "timeZone": "UTC"});
    let spec = json!({
        "startAt": "a", "states": {"a": {"type": "Succeed"}}, "params": {},
        "triggers": [{"name": "nightly", "schedule": schedule}, {"name": "merged", "onCommit": {}}],
    });
    let object = json!({
        "apiVersion": "minik8s.io/v1", "metadata": {"name": "flow", "namespace": "default"}, "kind": "Workflow",
        "spec": spec, "hash": "h", "generation": 1,
        "provenance": {"source": "main", "commit": "0", "author": "", "file": "flow.yaml", "line": 1},
    });
    let flow = NamespacedName::new("default", "flow");
    let id = ObjectRef { kind: Kind::Workflow, namespace: "default".into(), name: "flow".into() };
    let mut snapshot = Snapshot::default();
    snapshot.put(&Key::Object(id.clone()), &object, 1);
    let object = snapshot.objects.get(&id).unwrap().value.clone();
    assert!(!health::is_complete(&snapshot, &object), "the runs loop has not looked yet");
    snapshot.put(&Key::Workflow(flow), &json!({"generation": 1, "running": 0}), 2);
    assert!(!health::is_complete(&snapshot, &object), "nor at the trigger");
    snapshot.put(&Key::Trigger(id, "nightly".into()), &json!({"schedule": schedule}), 3);
    assert!(health::is_complete(&snapshot, &object));
}

#[test]
fn a_node_is_as_well_as_its_agent() {
    let node = testing::object_of("n1", crate::kinds::node::NodeSpec::default());
    let mut snapshot = Snapshot::default();
    assert_eq!(health::health(&snapshot, &node).to_string(), "Unknown");
    snapshot.put(&Key::Node("n1".into()), &testing::node_record("n1"), 1);
    assert_eq!(health::health(&snapshot, &node).to_string(), "Degraded");
    snapshot.put(&Key::Heartbeat("n1".into()), &testing::heartbeat(), 2);
    assert_eq!(health::health(&snapshot, &node).to_string(), "Healthy");
}

#[test]
fn a_job_is_found_at_each_node_that_has_it() {
    let order = JobOrder {
        uid: "u".into(),
        hash: "h".into(),
        spec: JobSpec::default(),
        files: super::super::content_refs::Files::new(),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        dependency: JobDependencyState::None,
        reached: false,
        former: Vec::new(),
        deleting: false,
    };
    let mut snapshot = Snapshot::default();
    let name = |name: &str| NamespacedName::new("default", name);
    for (node, job) in
        [("n", "b"), ("n", "d"), ("n-1", "a"), ("n-1", "b"), ("n1", "c"), ("n2", "b"), ("n2", "z")]
    {
        snapshot.put(&Key::Job(node.into(), name(job)), &order, 1);
    }
    let nodes = |job| snapshot.jobs_of(&name(job)).map(|(node, _)| node.to_owned()).collect::<Vec<_>>();
    assert_eq!((nodes("b"), nodes("z")), (vec!["n".into(), "n-1".into(), "n2".into()], vec!["n2".into()]));
    assert_eq!((nodes("e"), Snapshot::default().jobs_of(&name("b")).count()), (vec![], 0));
}
