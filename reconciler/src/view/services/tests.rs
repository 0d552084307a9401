//! Rows and pages of services, and of hosts.

use jiff::Timestamp;
use schema::codec::encode;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::snapshot::{Change, Snapshot};
use schema::testing::node_record;
use serde_json::{Value, json};

use super::*;

fn put(snapshot: &mut Snapshot, key: &str, value: &Value) {
    snapshot.revision += 1;
    let (create_revision, mod_revision) = (1, snapshot.revision);
    let value = encode(value).unwrap().into();
    snapshot.apply(&Change::Put { key: format!("/minik8s/{key}"), value, create_revision, mod_revision });
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        "hash": "00", "generation": 1,
        "provenance": {"source": "main", "commit": "c0ffee", "author": "Ada", "file": "a.yaml", "line": 3},
    })
}

fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let spec =
        json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30080}]});
    put(&mut snapshot, "objects/Service/default/web", &object("Service", "web", &spec));
    for node in ["a", "b", "c", "d", "e", "f"] {
        put(&mut snapshot, &format!("nodes/{node}"), &json!(node_record(node)));
    }
    snapshot
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

// Seen red with no name beside the type.
#[test]
fn an_alias_is_well_and_says_of_what() {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let spec = json!({"type": "ExternalName", "externalName": "www.example.com"});
    put(&mut snapshot, "objects/Service/default/outer", &object("Service", "outer", &spec));
    put(
        &mut snapshot,
        "services/default/outer",
        &json!({"hash": "00", "externalName": "www.example.com", "ports": []}),
    );
    let [row] = services(&snapshot, &Selection::default(), now()).try_into().unwrap();
    assert_eq!((row.kind.as_str(), row.external_name.as_str()), ("ExternalName", "www.example.com"));
    assert_eq!((row.health.as_str(), row.cluster_ip.as_str(), row.note.as_str()), ("Healthy", "", ""));
}

fn id() -> NamespacedName {
    NamespacedName::new("default", "web")
}

#[test]
fn a_service_says_what_it_has_who_is_behind_it_and_which_nodes_know_it() {
    let mut snapshot = snapshot();
    let all = Selection::default();
    let [before] = services(&snapshot, &all, now()).try_into().unwrap();
    assert_eq!((before.health.as_str(), before.note.as_str()), ("Progressing", "no cluster IP yet"));
    let record = json!({
        "hash": "00",
        "clusterIP": "10.96.0.20",
        "ports": [{"protocol": "TCP", "port": 80, "nodePort": 30080}],
        "endpoints": [{"address": "10.244.1.2", "ports": [8080], "node": "a", "pod": "web-1"}],
        "leftOut": [{"pod": "web-2", "why": "it is not ready"}], "leftOutCount": 1,
    });
    put(&mut snapshot, "services/default/web", &record);
    let revision = snapshot.revision;
    let at = now() - jiff::SignedDuration::from_secs(12);
    put(&mut snapshot, "rules/a", &json!({"revision": revision, "programmedAt": at}));
    put(&mut snapshot, "rules/b", &json!({"revision": revision - 1}));
    put(&mut snapshot, "rules/c", &json!({"revision": 1, "error": "no iptables"}));
    put(&mut snapshot, "rules/e", &json!({"revision": revision, "leftOut": {"default/other": "no such"}}));
    put(&mut snapshot, "rules/f", &json!({"revision": revision, "leftOut": {"default/web": "bad rule"}}));
    let page = service(&snapshot, &id(), Vec::new(), now()).unwrap();
    assert_eq!(page.row.ports, ["80:30080/TCP"]);
    assert_eq!((page.row.ready, page.row.left_out, page.row.health.as_str()), (1, 1, "Healthy"));
    assert_eq!(page.endpoints[0].addresses, ["10.244.1.2:8080"]);
    let nodes: Vec<_> = page.nodes.iter().map(|one| (one.node.as_str(), one.state.as_str())).collect();
    let left_out = "left out, retried when it changes or after a minute: bad rule";
    let wanted = [
        ("a", "programmed"),
        ("b", "behind"),
        ("c", "no iptables"),
        ("d", "nothing yet"),
        ("e", "programmed"),
        ("f", left_out),
    ];
    assert_eq!(nodes, wanted);
    // A record of an older agent has no time.
    let times: Vec<_> = page.nodes.iter().map(|one| (one.programmed_at, one.age.as_str())).collect();
    assert_eq!(times[..2], [(Some(at), "12s"), (None, "")]);
    assert_eq!(endpoints(&snapshot, &all, now())[0].endpoints, ["10.244.1.2:8080"]);
    let elsewhere = Selection { namespace: Some("other"), ..Selection::default() };
    assert!(services(&snapshot, &elsewhere, now()).is_empty());
    assert!(service(&snapshot, &NamespacedName::new("default", "no"), Vec::new(), now()).is_none());
}

#[test]
fn a_host_says_where_its_paths_lead_and_which_lead_nowhere() {
    let mut snapshot = snapshot();
    let spec =
        json!({"host": "shop.example", "paths": [{"path": "/a", "service": {"name": "web", "port": 80}}]});
    put(&mut snapshot, "objects/Dns/default/shop", &object("Dns", "shop", &spec));
    let [row] = routes(&snapshot, &Selection::default(), now()).try_into().unwrap();
    assert_eq!((row.host.as_str(), row.health.as_str()), ("shop.example", "Progressing"));
    let path = json!({"path": "/a", "service": "web", "port": 80, "broken": "service web does not exist"});
    put(
        &mut snapshot,
        &Key::Route(NamespacedName::new("default", "shop")).to_string()["/minik8s/".len()..],
        &json!({"hash": "00", "host": "shop.example", "paths": [path]}),
    );
    let [row] = routes(&snapshot, &Selection::default(), now()).try_into().unwrap();
    assert_eq!(row.paths, ["/a -> web:80"]);
    let shared = json!({"path": "/b", "backends": [
        {"service": "web", "port": 80, "weight": 9}, {"function": "hello", "broken": "there is no function hello"},
    ]});
    let mut with_shared = snapshot.clone();
    put(
        &mut with_shared,
        &Key::Route(NamespacedName::new("default", "shop")).to_string()["/minik8s/".len()..],
        &json!({"hash": "00", "host": "shop.example", "paths": [shared]}),
    );
    let [two] = routes(&with_shared, &Selection::default(), now()).try_into().unwrap();
    assert_eq!(two.paths, ["/b -> web:80 90%, function hello 10%"]);
    assert_eq!(two.note, "/b: there is no function hello");
    assert_eq!((row.health.as_str(), row.note.as_str()), ("Degraded", "/a: service web does not exist"));
}
