//! Cordon, drain and taints, and the labels of Node objects.

use schema::kinds::node::{NodeSpec, Taint};
use schema::kinds::pod::{TaintEffect, Toleration, TolerationOperator};
use schema::object::Object;
use schema::testing::object_of;

use super::*;

fn taint(effect: TaintEffect) -> Taint {
    Taint { key: "gpu".into(), value: Some("a100".into()), effect }
}

fn tainted(effect: TaintEffect) -> NodeSpec {
    NodeSpec { taints: vec![taint(effect)], ..NodeSpec::default() }
}

fn tolerating(effect: Option<TaintEffect>) -> PodSpec {
    let (key, operator) = (Some("gpu".into()), TolerationOperator::Exists);
    let toleration = Toleration { key, operator, value: None, effect, toleration_seconds: None };
    PodSpec { tolerations: vec![toleration], ..spec(1, 1) }
}

fn named(node: &str, spec: PodSpec) -> PodSpec {
    PodSpec { node_name: Some(node.into()), ..spec }
}

/// Reason why a pod does not fit on the only node, given its Node object; `None` if it fits.
fn refused(node: &NodeSpec, pod: PodSpec) -> Option<String> {
    let pod = instance("pod", pod);
    let builder = SnapshotBuilder::new().nodes(1).node_object("n1", node.clone()).pod(&pod);
    let bound = put_bindings(&builder.snapshot);
    let why = explain(&builder.snapshot, &pod.reference()).unwrap();
    assert_eq!(bound.len() == 1, why == "fits on n1, waits for the scheduler", "{why}");
    why.strip_prefix("0/1 nodes fit: ").map(str::to_owned)
}

// Seen red without each of `cordon`, `drain` and `taints` in `POD_FILTERS`.
#[test]
fn what_git_says_of_a_node_keeps_pods_away() {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    let cordoned = NodeSpec { unschedulable: true, ..NodeSpec::default() };
    let draining = NodeSpec { drain: true, ..NodeSpec::default() };
    let both = NodeSpec { unschedulable: true, ..draining.clone() };
    let no_schedule = "1 with the taint gpu=a100:NoSchedule that the pod does not tolerate";
    let no_execute = "1 with the taint gpu=a100:NoExecute that the pod does not tolerate";
    let table = [
        (&NodeSpec::default(), spec(1, 1), None),
        (&cordoned, spec(1, 1), Some("1 cordoned")),
        (&cordoned, named("n1", spec(1, 1)), None),
        (&draining, spec(1, 1), Some("1 being drained")),
        (&draining, named("n1", spec(1, 1)), None),
        (&both, spec(1, 1), Some("1 cordoned")),
        (&tainted(NoSchedule), spec(1, 1), Some(no_schedule)),
        (&tainted(NoSchedule), tolerating(None), None),
        (&tainted(NoSchedule), tolerating(Some(NoSchedule)), None),
        (&tainted(NoSchedule), tolerating(Some(NoExecute)), Some(no_schedule)),
        (&tainted(NoSchedule), named("n1", spec(1, 1)), None),
        (&tainted(NoExecute), spec(1, 1), Some(no_execute)),
        (&tainted(NoExecute), tolerating(Some(NoExecute)), None),
        (&tainted(NoExecute), named("n1", spec(1, 1)), Some(no_execute)),
        (&tainted(NoExecute), named("n1", tolerating(None)), None),
        (&tainted(PreferNoSchedule), spec(1, 1), None),
        (&cordoned, named("n1", spec(9000, 1)), Some("1 not enough cpu (wants 9, free 4)")),
    ];
    for (node, pod, why) in table {
        assert_eq!(refused(node, pod.clone()).as_deref(), why, "{node:?} {pod:?}");
    }
}

// Seen red with a `first` that considers the order alone.
#[test]
fn a_node_to_avoid_gets_a_pod_only_if_no_other_fits() {
    let avoided = tainted(TaintEffect::PreferNoSchedule);
    let full = instance("full", named("n2", spec(4000, 1)));
    let cluster = |strategy| ClusterSpec { scheduler_strategy: strategy, ..ClusterSpec::default() };
    for strategy in strategies::ALL {
        let builder = SnapshotBuilder::new().nodes(2).cluster(cluster(strategy));
        let builder = builder.node_object("n1", avoided.clone()).pod(&instance("web", spec(1000, 1)));
        let node = |builder: &SnapshotBuilder| put_bindings(&builder.snapshot)[0].node.clone();
        assert_eq!(node(&builder), "n2", "{strategy:?}");
        assert_eq!(node(&builder.bound("n2", &full).pod(&full)), "n1", "{strategy:?}");
    }
}

#[test]
fn labels_of_the_node_object_are_laid_over_those_of_the_agent() {
    let selecting = |value: &str| {
        let node_selector = [("kubernetes.io/hostname".to_owned(), value.to_owned())].into();
        PodSpec { node_selector, ..spec(1, 1) }
    };
    let mut object: Object = object_of("n1", NodeSpec::default());
    object.metadata.labels.insert("kubernetes.io/hostname".into(), "other".into());
    let builder = SnapshotBuilder::new().nodes(1).object(&object);
    let binds = |value: &str| {
        !put_bindings(&builder.clone().pod(&instance("pod", selecting(value))).snapshot).is_empty()
    };
    assert_eq!([binds("n1"), binds("other")], [false, true]);
}

#[test]
fn failures_are_counted_by_filter() {
    let taints = vec![taint(TaintEffect::NoSchedule)];
    let builder = SnapshotBuilder::new()
        .nodes(5)
        .delete(&Key::Heartbeat("n1".into()))
        .node_object("n2", NodeSpec { unschedulable: true, ..NodeSpec::default() })
        .node_object("n3", NodeSpec { taints: taints.clone(), ..NodeSpec::default() })
        .node_object("n4", NodeSpec { taints, ..NodeSpec::default() })
        .pod(&instance("pod", spec(5000, 1)));
    assert_eq!(
        explain(&builder.snapshot, &pod_ref("pod")).unwrap(),
        "0/5 nodes fit: 1 not ready, 1 cordoned, \
         2 with the taint gpu=a100:NoSchedule that the pod does not tolerate, \
         1 not enough cpu (wants 5, free 4)"
    );
}

#[test]
fn what_runs_on_a_cordoned_node_stays_and_its_new_version_goes_elsewhere() {
    let old = instance("web", spec(100, 64));
    let cordoned = NodeSpec { unschedulable: true, ..NodeSpec::default() };
    let builder = SnapshotBuilder::new().nodes(2).node_object("n1", cordoned).pod(&old).bound("n1", &old);
    assert_eq!(planned(&builder.snapshot), "");
    let builder = builder.pod(&instance("web", spec(200, 64)));
    let plan = planned(&builder.snapshot);
    assert!(plan.contains("moved from n1, where 1 cordoned, to n2"), "{plan}");
}
