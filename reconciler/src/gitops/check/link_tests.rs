//! Tables of commits with inconsistent objects.

use std::collections::BTreeSet;

use proptest::prelude::*;
use schema::object::{Object, Provenance};
use schema::snapshot::{Table, VersionedValue};

use super::super::load::Manifests;
use super::super::tests::generator;
use super::*;
use schema::manifest::load_file as parse;

fn load(files: &[(&str, &str)]) -> Manifests {
    files.iter().map(|(path, text)| (Arc::from(*path), Arc::new(parse(path, text.as_bytes())))).collect()
}

/// Live objects of `source`, parsed from these files.
pub(super) fn live(source: &str, files: &[(&str, &str)]) -> Table<ObjectRef, Object> {
    let mut table = Table::new();
    for (file, manifest) in load(files) {
        assert!(!manifest.has_errors(), "{file}: {:?}", manifest.violations);
        for draft in &manifest.documents {
            let file = file.to_string();
            let place =
                Provenance { source: source.to_owned(), file, line: draft.line, ..Provenance::default() };
            let value = (*draft.object).clone().into_object(place, 1);
            let versioned = VersionedValue { value, create_revision: 1, mod_revision: 1 };
            table.insert(draft.reference.clone(), Arc::new(versioned));
        }
    }
    table
}

/// Every finding of the cross checks, as `file: rule: message`.
pub(super) fn found(files: &[(&str, &str)], live: &Table<ObjectRef, Object>) -> Vec<String> {
    found_within(files, live, &CommitLimits::default())
}

pub(super) fn found_within(
    files: &[(&str, &str)],
    live: &Table<ObjectRef, Object>,
    limits: &CommitLimits,
) -> Vec<String> {
    let manifests = load(files);
    let documents = Documents::from_manifests("main", &manifests, live);
    let checked = finish(&documents, fit(&documents, "main", live, limits, ""));
    let all = checked.quarantined.values().flatten().chain(&checked.remarks);
    let shown = |v: &Violation| format!("{}: {}: {}", v.file, v.rule, v.message);
    all.map(shown).collect()
}

fn order(files: &[(&str, &str)]) -> Vec<String> {
    let manifests = load(files);
    let none = Table::new();
    let documents = Documents::from_manifests("main", &manifests, &none);
    let checked = finish(&documents, fit(&documents, "main", &none, &CommitLimits::default(), ""));
    checked.wanted.iter().map(|(object, _)| object.to_string()).collect()
}

pub(super) fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n{more}spec: {{containers: [{{name: m, image: i}}]}}\n"
    )
}

fn after(name: &str, dependencies: &str) -> String {
    pod(name, &format!("  dependsOn: [{dependencies}]\n"))
}

pub(super) fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  type: NodePort\n  selector: {{app: web}}\n  ports:\n  - port: 80\n    name: http\n    nodePort: {port}\n"
    )
}

fn set(name: &str, app: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {{app: {app}}}}}\n  template:\n    metadata: {{labels: {{app: {app}}}}}\n    spec: {{containers: [{{name: m, image: i, resources: {{requests: {{cpu: 100m}}}}}}]}}\n"
    )
}

fn hpa(name: &str, target: &str) -> String {
    format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: {name}}}\nspec:\n  scaleTargetRef:\n    apiVersion: apps/v1\n    kind: ReplicaSet\n    name: {target}\n  maxReplicas: 3\n"
    )
}

pub(super) fn dns(name: &str, host: &str, service: &str, port: &str) -> String {
    format!(
        "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: {name}}}\nspec:\n  host: {host}\n  paths:\n  - path: /\n    service:\n      name: {service}\n      port: {port}\n"
    )
}

const BROKEN: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80, nodPort: 1}]}\n";

#[test]
fn what_is_named_must_be_there() {
    let none = Table::new();
    let web = set("web", "web");
    assert_eq!(found(&[("a.yaml", &web), ("h.yaml", &hpa("h", "web"))], &none), [""; 0]);
    assert_eq!(
        found(&[("a.yaml", &web), ("h.yaml", &hpa("h", "wbe"))], &none),
        ["h.yaml: dangling-target: spec.scaleTargetRef.name: there is no ReplicaSet/default/wbe"]
    );
    let pair = service("web", 30001);
    let with = |dns: &str| found(&[("a.yaml", &web), ("s.yaml", &pair), ("d.yaml", dns)], &none);
    assert_eq!(with(&dns("d", "a.example", "web", "http")), [""; 0]);
    assert_eq!(with(&dns("d", "a.example", "web", "80")), [""; 0]);
    assert_eq!(
        with(&dns("d", "a.example", "web", "81")),
        ["d.yaml: dangling-target: spec.paths[0].service.port: Service/default/web has no port 81"]
    );
    let shared = dns("d", "a.example", "web", "http").replace(
        "    service:\n      name: web\n      port: http\n",
        "    backends: [{service: web, port: 80}, {service: web, port: 81}, {service: wbe, port: 80}, {function: f}]\n",
    );
    assert_eq!(
        with(&shared),
        [
            "d.yaml: dangling-target: spec.paths[0].backends[1].port: Service/default/web has no port 81",
            "d.yaml: dangling-target: spec.paths[0].backends[2].service: there is no Service/default/wbe",
            "d.yaml: dangling-target: spec.paths[0].backends[3].function: there is no Function/default/f",
        ]
    );
    assert_eq!(
        found(&[("p.yaml", &after("p", "Pod/q, Service/other/x"))], &none),
        [
            "p.yaml: dangling-target: metadata.dependsOn[0]: there is no Pod/default/q",
            "p.yaml: dangling-target: metadata.dependsOn[1]: there is no Service/other/x",
        ]
    );
}

#[test]
fn what_another_source_has_or_a_held_removal_keeps_is_there() {
    let web = [("s.yaml", service("web", 30001)), ("w.yaml", pod("w", "  labels: {app: web}\n"))];
    let web: Vec<_> = web.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let route = dns("d", "a.example", "web", "80");
    assert_eq!(found(&[("d.yaml", &route)], &live("other", &web)), [""; 0]);
    // This very commit removes the service of the same source.
    let gone = found(&[("d.yaml", &route)], &live("main", &web));
    assert_eq!(
        gone,
        [
            "d.yaml: dangling-target: spec.paths[0].service.name: Service/default/web is removed by this commit"
        ]
    );
    // It is not removed while some file can't be read.
    let held = found(&[("d.yaml", &route), ("x.yaml", "kind: Pod\n")], &live("main", &web));
    assert!(held.iter().all(|violation| violation.starts_with("x.yaml")), "{held:?}");
    // Nor while it is protected.
    let kept = service("web", 30001)
        .replace("{name: web}", "{name: web, annotations: {minik8s.io/prune: \"false\"}}");
    assert_eq!(found(&[("d.yaml", &route)], &live("main", &[("s.yaml", &kept)])), [""; 0]);
}

#[test]
fn dependants_of_what_is_quarantined_and_not_live_are_quarantined_with_it() {
    let web = pod("w", "  labels: {app: web}\n");
    let chain = [
        ("w.yaml", web.as_str()),
        ("a.yaml", BROKEN),
        ("b.yaml", &dns("d", "a.example", "web", "80")),
        ("c.yaml", &after("p", "Dns/d")),
        ("e.yaml", &after("q", "Pod/p")),
        ("f.yaml", &after("r", "Pod/w")),
    ];
    let rules = |all: Vec<String>| {
        all.iter().map(|v| v.splitn(3, ": ").take(2).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let none = rules(found(&chain, &Table::new()));
    assert_eq!(
        none,
        [
            "a.yaml unknown-field",
            "b.yaml depends-on-quarantined",
            "c.yaml depends-on-quarantined",
            "e.yaml depends-on-quarantined",
        ]
    );
    // A live object satisfies its dependants.
    let service = live("main", &[("a.yaml", &service("web", 30001))]);
    assert_eq!(rules(found(&chain, &service)), ["a.yaml unknown-field"]);
}

#[test]
fn the_newcomer_loses_what_only_one_can_have() {
    let none = Table::new();
    let w = pod("w", "  labels: {app: web}\n");
    let (a, b) = (service("a", 30001), service("b", 30001));
    let both: [(&str, &str); 3] = [("a.yaml", &a), ("b.yaml", &b), ("w.yaml", &w)];
    assert_eq!(
        found(&both, &none),
        [
            "b.yaml: port-clash: spec.ports[0].nodePort: the node port 30001/TCP belongs to Service/default/a (a.yaml:1)"
        ]
    );
    assert_eq!(
        found(&both, &live("main", &[("b.yaml", &b)])),
        [
            "a.yaml: port-clash: spec.ports[0].nodePort: the node port 30001/TCP belongs to Service/default/b (b.yaml:1)"
        ]
    );
    let other = found(&[("a.yaml", &a), ("w.yaml", &w)], &live("other", &[("z.yaml", &b)]));
    assert_eq!(
        other,
        [
            "a.yaml: port-clash: spec.ports[0].nodePort: the node port 30001/TCP belongs to Service/default/b of source `other` (z.yaml:1)"
        ]
    );
}

#[test]
fn a_swap_in_one_commit_is_no_clash_unless_one_side_stays() {
    let w = pod("w", "  labels: {app: web}\n");
    let before = live("main", &[("a.yaml", &service("a", 30001)), ("b.yaml", &service("b", 30002))]);
    let (a, b) = (service("a", 30002), service("b", 30001));
    assert_eq!(found(&[("a.yaml", &a), ("b.yaml", &b), ("w.yaml", &w)], &before), [""; 0]);
    // A renamed service may keep its port, too.
    assert_eq!(
        found(
            &[("c.yaml", &service("c", 30001)), ("b.yaml", &b.replace("30001", "30002")), ("w.yaml", &w)],
            &before
        ),
        [""; 0]
    );
    // One of the two can't be applied: it stays, and so does the other.
    let broken = b.replace("spec:", "spce:");
    let all = found(&[("a.yaml", &a), ("b.yaml", &broken), ("w.yaml", &w)], &before);
    let clash = "a.yaml: port-clash: spec.ports[0].nodePort: the node port 30002/TCP belongs to Service/default/b, which stays as it was (b.yaml:1)";
    assert_eq!(all[0], clash);
    // The same if only this check finds the fault.
    let dangling = b.replace("metadata: {name: b}", "metadata: {name: b, dependsOn: [Pod/x]}");
    let all = found(&[("a.yaml", &a), ("b.yaml", &dangling), ("w.yaml", &w)], &before);
    assert_eq!((all.len(), all[0].as_str()), (2, clash), "{all:?}");
}

#[test]
fn autoscalers_swap_their_targets() {
    let sets = [("w.yaml", set("w", "w")), ("v.yaml", set("v", "v"))];
    let before = [("h.yaml", hpa("h", "w")), ("i.yaml", hpa("i", "v"))];
    let after = [("h.yaml", hpa("h", "v")), ("i.yaml", hpa("i", "w"))];
    let as_files = |parts: [&[(&'static str, String)]; 2]| -> Vec<(&'static str, String)> { parts.concat() };
    let (before, after) = (as_files([&sets, &before]), as_files([&sets, &after]));
    let shown = |files: &[(&'static str, String)]| -> Vec<(&'static str, &'static str)> {
        files.iter().map(|(path, text)| (*path, &*text.clone().leak())).collect()
    };
    assert_eq!(found(&shown(&after), &live("main", &shown(&before))), [""; 0]);
}

#[test]
fn every_sort_of_clash_is_found() {
    let none = Table::new();
    let sets = [set("w", "w"), set("v", "v")];
    let port = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  nodeName: n1\n  containers: [{{name: m, image: i, ports: [{{containerPort: 80, hostPort: 8080}}]}}]\n"
        )
    };
    let address = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: 10.96.0.77\n  selector: {{app: w}}\n  ports: [{{port: 80}}]\n"
        )
    };
    let cases = [
        ("autoscaler-clash", hpa("h", "w"), hpa("i", "w")),
        ("port-clash", port("p"), port("q")),
        ("address-clash", address("s"), address("t")),
    ];
    for (rule, one, two) in cases {
        let files: [(&str, &str); 4] =
            [("a.yaml", &one), ("b.yaml", &two), ("v.yaml", &sets[0]), ("w.yaml", &sets[1])];
        let all = found(&files, &none);
        assert!(
            all.len() == 1 && all[0].starts_with("b.yaml") && all[0].contains(&format!(" {rule}: ")),
            "{rule}: {all:?}"
        );
    }
    let routes = [dns("d", "a.example", "s", "80"), dns("e", "a.example", "s", "80")];
    let all = found(
        &[("a.yaml", &routes[0]), ("b.yaml", &routes[1]), ("s.yaml", &address("s")), ("w.yaml", &sets[0])],
        &none,
    );
    assert!(all.len() == 1 && all[0].starts_with("b.yaml: route-clash"), "{all:?}");
}

#[test]
fn circles_are_reported_with_the_whole_way() {
    let none = Table::new();
    let files = [
        ("a.yaml", after("a", "Pod/b")),
        ("b.yaml", after("b", "Pod/c")),
        ("c.yaml", after("c", "Pod/a")),
        ("e.yaml", pod("e", "")),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let all = found(&files, &none);
    assert_eq!(
        all[0],
        "a.yaml: dependency-cycle: metadata.dependsOn[0]: \
         Pod/default/a → Pod/default/b → Pod/default/c → Pod/default/a wait for each other"
    );
    assert!(all[1].contains("Pod/default/b → Pod/default/c → Pod/default/a → Pod/default/b"), "{all:?}");
    assert_eq!(all.len(), 3);
    // A long cycle shows only its first two members.
    for (length, end) in [(10, "2 → Pod/default/p3"), (11, "1 → … → Pod/default/p0 wait")] {
        let ring = |at: usize| {
            (format!("{at:02}.yaml"), after(&format!("p{at}"), &format!("Pod/p{}", (at + 1) % length)))
        };
        let files: Vec<(String, String)> = (0..length).map(ring).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let all = found(&files, &none);
        assert_eq!(all.len(), length);
        assert!(all[0].contains(" Pod/default/p0 → Pod/default/p1 → "), "{}", all[0]);
        assert!(all[0].contains(end), "{}", all[0]);
    }
}

#[test]
fn a_selector_that_matches_nothing_is_a_warning_and_applies() {
    let alone = service("web", 30001);
    let none = Table::new();
    assert_eq!(
        found(&[("s.yaml", &alone)], &none),
        ["s.yaml: selector-matches-nothing: spec.selector: no pod in namespace default has app=web"]
    );
    let manifests = load(&[("s.yaml", &alone)]);
    let documents = Documents::from_manifests("main", &manifests, &none);
    let checked = finish(&documents, fit(&documents, "main", &none, &CommitLimits::default(), ""));
    assert_eq!((checked.wanted.len(), checked.quarantined.len()), (1, 0));
    let template = set("w", "web");
    assert_eq!(found(&[("s.yaml", &alone), ("w.yaml", &template)], &none), [""; 0]);
    assert_eq!(found(&[("s.yaml", &alone)], &live("other", &[("w.yaml", &template)])), [""; 0]);
}

#[test]
fn what_an_object_depends_on_comes_before_it_whatever_the_kinds() {
    let job = "apiVersion: v1\nkind: Pod\nmetadata: {name: z}\nspec: {containers: [{name: m, image: i}]}\n";
    let early = service("s", 30001).replace("{name: s}", "{name: s, dependsOn: [Pod/z]}");
    let files = [("a.yaml", after("a", "Pod/m, Service/s")), ("m.yaml", pod("m", "  labels: {app: web}\n"))];
    let all =
        [("s.yaml", early.as_str()), ("z.yaml", job), (files[0].0, &files[0].1), (files[1].0, &files[1].1)];
    assert_eq!(order(&all), ["Pod/default/m", "Pod/default/z", "Service/default/s", "Pod/default/a"]);
}

#[test]
fn what_the_cluster_object_forbids_is_found_in_pods_and_templates() {
    let none = Table::new();
    let cluster = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec: {podSecurity: {forbidHostNetwork: true}}\n";
    let bare = pod("p", "").replace("spec: {", "spec: {hostNetwork: true, ");
    let many = set("w", "w").replace("spec: {containers", "spec: {hostNetwork: true, containers");
    assert_eq!(found(&[("p.yaml", &bare), ("w.yaml", &many)], &none), [""; 0]);
    let all = found(&[("c.yaml", cluster), ("p.yaml", &bare), ("w.yaml", &many)], &none);
    assert!(all[0].starts_with("p.yaml: forbidden-by-cluster: spec.hostNetwork: Forbidden"), "{all:?}");
    assert!(all[1].starts_with("w.yaml: forbidden-by-cluster: spec.template.spec.hostNetwork"), "{all:?}");
    assert_eq!(found(&[("p.yaml", &bare)], &live("other", &[("c.yaml", cluster)])).len(), 1);
}

#[test]
fn violations_point_at_the_field() {
    let files = [("a.yaml", after("a", "Pod/b, Pod/c")), ("b.yaml", pod("b", ""))];
    let manifests = load(&[(files[0].0, &files[0].1), (files[1].0, &files[1].1)]);
    let none = Table::new();
    let documents = Documents::from_manifests("main", &manifests, &none);
    let checked = finish(&documents, fit(&documents, "main", &none, &CommitLimits::default(), ""));
    let violation = &checked.quarantined["a.yaml"][0];
    assert_eq!((violation.line, violation.column), (5, 22));
}

/// A walk that reported one cycle per back edge needed gigabytes for these. Seen red with as many cycles as
/// it takes to cover all of them, and without paths back over more than one step.
#[test]
fn a_tangle_of_many_pods_is_reported_once_each() {
    let mut random = generator(3);
    let files: Vec<(String, String)> = (0..2000)
        .map(|number| {
            let targets: BTreeSet<u32> = (0..64).map(|_| random(2000)).filter(|one| *one != number).collect();
            let targets: Vec<String> = targets.iter().map(|target| format!("Pod/p{target}")).collect();
            (format!("{number:04}.yaml"), after(&format!("p{number}"), &targets.join(", ")))
        })
        .collect();
    let shown: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let all = found(&shown, &Table::new());
    let circles: Vec<&String> = all.iter().filter(|one| one.contains(": dependency-cycle: ")).collect();
    let reported: BTreeSet<&str> = circles.iter().map(|one| &one[..9]).collect();
    assert_eq!(reported.len(), 2000, "each is in the tangle");
    assert_eq!(circles.len(), 2000);
    assert!(all.iter().all(|one| one.len() < 500));
    let (first, shortest) = (circles[0], "Pod/default/p0 → Pod/default/p");
    assert!(first.contains(shortest) && first.matches('→').count() < 5, "{first}");
}

/// Seen red with files that were already refused skipped.
#[test]
fn all_of_a_circle_in_one_file_are_reported() {
    let file =
        format!("{}---\n{}---\n{}", after("a", "Pod/b"), after("b", "Pod/a, Pod/c"), after("c", "Pod/b"));
    let all = found(&[("a.yaml", &file)], &Table::new());
    let shown: Vec<&str> = all.iter().map(|one| one.rsplit(": ").next().unwrap()).collect();
    assert_eq!(
        shown,
        [
            "Pod/default/a → Pod/default/b → Pod/default/a wait for each other",
            "Pod/default/b → Pod/default/a → Pod/default/b wait for each other",
            "Pod/default/c → Pod/default/b → … → Pod/default/c wait for each other",
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Seen red without paths back over more than one step.
    #[test]
    fn every_node_on_a_cycle_is_reported_with_a_real_cycle_and_no_other_is(
        edges in proptest::collection::btree_set((0..9_usize, 0..9_usize), 0..20),
        reverse in any::<bool>(),
    ) {
        let edges: BTreeSet<(usize, usize)> = edges.into_iter().filter(|(one, other)| one != other).collect();
        let mut reach = edges.clone();
        for middle in 0..9 {
            for (one, other) in (0..9).flat_map(|one| (0..9).map(move |other| (one, other))) {
                if reach.contains(&(one, middle)) && reach.contains(&(middle, other)) {
                    reach.insert((one, other));
                }
            }
        }
        let files: Vec<(String, String)> = (0..9)
            .map(|one| {
                let targets = edges.iter().filter(|edge| edge.0 == one).map(|edge| format!("Pod/p{}", edge.1));
                let file = if reverse { 8 - one } else { one };
                (format!("{file}.yaml"), after(&format!("p{one}"), &targets.collect::<Vec<_>>().join(", ")))
            })
            .collect();
        let mut shown: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        shown.sort();
        let all = found(&shown, &Table::new());
        let mut reported = BTreeSet::new();
        for one in all.iter().filter(|one| one.contains(": dependency-cycle: ")) {
            let chain = one.rsplit(": ").next().unwrap().split(" wait").next().unwrap();
            let number = |name: &str| -> usize { name[13..].parse().unwrap() };
            // The `…` of a long chain must also lead back.
            let (named, is_whole) = (chain.replace(" → … → ", " → "), !chain.contains('…'));
            let names: Vec<usize> = named.split(" → ").map(number).collect();
            for (at, pair) in names.windows(2).enumerate() {
                let leads = if is_whole || at == 0 { &edges } else { &reach };
                prop_assert!(leads.contains(&(pair[0], pair[1])), "{one}");
            }
            prop_assert_eq!(names.first(), names.last());
            reported.insert(names[0]);
        }
        let wanted: BTreeSet<usize> = (0..9).filter(|one| reach.contains(&(*one, *one))).collect();
        prop_assert_eq!(reported, wanted, "{:?}", all);
    }
}

fn taker(name: &str) -> String {
    service(name, 30001).replace("  type:", "  clusterIP: 10.96.0.77\n  type:")
}

const TYPO: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: typo}\nspec: {contaners: []}\n";

/// Broken rules, by file.
pub(super) fn by_rule(all: &[String]) -> Vec<String> {
    all.iter().map(|v| v.splitn(3, ": ").take(2).collect::<Vec<_>>().join(" ")).collect()
}

/// Seen red without `rest::report`.
#[test]
fn a_mistake_elsewhere_in_a_file_hides_no_clash_and_no_circle() {
    let none = Table::new();
    let w = pod("w", "  labels: {app: web}\n");
    let both = format!("{}---\n{}", taker("s"), taker("t"));
    let clashes = ["s.yaml address-clash", "s.yaml port-clash"];
    let reported = |text: &str| by_rule(&found(&[("s.yaml", text), ("w.yaml", &w)], &none));
    assert_eq!(reported(&both), clashes);
    let with_typo = reported(&format!("{both}---\n{TYPO}"));
    assert_eq!(with_typo[..2], clashes);
    assert!(with_typo[2..].iter().all(|one| !one.contains("clash")), "{with_typo:?}");
    let circle = format!("{}---\n{}", after("p5", "Pod/p6, Pod/nope"), after("p6", "Pod/p5"));
    assert_eq!(
        reported(&circle),
        ["s.yaml dependency-cycle", "s.yaml dangling-target", "s.yaml dependency-cycle"],
        "in the order of places"
    );
}

/// Seen red with the file of a clash that is only reported here put into quarantine, and with the old object of a
/// quarantined file taken for its new content.
#[test]
fn what_is_wrong_with_a_file_in_quarantine_is_not_the_fault_of_another() {
    let none = Table::new();
    let w = pod("w", "  labels: {app: web}\n");
    let broken = format!("{}---\n{TYPO}", taker("a"));
    // The first by name can't be applied, so the other gets the address and port.
    let other = taker("b");
    let all = found(&[("a.yaml", &broken), ("b.yaml", &other), ("w.yaml", &w)], &none);
    let reported = by_rule(&all);
    assert!(reported.iter().all(|one| one.starts_with("a.yaml ")), "{all:?}");
    assert_eq!(reported.iter().filter(|one| one.ends_with("-clash")).count(), 2, "{all:?}");
    // A cycle through a quarantined file is reported there.
    let broken = format!("{}---\n{TYPO}", after("p", "Pod/q"));
    let before = live("main", &[("p.yaml", &pod("p", ""))]);
    let all = found(&[("p.yaml", &broken), ("q.yaml", &after("q", "Pod/p"))], &before);
    let reported = by_rule(&all);
    assert!(reported.contains(&"p.yaml dependency-cycle".to_owned()), "{all:?}");
    assert!(reported.iter().all(|one| one.starts_with("p.yaml ")), "{all:?}");
    // A swap between two files that can't be applied clashes with nothing.
    let before = live("main", &[("a.yaml", &service("a", 30001)), ("b.yaml", &service("b", 30002))]);
    let (a, b) = (service("a", 30002), service("b", 30001));
    let files = [format!("{a}---\n{TYPO}"), format!("{b}---\n{}", TYPO.replace("typo", "typo2"))];
    let all = found(&[("a.yaml", &files[0]), ("b.yaml", &files[1]), ("w.yaml", &w)], &before);
    assert!(all.iter().all(|one| !one.contains("clash")), "{all:?}");
}

fn on_port(kind: &str, name: &str, node: &str, port: u16) -> String {
    let node = if node.is_empty() { String::new() } else { format!("nodeName: {node}, ") };
    let spec = format!(
        "{{{node}containers: [{{name: m, image: i, ports: [{{containerPort: 80, hostPort: {port}}}]}}]}}"
    );
    match kind {
        "Pod" => pod(name, "").replace("{containers: [{name: m, image: i}]}", &spec),
        _ => format!(
            "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec: {spec}\n"
        ),
    }
}

/// Seen red without the ports of templates, and with service ports and pod ports treated as separate.
#[test]
fn a_port_of_a_node_has_one_owner_whatever_takes_it() {
    let none = Table::new();
    let w = pod("w", "  labels: {app: web}\n");
    let clash = |one: &str, two: &str, live: &Table<ObjectRef, Object>| {
        found(&[("a.yaml", one), ("b.yaml", two), ("w.yaml", &w)], live)
    };
    let (bare, many) = (on_port("Pod", "p", "n1", 8080), on_port("ReplicaSet", "s", "n1", 8080));
    assert_eq!(
        clash(&bare, &many, &none),
        [
            "b.yaml: port-clash: spec.template.spec.containers[0].ports[0].hostPort: the host port 8080/TCP of node n1 belongs to Pod/default/p (a.yaml:1)"
        ]
    );
    // On another node, on whichever node is free, or with no pod at all.
    for other in [
        on_port("ReplicaSet", "s", "n2", 8080),
        on_port("ReplicaSet", "s", "", 8080),
        many.replace("spec:\n  sel", "spec:\n  replicas: 0\n  sel"),
    ] {
        assert_eq!(clash(&bare, &other, &none), [""; 0], "{other}");
    }
    // A service has its port on every node.
    for taker in [on_port("Pod", "p", "n1", 30001), on_port("ReplicaSet", "p", "", 30001)] {
        let node_port = service("s", 30001);
        let all = clash(&node_port, &taker, &none);
        assert!(all.len() == 1 && all[0].starts_with("b.yaml: port-clash: spec."), "{all:?}");
        assert!(
            all[0].ends_with("hostPort: the node port 30001/TCP belongs to Service/default/s (a.yaml:1)"),
            "{all:?}"
        );
        let all = clash(&taker, &node_port, &none);
        assert!(
            all.len() == 1 && all[0].starts_with("b.yaml: port-clash: spec.ports[0].nodePort"),
            "{all:?}"
        );
        let all = clash(&taker, &node_port, &live("main", &[("b.yaml", &node_port)]));
        assert!(all.len() == 1 && all[0].starts_with("a.yaml: port-clash"), "{all:?}");
        assert_eq!(clash(&taker, &service("s", 30002), &none), [""; 0]);
    }
}
