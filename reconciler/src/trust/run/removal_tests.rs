//! Tests of removals: keys and certificates that are refused, who comes back, and a name that two machines have.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use schema::codec::decode;
use schema::keys::Key;
use schema::kinds::node::NodeSpec;
use schema::records::{IdentityRecord, NodeRecord, RevokedIdentity, RevokedKey, Roll, TrustRecord};
use schema::store::{Guard, Op};
use schema::testing::{SnapshotBuilder, at, node_record};

use super::plan::{LocalNode, Observed, OwnIdentity, is_here, plan};
use super::tests::*;

// Seen red with a member that restarts before it refuses: whoever held a watch open opens it again.
#[test]
fn the_member_refuses_revoked_certificates_before_it_restarts() {
    let revoked = |serial: &str, end: i64| RevokedIdentity {
        keys: [(format!("sha256:{serial}"), at(end))].into(),
        serials: [(serial.to_owned(), at(end))].into(),
        etcd_member: None,
    };
    let roll = Roll { number: 1, turn: Some("reconciler-r1".to_owned()), why: "to cut watches".to_owned() };
    let record = TrustRecord { roll: Some(roll), ..trust_record() };
    let with = |row: &RevokedIdentity| {
        cluster().put(&Key::RevokedIdentity("node-n1".to_owned()), row).put(&Key::Trust, &record)
    };
    let day = 86_400;
    let refuses = |refused: &[(&str, i64)], row: &RevokedIdentity, now: i64| {
        let mut seen = seen(with(row));
        seen.own.revoked = row.keys.clone();
        let member = seen.own.member.as_mut().unwrap();
        member.refused = refused.iter().map(|(serial, end)| ((*serial).to_owned(), at(*end))).collect();
        let planned = plan(&seen, at(now));
        (planned.refused.map(|refused| refused.into_keys().collect::<Vec<_>>()), planned.restart.is_some())
    };
    let row = revoked("0a", 2 * day);
    assert_eq!(refuses(&[], &row, 10), (Some(vec!["0a".to_owned()]), false));
    assert_eq!(refuses(&[("0a", 2 * day)], &row, 10), (None, true), "it does");
    let lost = RevokedIdentity::default();
    assert_eq!(refuses(&[("0a", 2 * day)], &lost, 10).0, None, "also if etcd has lost the record");
    assert_eq!(refuses(&[("0a", 2 * day)], &lost, 2 * day + 3600).0, Some(Vec::new()), "until it has ended");
}

#[test]
fn a_gone_node_is_removed_with_its_key() {
    let planned = plan(&seen(cluster().object(&gone("n1"))), at(10));
    let [removal] = &planned.removals[..] else { panic!("one removal") };
    let [(_, Op::Put { key, value, .. }), (_, Op::Delete { key: deleted })] = &removal.writes[..] else {
        panic!("a put and a delete")
    };
    assert_eq!((key.as_str(), deleted.as_str()), ("/minik8s/revoked/node-n1", "/minik8s/identities/node-n1"));
    let row: RevokedIdentity = decode(value).unwrap();
    assert_eq!(row.keys, BTreeMap::from([("sha256:n1".to_owned(), at((7 + 365) * 86_400))]));
    let follower = plan(&Observed { leads: false, ..seen(cluster().object(&gone("n1"))) }, at(10));
    assert!(follower.removals.is_empty(), "the leader does it");
}

#[test]
fn revoked_keys_reach_the_record_and_the_own_list_until_they_are_of_no_use() {
    // A node's key can be renewed for a year after the end of its certificate.
    let year = SignedDuration::from_hours(24 * 365);
    let keys = BTreeMap::from([
        ("sha256:n2".to_owned(), at(100) + year),
        ("sha256:ended".to_owned(), at(5) + year),
        ("sha256:old".to_owned(), at(5)),
    ]);
    let builder = cluster().put(&Key::RevokedIdentity("node-n2".to_owned()), &revoked_row(keys));
    let disk = BTreeMap::from([("sha256:lost".to_owned(), at(100))]);
    let seen = Observed { own: OwnIdentity { revoked: disk, ..own() }, ..seen(builder) };
    let planned = plan(&seen, at(10));
    let revoked = |identity: &str| RevokedKey { identity: identity.to_owned(), until: at(100) };
    let expected = BTreeMap::from([
        ("sha256:lost".to_owned(), revoked("unknown")),
        ("sha256:n2".to_owned(), revoked("node-n2")),
    ]);
    assert_eq!(record_of(&planned).revoked, expected);
    let next = planned.trust.expect("what is trusted changes");
    assert_eq!(next.revoked.into_keys().collect::<Vec<_>>(), ["sha256:ended", "sha256:lost", "sha256:n2"]);
    assert_eq!(next.authorities, ["CA1"]);
}

#[test]
fn a_removed_reconciler_does_not_come_back_by_itself() {
    let keys = BTreeMap::from([("sha256:r1".to_owned(), at(100))]);
    let builder =
        SnapshotBuilder::new().put(&Key::RevokedIdentity("reconciler-r1".to_owned()), &revoked_row(keys));
    let planned = plan(&seen(builder), at(10));
    assert_eq!(reasons(&planned), ["ReconcilerRemoved"]);
    assert!(planned.own_record.is_none() && planned.record.is_none() && planned.trust.is_some());
}

// Would fail with others that never learn of it.
#[test]
fn a_leader_that_was_removed_tells_all_and_does_nothing_else() {
    let keys = BTreeMap::from([("sha256:r1".to_owned(), at(100))]);
    let builder = cluster().object(&gone("n1"));
    let builder = builder.put(&Key::RevokedIdentity("reconciler-r1".to_owned()), &revoked_row(keys));
    let planned = plan(&seen(builder), at(10));
    let record = record_of(&planned);
    assert_eq!(record.revoked.keys().collect::<Vec<_>>(), ["sha256:r1"]);
    assert!(record.roll.is_some(), "its watches are cut");
    assert!(planned.is_removed && planned.removals.is_empty() && planned.own_record.is_none());
}

#[test]
fn a_node_whose_key_is_not_that_of_git_is_removed_and_not_restored() {
    let pinned = |key: &str| {
        let spec = NodeSpec { identity: Some(key.to_owned()), ..NodeSpec::default() };
        cluster()
            .node_object("n1", spec)
            .node_object("n2", NodeSpec { identity: Some("sha256:other".to_owned()), ..NodeSpec::default() })
    };
    assert!(plan(&seen(pinned("sha256:n1")), at(10)).removals.is_empty());
    let lost = vec![("node-n2".to_owned(), identity_record("sha256:n2"))];
    let planned = plan(&Observed { lost, ..seen(pinned("sha256:other")) }, at(10));
    let [removal] = &planned.removals[..] else { panic!("one removal") };
    let Some((_, Op::Put { key, .. })) = removal.writes.first() else { panic!("a put") };
    assert_eq!(key, "/minik8s/revoked/node-n1");
    assert!(planned.restored.is_empty());
}

// A key that only the own disk, the record or its identity's row knows as revoked stays so.
#[test]
fn a_lost_identity_comes_back_unless_its_key_is_revoked() {
    let revoked = RevokedKey { identity: "node-n4".to_owned(), until: at(100) };
    let record =
        TrustRecord { revoked: BTreeMap::from([("sha256:n4".to_owned(), revoked)]), ..trust_record() };
    let keys = BTreeMap::from([("sha256:n5".to_owned(), at(100))]);
    let builder = cluster().put(&Key::Trust, &record);
    let builder = builder.put(&Key::RevokedIdentity("node-n5".to_owned()), &revoked_row(keys));
    let on_disk = BTreeMap::from([("sha256:n3".to_owned(), at(100))]);
    let lost = ["n2", "n3", "n4", "n5"]
        .map(|node| (format!("node-{node}"), identity_record(&format!("sha256:{node}"))));
    let seen =
        Observed { lost: lost.to_vec(), own: OwnIdentity { revoked: on_disk, ..own() }, ..seen(builder) };
    let restored = plan(&seen, at(10)).restored;
    let [group] = &restored[..] else { panic!("one alone: {restored:?}") };
    let [(_, Op::Put { key, .. })] = &group[..] else { panic!("a put") };
    assert_eq!(key, "/minik8s/identities/node-n2");
    assert!(plan(&Observed { leads: false, ..seen }, at(10)).restored.is_empty(), "the leader does it");
}

#[test]
fn a_node_whose_disk_was_lost_gets_its_new_key_recorded_and_the_former_one_revoked() {
    let local = |key: &str, signed_at: i64| LocalNode {
        identity: "node-n1".parse().unwrap(),
        key: key.to_owned(),
        serial: "0b".to_owned(),
        issuer: "d1".to_owned(),
        signed_at: at(signed_at),
        not_after: at(9 * 86_400),
        is_here: true,
    };
    let takes = |builder: SnapshotBuilder, node: LocalNode| {
        let mut seen = Observed { leads: false, ..seen(builder) };
        seen.own.node = Some(node);
        plan(&seen, at(100)).takeover
    };
    let Some(taken) = takes(cluster(), local("sha256:new", 50)) else { panic!("it takes over") };
    let put = |(_, op): &(Guard, Op)| match op {
        Op::Put { key, value, .. } => Some((key.clone(), value.clone())),
        Op::Delete { .. } => None,
    };
    let puts: Vec<_> = taken.writes.iter().filter_map(put).collect();
    assert_eq!(puts[0].0, "/minik8s/revoked/node-n1");
    let revoked: RevokedIdentity = decode(&puts[0].1).unwrap();
    assert!(revoked.keys.contains_key("sha256:n1") && revoked.serials.contains_key("01"), "{revoked:?}");
    let record: IdentityRecord = decode(&puts[1].1).unwrap();
    assert_eq!((record.key.as_str(), record.joined_at), ("sha256:new", at(100)));

    assert!(takes(cluster(), local("sha256:n1", 50)).is_none(), "it is recorded");
    let joined_at = at(20) + SignedDuration::from_millis(500);
    let joined = IdentityRecord { joined_at, ..identity_record("sha256:n1") };
    let joined = |signed_at: i64| {
        let builder = cluster().put(&Key::Identity("node-n1".to_owned()), &joined);
        takes(builder, local("sha256:new", signed_at))
    };
    assert!(joined(19).is_none(), "another machine joined later");
    // Seen red: a disk lost within a second of the join left the new key unknown for ever.
    assert!(joined(20).is_some(), "certificates know whole seconds");
    let pinned = NodeSpec { identity: Some("sha256:n1".to_owned()), ..NodeSpec::default() };
    assert!(takes(cluster().node_object("n1", pinned), local("sha256:new", 50)).is_none(), "Git says no");
    let foreign = TrustRecord { authorities: vec!["CA2".to_owned()], ..trust_record() };
    let foreign = cluster().put(&Key::Trust, &foreign);
    assert!(takes(foreign, local("sha256:new", 50)).is_none(), "it is of another cluster");
    let row = RevokedIdentity { keys: [("sha256:new".to_owned(), at(1000))].into(), ..Default::default() };
    let barred = cluster().put(&Key::RevokedIdentity("node-n1".to_owned()), &row);
    assert!(takes(barred, local("sha256:new", 50)).is_none(), "it is revoked");

    let namesake = Observed {
        own: OwnIdentity { node: Some(LocalNode { is_here: false, ..local("sha256:new", 50) }), ..own() },
        ..seen(cluster())
    };
    let planned = plan(&namesake, at(100));
    assert!(planned.takeover.is_none() && reasons(&planned) == ["NameTaken"], "another machine has its name");
}

#[test]
fn a_recorded_node_is_here_if_it_has_an_address_of_this_machine() {
    let node = "node-n1".parse().unwrap();
    let record = NodeRecord { addresses: vec!["10.0.0.2".parse().unwrap()], ..node_record("n1") };
    let recorded = SnapshotBuilder::new().put(&Key::Node("n1".to_owned()), &record);
    for (builder, own, expected) in [
        (&recorded, &["127.0.0.1", "10.0.0.2"][..], true),
        (&recorded, &["127.0.0.1", "10.0.0.3"], false),
        (&recorded, &["127.0.0.1", "::1", "localhost"], true),
        (&SnapshotBuilder::new(), &["10.0.0.3"], true),
    ] {
        let own: Vec<String> = own.iter().map(|one| (*one).to_owned()).collect();
        assert_eq!(is_here(&node, &builder.snapshot, &own), expected, "{own:?}");
    }
}
