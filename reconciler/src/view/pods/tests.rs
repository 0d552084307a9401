//! The row of a pod in every state, as a table.

use schema::kinds::pod::{ContainerState, RunningState, TerminatedState, WaitingState};
use schema::world::World;

use super::*;
use crate::view::testing::*;

/// The rows as text: name, ready, status, node, why.
fn rows(world: &World) -> String {
    pods(world, None, at(100))
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
    let mut world = world();
    let object = put_object(&mut world, "a-unbound", C2);
    put_instance(&mut world, &object);

    let object = put_object(&mut world, "b-bound", C2);
    let instance = put_instance(&mut world, &object);
    bind(&mut world, &instance, "n1");

    put_pod(&mut world, "c-creating", pod_waiting("ContainerCreating", ""));
    put_pod(&mut world, "d-image", pod_waiting("ErrImagePull", "no such image"));
    put_pod(&mut world, "e-running", running());

    let mut crashed = pod_waiting("CrashLoopBackOff", "");
    crashed.container_statuses[0].last_state = Some(terminated(3, "Error"));
    crashed.container_statuses[0].restart_count = 4;
    put_pod(&mut world, "f-crashed", crashed);

    let mut removed = world.clone();
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
    let mut world = world();
    put_pod(&mut world, "web", running());
    world.heartbeats.remove("n1");
    insta::assert_snapshot!(rows(&world), @"web 1/1 NodeLost n1 39s node n1 has no heartbeat; last seen: Running");
    assert!(!pods(&world, None, at(100))[0].is_ready);
}

#[test]
fn a_pod_that_moves_has_a_second_row_where_it_still_is() {
    let mut world = world();
    put_node(&mut world, "n2");
    let instance = put_pod(&mut world, "web", running());
    world.bindings.clear();
    bind(&mut world, &instance, "n2");
    insta::assert_snapshot!(rows(&world), @r"
    web 0/1 Pending n2 40s node n2 has not reported on it yet
    web 1/1 Terminating n1 39s no longer wanted on node n1
    ");
}

#[test]
fn a_report_on_the_previous_version_does_not_count() {
    let mut world = world();
    let instance = put_pod(&mut world, "web", running());
    let newer = PodInstance { uid: "newer".to_owned(), ..instance };
    world.pods.insert(newer.reference(), stored(newer.clone()));
    bind(&mut world, &newer, "n1");
    insta::assert_snapshot!(
        rows(&world),
        @"web 0/1 ContainerCreating n1 40s waiting for its previous version on node n1 to stop"
    );
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
        let mut world = world();
        put_pod(&mut world, "web", status);
        assert_eq!(pods(&world, None, at(100))[0].status, word);
    }
}

#[test]
fn no_node_is_told_apart_from_no_ready_node_and_no_subnet() {
    let mut world = world();
    let object = put_object(&mut world, "web", C2);
    put_instance(&mut world, &object);
    let why = |world: &World| pods(world, None, at(100))[0].why.clone();

    world.subnets.clear();
    assert_eq!(why(&world), "0/1 nodes fit: 1 without a pod range yet");
    world.heartbeats.clear();
    assert_eq!(why(&world), "0/1 nodes fit: 1 not ready");
    world.nodes.clear();
    assert_eq!(why(&world), "0/0 nodes fit: no node has registered; start minik8s-agent on one");
}

#[test]
fn only_the_wanted_namespace_is_listed() {
    let mut world = world();
    put_pod(&mut world, "web", running());
    assert_eq!(pods(&world, Some("default"), at(100)).len(), 1);
    assert_eq!(pods(&world, Some("other"), at(100)).len(), 0);
}

#[test]
fn a_pod_in_full_tells_where_it_comes_from() {
    let mut world = world();
    let instance = put_pod(&mut world, "web", running());
    let detail = pod(&world, &instance.reference(), Vec::new(), at(100)).unwrap();
    assert_eq!(detail.row.file, "apps/web.yaml:3");
    assert_eq!(detail.row.owner, "Pod/web");
    assert_eq!(detail.provenance.as_ref().unwrap().author, "Ada <ada@example.org>");
    assert_eq!(detail.binding_reason, "fewest pods of 1 node");
    // What goes out as JSON comes back as it was.
    let text = serde_json::to_string(&detail).unwrap();
    assert_eq!(serde_json::from_str::<PodDetail>(&text).unwrap(), detail);
    assert!(pod(&world, &PodRef::new("default", "nobody"), Vec::new(), at(100)).is_none());
}
