//! Tables for DaemonSets: one pod on each matching node, through any change of nodes and templates.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::prelude::*;
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::Health;
use schema::kinds::daemon_set::{DaemonSetSpec, RollingUpdateDaemonSet};
use schema::kinds::node::{NodeSpec, Taint};
use schema::kinds::pod::{PodStatus, TaintEffect, Toleration, TolerationOperator};
use schema::kinds::replica_set::IntOrPercent;
use schema::meta::{NamespacedName, StringMap};
use schema::records::{NodeConditions, PodInstance, SettledRecord};
use schema::snapshot::health::health;
use schema::testing::{SnapshotBuilder, heartbeat, node_record, object_of, spec};

use super::field::{Fate, Field, status};
use crate::controllers::{Change, LastKnown, Writes};

const BAD: &str = "web:bad";

fn daemon_set(image: &str) -> DaemonSetSpec {
    let mut set = DaemonSetSpec { progress_deadline_seconds: Some(60), ..DaemonSetSpec::default() };
    set.template.spec = spec(10, 1);
    set.template.spec.containers[0].image = image.to_owned();
    set.template.metadata.labels.insert("app".to_owned(), "web".to_owned());
    set
}

fn at_once(mut set: DaemonSetSpec, nodes: u32) -> DaemonSetSpec {
    let max_unavailable = Some(IntOrPercent::Number(nodes));
    set.update_strategy.rolling_update = Some(RollingUpdateDaemonSet { max_unavailable, max_surge: None });
    set
}

/// Changes the cluster from outside the controller.
fn edit(field: &mut Field, change: impl FnOnce(SnapshotBuilder) -> SnapshotBuilder) {
    field.builder = change(std::mem::take(&mut field.builder));
}

fn join(field: &mut Field, node: &str, range: &str) {
    edit(field, |builder| builder.node(&node_record(node), range));
}

fn silence(field: &mut Field, node: &str) {
    edit(field, |builder| builder.delete(&Key::Heartbeat(node.to_owned())));
}

fn beat(field: &mut Field, node: &str) {
    edit(field, |builder| {
        builder
            .put(&Key::Heartbeat(node.to_owned()), &heartbeat())
            .delete(&Key::NodeConditions(node.to_owned()))
    });
}

/// Evicts the node: it has been silent for so long that the pods of other workloads are replaced elsewhere.
fn give_up(field: &mut Field, node: &str) {
    silence(field, node);
    let since = Timestamp::UNIX_EPOCH;
    let ready = ConditionStatus::Unknown;
    let conditions = NodeConditions { evicted_at: Some(since), ..NodeConditions::new(ready, since) };
    edit(field, |builder| builder.put(&Key::NodeConditions(node.to_owned()), &conditions));
}

fn taint(effect: TaintEffect) -> NodeSpec {
    let taint = Taint { key: "gpu".to_owned(), value: None, effect };
    NodeSpec { taints: vec![taint], ..NodeSpec::default() }
}

/// Image by node.
fn images(field: &Field) -> BTreeMap<String, String> {
    let pods = field.snapshot().pods.values().map(|pod| &pod.value);
    let of = |pod: &PodInstance| {
        let node = pod.spec.node_name.clone().expect("it names its node");
        (node, pod.spec.containers[0].image.clone())
    };
    let all: Vec<_> = pods.map(of).collect();
    let images: BTreeMap<String, String> = all.iter().cloned().collect();
    assert_eq!(images.len(), all.len(), "a node has two pods: {all:?}");
    images
}

fn nodes(field: &Field) -> Vec<String> {
    images(field).into_keys().collect()
}

/// Marks every node as settled, so that nodes stop unwanted pods.
fn settle(field: &mut Field) {
    for node in ["n1", "n2", "n3"] {
        edit(field, |builder| builder.put(&Key::Settled(node.to_owned()), &SettledRecord::default()));
    }
}

fn fresh(set: DaemonSetSpec) -> Field {
    let mut field = Field::new(set);
    settle(&mut field);
    field
}

/// A set on three nodes, with every running pod reported.
fn settled(set: DaemonSetSpec) -> Field {
    let mut field = fresh(set);
    field.run(8);
    assert_eq!(nodes(&field), ["n1", "n2", "n3"]);
    assert!(field.rollout().complete);
    at_rest(&mut field);
    field
}

#[track_caller]
fn at_rest(field: &mut Field) {
    let plan = field.plan();
    assert!(plan.writes.is_empty(), "{plan}");
}

#[test]
fn each_node_has_a_pod_that_names_it_and_new_nodes_get_one() {
    let mut field = settled(daemon_set("web:1"));
    let status = field.rollout().status;
    assert_eq!((status.desired_replicas, status.replicas, status.available_replicas), (3, 3, 3));
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
    let hash = field.rollout().wanted[..8].to_owned();
    for name in field.pods().keys() {
        assert!(name.starts_with(&format!("web-{hash}-")), "{name}");
        assert_eq!(PodInstance::workload_in_name(name), Some("web"));
    }
    join(&mut field, "n4", "10.244.9.0/24");
    field.run(2);
    assert_eq!(nodes(&field), ["n1", "n2", "n3", "n4"]);
    at_rest(&mut field);
}

/// Seen red with numbers given in the order in which nodes appear.
#[test]
fn a_node_gets_the_same_pod_again_when_etcd_was_lost_whatever_node_comes_first() {
    let all = |field: &Field| -> BTreeMap<String, String> {
        let pods = field.snapshot().pods.values().map(|pod| &pod.value);
        pods.map(|pod| (pod.spec.node_name.clone().unwrap(), pod.uid.clone())).collect()
    };
    let field = settled(daemon_set("web:1"));
    let mut again = fresh(daemon_set("web:1"));
    for node in ["n1", "n2"] {
        edit(&mut again, |builder| {
            builder.delete(&Key::Node(node.to_owned())).delete(&Key::Heartbeat(node.to_owned()))
        });
    }
    again.run(2);
    assert_eq!(nodes(&again), ["n3"]);
    join(&mut again, "n2", "10.244.1.0/24");
    join(&mut again, "n1", "10.244.0.0/24");
    again.run(4);
    assert_eq!(all(&again), all(&field));
}

#[test]
fn a_node_that_does_not_fit_has_no_pod() {
    let mut by_label = daemon_set("web:1");
    by_label.template.spec.node_selector.insert("kubernetes.io/hostname".to_owned(), "n2".to_owned());
    let mut by_name = daemon_set("web:1");
    let affinity = r#"{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
        {"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}]}}}"#;
    by_name.template.spec.affinity = Some(serde_json::from_str(affinity).unwrap());
    for picky in [by_label, by_name] {
        let mut field = fresh(picky.clone());
        field.run(4);
        assert_eq!(nodes(&field), ["n2"]);
        // The set takes every node.
        field.push(daemon_set("web:1"), 2);
        field.run(8);
        assert_eq!(nodes(&field), ["n1", "n2", "n3"]);
        field.push(picky, 3);
        field.run(8);
        assert_eq!(nodes(&field), ["n2"]);
        assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
    }
}

/// Matches Kubernetes: `NoSchedule` keeps new pods away, `NoExecute` evicts running ones.
#[test]
fn taints_keep_pods_away_unless_they_are_tolerated() {
    for (effect, keeps_running) in [(TaintEffect::NoSchedule, true), (TaintEffect::NoExecute, false)] {
        let mut field = fresh(daemon_set("web:1"));
        edit(&mut field, |builder| builder.node_object("n2", taint(effect)));
        field.run(6);
        assert_eq!(nodes(&field), ["n1", "n3"], "{effect:?}");
        assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);

        let mut field = settled(daemon_set("web:1"));
        edit(&mut field, |builder| builder.node_object("n2", taint(effect)));
        field.run(4);
        assert_eq!(nodes(&field).contains(&"n2".to_owned()), keeps_running, "{effect:?}");

        let mut tolerant = daemon_set("web:1");
        let anything = Toleration {
            key: None,
            operator: TolerationOperator::Exists,
            value: None,
            effect: None,
            toleration_seconds: None,
        };
        tolerant.template.spec.tolerations.push(anything);
        let mut field = fresh(tolerant);
        edit(&mut field, |builder| builder.node_object("n2", taint(effect)));
        field.run(6);
        assert_eq!(nodes(&field), ["n1", "n2", "n3"], "{effect:?}");
    }
}

/// Seen red with cordoned nodes treated as not matching.
#[test]
fn cordon_and_drain_leave_its_pods_and_new_ones_come_there() {
    for object in [
        NodeSpec { unschedulable: true, ..NodeSpec::default() },
        NodeSpec { drain: true, ..NodeSpec::default() },
    ] {
        let mut field = settled(daemon_set("web:1"));
        let before = field.pods();
        edit(&mut field, |builder| builder.node_object("n2", object.clone()));
        field.run(4);
        assert_eq!(field.pods(), before);
        let mut field = fresh(daemon_set("web:1"));
        edit(&mut field, |builder| builder.node_object("n2", object));
        field.run(6);
        assert_eq!(nodes(&field), ["n1", "n2", "n3"]);
    }
}

/// Seen red with evicted nodes counted.
#[test]
fn a_lost_node_keeps_its_pod_and_holds_nothing_up() {
    let mut field = settled(daemon_set("web:1"));
    let before = field.pods();
    silence(&mut field, "n2");
    field.run(3);
    assert_eq!(field.pods(), before);
    let Health::Progressing { why } = health(field.snapshot(), &field.object) else { panic!("it is down") };
    assert_eq!(why, "2 of 3 pods are available");
    give_up(&mut field, "n2");
    field.run(3);
    assert_eq!(field.pods(), before);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
    assert_eq!(field.rollout().status.desired_replicas, 2);

    field.push(daemon_set("web:2"), 2);
    field.run(12);
    assert!(field.rollout().complete);
    assert_eq!(images(&field)["n2"], "web:1", "of a silent node nothing is known");
    beat(&mut field, "n2");
    field.run(6);
    assert_eq!(images(&field).into_values().collect::<BTreeSet<_>>(), ["web:2".to_owned()].into());
    assert_eq!(nodes(&field).len(), 3);
}

#[test]
fn a_node_that_comes_back_has_the_pod_that_it_had() {
    let mut field = settled(daemon_set("web:1"));
    let before = field.pods();
    give_up(&mut field, "n3");
    field.run(3);
    beat(&mut field, "n3");
    field.run(3);
    assert_eq!(field.pods(), before);
    at_rest(&mut field);
}

#[test]
fn a_node_that_is_gone_takes_its_pod_along_and_one_that_cannot_be_read_does_not() {
    let mut field = settled(daemon_set("web:1"));
    let before = field.pods();
    let key = Key::Node("n2".to_owned());
    edit(&mut field, |builder| builder.garbage(&key));
    silence(&mut field, "n2");
    field.run(2);
    assert_eq!(field.pods(), before);
    // Only its record is gone: the node beats and registers again.
    edit(&mut field, |builder| builder.delete(&key));
    beat(&mut field, "n2");
    field.run(2);
    assert_eq!(field.pods(), before);
    silence(&mut field, "n2");
    let plan = field.plan();
    assert!(plan.to_string().contains("node n2 is gone"), "{plan}");
    assert_eq!(nodes(&field), ["n1", "n3"]);
}

#[test]
fn a_node_object_that_cannot_be_read_changes_nothing() {
    let mut field = settled(daemon_set("web:1"));
    let before = field.pods();
    let key = Key::Object(object_of("n2", NodeSpec::default()).reference());
    edit(&mut field, |builder| builder.garbage(&key));
    field.run(2);
    assert_eq!(field.pods(), before);
}

#[test]
fn a_template_is_rolled_out_node_by_node() {
    let mut field = settled(daemon_set("web:1"));
    field.push(daemon_set("web:2"), 2);
    let mut most = 0;
    for _ in 0..20 {
        field.plan();
        let running = images(&field).len();
        most = most.max(3 - running);
        field.bind();
        field.report();
        field.after(2);
    }
    assert_eq!(most, 1);
    assert_eq!(images(&field).into_values().collect::<BTreeSet<_>>(), ["web:2".to_owned()].into());
    assert!(field.rollout().complete);
    assert_eq!(field.snapshot().templates.len(), 1);
}

/// Seen red without `left_over`.
#[test]
fn the_new_pod_comes_once_the_old_one_is_gone_from_the_node() {
    let mut field = settled(daemon_set("web:1"));
    field.push(daemon_set("web:2"), 2);
    let before: BTreeSet<String> = field.pods().into_keys().collect();
    field.plan();
    let left: BTreeSet<String> = field.pods().into_keys().collect();
    assert_eq!(left.len(), 2);
    // The node is still stopping it: the binding is gone, the report is not.
    let ended = before.difference(&left).next().unwrap();
    let node = field.node_of(ended);
    let id = NamespacedName::new("default", ended);
    edit(&mut field, |builder| builder.delete(&Key::Binding(node.clone(), id.clone())));
    field.plan();
    assert_eq!(field.pods().len(), 2);
    edit(&mut field, |builder| builder.delete(&Key::PodStatus(node.clone(), id)));
    field.plan();
    assert_eq!(images(&field)[&node], "web:2");
}

#[test]
fn nothing_is_replaced_on_a_node_that_ends_nothing_yet_and_that_is_no_failure() {
    let mut field = Field::new(daemon_set("web:1"));
    field.run(8);
    field.push(daemon_set("web:2"), 2);
    field.run(3);
    field.after(600);
    field.run(3);
    assert_eq!(images(&field).into_values().collect::<Vec<_>>(), ["web:1"; 3]);
    assert_eq!(field.rollout().failure, None);
    settle(&mut field);
    field.run(12);
    assert_eq!(images(&field).into_values().collect::<Vec<_>>(), ["web:2"; 3]);
}

/// Seen red without `take_back`.
#[test]
fn a_rollout_goes_on_where_it_stood_when_etcd_was_lost() {
    let mut field = settled(daemon_set("web:1"));
    field.push(daemon_set("web:2"), 2);
    while images(&field).len() < 3 || images(&field).values().all(|image| image == "web:1") {
        field.run(1);
    }
    let before = field.pods();
    assert!(before.values().any(|image| image == "web:1"));
    field.lose_etcd();
    for _ in 0..4 {
        field.plan();
        assert_eq!(field.pods(), before);
    }
    field.bind();
    field.report();
    settle(&mut field);
    field.last_known = LastKnown::default();
    for _ in 0..20 {
        field.plan();
        assert!(field.pods().len() >= 2, "{:?}", field.pods());
        field.bind();
        field.report();
        field.after(2);
    }
    assert_eq!(images(&field).into_values().collect::<Vec<_>>(), ["web:2"; 3]);
    assert!(field.rollout().complete);
}

#[test]
fn old_pods_that_do_not_work_are_replaced_at_once() {
    let mut field = fresh(daemon_set(BAD));
    field.fates.insert(BAD.to_owned(), Fate::Waits("ErrImagePull"));
    field.run(6);
    assert_eq!(nodes(&field).len(), 3);
    field.push(daemon_set("web:2"), 2);
    field.plan();
    assert!(field.pods().is_empty(), "{:?}", field.pods());
    field.run(6);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
}

/// Seen red with a `target` that is always the wanted template.
#[test]
fn a_template_that_does_not_work_goes_back_and_only_one_node_was_without_a_pod() {
    let mut field = settled(daemon_set("web:1"));
    field.fates.insert(BAD.to_owned(), Fate::Waits("ErrImagePull"));
    field.push(daemon_set(BAD), 2);
    field.run(10);
    let bad = images(&field).into_values().filter(|image| image == BAD).count();
    assert_eq!(bad, 1);
    field.after(60);
    field.run(6);
    assert_eq!(images(&field).into_values().collect::<Vec<_>>(), ["web:1"; 3]);
    assert_eq!(field.rollout().failure.unwrap().reason, "ErrImagePull");
    let Health::Degraded { why } = health(field.snapshot(), &field.object) else { panic!("it failed") };
    assert!(why.contains("serves again"), "{why}");
    field.push(daemon_set("web:3"), 3);
    field.run(12);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
}

/// A silent node is no fault of the template, even before a pod is bound to it. Seen red without `on_its_node`.
#[test]
fn a_rollout_waits_for_a_silent_node_and_does_not_fail_for_it() {
    let mut field = settled(daemon_set("web:1"));
    field.push(daemon_set("web:2"), 2);
    silence(&mut field, "n2");
    let pods: BTreeSet<String> = field.pods().into_keys().filter(|pod| field.node_of(pod) == "n2").collect();
    for pod in &pods {
        let id = NamespacedName::new("default", pod);
        edit(&mut field, |builder| {
            builder
                .delete(&Key::Binding("n2".to_owned(), id.clone()))
                .delete(&Key::PodStatus("n2".to_owned(), id))
        });
    }
    field.forget_pods(&pods);
    field.run(3);
    assert_eq!(images(&field)["n2"], "web:2");
    field.after(600);
    field.run(3);
    assert_eq!(field.rollout().failure, None);
    beat(&mut field, "n2");
    field.run(12);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
}

#[test]
fn a_pod_that_ended_is_made_again_on_its_node() {
    let mut field = settled(daemon_set("web:1"));
    let (place, binding) =
        field.snapshot().bindings.iter().next().map(|(k, v)| (k.clone(), v.clone())).unwrap();
    let ended = PodStatus {
        phase: schema::kinds::pod::PodPhase::Failed,
        ..status(&binding.value.pod, Fate::Ready, field.now)
    };
    edit(&mut field, |builder| builder.put(&Key::PodStatus(place.0.clone(), place.1.clone()), &ended));
    let plan = field.plan();
    assert!(plan.to_string().contains("it ended"), "{plan}");
    field.run(4);
    assert_eq!(nodes(&field).len(), 3);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
}

#[test]
fn a_removed_daemon_set_takes_all_that_is_its_own_along() {
    let mut field = settled(daemon_set("web:1"));
    let key = Key::Object(field.object.reference());
    edit(&mut field, |builder| builder.delete(&key));
    field.plan();
    let snapshot = field.snapshot();
    assert!(snapshot.pods.is_empty() && snapshot.rollouts.is_empty() && snapshot.templates.is_empty());
}

#[test]
fn a_pod_of_it_that_cannot_be_read_stops_it() {
    let mut field = settled(daemon_set("web:1"));
    let first = field.pods().into_keys().next().unwrap();
    edit(&mut field, |builder| builder.garbage(&Key::Pod(NamespacedName::new("default", &first))));
    field.push(daemon_set("web:2"), 2);
    let Writes { writes, .. } = field.plan();
    assert!(writes.is_empty(), "{writes:?}");
}

#[test]
fn a_pod_has_what_its_template_says_its_node_and_the_tolerations_of_all_daemons() {
    let mut field = fresh(daemon_set("web:1"));
    let plan = field.plan();
    let write = plan.writes.iter().find(|write| matches!(write.key, Key::Pod(_))).unwrap();
    let Change::Put(value) = &write.change else { panic!("{plan}") };
    let pod: PodInstance = schema::codec::decode(value).unwrap();
    assert_eq!(pod.spec.node_name.as_deref(), Some("n1"));
    assert_eq!(pod.labels, StringMap::from([("app".to_owned(), "web".to_owned())]));
    let silent =
        Taint { key: "node.kubernetes.io/not-ready".into(), value: None, effect: TaintEffect::NoExecute };
    assert!(silent.is_tolerated_by(&pod.spec.tolerations, 0));
}

/// An event between two plans.
#[derive(Debug, Clone, Copy)]
enum Act {
    Push(u8),
    Forget(usize),
    Break(usize),
    Silence(usize),
    GiveUp(usize),
    Beat(usize),
    Run,
    Wait(i64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u8..4).prop_map(Act::Push),
        1 => (1usize..3).prop_map(Act::Forget),
        2 => (0usize..3).prop_map(Act::Break),
        1 => (1usize..4).prop_map(Act::Silence),
        1 => (1usize..4).prop_map(Act::GiveUp),
        2 => (1usize..4).prop_map(Act::Beat),
        9 => Just(Act::Run),
        1 => (1i64..90).prop_map(Act::Wait),
    ]
}

/// Number of nodes that count, and number of those with an available pod.
fn available(field: &Field) -> (usize, usize) {
    let snapshot = field.snapshot();
    let counted = snapshot.nodes.keys().filter(|node| !snapshot.is_evicted(node)).count();
    let serves = |id: &NamespacedName| {
        let Some(binding) = snapshot.binding_of(id) else { return false };
        let node = binding.value.node.clone();
        let status = snapshot.pod_status.get(&(node.clone(), id.clone()));
        let ready = |status: &PodStatus| status.uid == binding.value.pod.uid && status.is_ready();
        snapshot.node_is_ready(&node) && status.is_some_and(|status| ready(&status.value))
    };
    (counted, snapshot.pods.keys().filter(|id| serves(id)).count())
}

fn happens(field: &mut Field, act: Act, most: u32, commit: u32) {
    match act {
        Act::Push(image) => field.push(at_once(daemon_set(&format!("web:{image}")), most), commit),
        Act::Forget(count) => {
            let some: BTreeSet<String> = field.pods().into_keys().take(count).collect();
            field.forget_pods(&some);
        }
        Act::Break(number) => {
            let found =
                field.snapshot().bindings.iter().nth(number).map(|(k, v)| (k.clone(), v.value.clone()));
            if let Some(((node, id), binding)) = found {
                let broken = status(&binding.pod, Fate::Waits("CrashLoopBackOff"), field.now);
                edit(field, |builder| builder.put(&Key::PodStatus(node, id), &broken));
            }
        }
        Act::Silence(node) => silence(field, &format!("n{node}")),
        Act::GiveUp(node) => give_up(field, &format!("n{node}")),
        Act::Beat(node) => beat(field, &format!("n{node}")),
        Act::Run => {}
        Act::Wait(seconds) => field.after(seconds),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Seen red with a `free` that leaves `down` out.
    #[test]
    fn a_rollout_keeps_its_bounds_and_ends(most in 1u32..3, acts in prop::collection::vec(act(), 1..40)) {
        let mut field = fresh(at_once(daemon_set("web:0"), most));
        // Image 3 never works.
        field.fates.insert("web:3".to_owned(), Fate::Waits("ErrImagePull"));
        field.run(6);
        for (number, act) in acts.into_iter().enumerate() {
            happens(&mut field, act, most, u32::try_from(number).unwrap() + 2);
            let (counted, before) = available(&field);
            field.plan();
            images(&field);
            let (_, left) = available(&field);
            let least = counted.saturating_sub(most as usize);
            prop_assert!(left >= least.min(before), "{left} of {before} are left of {counted} - {most}");
            field.bind();
            field.report();
            field.after(2);
        }
        for node in ["n1", "n2", "n3"] {
            beat(&mut field, node);
        }
        field.run(20);
        field.after(60);
        field.run(30);
        prop_assert_eq!(nodes(&field), ["n1", "n2", "n3"]);
        let left: BTreeSet<String> = images(&field).into_values().collect();
        prop_assert_eq!(left.len(), 1, "one template is left");
        let rollout = field.rollout();
        prop_assert!(rollout.complete || rollout.failure.is_some());
        prop_assert!(field.plan().writes.is_empty(), "it comes to rest");
    }
}
