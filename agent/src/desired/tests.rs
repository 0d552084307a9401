//! Desired state from etcd and from disk, and state that neither can provide.

use std::fs;

use schema::kinds::pod::PodSpec;
use schema::meta::NamespacedName;
use schema::records::{Binding, PodInstance, SettledRecord};
use schema::snapshot::Snapshot;
use schema::testing::{instance, subnet, versioned};

use super::{DesiredStore, StateOrigin};

fn binding(namespace: &str, name: &str) -> Binding {
    let pod = PodInstance { namespace: namespace.into(), ..instance(name, PodSpec::default()) };
    schema::testing::binding("n1", &pod)
}

fn snapshot(revision: i64, bindings: &[Binding]) -> Snapshot {
    let mut snapshot = Snapshot { revision, synced: true, ..Snapshot::default() };
    for binding in bindings {
        snapshot.bindings.insert(("n1".into(), binding.pod.reference()), versioned(binding.clone()));
    }
    let mut other = binding("default", "elsewhere");
    other.node = "n0".into();
    snapshot.bindings.insert(("n0".into(), other.pod.reference()), versioned(other.clone()));
    snapshot.bindings.insert(("n2".into(), other.pod.reference()), versioned(other));
    snapshot.subnets.insert("n1".into(), versioned(subnet("10.244.3.0/24")));
    snapshot.settled.insert("n1".into(), versioned(SettledRecord::default()));
    snapshot
}

#[test]
fn what_etcd_said_is_known_without_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let pods = [binding("default", "web"), binding("a_b", "c_d"), binding("long", &"x".repeat(250))];
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    assert_eq!(store.current().known_from, StateOrigin::Unknown);
    store.take(&snapshot(1, &pods)).unwrap();
    let from_etcd = store.current().clone();
    assert_eq!(from_etcd.pods.len(), 3);
    let again = DesiredStore::open(folder.path(), "n1").unwrap();
    assert_eq!(again.current().known_from, StateOrigin::Disk);
    assert_eq!(again.current().pods, from_etcd.pods);
    assert_eq!(again.current().subnet, from_etcd.subnet);
    // Bindings removed from etcd also leave the disk.
    store.take(&snapshot(2, &pods[..1])).unwrap();
    assert_eq!(DesiredStore::open(folder.path(), "n1").unwrap().current().pods.len(), 1);
}

#[test]
fn a_binding_that_comes_later_than_a_newer_revision_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    store.take(&snapshot(1000, &[binding("default", "web")])).unwrap();
    store.take(&snapshot(1000, &[binding("default", "web"), binding("default", "late")])).unwrap();
    assert_eq!(store.current().pods.len(), 2);
}

#[test]
fn an_unlisted_world_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    store.take(&snapshot(1, &[binding("default", "web")])).unwrap();
    store.take(&Snapshot { revision: 2, ..Snapshot::default() }).unwrap();
    assert_eq!(store.current().pods.len(), 1);
}

#[test]
fn a_corrupt_file_keeps_its_pod_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    store.take(&snapshot(1, &[binding("default", "web"), binding("default", "db")])).unwrap();
    fs::write(folder.path().join("agent/desired/default_web.json"), b"{\"node\": \"n1\", \"po").unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    let web = NamespacedName::new("default", "web");
    assert!(store.current().unreadable[&web].contains("default_web.json"), "{:?}", store.current());
    assert_eq!(store.current().pods.len(), 1);
    // etcd heals the unreadable binding.
    store.take(&snapshot(2, &[binding("default", "web"), binding("default", "db")])).unwrap();
    assert!(store.current().unreadable.is_empty());
    assert_eq!(DesiredStore::open(folder.path(), "n1").unwrap().current().pods.len(), 2);
}

#[test]
fn a_binding_that_etcd_garbled_goes_on_in_its_last_readable_form() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    store.take(&snapshot(1, &[binding("default", "web")])).unwrap();
    let mut garbled = snapshot(2, &[]);
    for name in ["web", "new"] {
        garbled.malformed.insert(format!("/minik8s/bindings/n1/default/{name}"), "not JSON".into());
    }
    store.take(&garbled).unwrap();
    assert!(store.current().pods.contains_key(&NamespacedName::new("default", "web")));
    assert!(store.current().unreadable.contains_key(&NamespacedName::new("default", "new")));
    assert!(
        DesiredStore::open(folder.path(), "n1")
            .unwrap()
            .current()
            .pods
            .contains_key(&NamespacedName::new("default", "web"))
    );
}

#[test]
fn an_etcd_that_was_lost_and_is_empty_removes_nothing_until_it_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    store.take(&snapshot(10, &[binding("default", "web"), binding("default", "db")])).unwrap();
    assert!(store.current().is_settled());
    // Empty: even the node's own range is missing.
    store.take(&Snapshot { revision: 1, synced: true, ..Snapshot::default() }).unwrap();
    assert!(!store.current().is_settled());
    assert_eq!(store.current().pods.len(), 2);
    // Half filled: the range is back, and one of the pods.
    let mut half = snapshot(2, &[binding("default", "web")]);
    half.settled.remove("n1");
    store.take(&half).unwrap();
    assert_eq!(store.current().pods.len(), 2);
    // Complete: a missing pod is a removal now.
    store.take(&snapshot(3, &[binding("default", "web")])).unwrap();
    assert!(store.current().is_settled());
    assert_eq!(store.current().pods.len(), 1);
}

// Seen red without `unsaved`.
#[test]
fn the_former_state_stands_while_the_disk_does_not_take_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = DesiredStore::open(folder.path(), "n1").unwrap();
    store.take(&snapshot(1, &[binding("default", "web")])).unwrap();
    let next = snapshot(2, &[binding("default", "web"), binding("default", "new")]);
    assert_eq!(store.read(&next).pods.len(), 2, "what is read is planned on");
    assert_eq!(store.current().pods.len(), 1, "and reading writes nothing");
    let in_the_way = folder.path().join("agent/desired/default_new.json");
    fs::create_dir_all(in_the_way.join("x")).unwrap();
    store.take(&next).unwrap_err();
    assert_eq!(store.read(&next).pods.len(), 1);
    fs::remove_dir_all(&in_the_way).unwrap();
    store.take(&next).unwrap();
    assert!(store.is_taken(&next) && !store.is_unsaved(&next) && store.read(&next).pods.len() == 2);
}
