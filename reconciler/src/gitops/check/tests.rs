//! Owners of objects, and findings of the check of a commit.

use schema::object::Provenance;
use schema::snapshot::VersionedValue;

use super::link_tests::{self, by_rule, dns, found, service};
use super::*;
use schema::manifest::load_file as parse;

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: m, image: i}}]}}\n"
    )
}

fn load(files: &[(&str, String)]) -> Manifests {
    files.iter().map(|(path, text)| (Arc::from(*path), Arc::new(parse(path, text.as_bytes())))).collect()
}

/// Live objects from `(name, source, file)`.
fn live(objects: &[(&str, &str, &str)]) -> Table<ObjectRef, Object> {
    let mut table = Table::new();
    for (name, source, file) in objects {
        let parsed = parse("x.yaml", pod(name).as_bytes());
        let draft = (*parsed.documents[0].object).clone();
        let (source, file) = ((*source).to_owned(), (*file).to_owned());
        let value = draft.into_object(Provenance { source, file, line: 1, ..Provenance::default() }, 1);
        table.insert(
            value.reference(),
            Arc::new(VersionedValue { value, create_revision: 1, mod_revision: 1 }),
        );
    }
    table
}

/// `(files, live objects, files wanted with their objects, quarantined files with their rules)`.
type Row<'a> = (&'a [(&'a str, String)], &'a [(&'a str, &'a str, &'a str)], &'a [&'a str], &'a [&'a str]);

fn check_row((files, objects, wanted, quarantined): Row<'_>) {
    let (manifests, live) = (load(files), live(objects));
    let documents = Documents::from_manifests("main", &manifests, &live);
    let checked = finish(&documents, fit(&documents, "main", &live, &CommitLimits::default(), ""));
    let found: Vec<_> =
        checked.wanted.iter().map(|(o, declared)| format!("{}:{}", declared.file, o.name)).collect();
    assert_eq!(found, wanted, "{files:?}");
    let rules =
        |violations: &Vec<Violation>| violations.iter().map(|v| v.rule.clone()).collect::<Vec<_>>().join(",");
    let found: Vec<_> = checked.quarantined.iter().map(|(file, v)| format!("{file}:{}", rules(v))).collect();
    assert_eq!(found, quarantined, "{files:?}");
}

#[test]
fn the_first_of_two_new_files_has_the_object() {
    let both = [("a.yaml", pod("x")), ("b.yaml", pod("x"))];
    check_row((&both, &[], &["a.yaml:x"], &["b.yaml:duplicate-object"]));
}

#[test]
fn the_present_file_of_an_object_keeps_it() {
    let both = [("a.yaml", pod("x")), ("b.yaml", pod("x"))];
    check_row((&both, &[("x", "main", "b.yaml")], &["b.yaml:x"], &["a.yaml:duplicate-object"]));
}

#[test]
fn an_object_twice_in_one_file_quarantines_it_with_all_it_holds() {
    let twice = [("a.yaml", format!("{}---\n{}---\n{}", pod("x"), pod("y"), pod("x"))), ("b.yaml", pod("z"))];
    check_row((&twice, &[], &["b.yaml:z"], &["a.yaml:duplicate-object"]));
}

/// A pod that names no image.
fn broken(name: &str) -> String {
    pod(name).replace(", image: i", "")
}

#[test]
fn a_second_object_of_a_name_is_reported_also_when_the_first_is_broken() {
    let both = [("a.yaml", broken("x")), ("b.yaml", pod("x"))];
    check_row((&both, &[], &[], &["a.yaml:missing-field", "b.yaml:duplicate-object"]));
    let in_one = [("a.yaml", format!("{}---\n{}", broken("x"), pod("x")))];
    for live in [&[][..], &[("x", "main", "a.yaml")]] {
        check_row((&in_one, live, &[], &["a.yaml:missing-field,duplicate-object"]));
    }
    let second = [("a.yaml", pod("x")), ("b.yaml", broken("x"))];
    check_row((&second, &[], &["a.yaml:x"], &["b.yaml:duplicate-object,missing-field"]));
    let of_another = [("x", "other", "z.yaml")];
    check_row((&both[..1], &of_another, &[], &["a.yaml:owned-by-other-source,missing-field"]));
}

#[test]
fn an_object_may_move_to_another_file() {
    let moved = [("b.yaml", pod("x"))];
    check_row((&moved, &[("x", "main", "a.yaml")], &["b.yaml:x"], &[]));
}

#[test]
fn nobody_takes_an_object_from_a_file_that_cannot_be_read() {
    let broken = [("a.yaml", "kind: Pod\nspec: [".to_owned()), ("b.yaml", pod("x"))];
    let (manifests, live) = (load(&broken), live(&[("x", "main", "a.yaml")]));
    let documents = Documents::from_manifests("main", &manifests, &live);
    let checked = finish(&documents, fit(&documents, "main", &live, &CommitLimits::default(), ""));
    assert!(checked.wanted.is_empty());
    assert_eq!(checked.quarantined.keys().map(|file| &**file).collect::<Vec<_>>(), ["a.yaml", "b.yaml"]);
    assert_eq!(checked.quarantined["b.yaml"][0].rule, "owner-unreadable");
}

#[test]
fn an_object_of_another_source_is_refused() {
    let files = [("a.yaml", pod("x")), ("b.yaml", pod("y"))];
    let row: Row<'_> =
        (&files, &[("x", "other", "z.yaml")], &["b.yaml:y"], &["a.yaml:owned-by-other-source"]);
    check_row(row);
}

#[test]
fn a_file_that_stops_being_a_manifest_is_no_removal() {
    let emptied = [("a.yaml", String::new()), ("b.yaml", pod("y"))];
    let row: Row<'_> = (&emptied, &[("x", "main", "a.yaml")], &["b.yaml:y"], &["a.yaml:manifest-vanished"]);
    check_row(row);
    let of_another = [("x", "other", "a.yaml")];
    check_row((&emptied, &of_another, &["b.yaml:y"], &[]));
}

/// Seen red without `allowed`; would fail with objects of the whole cluster taken for those of the default namespace.
#[test]
fn an_object_outside_of_what_its_source_may_hold_is_refused() {
    let of_cluster =
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec: {}\n".to_owned();
    let elsewhere = pod("y").replace("{name: y}", "{name: y, namespace: shop}");
    let files = [("cluster.yaml", of_cluster), ("pod.yaml", pod("x")), ("shop.yaml", elsewhere)];
    let (manifests, none) = (load(&files), Table::new());
    let documents = Documents::from_manifests("main", &manifests, &none);
    let refused = |kinds: &[Kind], namespaces: &[&str]| -> Vec<String> {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let allow = AllowedObjects { kinds: kinds.to_vec(), namespaces };
        let limits = CommitLimits { allow, ..CommitLimits::default() };
        let checked = finish(&documents, fit(&documents, "main", &none, &limits, ""));
        let violations = checked.quarantined.values().flatten();
        violations.map(|v| format!("{}:{} {}: {}", v.file, v.line, v.rule, v.message)).collect()
    };
    let rule = "not-allowed";
    let holds = format!("{rule}: Forbidden: source `main` may not hold");
    assert_eq!(refused(&[], &[]), [""; 0]);
    assert_eq!(refused(&[Kind::Cluster, Kind::Pod], &["default", "shop"]), [""; 0]);
    assert_eq!(
        refused(&[Kind::Pod], &[]),
        [format!("cluster.yaml:1 {holds} a Cluster; its `allow.kinds` are Pod")]
    );
    let outside = "a Cluster, which is in none of its `allow.namespaces`, and not in its `allow.kinds`";
    assert_eq!(
        refused(&[], &["default"]),
        [
            format!("cluster.yaml:1 {holds} {outside}"),
            format!("shop.yaml:1 {holds} namespace `shop`; its `allow.namespaces` are default")
        ]
    );
}

fn rules_broken(files: &[(&str, &str)], live: &Table<ObjectRef, Object>) -> Vec<String> {
    by_rule(&found(files, live))
}

#[test]
fn what_follows_from_a_file_with_errors_is_no_error_of_another() {
    let none = Table::new();
    let (web, route) = (service("web", 30001), dns("d", "a.example", "web", "80"));
    // A text that can't be parsed may hold what it names.
    let broken = web.replace("spec:", "spec: [");
    let all = found(&[("d.yaml", &route), ("s.yaml", &broken)], &none);
    assert_eq!(by_rule(&all), ["d.yaml depends-on-quarantined", "s.yaml yaml-syntax"], "{all:?}");
    assert!(
        all[0].ends_with("there is no Service/default/web, unless s.yaml has it, which can't be read"),
        "{all:?}"
    );
    let other = dns("d", "a.example", "wbe", "80");
    let all = rules_broken(&[("d.yaml", &other), ("s.yaml", &broken)], &none);
    assert_eq!(all, ["d.yaml dangling-target", "s.yaml yaml-syntax"]);
    // A document with errors may add the port.
    let more = web.replace("nodePort: 30001", "nodPort: 30001\n  - port: 81\n    name: more");
    let before = link_tests::live("main", &[("s.yaml", &web)]);
    let pods = link_tests::pod("w", "  labels: {app: web}\n");
    let route = dns("d", "a.example", "web", "81");
    let all = rules_broken(&[("d.yaml", &route), ("s.yaml", &more), ("w.yaml", &pods)], &before);
    assert_eq!(all, ["d.yaml depends-on-quarantined", "s.yaml unknown-field"]);
    let all = rules_broken(&[("d.yaml", &route), ("s.yaml", &web), ("w.yaml", &pods)], &before);
    assert_eq!(all, ["d.yaml dangling-target"]);
    // A selector matches the pods of a file with errors, as far as these can be read.
    let selects = |pods: &str| rules_broken(&[("p.yaml", pods), ("s.yaml", &web)], &none);
    assert_eq!(selects(&pods.replace("image:", "imagee:")), ["p.yaml unknown-field"]);
    assert_eq!(selects(&pods.replace("]}", "]")), ["p.yaml yaml-syntax"]);
    let other = pods.replace("app: web", "app: shop").replace("image:", "imagee:");
    assert_eq!(selects(&other), ["p.yaml unknown-field", "s.yaml selector-matches-nothing"]);
}
