//! Assignment of pod ranges to nodes.

use schema::keys::Key;
use schema::records::Subnet;
use schema::testing::{CLUSTER_CIDR, SnapshotBuilder, heartbeat, node_record};

use crate::controllers::nodes::plan::plan_subnets;
use crate::controllers::testing::seen;
use crate::controllers::{Observed, Writes};

fn planned(seen: &Observed) -> String {
    let mut out = Writes::default();
    plan_subnets(seen, &mut out);
    out.to_string()
}

fn record(builder: SnapshotBuilder, name: &str) -> SnapshotBuilder {
    builder.put(&Key::Node(name.into()), &node_record(name)).put(&Key::Heartbeat(name.into()), &heartbeat())
}

fn subnet(builder: SnapshotBuilder, name: &str, range: &str) -> SnapshotBuilder {
    let cluster_cidr = CLUSTER_CIDR.parse().unwrap();
    builder.put(&Key::Subnet(name.into()), &Subnet::new(range.parse().unwrap(), cluster_cidr))
}

#[test]
fn every_registered_node_gets_the_lowest_free_range() {
    let builder = record(record(record(SnapshotBuilder::new(), "a"), "b"), "c");
    let builder = subnet(builder, "b", "10.244.1.0/24");
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "put subnets/a if absent: 10.244.0.0/24 is the lowest free range\n\
         put subnets/c if absent: 10.244.2.0/24 is the lowest free range\n"
    );
}

#[test]
fn a_heartbeat_without_a_record_gets_nothing() {
    let builder = SnapshotBuilder::new().put(&Key::Heartbeat("a".into()), &heartbeat());
    assert_eq!(planned(&seen(&builder.snapshot)), "");
}

#[test]
fn a_node_that_left_keeps_its_range() {
    let builder = subnet(SnapshotBuilder::new(), "gone", "10.244.0.0/24");
    let builder = record(builder, "new");
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "put subnets/new if absent: 10.244.1.0/24 is the lowest free range\n"
    );
}

#[test]
fn ranges_of_another_size_are_respected() {
    let builder = subnet(SnapshotBuilder::new(), "wide", "10.244.0.0/23");
    let builder = subnet(builder, "narrow", "10.244.2.128/25");
    let builder = record(builder, "new");
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "put subnets/new if absent: 10.244.3.0/24 is the lowest free range\n"
    );
}

#[test]
fn a_full_cluster_range_says_so() {
    let mut seen = seen(&record(record(SnapshotBuilder::new(), "a"), "b").snapshot);
    seen.settings.cluster_cidr = "10.9.8.0/24".parse().unwrap();
    assert_eq!(
        planned(&seen),
        "put subnets/a if absent: 10.9.8.0/24 is the lowest free range\n\
         note Node/b SubnetsExhausted: no /24 of 10.9.8.0/24 is free, 0 nodes hold them; \
         use a larger --cluster-cidr\n"
    );
}

#[test]
fn of_two_nodes_with_one_range_the_later_one_gets_another() {
    let builder = subnet(SnapshotBuilder::new(), "late", "10.244.9.0/24").delete(&Key::Subnet("late".into()));
    let builder = subnet(builder, "zz-first", "10.244.0.0/24");
    let builder = subnet(builder, "late", "10.244.0.0/24");
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "put subnets/late if at 4: zz-first had the same range first; 10.244.1.0/24 is the lowest free one\n"
    );
}

#[test]
fn a_range_that_cannot_be_read_may_be_any_so_none_is_given_away() {
    let builder = record(record(SnapshotBuilder::new(), "a"), "b").garbage(&Key::Subnet("a".into()));
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "note Node/a Unreadable: the value of /minik8s/subnets/a can't be read; \
         everything that depends on it stays as it is\n"
    );
}

#[test]
fn a_cluster_range_that_grew_is_reported_and_one_that_moved_away_is_not() {
    let builder = subnet(SnapshotBuilder::new(), "a", "10.244.3.0/24");
    let mut grown = seen(&builder.snapshot);
    grown.settings.cluster_cidr = "10.240.0.0/12".parse().unwrap();
    assert_eq!(
        planned(&grown),
        "put subnets/a if at 1: the ranges are now 10.240.0.0/12 for pods and 10.96.0.0/16 for services\n"
    );
    let mut moved = seen(&builder.snapshot);
    moved.settings.cluster_cidr = "10.99.0.0/16".parse().unwrap();
    assert_eq!(
        planned(&moved),
        "note Node/a SubnetOutside: its range 10.244.3.0/24 is outside of the cluster's 10.99.0.0/16 \
         and stays; set --cluster-cidr back, or reset the node\n"
    );
}

#[test]
fn a_node_gets_back_the_range_that_its_pods_have() {
    let mut with_range = node_record("b");
    with_range.pod_cidr = Some("10.244.0.0/24".parse().unwrap());
    let builder = record(SnapshotBuilder::new(), "a").put(&Key::Node("b".into()), &with_range);
    let builder = builder.put(&Key::Heartbeat("b".into()), &heartbeat());
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "put subnets/a if absent: 10.244.1.0/24 is the lowest free range\n\
         put subnets/b if absent: its pods already have 10.244.0.0/24\n"
    );
}

#[test]
fn a_range_that_is_another_nodes_or_not_the_clusters_is_not_given_back() {
    let mut foreign = node_record("b");
    foreign.pod_cidr = Some("10.9.0.0/24".parse().unwrap());
    let mut taken = node_record("c");
    taken.pod_cidr = Some("10.244.0.0/24".parse().unwrap());
    let builder = subnet(record(SnapshotBuilder::new(), "a"), "a", "10.244.0.0/24");
    let builder = builder.put(&Key::Node("b".into()), &foreign).put(&Key::Node("c".into()), &taken);
    let builder =
        builder.put(&Key::Heartbeat("b".into()), &heartbeat()).put(&Key::Heartbeat("c".into()), &heartbeat());
    assert_eq!(
        planned(&seen(&builder.snapshot)),
        "put subnets/b if absent: 10.244.1.0/24 is the lowest free range\n\
         put subnets/c if absent: 10.244.2.0/24 is the lowest free range\n"
    );
}
