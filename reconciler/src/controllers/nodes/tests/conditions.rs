//! Node readiness, eviction and drain progress.

use jiff::{SignedDuration, Timestamp};
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::cluster::{ClusterSpec, NodePolicy};
use schema::kinds::disruption_budget::PodDisruptionBudgetSpec;
use schema::kinds::node::{NodeSpec, Taint};
use schema::kinds::pod::{PodPhase, PodSpec, PodStatus, TaintEffect};
use schema::meta::NamespacedName;
use schema::records::{Drain, NodeConditions, PodInstance};
use schema::testing::{SnapshotBuilder, heartbeat, instance, node_record, object_of, running, spec};

use crate::controllers::nodes::conditions;
use crate::controllers::testing::{ApplyPlan as _, seen};
use crate::controllers::{Observed, Writes};

fn second(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

/// A cluster that is planned at chosen times.
struct Story {
    builder: SnapshotBuilder,
    term_began: Timestamp,
}

impl Story {
    /// A story with `nodes` beating nodes, first observed at second 0.
    fn of(nodes: u8) -> Self {
        let mut story = Self { builder: SnapshotBuilder::new().nodes(nodes), term_began: second(-1000) };
        story.plan(0);
        story
    }

    /// Plans at second `at` and applies the plan.
    fn plan(&mut self, at: i64) -> Writes {
        let observed = Observed { term_began: self.term_began, ..seen(&self.builder.snapshot) };
        let mut out = Writes::default();
        conditions::plan(&observed, second(at), &mut out);
        self.builder = std::mem::take(&mut self.builder).after(&out);
        out
    }

    /// Reasons of the writes, and the notes.
    fn says(&mut self, at: i64) -> Vec<String> {
        let plan = self.plan(at);
        let writes = plan.writes.iter().map(|write| format!("{}: {}", about(&write.key), write.reason));
        writes.chain(plan.notes.iter().map(|note| format!("{}: {}", note.name, note.kind))).collect()
    }

    fn lose(&mut self, nodes: &[&str]) {
        for node in nodes {
            self.builder = std::mem::take(&mut self.builder).delete(&Key::Heartbeat((*node).into()));
        }
    }

    fn beat(&mut self, node: &str) {
        self.builder = std::mem::take(&mut self.builder).put(&Key::Heartbeat(node.into()), &heartbeat());
    }

    fn of_node(&self, node: &str) -> NodeConditions {
        self.builder.snapshot.node_conditions[node].value.clone()
    }

    fn evicted(&self) -> Vec<&str> {
        let nodes = self.builder.snapshot.nodes.keys().map(String::as_str);
        nodes.filter(|node| self.builder.snapshot.is_evicted(node)).collect()
    }
}

fn about(key: &Key) -> &str {
    match key {
        Key::NodeConditions(node) => node,
        other => panic!("{other} is not how a node fares"),
    }
}

const EXPIRED: &str = "the node's heartbeat expired";

// Seen red without the patience, and with an `evicted_at` that outlives the silence.
#[test]
fn a_node_is_given_up_after_its_time_and_is_ready_when_it_beats_again() {
    let mut story = Story::of(4);
    assert_eq!(story.says(50), [""; 0], "nothing changes, nothing is written");
    story.lose(&["n2"]);
    let plan = story.plan(100);
    assert_eq!(plan.again_at, Some(second(130)));
    assert_eq!(plan.writes[0].reason.to_string(), EXPIRED);
    assert_eq!((story.says(129), story.evicted()), (vec![], vec![]));
    assert_eq!(story.says(130), ["n2: the node has been silent for 30 s: its pods are replaced elsewhere"]);
    assert_eq!(story.evicted(), ["n2"]);
    assert_eq!(story.says(500), [""; 0]);
    story.beat("n2");
    assert_eq!(story.evicted(), [""; 0], "not for a moment once it beats");
    assert_eq!(story.says(501), ["n2: the node is ready"]);
    let back = story.of_node("n2");
    assert_eq!((back.ready, back.since, back.evicted_at), (ConditionStatus::True, second(501), None));
    assert_eq!(back.first_seen_at, Some(second(0)), "the record's time is of the node's clock");
}

// Seen red without `are_most_away`, and without `returns_until`.
#[test]
fn most_nodes_at_once_are_not_given_up() {
    let held = |node: &str| {
        format!(
            "{node}: 2 of 3 nodes do not answer: this reconciler is probably cut off, so no pods are replaced"
        )
    };
    let mut story = Story::of(3);
    story.lose(&["n1", "n3"]);
    story.plan(100);
    assert_eq!(story.says(200), [held("n1"), held("n3")]);
    assert_eq!(story.evicted(), [""; 0]);
    story.beat("n1");
    let plan = story.plan(201);
    assert_eq!(
        (plan.again_at, story.evicted()),
        (Some(second(216)), vec![]),
        "it may be on its way back too"
    );
    story.plan(216);
    assert_eq!(story.evicted(), ["n3"]);
    // One of two nodes is less than 55 %; a single node is 100 %.
    for (nodes, evicted) in [(1, vec![]), (2, vec!["n1"])] {
        let mut story = Story::of(nodes);
        story.lose(&["n1"]);
        story.plan(100);
        story.plan(130);
        assert_eq!(story.evicted(), evicted, "of {nodes}");
    }
}

#[test]
fn a_node_that_comes_and_goes_does_not_put_off_that_another_is_given_up() {
    let mut story = Story::of(3);
    story.lose(&["n1"]);
    story.plan(100);
    // At any time n2 is either away too or came back less than a lease ago.
    let mut given_up = None;
    for at in 120..200 {
        match at % 20 {
            0 => story.lose(&["n2"]),
            10 => story.beat("n2"),
            _ => {}
        }
        story.plan(at);
        given_up = given_up.or_else(|| story.evicted().contains(&"n1").then_some(at));
    }
    // n2 fell silent at 120, before n1 was due at 130, and was back at 130: a lease later n2 is away again, and at
    // 150 it returns from a silence that began after n1 was due, so it delays nothing.
    assert_eq!(given_up, Some(150));
}

#[test]
fn the_nodes_controller_says_how_long_pods_have_tolerated_a_taint() {
    let mut story = Story::of(1);
    let toleration = |seconds| {
        let mut pod = spec(1, 1);
        pod.tolerations.push(
            serde_json::from_value(serde_json::json!({
                "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
            }))
            .unwrap(),
        );
        pod
    };
    let taint = |effect| Taint { key: "k".into(), value: None, effect };
    let taints = vec![taint(TaintEffect::NoExecute), taint(TaintEffect::NoSchedule)];
    let tainted = NodeSpec { taints, ..NodeSpec::default() };
    for (name, seconds) in [("a", 60), ("b", 300)] {
        let builder = std::mem::take(&mut story.builder);
        story.builder = builder.bound("n1", &instance(name, toleration(seconds)));
    }
    story.builder = std::mem::take(&mut story.builder).node_object("n1", tainted);
    assert_eq!(story.says(100), ["n1: taints of the node and their age"]);
    let elapsed = |story: &Story| {
        let taints = story.of_node("n1").taints;
        taints.into_iter().map(|(taint, age)| (taint, age.since, age.elapsed_seconds)).collect::<Vec<_>>()
    };
    let is_one = |seconds| [("k:NoExecute".to_owned(), second(100), seconds)];
    assert_eq!(elapsed(&story), is_one(0));
    assert_eq!(story.plan(159).again_at, Some(second(160)));
    assert_eq!(story.plan(160).again_at, Some(second(400)));
    assert_eq!(elapsed(&story), is_one(60));
    assert_eq!(story.says(399), [""; 0]);
    story.plan(400);
    assert_eq!(elapsed(&story), is_one(300));
    story.builder = std::mem::take(&mut story.builder).node_object("n1", NodeSpec::default());
    story.plan(401);
    assert_eq!(elapsed(&story), []);
}

// Seen red without `LEASE`, and with a `since` that restarts.
#[test]
fn a_new_leader_keeps_the_times_and_gives_up_no_node_within_a_lease() {
    let mut story = Story::of(3);
    story.lose(&["n1"]);
    story.plan(100);
    story.term_began = second(125);
    let plan = story.plan(130);
    assert!(plan.writes.is_empty(), "{plan}");
    assert_eq!((plan.again_at, story.of_node("n1").since), (Some(second(140)), second(100)));
    story.plan(140);
    assert_eq!(story.evicted(), ["n1"]);
    assert_eq!(story.of_node("n1").since, second(100));
    story.term_began = second(150);
    assert_eq!(story.says(151), [""; 0], "what is given up stays so");
}

#[test]
fn the_cluster_object_says_how_long_a_node_may_be_silent() {
    let mut story = Story::of(3);
    let nodes = NodePolicy { evict_after_seconds: 0 };
    story.builder = story.builder.cluster(ClusterSpec { nodes, ..ClusterSpec::default() });
    story.lose(&["n1"]);
    story.plan(100);
    assert_eq!(story.evicted(), ["n1"]);
}

#[test]
fn a_node_without_a_range_is_not_ready_and_one_that_never_beat_is_unknown() {
    let mut story = Story { builder: SnapshotBuilder::new(), term_began: second(-1000) };
    story.builder = story.builder.put(&Key::Node("a".into()), &node_record("a"));
    story.builder = story.builder.put(&Key::Node("b".into()), &node_record("b"));
    story.beat("a");
    assert_eq!(
        story.says(0),
        ["a: the node waits for its range of pod addresses".to_owned(), format!("b: {EXPIRED}")]
    );
    assert_eq!(story.of_node("a").ready, ConditionStatus::False);
}

#[test]
fn conditions_that_cannot_be_read_are_not_written_over() {
    let mut story = Story::of(1);
    story.builder = story.builder.garbage(&Key::NodeConditions("n1".into()));
    let plan = story.plan(1);
    assert!(plan.writes.is_empty() && plan.notes.len() == 1, "{plan}");
}

// Seen red with a count of bindings alone.
#[test]
fn a_drain_counts_the_pods_that_are_to_leave_and_those_that_end() {
    let mut story = Story::of(2);
    let (web, ending) = (instance("web", spec(1, 1)), instance("ending", spec(1, 1)));
    let pinned = instance("pinned", PodSpec { node_name: Some("n1".into()), ..spec(1, 1) });
    story.builder = story
        .builder
        .node_object("n1", NodeSpec { drain: true, ..NodeSpec::default() })
        .bound("n1", &web)
        .bound("n1", &pinned)
        .status("n1", &web, PodPhase::Running)
        .status("n1", &ending, PodPhase::Running);
    assert_eq!(story.says(1), ["n1: the node is being drained, 2 pods left"]);
    let leave = |story: &mut Story, key: Key| {
        story.builder = std::mem::take(&mut story.builder).delete(&key);
    };
    leave(&mut story, Key::PodStatus("n1".into(), ending.reference()));
    leave(&mut story, Key::Binding("n1".into(), web.reference()));
    assert_eq!(story.says(2), ["n1: the node is being drained, 1 pod left"], "web has not ended yet");
    leave(&mut story, Key::PodStatus("n1".into(), web.reference()));
    assert_eq!(story.says(3), ["n1: the node is drained"]);
    assert_eq!(story.of_node("n1").drain, Some(Drain::Drained));
    story.builder = story.builder.node_object("n1", NodeSpec::default());
    assert_eq!(story.says(4), ["n1: the node takes pods again"]);
    assert_eq!((story.of_node("n1").drain, story.of_node("n1").since), (None, second(0)));
}

#[test]
fn a_drain_says_which_pods_may_leave_and_what_it_waits_for() {
    let labels = [("app".to_owned(), "web".to_owned())];
    let web = |name: &str| PodInstance { labels: labels.clone().into(), ..instance(name, spec(1, 1)) };
    let budget = serde_json::json!({"selector": {}, "minAvailable": 2});
    let budget: PodDisruptionBudgetSpec = serde_json::from_value(budget).unwrap();
    let mut story = Story::of(2);
    let mut builder = story.builder.object(&object_of("web", budget));
    for pod in ["a", "b", "c"].map(web) {
        let status = PodStatus { uid: pod.uid.clone(), ..running() };
        builder =
            builder.pod(&pod).bound("n1", &pod).put(&Key::PodStatus("n1".into(), pod.reference()), &status);
    }
    story.builder = builder.node_object("n1", NodeSpec { drain: true, ..NodeSpec::default() });
    assert_eq!(
        story.says(1),
        [
            "n1: the node is being drained, 3 pods left",
            "n1: cannot evict pod default/b as it would violate the pod's disruption budget: the disruption budget web \
             needs 2 healthy pods and has 2 currently"
        ]
    );
    let evicting = [NamespacedName::new("default", "a")].into();
    assert_eq!(story.of_node("n1").drain, Some(Drain::Draining { left: 3, evicting }));
    let plan = story.plan(2);
    assert!(plan.writes.is_empty() && plan.notes.len() == 1, "another leader decides the same: {plan}");
}
