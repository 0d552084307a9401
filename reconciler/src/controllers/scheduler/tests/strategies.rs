//! Every strategy on one snapshot, and fairness over several plans.

use std::collections::BTreeMap;

use schema::kinds::cluster::SchedulerStrategy;
use schema::testing::replica;

use super::*;
use crate::controllers::testing::ApplyPlan as _;

pub(super) const ALL: [SchedulerStrategy; 7] = {
    use SchedulerStrategy::*;
    [Spread, Random, RoundRobin, MinPods, MaxPods, MinCpu, MinMemory]
};

fn with_strategy(builder: SnapshotBuilder, scheduler_strategy: SchedulerStrategy) -> SnapshotBuilder {
    builder.cluster(ClusterSpec { scheduler_strategy, ..ClusterSpec::default() })
}

/// The snapshot after a plan, with its writes at one revision.
pub(super) fn applied(builder: SnapshotBuilder) -> SnapshotBuilder {
    let plan = plan(&builder.snapshot);
    builder.after(&plan)
}

/// Number of pods per node whose name starts with `prefix`.
fn counts(builder: &SnapshotBuilder, prefix: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (node, pod) in builder.snapshot.bindings.keys() {
        *counts.entry(node.clone()).or_default() += usize::from(pod.name.starts_with(prefix));
    }
    counts
}

// Seen red with one strategy for all.
#[test]
fn each_strategy_chooses_by_its_own_measure() {
    use SchedulerStrategy as S;
    let there = [
        ("n3", replica("db", "db-1", spec(250, 2000))),
        ("n1", replica("db", "db-2", spec(100, 64))),
        ("n1", replica("web", "web-1", spec(100, 64))),
        ("n2", replica("db", "db-3", spec(3000, 64))),
    ];
    let builder = there
        .iter()
        .fold(SnapshotBuilder::new().nodes(3), |builder, (node, pod)| builder.bound(node, pod).pod(pod));
    let builder = builder.pod(&replica("web", "web-2", spec(10, 10)));
    let table = [
        (S::Spread, "n3", "has the fewest pods of this owner, then the least requested"),
        (S::RoundRobin, "n3", "has waited longest for a pod"),
        (S::MinPods, "n2", "has the fewest pods"),
        (S::MaxPods, "n1", "has the most pods"),
        (S::MinCpu, "n1", "has the least CPU requested"),
        (S::MinMemory, "n2", "has the least memory requested"),
    ];
    for (strategy, node, words) in table {
        let bindings = put_bindings(&with_strategy(builder.clone(), strategy).snapshot);
        let pods = if node == "n1" { "2 pods" } else { "1 pod" };
        let reason = format!("of the nodes that fit, it {words}; it has {pods}");
        assert_eq!((bindings[0].node.as_str(), &bindings[0].reason), (node, &reason), "{strategy:?}");
    }
}

// Seen red with a `turn_to` that reorders nothing.
#[test]
fn pods_of_one_owner_are_spread_whatever_else_the_nodes_have() {
    let builder = (0..5).fold(SnapshotBuilder::new().nodes(3), |builder, number| {
        let pod = instance(&format!("bare-{number}"), spec(500, 64));
        builder.bound("n1", &pod).pod(&pod)
    });
    let builder = ["api", "web"].iter().fold(builder, |builder, set| {
        (0..6).fold(builder, |builder, n| builder.pod(&replica(set, &format!("{set}-{n}"), spec(10, 10))))
    });
    let builder = applied(builder);
    for set in ["api", "web"] {
        assert_eq!(counts(&builder, set).into_values().collect::<Vec<_>>(), [2, 2, 2], "{set}");
    }
}

// Seen red with one revision for everything that a plan binds.
#[test]
fn round_robin_goes_on_in_turn_from_plan_to_plan() {
    let mut builder = with_strategy(SnapshotBuilder::new().nodes(3), SchedulerStrategy::RoundRobin);
    let mut order = Vec::new();
    for group in [&["a", "b", "c", "d"][..], &["e", "f"], &["g"]] {
        builder = group.iter().fold(builder, |builder, name| builder.pod(&instance(name, spec(1, 1))));
        order.extend(put_bindings(&builder.snapshot).into_iter().map(|binding| binding.node));
        builder = applied(builder);
    }
    assert_eq!(order, ["n1", "n2", "n3", "n1", "n2", "n3", "n1"]);
}

#[test]
fn a_random_choice_is_fair_says_its_seed_and_is_the_same_in_the_next_plan() {
    let pods: Vec<_> = (0..300).map(|number| instance(&format!("p{number}"), spec(0, 0))).collect();
    let nodes = (1..=3).fold(SnapshotBuilder::new(), |builder, number| {
        let mut record = node_record(&format!("n{number}"));
        record.max_pods = 1000;
        builder.node(&record, &format!("10.244.{number}.0/24"))
    });
    let builder = pods.iter().fold(nodes, SnapshotBuilder::pod);
    let builder = with_strategy(builder, SchedulerStrategy::Random);
    let bindings = put_bindings(&builder.snapshot);
    assert_eq!(bindings, put_bindings(&builder.snapshot));
    assert!(bindings.iter().all(|binding| {
        binding.reason.starts_with(&format!(
            "of the nodes that fit, it was drawn with the seed {}",
            &binding.pod.uid[..16]
        ))
    }));
    // 100 are expected on each node; 60 is five standard deviations away.
    let counts = counts(&applied(builder), "p");
    assert!(counts.len() == 3 && counts.values().all(|count| *count > 60), "{counts:?}");
}

// Seen red with the strategy of `ClusterSpec::default`.
#[test]
fn another_strategy_holds_for_the_next_plan() {
    let pod = instance("a", spec(100, 64));
    let builder = SnapshotBuilder::new().nodes(2).bound("n1", &pod).pod(&pod).pod(&instance("b", spec(1, 1)));
    let node = |builder: &SnapshotBuilder| put_bindings(&builder.snapshot)[0].node.clone();
    assert_eq!(node(&builder), "n2");
    assert_eq!(node(&with_strategy(builder, SchedulerStrategy::MaxPods)), "n1");
}
