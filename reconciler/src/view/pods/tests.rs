//! The row of a pod in every state, as a table.

use schema::kinds::pod::{ContainerState, ContainerStatus, RunningState, TerminatedState, WaitingState};
use schema::snapshot::Snapshot;

use super::*;
use crate::view::testing::*;

/// The rows as text: name, ready, status, node, why.
fn rows(snapshot: &Snapshot) -> String {
    pods(snapshot, None, at(100))
        .into_iter()
        .map(|p| {
            let node = p.node.as_deref().unwrap_or("-");
            format!("{} {} {} {node} {} {}\n", p.name, p.ready, p.status, p.age, p.why)
        })
        .collect()
}

fn terminated(code: i64, reason: &str) -> TerminatedState {
    TerminatedState {
        exit_code: code,
        reason: reason.to_owned(),
        message: String::new(),
        started_at: None,
        finished_at: Some(at(80)),
    }
}

#[test]
fn every_stage_of_a_pod_has_its_word_and_its_why() {
    let mut snapshot = snapshot();
    let object = put_object(&mut snapshot, "a-unbound", C2);
    put_instance(&mut snapshot, &object);

    let object = put_object(&mut snapshot, "b-bound", C2);
    let instance = put_instance(&mut snapshot, &object);
    bind(&mut snapshot, &instance, "n1");

    put_pod(&mut snapshot, "c-creating", pod_waiting("ContainerCreating", ""));
    put_pod(&mut snapshot, "d-image", pod_waiting("ErrImagePull", "no such image"));
    put_pod(&mut snapshot, "e-running", running());

    let mut crashed = pod_waiting("CrashLoopBackOff", "");
    crashed.container_statuses[0].last_state = Some(terminated(3, "Error"));
    crashed.container_statuses[0].restart_count = 4;
    put_pod(&mut snapshot, "f-crashed", crashed);

    let mut removed = snapshot.clone();
    let gone = put_pod(&mut removed, "g-removed", running());
    removed.pods.remove(&gone.reference());
    removed.bindings.remove(&("n1".to_owned(), gone.reference()));

    insta::assert_snapshot!(rows(&removed), @r"
    a-unbound 0/1 Pending - 40s fits on n1, waits for the scheduler
    b-bound 0/1 Pending n1 40s node n1 has not reported on it yet
    c-creating 0/1 ContainerCreating n1 39s container app: ContainerCreating
    d-image 0/1 ErrImagePull n1 39s container app: no such image
    e-running 1/1 Running n1 39s 
    f-crashed 0/1 CrashLoopBackOff n1 39s container app ended with code 3 (Error)
    g-removed 1/1 Terminating n1 39s node n1 is stopping it
    ");
}

#[test]
fn pods_of_a_silent_node_are_lost_and_not_ready() {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    snapshot.heartbeats.remove("n1");
    insta::assert_snapshot!(rows(&snapshot), @"web 1/1 NodeLost n1 39s node n1 has no heartbeat; last seen: Running");
    assert!(!pods(&snapshot, None, at(100))[0].is_ready);
}

#[test]
fn a_pod_that_moves_has_a_second_row_where_it_still_is() {
    let mut snapshot = snapshot();
    put_node(&mut snapshot, "n2");
    let instance = put_pod(&mut snapshot, "web", running());
    snapshot.bindings.clear();
    bind(&mut snapshot, &instance, "n2");
    insta::assert_snapshot!(rows(&snapshot), @r"
    web 0/1 Pending n2 40s node n2 has not reported on it yet
    web 1/1 Terminating n1 39s no longer wanted on node n1
    ");
}

#[test]
fn a_report_on_the_previous_version_does_not_count() {
    let mut snapshot = snapshot();
    let instance = put_pod(&mut snapshot, "web", running());
    let newer = PodInstance { uid: "newer".to_owned(), ..instance };
    snapshot.pods.insert(newer.reference(), versioned(newer.clone()));
    bind(&mut snapshot, &newer, "n1");
    insta::assert_snapshot!(
        rows(&snapshot),
        @"web 0/1 ContainerCreating n1 40s waiting for its previous version on node n1 to stop"
    );
}

/// kubectl's `printPod`: a sidecar that has started is done, and counts for READY.
#[test]
fn sidecars_are_counted_beside_the_main_containers() {
    let runs = || ContainerState::Running(RunningState { started_at: at(70) });
    let one = |name: &str, (started, ready)| ContainerStatus { started, ready, ..container(name, runs()) };
    for (proxy, migrate, main, expected) in [
        ((false, false), runs(), (false, false), "0/2 Init:0/2"),
        ((true, false), runs(), (false, false), "0/2 Init:1/2"),
        ((true, true), ContainerState::Terminated(terminated(0, "Completed")), (true, true), "2/2 Running"),
        ((true, false), ContainerState::Terminated(terminated(0, "Completed")), (true, true), "1/2 Running"),
    ] {
        let migrate = ContainerStatus { ready: migrate.is_terminated(), ..container("migrate", migrate) };
        let status = PodStatus {
            init_container_statuses: vec![one("proxy", proxy), migrate],
            container_statuses: vec![one("app", main)],
            ..running()
        };
        let mut snapshot = snapshot();
        let init = serde_json::json!([
            {"name": "proxy", "image": "a", "restartPolicy": "Always"}, {"name": "migrate", "image": "a"}
        ]);
        let mut spec = pod_spec(&["app"]);
        spec.init_containers = serde_json::from_value(init).unwrap();
        let instance = put_instance(&mut snapshot, &object_of("web", spec));
        bind(&mut snapshot, &instance, "n1");
        report(&mut snapshot, &instance, "n1", status);
        let row = &pods(&snapshot, None, at(100))[0];
        assert_eq!(format!("{} {}", row.ready, row.status), expected);
    }
}

#[test]
fn init_containers_are_counted_and_named() {
    let waiting = |reason: &str| {
        ContainerState::Waiting(WaitingState { reason: reason.to_owned(), message: String::new() })
    };
    let running_now = ContainerState::Running(RunningState { started_at: at(70) });
    for (first, second, word) in [
        (running_now.clone(), waiting("PodInitializing"), "Init:0/2"),
        (ContainerState::Terminated(terminated(0, "Completed")), running_now, "Init:1/2"),
        (ContainerState::Terminated(terminated(1, "Error")), waiting("PodInitializing"), "Init:Error"),
        (waiting("CrashLoopBackOff"), waiting("PodInitializing"), "Init:CrashLoopBackOff"),
        (
            ContainerState::Terminated(terminated(0, "Completed")),
            ContainerState::Terminated(terminated(0, "Completed")),
            "PodInitializing",
        ),
    ] {
        let mut status = pod_waiting("PodInitializing", "");
        status.init_container_statuses = vec![container("one", first), container("two", second)];
        let mut snapshot = snapshot();
        put_pod(&mut snapshot, "web", status);
        assert_eq!(pods(&snapshot, None, at(100))[0].status, word);
    }
}

#[test]
fn no_node_is_distinguished_from_no_ready_node_and_no_subnet() {
    let mut snapshot = snapshot();
    let object = put_object(&mut snapshot, "web", C2);
    put_instance(&mut snapshot, &object);
    let why = |snapshot: &Snapshot| pods(snapshot, None, at(100))[0].why.clone();

    snapshot.subnets.clear();
    assert_eq!(why(&snapshot), "0/1 nodes fit: 1 without a pod range yet");
    snapshot.heartbeats.clear();
    assert_eq!(why(&snapshot), "0/1 nodes fit: 1 not ready");
    snapshot.nodes.clear();
    assert_eq!(
        why(&snapshot),
        "0/0 nodes fit: no node has registered yet; a node registers a few seconds after minik8s-agent starts on it"
    );
}

#[test]
fn only_the_wanted_namespace_is_listed() {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    assert_eq!(pods(&snapshot, Some("default"), at(100)).len(), 1);
    assert_eq!(pods(&snapshot, Some("other"), at(100)).len(), 0);
}

#[test]
fn a_pod_in_full_says_where_it_comes_from() {
    let mut snapshot = snapshot();
    let instance = put_pod(&mut snapshot, "web", running());
    let detail = pod(&snapshot, &instance.reference(), Vec::new(), at(100)).unwrap();
    assert_eq!(detail.row.file, "apps/web.yaml:3");
    assert_eq!(detail.row.owner, "Pod/web");
    assert_eq!(detail.provenance.as_ref().unwrap().author, "Ada <ada@example.org>");
    assert_eq!(detail.binding_reason, "fewest pods of 1 node");
    // The JSON survives a round trip.
    let text = serde_json::to_string(&detail).unwrap();
    assert_eq!(serde_json::from_str::<PodDetail>(&text).unwrap(), detail);
    assert!(pod(&snapshot, &NamespacedName::new("default", "nobody"), Vec::new(), at(100)).is_none());
}
