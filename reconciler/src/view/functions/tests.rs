//! Rows of `get functions` and `top functions`.

use schema::records::NodeDemand;

use super::*;
use crate::view::testing::*;

fn put_demand(snapshot: &mut Snapshot, node: &str, of: &str, demand: FunctionDemand) {
    let functions = [(of.to_owned(), demand)].into();
    let (beats, failures) = (BTreeMap::new(), BTreeMap::new());
    let demand = NodeDemand { at: None, since: at(0), functions, beats, failures };
    snapshot.demand.insert(node.to_owned(), versioned(demand));
}

#[test]
fn calls_through_all_living_gateways_add_up_and_their_mean_is_by_how_many_each_had() {
    let mut snapshot = snapshot();
    put_function(&mut snapshot, "busy");
    put_function(&mut snapshot, "idle");
    for node in ["n2", "silent"] {
        put_node(&mut snapshot, node);
    }
    snapshot.heartbeats.remove("silent");
    let demand = |in_flight, answered_milli, mean_micros| FunctionDemand {
        waiting: 1,
        in_flight,
        answered_milli,
        mean_micros,
        ..FunctionDemand::default()
    };
    put_demand(&mut snapshot, "n1", "default/busy", demand(2, 3_000, 1_000));
    put_demand(&mut snapshot, "n2", "default/busy", demand(3, 1_000, 5_000));
    put_demand(&mut snapshot, "silent", "default/busy", demand(50, 9_000, 9_000));
    let all = Selection { source: None, kind: None, namespace: Some("default"), labels: None };
    let rows = functions(&snapshot, &all, at(100));
    let [busy, idle] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((busy.name.as_str(), busy.waiting, busy.in_flight), ("busy", 2, 5));
    assert_eq!((busy.calls_per_second, busy.mean_millis), (4.0, Some(2.0)));
    assert_eq!((idle.name.as_str(), idle.calls_per_second, idle.mean_millis), ("idle", 0.0, None));
}

#[test]
fn only_functions_for_others_are_called_in_clear_from_elsewhere() {
    let mut snapshot = snapshot();
    put_function(&mut snapshot, "price");
    let id = NamespacedName::new("default", "price");
    let detail = function(&snapshot, &id, Vec::new(), at(100)).unwrap();
    let here =
        "POST http://localhost:8081/default/price on a node; elsewhere by 'minik8s invoke default/price'";
    assert_eq!(detail.called_at(), here);
    let (any, key) = ("POST http://<any node>:8081/default/price", r#"{"name": "door", "key": "token"}"#);
    for (more, wanted) in [
        (r#""public": true"#.to_owned(), any.to_owned()),
        (format!(r#""auth": {{"tokenFrom": {{"secretKeyRef": {key}}}}}"#), format!("{any}, with its token")),
    ] {
        let spec = serde_json::from_str(&format!(r#"{{"source": "code", {more}}}"#)).unwrap();
        assert_eq!(FunctionDetail { spec, ..detail.clone() }.called_at(), wanted);
    }
}
