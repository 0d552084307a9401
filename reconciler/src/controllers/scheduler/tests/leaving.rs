//! Pods that leave a node which is lost, gone, drained or tainted.

use std::sync::Arc;

use jiff::Timestamp;
use schema::condition::ConditionStatus;
use schema::kinds::disruption_budget::PodDisruptionBudgetSpec;
use schema::kinds::node::{NodeSpec, Taint};
use schema::kinds::pod::TaintEffect;
use schema::records::{Drain, NodeConditions, PodInstance, SettledRecord, TaintAge};
use schema::testing::{heartbeat, object_of, replica};

use super::strategies::applied;
use super::*;
use crate::controllers::LastKnown;

fn named(name: &str, node: &str) -> PodInstance {
    instance(name, PodSpec { node_name: Some(node.into()), ..spec(1, 1) })
}

/// Marks the node as silent and given up.
fn evicted(builder: SnapshotBuilder, node: &str) -> SnapshotBuilder {
    let since = Timestamp::UNIX_EPOCH;
    let conditions =
        NodeConditions { evicted_at: Some(since), ..NodeConditions::new(ConditionStatus::Unknown, since) };
    builder.put(&Key::NodeConditions(node.into()), &conditions).delete(&Key::Heartbeat(node.into()))
}

fn drained(builder: SnapshotBuilder, node: &str) -> SnapshotBuilder {
    builder.node_object(node, NodeSpec { drain: true, ..NodeSpec::default() })
}

/// Binds the pod to the node and reports it running there.
fn with(builder: SnapshotBuilder, node: &str, pod: &PodInstance) -> SnapshotBuilder {
    builder.pod(pod).bound(node, pod).status(node, pod, PodPhase::Running)
}

/// Bindings as `node/pod`.
fn bound(builder: &SnapshotBuilder) -> Vec<String> {
    builder.snapshot.bindings.keys().map(|(node, pod)| format!("{node}/{}", pod.name)).collect()
}

// Seen red with a `must_leave` that ignores the owner, or the end.
#[test]
fn bare_pods_of_a_lost_node_move_and_others_stay() {
    let (web, done) = (instance("web", spec(1, 1)), instance("done", spec(1, 1)));
    let builder = with(SnapshotBuilder::new().nodes(2), "n1", &web);
    let builder = with(builder, "n1", &replica("set", "set-0badcafe-0", spec(1, 1)));
    let builder = with(builder, "n1", &named("pinned", "n1"));
    let builder = with(builder, "n1", &done).status("n1", &done, PodPhase::Succeeded);
    let silent = builder.clone().delete(&Key::Heartbeat("n1".into()));
    assert_eq!(planned(&silent.snapshot), "", "it is not given up yet");
    let builder = evicted(builder, "n1");
    let plan = planned(&builder.snapshot);
    assert!(
        plan.starts_with("put bindings/n2/default/web if absent: moved from n1, where 1 not ready, to n2\n")
    );
    assert!(!plan.contains("note"), "{plan}");
    let builder = applied(builder);
    assert_eq!(bound(&builder), ["n1/done", "n1/pinned", "n1/set-0badcafe-0", "n2/web"]);
    // The node returns: nothing is undone or restarted.
    let back = builder.put(&Key::Heartbeat("n1".into()), &heartbeat());
    assert_eq!(planned(&back.snapshot), "");
}

#[test]
fn a_pod_that_was_not_moved_when_its_node_comes_back_stays() {
    let big = instance("big", spec(3000, 1));
    let neighbour = instance("neighbour", spec(3000, 1));
    let builder = with(SnapshotBuilder::new().nodes(2), "n1", &big);
    let builder = evicted(with(builder, "n2", &neighbour), "n1");
    let why =
        "0/2 nodes fit: 1 not ready, 1 not enough cpu (wants 3, free 1); until then the pod stays on n1";
    assert_eq!(planned(&builder.snapshot), format!("note Pod/default/big Unschedulable: {why}\n"));
    let back = builder.put(&Key::Heartbeat("n1".into()), &heartbeat());
    assert_eq!(planned(&back.snapshot), "");
}

// Seen red without `had_turn`, and without `is_ending_a_pod`.
#[test]
fn a_drained_node_gives_its_bare_pods_away_one_after_the_other() {
    let pods = ["a", "b"].map(|name| instance(name, spec(1, 1)));
    let builder = pods.iter().fold(SnapshotBuilder::new().nodes(2), |builder, pod| with(builder, "n1", pod));
    let builder = with(builder, "n1", &named("pinned", "n1"));
    let builder = with(builder, "n1", &replica("set", "set-0badcafe-0", spec(1, 1)));
    let builder = applied(drained(builder, "n1"));
    assert_eq!(bound(&builder), ["n1/b", "n1/pinned", "n1/set-0badcafe-0", "n2/a"]);
    assert_eq!(planned(&builder.snapshot), "", "n1 still ends a");
    let builder = applied(builder.delete(&Key::PodStatus("n1".into(), pods[0].reference())));
    assert_eq!(bound(&builder), ["n1/pinned", "n1/set-0badcafe-0", "n2/a", "n2/b"]);
}

#[test]
fn a_bare_pod_that_a_budget_covers_leaves_once_its_node_says_that_it_may() {
    let budget = serde_json::json!({"selector": {}, "minAvailable": 1});
    let budget: PodDisruptionBudgetSpec = serde_json::from_value(budget).unwrap();
    let (web, next) = (instance("web", spec(1, 1)), instance("next", spec(1, 1)));
    let builder = with(with(SnapshotBuilder::new().nodes(2), "n1", &web), "n1", &next);
    let builder = drained(builder.object(&object_of("all", budget)), "n1");
    assert_eq!(planned(&builder.snapshot), "", "nothing is decided yet");
    let drain = Some(Drain::Draining { left: 2, evicting: [web.reference()].into() });
    let since = Timestamp::UNIX_EPOCH;
    let conditions = NodeConditions { drain, ..NodeConditions::new(ConditionStatus::True, since) };
    let builder = builder.put(&Key::NodeConditions("n1".into()), &conditions);
    assert_eq!(bound(&applied(builder.clone())), ["n1/next", "n2/web"]);
    let silent = builder.delete(&Key::NodeConditions("n1".into()));
    assert_eq!(bound(&applied(evicted(silent, "n1"))), ["n2/next", "n2/web"], "a lost node asks no budget");
}

#[test]
fn a_taint_with_no_execute_drives_out_what_does_not_tolerate_it() {
    let taint = Taint { key: "k".into(), value: None, effect: TaintEffect::NoExecute };
    let web = instance("web", spec(1, 1));
    let builder = with(SnapshotBuilder::new().nodes(2), "n1", &web);
    let builder = builder.node_object("n1", NodeSpec { taints: vec![taint], ..NodeSpec::default() });
    assert_eq!(bound(&applied(builder.clone())), ["n2/web"]);
    assert_eq!(planned(&builder.delete(&Key::Heartbeat("n1".into())).snapshot), "", "it may be lost");
}

#[test]
fn a_pod_leaves_once_the_time_is_over_for_which_it_tolerates_a_taint() {
    let taint = Taint { key: "k".into(), value: None, effect: TaintEffect::NoExecute };
    let of = |seconds| {
        let tolerations = serde_json::json!([{"key": "k", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": seconds}]);
        PodSpec { tolerations: serde_json::from_value(tolerations).unwrap(), ..spec(1, 1) }
    };
    let (a, b) = (instance("a", of(60)), instance("b", of(300)));
    let builder = with(with(SnapshotBuilder::new().nodes(2), "n1", &a), "n1", &b);
    let builder = builder.node_object("n1", NodeSpec { taints: vec![taint.clone()], ..NodeSpec::default() });
    assert_eq!(planned(&builder.snapshot), "", "the taint is new");
    let since = Timestamp::UNIX_EPOCH;
    let taints = [(taint.to_string(), TaintAge { since, elapsed_seconds: 60 })].into();
    let conditions = NodeConditions { taints, ..NodeConditions::new(ConditionStatus::True, since) };
    let builder = applied(builder.put(&Key::NodeConditions("n1".into()), &conditions));
    assert_eq!(bound(&builder), ["n1/b", "n2/a"]);
    assert_eq!(planned(&builder.delete(&Key::PodStatus("n1".into(), a.reference())).snapshot), "");
}

// Seen red without `has_left` in `must_leave`.
#[test]
fn a_node_that_is_neither_registered_nor_alive_has_no_pods() {
    let (web, pinned) = (instance("web", spec(1, 1)), named("pinned", "n1"));
    let builder = with(with(SnapshotBuilder::new().nodes(2), "n1", &web), "n1", &pinned);
    let builder = builder.put(&Key::Settled("n1".into()), &SettledRecord::default());
    let builder = builder.delete(&Key::Node("n1".into()));
    assert_eq!(planned(&builder.snapshot), "", "its agent is alive and registers again");
    let builder = builder.delete(&Key::Heartbeat("n1".into()));
    let plan = planned(&builder.snapshot);
    assert!(plan.contains("moved from n1, where the node is not registered, to n2"), "{plan}");
    assert!(
        plan.contains("note Pod/default/pinned Unschedulable: 0/1 nodes fit: 1 other than nodeName n1"),
        "{plan}"
    );
    let builder = applied(builder);
    assert_eq!((bound(&builder), builder.snapshot.settled.len()), (vec!["n2/web".to_owned()], 0));
}

// Seen red without `runs_on`.
#[test]
fn after_etcd_was_lost_a_pod_is_bound_to_the_node_that_runs_it() {
    let (web, old) = (instance("web", spec(1, 1)), instance("old", spec(1, 1)));
    let builder = SnapshotBuilder::new().nodes(3).pod(&web).status("n2", &web, PodPhase::Running);
    let builder = builder.pod(&instance("old", spec(2, 2))).status("n3", &old, PodPhase::Running);
    assert_eq!(bound(&applied(builder.clone())), ["n1/old", "n2/web"], "of another version nothing follows");
    assert_eq!(put_bindings(&builder.snapshot)[1].reason, "it ran there before etcd was lost");
    // A pod that may be running on a node that has not registered yet waits for the nodes.
    let early = super::super::plan::plan(&seen(&builder.snapshot), Timestamp::UNIX_EPOCH);
    assert_eq!((early.writes.len(), early.again_at), (1, Timestamp::from_second(30).ok()));
    assert!(early.to_string().contains("WaitsForNode"), "{early}");
    let builder = builder.delete(&Key::Heartbeat("n2".into()));
    assert_eq!(bound(&applied(builder)).len(), 2);
}

// Seen red with the first node instead of the last.
#[test]
fn what_nodes_run_without_a_binding_is_found_among_what_is_bound() {
    let mut builder = SnapshotBuilder::new().nodes(3);
    for (node, name) in [("n1", "a"), ("n1", "c"), ("n2", "b"), ("n3", "z")] {
        builder = with(builder, node, &instance(name, spec(1, 1)));
    }
    for (nodes, name) in [(&["n1"][..], "aa"), (&["n2"], "d"), (&["n1", "n3"], "e")] {
        let pod = instance(name, spec(1, 1));
        builder = nodes.iter().fold(builder.pod(&pod), |b, node| b.status(node, &pod, PodPhase::Running));
    }
    let bound = bound(&applied(builder));
    assert_eq!(bound, ["n1/a", "n1/aa", "n1/c", "n2/b", "n2/d", "n3/e", "n3/z"]);
}

// Seen red without `waits_for_node`: the pod is bound to n1 immediately.
#[test]
fn after_etcd_was_lost_a_pod_waits_for_the_node_that_ran_it() {
    let web = instance("web", spec(1, 1));
    let whole = SnapshotBuilder::new().nodes(3).pod(&web).bound("n3", &web);
    let whole = whole.put(&Key::Settled("n3".into()), &SettledRecord::default());
    let last_known = Arc::new(LastKnown::from_snapshot(&whole.snapshot, Timestamp::UNIX_EPOCH).unwrap());
    let placed = |nodes: u8, seconds: i64| {
        let builder = SnapshotBuilder::new().nodes(nodes).pod(&web);
        let seen = Observed { last_known: Arc::clone(&last_known), ..seen(&builder.snapshot) };
        super::super::plan::plan(&seen, Timestamp::from_second(seconds).unwrap()).to_string()
    };
    assert!(!placed(2, 29).contains("put"), "{}", placed(2, 29));
    assert!(placed(2, 30).contains("put bindings/n1/default/web"), "{}", placed(2, 30));
    assert!(placed(3, 1).contains("put bindings/n3/default/web"), "{}", placed(3, 1));
}
