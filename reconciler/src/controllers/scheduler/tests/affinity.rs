//! Affinity to nodes and pods.

use schema::kinds::node::NodeSpec;
use schema::records::PodInstance;
use schema::testing::{object_of, replica};

use super::strategies::applied;
use super::*;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const APART: &str = "1 node(s) didn't match pod anti-affinity rules";
const KEPT_AWAY: &str = "1 node(s) didn't satisfy existing pods anti-affinity rules";
const ALONE: &str = "1 node(s) didn't match pod affinity rules";

/// Terms over the nodes with these selectors: `service in a b`, `service notin a`, `service exists`, `service
/// missing`, joined by `,`; a namespace may follow after `@`.
fn terms(selectors: &[&str]) -> String {
    let terms = selectors.iter().map(|selector| {
        let (expressions, namespaces) = match selector.split_once('@') {
            Some((expressions, namespace)) => (expressions, format!(r#","namespaces":["{namespace}"]"#)),
            None => (*selector, String::new()),
        };
        let expressions = expressions.split(',').map(|one| {
            let mut words = one.split(' ');
            let (key, operator) = (words.next().unwrap(), words.next().unwrap());
            let operator = match operator {
                "in" => "In",
                "notin" => "NotIn",
                "exists" => "Exists",
                _ => "DoesNotExist",
            };
            let values: Vec<_> = words.collect();
            format!(r#"{{"key":"{key}","operator":"{operator}","values":{values:?}}}"#)
        });
        let expressions = expressions.collect::<Vec<_>>().join(",");
        format!(
            r#"{{"labelSelector":{{"matchExpressions":[{expressions}]}},"topologyKey":"kubernetes.io/hostname"{namespaces}}}"#
        )
    });
    terms.collect::<Vec<_>>().join(",")
}

/// The spec with these terms of pods to run with, and of pods to run without.
fn with_terms(spec: PodSpec, together: &[&str], apart: &[&str]) -> PodSpec {
    let affinity = format!(
        r#"{{"podAffinity":{{"{REQUIRED}":[{}]}},"podAntiAffinity":{{"{REQUIRED}":[{}]}}}}"#,
        terms(together),
        terms(apart)
    );
    let mut spec = PodSpec { affinity: Some(serde_json::from_str(&affinity).unwrap()), ..spec };
    spec.fill_defaults();
    spec
}

fn labelled(pod: PodInstance, labels: &str) -> PodInstance {
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    PodInstance { labels: labels.split(' ').filter_map(pair).collect(), ..pod }
}

/// A pod with labels, terms of pods to run with, and of pods to run without.
fn pod(name: &str, labels: &str, together: &[&str], apart: &[&str]) -> PodInstance {
    labelled(instance(name, with_terms(spec(1, 1), together, apart)), labels)
}

/// A pod of the workload `web` that runs alone on its node.
pub(super) fn lone(name: &str) -> PodInstance {
    labelled(replica("web", name, with_terms(spec(1, 1), &[], &["app in web"])), "app=web")
}

/// Nodes of the new bindings of a plan.
fn placed(builder: &SnapshotBuilder) -> Vec<String> {
    put_bindings(&builder.snapshot).into_iter().map(|one| format!("{} {}", one.node, one.pod.name)).collect()
}

/// The cases of `TestRequiredAffinitySingleNode` in
/// pkg/scheduler/framework/plugins/interpodaffinity/filtering_test.go, with the node as topology: the pod on the node,
/// the new pod, and why it does not fit.
#[test]
fn pods_are_kept_together_and_apart_as_in_kubernetes() {
    let scan = "service=securityscan";
    let there = |apart: &[&str]| pod("there", scan, &[], apart);
    let secure = |apart: &[&str]| pod("there", "security=S1", &[], apart);
    let new = |labels: &str, together: &[&str], apart: &[&str]| pod("new", labels, together, apart);
    let scans = "service in securityscan value2";
    let viruses = "service in antivirusscan value2";
    let (any, safe) = ("service exists", "security exists");
    let ours = labelled(pod("there", scan, &[], &[]), scan);
    let table = [
        (there(&[]), new("", &[], &[]), None),
        (there(&[]), new("security=S1", &[scans], &[]), None),
        (there(&[]), new("security=S1", &["service notin securityscan3 value3"], &[]), None),
        (ours, new("security=S1", &["service in securityscan value2@other"], &[]), Some(ALONE)),
        (there(&[]), new(scan, &[viruses], &[]), Some(ALONE)),
        (
            there(&[]),
            new("", &["service exists,wrong missing", "service in securityscan,service notin Wrong"], &[]),
            None,
        ),
        (
            there(&[]),
            new("", &["service exists,wrong missing", "service in securityscan2,service notin Wrong"], &[]),
            Some(ALONE),
        ),
        (there(&[]), new("security=S1", &[scans], &[viruses]), None),
        (there(&[viruses]), new("security=S1", &[scans], &[viruses]), None),
        (there(&[]), new("security=S1", &[scans], &[scans]), Some(APART)),
        (there(&[scans]), new(scan, &[scans], &[viruses]), Some(KEPT_AWAY)),
        (there(&[]), new(scan, &["service notin securityscan value2"], &[]), Some(ALONE)),
        (there(&[scans]), new(scan, &[], &[]), Some(KEPT_AWAY)),
        (there(&["service notin securityscan value2"]), new(scan, &[], &[]), None),
        (secure(&[safe]), new(scan, &[], &[any, safe]), Some(APART)),
        (pod("there", scan, &[], &[any, safe]), new("security=S1", &[], &[safe]), Some(KEPT_AWAY)),
        (
            pod("there", "def=d xyz=x", &[], &["abc exists", "def exists"]),
            new("abc=a xyz=x", &[], &["abc exists", "def exists"]),
            Some(APART),
        ),
    ];
    for (there, new, why) in table {
        let builder = SnapshotBuilder::new().nodes(1).pod(&there).bound("n1", &there).pod(&new);
        let found = explain(&builder.snapshot, &new.reference()).unwrap();
        let wanted = why
            .map_or("fits on n1, waits for the scheduler".to_owned(), |why| format!("0/1 nodes fit: {why}"));
        assert_eq!(found, wanted, "{there:?} {new:?}");
        assert_eq!(placed(&builder).len() == 1, why.is_none());
    }
}

#[test]
fn a_term_names_other_namespaces() {
    let far = PodInstance { namespace: "far".into(), ..pod("there", "app=web", &[], &[]) };
    let builder = SnapshotBuilder::new().nodes(1).pod(&far).bound("n1", &far);
    let fits = |selector: &str| !placed(&builder.clone().pod(&pod("new", "", &[], &[selector]))).is_empty();
    assert_eq!([fits("app in web"), fits("app in web@near"), fits("app in web@far")], [true, true, false]);
}

// Seen red with rules that count only bound pods.
#[test]
fn of_the_pods_of_one_pass_none_shares_a_node_with_its_like() {
    let builder =
        (0..4).fold(SnapshotBuilder::new().nodes(3), |builder, i| builder.pod(&lone(&format!("web-{i}"))));
    for strategy in strategies::ALL {
        let cluster = ClusterSpec { scheduler_strategy: strategy, ..ClusterSpec::default() };
        let builder = applied(builder.clone().cluster(cluster));
        let nodes: std::collections::BTreeSet<_> =
            builder.snapshot.bindings.keys().map(|(node, _)| node).collect();
        assert_eq!((builder.snapshot.bindings.len(), nodes.len()), (3, 3), "{strategy:?}");
        let waits = builder.snapshot.pods.keys().find_map(|pod| explain(&builder.snapshot, pod));
        assert_eq!(waits.as_deref(), Some("0/3 nodes fit: 3 node(s) didn't match pod anti-affinity rules"));
        let ended = builder.snapshot.bindings.values().next().unwrap().value.clone();
        let builder = builder.status(&ended.node, &ended.pod, PodPhase::Succeeded);
        assert_eq!(placed(&builder).len(), 1, "a pod that has ended keeps no other away");
    }
}

// Seen red without `Neighbours::siblings`.
#[test]
fn a_replica_waits_until_its_predecessor_has_ended() {
    let (old, new) = (lone("web-00000000-1"), lone("web-11111111-2"));
    let builder = SnapshotBuilder::new().nodes(1).pod(&new).status("n1", &old, PodPhase::Running);
    assert_eq!(explain(&builder.snapshot, &new.reference()), Some(format!("0/1 nodes fit: {APART}")));
    assert!(placed(&builder).is_empty());
    let friendly = replica("web", "web-11111111-3", spec(1, 1));
    assert_eq!(placed(&builder.clone().pod(&friendly)), ["n1 web-11111111-3"]);
    let builder = builder.delete(&Key::PodStatus("n1".into(), old.reference()));
    assert_eq!(placed(&builder), ["n1 web-11111111-2"]);
}

#[test]
fn a_new_version_takes_the_place_of_the_one_that_it_would_not_share_a_node_with() {
    let version = |cpu| labelled(instance("db", with_terms(spec(cpu, 1), &[], &["app in db"])), "app=db");
    let builder = SnapshotBuilder::new().nodes(2).pod(&version(2)).bound("n2", &version(1));
    assert_eq!(placed(&builder), ["n2 db"]);
}

// The first pod that matches its own terms may go anywhere, the others follow it.
#[test]
fn pods_that_want_to_be_together_are() {
    let friend =
        |name: &str| labelled(replica("web", name, with_terms(spec(1, 1), &["app in web"], &[])), "app=web");
    let builder = (0..3).fold(SnapshotBuilder::new().nodes(3), |w, i| w.pod(&friend(&format!("web-{i}"))));
    assert_eq!(placed(&builder), ["n1 web-0", "n1 web-1", "n1 web-2"]);
    let elsewhere = labelled(instance("first", spec(1, 1)), "app=web");
    let builder = builder.pod(&elsewhere).bound("n3", &elsewhere);
    assert_eq!(placed(&builder), ["n3 web-0", "n3 web-1", "n3 web-2"]);
    // A new version that fits no longer beside it may be the first one elsewhere.
    let (old, new) =
        (friend("web-0"), replica("web", "web-0", with_terms(spec(3000, 1), &["app in web"], &[])));
    let new = labelled(new, "app=web");
    let big = instance("zz", spec(2000, 1));
    let builder = SnapshotBuilder::new().nodes(2).pod(&big).bound("n1", &big).pod(&new).bound("n1", &old);
    assert_eq!(placed(&builder), ["n2 web-0"]);
}

// Seen red with waiting pods in the order of their owners alone.
#[test]
fn a_pod_joins_one_that_is_placed_in_the_same_pass() {
    let builder = SnapshotBuilder::new()
        .nodes(3)
        .pod(&pod("a-cache", "", &["app in web"], &[]))
        .pod(&labelled(instance("web", PodSpec { node_name: Some("n3".into()), ..spec(1, 1) }), "app=web"));
    assert_eq!(placed(&builder), ["n3 web", "n3 a-cache"]);
}

#[test]
fn required_nodes_are_chosen_by_label_or_name() {
    let requiring = |term: &str| {
        let affinity = format!(r#"{{"nodeAffinity":{{"{REQUIRED}":{{"nodeSelectorTerms":[{term}]}}}}}}"#);
        PodSpec { affinity: Some(serde_json::from_str(&affinity).unwrap()), ..spec(1, 1) }
    };
    let ssd = requiring(r#"{"matchExpressions":[{"key":"disk","operator":"In","values":["ssd","nvme"]}]}"#);
    let named = requiring(r#"{"matchFields":[{"key":"metadata.name","operator":"In","values":["n3"]}]}"#);
    let mut node = object_of("n2", NodeSpec::default());
    node.metadata.labels.insert("disk".into(), "ssd".into());
    let builder = SnapshotBuilder::new().nodes(3).object(&node);
    let on = |node: &str, spec: &PodSpec| PodSpec { node_name: Some(node.into()), ..spec.clone() };
    let refused = |n| format!("{n} node(s) didn't match Pod's node affinity/selector");
    for (spec, verdict) in [
        (ssd.clone(), "fits on n2, waits for the scheduler".to_owned()),
        (named, "fits on n3, waits for the scheduler".to_owned()),
        (on("n1", &ssd), format!("0/3 nodes fit: 2 other than nodeName n1, {}", refused(1))),
        (requiring("{}"), format!("0/3 nodes fit: {}", refused(3))),
    ] {
        let builder = builder.clone().pod(&instance("pod", spec));
        assert_eq!(explain(&builder.snapshot, &pod_ref("pod")), Some(verdict));
    }
    // A pod that runs stays when the labels change.
    let pod = instance("pod", ssd);
    assert_eq!(planned(&SnapshotBuilder::new().nodes(2).pod(&pod).bound("n1", &pod).snapshot), "");
}

#[test]
fn a_pod_kept_apart_is_counted_under_its_obstacle() {
    let (one, other) = (lone("web-1"), lone("web-2"));
    let builder = SnapshotBuilder::new().nodes(1).pod(&one).bound("n1", &one).pod(&other);
    assert_eq!(super::super::Explainer::new(&builder.snapshot).obstacle(&other), Some("PodAntiAffinity"));
}
