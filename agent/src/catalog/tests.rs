//! Catalog entries that stay although etcd does not list them, and entries that leave.

use jiff::{SignedDuration, Timestamp};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{ClusterSettings, NodeRecord, ServiceRecord, Vtep};
use schema::snapshot::{Change, Snapshot};
use schema::testing::{node_record, subnet};
use serde::Serialize;
use serde_json::json;

use super::{Catalog, CatalogDisk, CatalogStore, PEER_GRACE};
use crate::desired::StateOrigin;

fn put(snapshot: &mut Snapshot, key: &Key, value: &impl Serialize) {
    snapshot.put(key, value, snapshot.revision + 1);
}

fn remove(snapshot: &mut Snapshot, key: &Key) {
    snapshot.apply(&Change::Delete { key: key.to_string() });
}

fn web() -> NamespacedName {
    NamespacedName::new("default", "web")
}

fn node(snapshot: &mut Snapshot, name: &str, number: u8) {
    let address = [192, 0, 2, number];
    let vtep = Some(Vtep { address: address.into(), mac: "0a:58:0a:f4:00:00".to_owned() });
    let record = NodeRecord { addresses: vec![address.into()], vtep, ..node_record(name) };
    put(snapshot, &Key::Node(name.to_owned()), &record);
    put(snapshot, &Key::Subnet(name.to_owned()), &subnet(&format!("10.244.{number}.0/24")));
}

/// A complete snapshot with one service and two nodes, the first of which is this node.
fn complete() -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    node(&mut snapshot, "a", 1);
    node(&mut snapshot, "b", 2);
    put(&mut snapshot, &Key::Service(web()), &json!({"clusterIP": "10.96.0.20", "ports": []}));
    put(&mut snapshot, &Key::Settled("a".to_owned()), &json!({"commits": {}}));
    snapshot
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

// Seen red without `!settled ||` in `read`.
#[test]
fn what_an_etcd_that_was_lost_lacks_stays_until_it_is_complete() {
    let mut store = CatalogStore::new("a", None);
    assert!(!store.accept(&Snapshot::default(), at(0)), "nothing is listed");
    assert!(store.accept(&complete(), at(0)));
    assert_eq!(store.current().services[&web()].value.cluster_ip, Some("10.96.0.20".parse().unwrap()));
    let mut lost = Snapshot { synced: true, ..Snapshot::default() };
    store.accept(&lost, at(1));
    assert!(store.current().services.contains_key(&web()) && store.current().peers.contains_key("b"));
    put(&mut lost, &Key::Settled("a".to_owned()), &json!({"commits": {}}));
    assert!(store.accept(&lost, at(2)));
    assert!(store.current().services.is_empty());
}

// Seen red without `.or` in `read`.
#[test]
fn this_nodes_own_address_follows_its_record_and_outlives_it() {
    let mut store = CatalogStore::new("a", None);
    let mut snapshot = complete();
    store.accept(&snapshot, at(0));
    assert_eq!(store.current().own_address, Some("192.0.2.1".parse().unwrap()));
    node(&mut snapshot, "a", 9);
    assert!(store.accept(&snapshot, at(1)));
    assert_eq!(store.current().own_address, Some("192.0.2.9".parse().unwrap()));
    remove(&mut snapshot, &Key::Node("a".to_owned()));
    store.accept(&snapshot, at(2));
    assert_eq!(store.current().own_address, Some("192.0.2.9".parse().unwrap()));
}

// Seen red with the defaults in place of missing settings.
#[test]
fn settings_outlive_their_key_and_the_agent() {
    let mut store = CatalogStore::new("a", None);
    let mut snapshot = complete();
    let mut settings = ClusterSettings { generation: 3, ..ClusterSettings::default() };
    settings.spec.dns.zone = "mini.lan".to_owned();
    put(&mut snapshot, &Key::Settings, &json!(settings));
    assert!(store.accept(&snapshot, at(0)));
    remove(&mut snapshot, &Key::Settings);
    assert!(!store.accept(&snapshot, at(1)));
    assert_eq!(store.current().settings, settings);
    let folder = tempfile::tempdir().unwrap();
    CatalogDisk::open(folder.path()).0.store(store.current()).unwrap();
    assert_eq!(CatalogDisk::open(folder.path()).1.unwrap().settings, settings);
    put(&mut snapshot, &Key::Settings, &json!(ClusterSettings::default()));
    assert!(store.accept(&snapshot, at(2)));
    assert_eq!(store.current().settings, ClusterSettings::default());
}

// Seen red without `with_endpoints`.
#[test]
fn a_service_whose_pods_are_not_bound_again_yet_keeps_its_endpoints() {
    let endpoint = json!({"address": "10.244.1.2", "ports": [80]});
    let record = |endpoints: &[serde_json::Value]| json!({"clusterIP": "10.96.0.20", "ports": [], "endpoints": endpoints});
    let mut snapshot = complete();
    put(&mut snapshot, &Key::Service(web()), &record(std::slice::from_ref(&endpoint)));
    let mut store = CatalogStore::new("a", None);
    store.accept(&snapshot, at(0));
    let mut lost = Snapshot { synced: true, ..Snapshot::default() };
    put(&mut lost, &Key::Service(web()), &record(&[]));
    store.accept(&lost, at(1));
    assert_eq!(store.current().services[&web()].value.endpoints.len(), 1);
    put(&mut lost, &Key::Settled("a".to_owned()), &json!({"commits": {}}));
    store.accept(&lost, at(2));
    assert!(store.current().services[&web()].value.endpoints.is_empty(), "now it is said for certain");
}

#[test]
fn a_value_that_cannot_be_read_keeps_its_last_form_and_what_is_removed_goes_at_once() {
    let mut store = CatalogStore::new("a", None);
    let mut snapshot = complete();
    store.accept(&snapshot, at(0));
    put(&mut snapshot, &Key::Service(web()), &json!({"clusterIP": 7}));
    assert!(!store.accept(&snapshot, at(1)), "nothing differs");
    assert!(store.current().services.contains_key(&web()));
    remove(&mut snapshot, &Key::Service(web()));
    assert!(store.accept(&snapshot, at(2)));
    assert!(store.current().services.is_empty());
}

// Seen red without the grace period in `peers`.
#[test]
fn a_node_that_is_gone_is_sent_packets_for_a_while_unless_another_has_its_range() {
    let mut store = CatalogStore::new("a", None);
    let mut snapshot = complete();
    store.accept(&snapshot, at(0));
    assert_eq!(store.current().peers.keys().collect::<Vec<_>>(), ["b"], "not ourselves");
    remove(&mut snapshot, &Key::Node("b".to_owned()));
    store.accept(&snapshot, at(10));
    assert_eq!(store.current().peers["b"].absent_since, Some(at(10)));
    assert!(!store.accept(&snapshot, at(11)));
    let over = at(10) + PEER_GRACE;
    assert!(!store.accept(&snapshot, over - SignedDuration::from_secs(1)));
    assert!(store.accept(&snapshot, over));
    assert!(store.current().peers.is_empty());

    let mut store = CatalogStore::new("a", None);
    let mut snapshot = complete();
    store.accept(&snapshot, at(0));
    remove(&mut snapshot, &Key::Node("b".to_owned()));
    node(&mut snapshot, "c", 2);
    store.accept(&snapshot, at(1));
    assert_eq!(store.current().peers.keys().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn the_next_agent_knows_from_the_disk_what_this_one_knew() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = CatalogStore::new("a", None);
    store.accept(&complete(), at(0));
    let (disk, nothing) = CatalogDisk::open(folder.path());
    assert_eq!(nothing, None);
    disk.store(store.current()).unwrap();
    let (_, loaded) = CatalogDisk::open(folder.path());
    let Catalog { known_from, services, peers, own_address, .. } = loaded.clone().unwrap();
    assert_eq!((known_from, &peers), (StateOrigin::Disk, &store.current().peers));
    assert_eq!(own_address, Some("192.0.2.1".parse().unwrap()));
    let values = |table: &schema::snapshot::Table<NamespacedName, ServiceRecord>| {
        table.iter().map(|(id, value)| (id.clone(), value.value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(values(&services), values(&store.current().services));
    // A comparison by identity finds no change when etcd lists the same.
    let mut next = CatalogStore::new("a", loaded);
    assert!(next.accept(&complete(), at(1)), "it is etcd that speaks now");
    assert!(next.current().services.ptr_eq(&services));
    std::fs::write(folder.path().join("catalog.json"), "{").unwrap();
    assert!(CatalogDisk::open(folder.path()).1.is_none());
}
