//! Drains of nodes whose pods a disruption budget covers: the three controllers together, in every order.

use serde_json::{Value as Json, json};

use schema::keys::Key;
use schema::kinds::disruption_budget::PodDisruptionBudgetSpec;
use schema::kinds::node::NodeSpec;
use schema::kinds::replica_set::{ReplicaSetSpec, StrategyType};
use schema::records::SettledRecord;
use schema::testing::object_of;

use super::field::{Field, replica_set, rolling};
use crate::controllers::nodes::Nodes;
use crate::controllers::testing::{ApplyPlan as _, seen};
use crate::controllers::{Controller as _, LastKnown, scheduler};

/// A controller of three.
#[derive(Clone, Copy)]
enum Turn {
    Nodes,
    Workloads,
    Scheduler,
}

const ORDERS: [[Turn; 3]; 3] = [
    [Turn::Nodes, Turn::Workloads, Turn::Scheduler],
    [Turn::Scheduler, Turn::Workloads, Turn::Nodes],
    [Turn::Workloads, Turn::Nodes, Turn::Scheduler],
];

/// A cluster of three settled nodes that runs the set, with a budget for its pods.
fn field(set: ReplicaSetSpec, budget: &Json) -> Field {
    let mut field = Field::new(set);
    for node in ["n1", "n2", "n3"] {
        let key = Key::Settled(node.to_owned());
        field.builder = std::mem::take(&mut field.builder).put(&key, &SettledRecord::default());
    }
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}});
    budget.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    let spec: PodDisruptionBudgetSpec = serde_json::from_value(spec).unwrap();
    field.builder = std::mem::take(&mut field.builder).object(&object_of("web", spec));
    (0..6).for_each(|_| {
        round(&mut field, ORDERS[0]);
        field.report();
    });
    field
}

fn drain(field: &mut Field, node: &str) {
    let spec = NodeSpec { drain: true, ..NodeSpec::default() };
    field.builder = std::mem::take(&mut field.builder).node_object(node, spec);
}

/// Runs the controllers once, and has nodes end what is no longer bound to them. Returns the least number of ready
/// pods on the way.
fn round(field: &mut Field, order: [Turn; 3]) -> usize {
    let mut least = usize::MAX;
    for turn in order {
        match turn {
            Turn::Workloads => _ = field.plan(),
            Turn::Nodes => {
                let plan = Nodes::plan(&seen(field.snapshot()), field.now);
                field.builder = std::mem::take(&mut field.builder).after(&plan);
            }
            Turn::Scheduler => {
                let plan = scheduler::bind(field.snapshot(), &LastKnown::default(), None);
                field.builder = std::mem::take(&mut field.builder).after(&plan);
            }
        }
        least = least.min(ready(field));
    }
    let snapshot = field.snapshot().clone();
    for (place, _) in snapshot.pod_status.iter().filter(|(place, _)| !snapshot.bindings.contains_key(*place))
    {
        let key = Key::PodStatus(place.0.clone(), place.1.clone());
        field.builder = std::mem::take(&mut field.builder).delete(&key);
    }
    field.after(2);
    least
}

fn ready(field: &Field) -> usize {
    let bound = field.snapshot().bound_by_pod();
    let is_ready = |bound: &schema::snapshot::BoundPod<'_>| {
        bound.status_of(&bound.binding.value.pod.uid).is_some_and(|status| status.is_ready())
    };
    field.snapshot().pods.keys().filter(|id| bound.get(id).is_some_and(is_ready)).count()
}

/// Nodes of the pods, sorted.
fn places(field: &Field) -> Vec<String> {
    let mut nodes: Vec<String> = field.pods().keys().map(|pod| field.node_of(pod)).collect();
    nodes.sort();
    nodes
}

/// Drains the nodes at the same time, while new pods become ready only now and then. Returns the least number of ready
/// pods, and the places in the end.
fn drained(mut field: Field, nodes: &[&str], order: [Turn; 3]) -> (usize, Vec<String>) {
    nodes.iter().for_each(|node| drain(&mut field, node));
    let mut least = ready(&field);
    for number in 0..60 {
        least = least.min(round(&mut field, order));
        if number % 3 == 2 {
            field.report();
        }
    }
    (least, places(&field))
}

#[test]
fn two_nodes_are_drained_together_and_one_pod_goes_at_a_time() {
    let set = || rolling(replica_set(4, "web:1"), 1, 3);
    for order in ORDERS {
        let (least, places) = drained(field(set(), &json!({"maxUnavailable": 1})), &["n1", "n2"], order);
        assert_eq!((least, places), (3, vec!["n3".to_owned(); 4]));
        let (least, _) = drained(field(set(), &json!({"maxUnavailable": 2})), &["n1", "n2"], order);
        assert_eq!(least, 2, "the budget decides, not the strategy of rollouts");
    }
}

#[test]
fn a_single_pod_gets_its_successor_first_and_then_may_leave() {
    for budget in [json!({"minAvailable": 1}), json!({"maxUnavailable": 0}), json!({"minAvailable": "100%"})]
    {
        let field = field(rolling(replica_set(1, "web:1"), 1, 1), &budget);
        let node = places(&field).remove(0);
        let (least, after) = drained(field, &[&node], ORDERS[0]);
        assert!(least == 1 && after.len() == 1 && after[0] != node, "{budget} {least} {after:?}");
    }
}

#[test]
fn pods_that_are_recreated_leave_one_after_the_other() {
    let mut set = replica_set(4, "web:1");
    set.strategy.kind = StrategyType::Recreate;
    for order in ORDERS {
        let (least, places) =
            drained(field(set.clone(), &json!({"maxUnavailable": 1})), &["n1", "n2"], order);
        assert_eq!((least, places), (3, vec!["n3".to_owned(); 4]));
    }
}

#[test]
fn a_budget_that_cannot_be_met_holds_the_drain_and_no_rollout_and_no_scaling() {
    let set = |replicas, image| rolling(replica_set(replicas, image), 1, 1);
    let mut field = field(set(3, "web:1"), &json!({"minAvailable": 9}));
    assert_eq!(places(&field), ["n1", "n2", "n3"]);
    drain(&mut field, "n1");
    let settle = |field: &mut Field| {
        (0..20).for_each(|_| {
            round(field, ORDERS[0]);
            field.report();
        });
    };
    settle(&mut field);
    assert_eq!(places(&field).iter().filter(|node| *node == "n1").count(), 1, "{:?}", places(&field));
    // Its successor is there already: the workload has one pod more than it should have.
    field.push(set(1, "web:1"), 2);
    settle(&mut field);
    assert_eq!(places(&field).len(), 2, "{:?}", places(&field));
    field.push(set(1, "web:2"), 3);
    settle(&mut field);
    assert_eq!(field.images(), ["web:2"], "a rollout asks no budget");
    assert_ne!(places(&field), ["n1"]);
}
