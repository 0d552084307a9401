//! Decides which authorities the cluster trusts, and which one signs, while one takes the place of another.
//!
//! A mistake here locks everybody out. Invariants:
//! - No authority signs before every node and every reconciler has reported that it trusts it, each reconciler can open its
//!   key, and every member of etcd has been started with it in its list.
//! - No authority is dropped while a certificate of it can still be shown or renewed: by a reconciler or its member of etcd,
//!   by a node that is not gone and was here within a year, by a person before the end of the file.
//! - Whoever has not reported counts as one who trusts nothing new. So does a record that cannot be read.
//! - No phase is stored: it follows from the list of trusted authorities, of which the first one signs, and from the records
//!   of authorities. A record of one that is not in the list: its turn to be added. The last one has a record: all are to
//!   learn to trust it. The first one has: the others are being dropped. The list and the records change in one transaction.
//! - Several without any record: etcd was lost, and with it the knowledge of who has which certificate. All of them stay
//!   trusted, until another rotation.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use schema::keys::prefix;
use schema::records::{AuthorityRecord, IdentityRecord};
use schema::snapshot::Snapshot;
use schema::trust::{Identity, RENEWABLE_DAYS, Role};

/// Most names in one sentence.
const NAMES_MAX: usize = 8;

/// A certificate of an authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownAuthority {
    /// PEM.
    pub(super) pem: String,
    pub(super) digest: String,
}

/// New list of trusted authorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Publication {
    /// PEM, the one that signs first.
    pub(super) authorities: Vec<String>,
    /// Digests of the authorities whose records stay; all others are deleted with the same write.
    pub(super) keeps: BTreeSet<String>,
    /// Reason and message of an event.
    pub(super) event: Option<(&'static str, String)>,
}

/// Step of a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RotationStep {
    /// None is under way.
    Rest,
    /// A sentence about what it waits for.
    Wait(String),
    Publish(Publication),
}

/// Decides on the next step. `trusted` is the list in force, the authority that signs first; `created` are those with a
/// record.
pub(super) fn next_step(
    (trusted, created): (&[KnownAuthority], &[KnownAuthority]),
    snapshot: &Snapshot,
    roll_is_over: bool,
    now: Timestamp,
) -> RotationStep {
    let has_record =
        |authority: &KnownAuthority| created.iter().any(|other| other.digest == authority.digest);
    let is_new = |other: &&KnownAuthority| !trusted.iter().any(|known| known.digest == other.digest);
    match (trusted, created.iter().find(is_new)) {
        ([], _) | ([_], None) => RotationStep::Rest,
        ([others @ .., next], _) if !others.is_empty() && has_record(next) => {
            spread((others, next), snapshot, roll_is_over)
        }
        ([next, others @ ..], _) if !others.is_empty() && has_record(next) => {
            drop_former((next, others), snapshot, now)
        }
        (_, Some(next)) => RotationStep::Publish(begin(trusted, next)),
        (_, None) => RotationStep::Wait(
            "etcd was lost while the authority was rotated: all of its authorities stay trusted until 'minik8s trust \
             rotate' begins another rotation"
                .to_owned(),
        ),
    }
}

fn begin(trusted: &[KnownAuthority], next: &KnownAuthority) -> Publication {
    Publication {
        authorities: trusted.iter().chain([next]).map(|known| known.pem.clone()).collect(),
        // But for that of the next one, a record would tell another phase.
        keeps: [next.digest.clone()].into(),
        event: None,
    }
}

/// Has the next authority sign once all trust it.
fn spread(
    (others, next): (&[KnownAuthority], &KnownAuthority),
    snapshot: &Snapshot,
    roll_is_over: bool,
) -> RotationStep {
    let all: Vec<&String> = others.iter().chain([next]).map(|known| &known.digest).collect();
    let mut waits = unreadable(snapshot);
    waits.extend(without_trust(snapshot, &all, &next.digest));
    if !roll_is_over {
        waits.push("the members of etcd, which restart".to_owned());
    }
    if !waits.is_empty() {
        let what = "a new authority signs once all trust it; it waits for";
        return RotationStep::Wait(format!("{what} {}", joined(&waits)));
    }
    let message = format!("the authority {} signs from now on", next.digest);
    RotationStep::Publish(Publication {
        authorities: [next].into_iter().chain(others).map(|known| known.pem.clone()).collect(),
        keeps: [next.digest.clone()].into(),
        event: Some(("AuthorityReplaced", message)),
    })
}

/// Drops the former authorities once nobody needs them.
fn drop_former(
    (next, others): (&KnownAuthority, &[KnownAuthority]),
    snapshot: &Snapshot,
    now: Timestamp,
) -> RotationStep {
    let mut waits = unreadable(snapshot);
    waits.extend(with_other_certificates(snapshot, &next.digest, now));
    if !waits.is_empty() {
        let what = "the former authority is dropped once nobody has a certificate of it; it waits for";
        return RotationStep::Wait(format!("{what} {}", joined(&waits)));
    }
    let former = others.iter().map(|known| known.digest.as_str()).collect::<Vec<_>>().join(", ");
    RotationStep::Publish(Publication {
        authorities: vec![next.pem.clone()],
        keeps: [next.digest.clone()].into(),
        event: Some(("RotationEnded", format!("the authority {former} is not trusted any more"))),
    })
}

/// Returns the keys of records that cannot be read: each may be that of somebody to wait for.
fn unreadable(snapshot: &Snapshot) -> Vec<String> {
    let roots = [prefix::IDENTITIES, prefix::NODES, prefix::AUTHORITIES];
    let keys = snapshot.malformed.keys().filter(|key| roots.iter().any(|root| key.starts_with(root)));
    keys.map(|key| format!("{key}, which cannot be read")).collect()
}

/// Returns the nodes and reconcilers that have not reported that they trust all authorities, and the reconcilers that
/// cannot open the key of the next one.
fn without_trust(snapshot: &Snapshot, all: &[&String], next: &String) -> Vec<String> {
    let trusts = |authorities: &[String]| all.iter().all(|authority| authorities.contains(authority));
    let node_trusts = |node: &str| snapshot.nodes.get(node).is_some_and(|row| trusts(&row.value.authorities));
    let nodes = nodes(snapshot).into_iter().filter(|node| !node_trusts(node));
    let record = snapshot.authorities.get(next).map(|row| &row.value);
    let reconcilers = identities(snapshot, Role::Reconciler);
    let others = reconcilers.filter(|(_, record_of)| {
        !trusts(&record_of.authorities) || !record.is_some_and(|record| can_open(record, record_of))
    });
    nodes.map(|node| format!("node-{node}")).chain(others.map(|(identity, _)| identity.to_string())).collect()
}

fn can_open(authority: &AuthorityRecord, reconciler: &IdentityRecord) -> bool {
    reconciler.recipient.as_ref().is_some_and(|own| authority.recipients.contains(own))
}

/// Returns everybody who may show, or renew, a certificate that another authority than this one has signed.
fn with_other_certificates(snapshot: &Snapshot, next: &String, now: Timestamp) -> Vec<String> {
    let is_other = |record: &IdentityRecord| record.issuer != *next;
    let mut found = Vec::new();
    for node in nodes(snapshot) {
        let identity = format!("node-{node}");
        match snapshot.identities.get(&identity).map(|row| &row.value) {
            Some(record) if !is_other(record) || !is_renewable(record, now) => {}
            Some(_) => found.push(identity),
            None => found.push(format!("{identity}, whose certificate is not known until it renews it")),
        }
    }
    for (identity, record) in identities(snapshot, Role::Reconciler) {
        // Its member shows a certificate of its own to the others.
        let is_former = record.etcd_member.as_ref().is_some_and(|member| member.issuer != *next);
        if is_other(record) || is_former {
            found.push(identity.to_string());
        }
    }
    for (identity, record) in identities(snapshot, Role::User) {
        if is_other(record) && record.not_after > now {
            found.push(format!(
                "{identity}, whose file ends at {:.0} and is of no use any more: make it anew ('minik8s user add') or remove \
                 the user",
                record.not_after
            ));
        }
    }
    found
}

fn is_renewable(record: &IdentityRecord, now: Timestamp) -> bool {
    let renewable = SignedDuration::from_hours(24 * i64::from(RENEWABLE_DAYS));
    record.not_after.checked_add(renewable).unwrap_or(Timestamp::MAX) > now
}

/// Returns the names of all nodes that registered or joined, but for those that Git declares gone.
fn nodes(snapshot: &Snapshot) -> BTreeSet<String> {
    let joined = identities(snapshot, Role::Node).map(|(identity, _)| identity.name().to_owned());
    let all = snapshot.nodes.keys().cloned().chain(joined);
    all.filter(|node| !snapshot.is_gone(node)).collect()
}

fn identities(snapshot: &Snapshot, role: Role) -> impl Iterator<Item = (Identity, &IdentityRecord)> {
    let all = snapshot.identities.iter();
    let parsed = all.filter_map(|(name, row)| Some((name.parse::<Identity>().ok()?, &row.value)));
    parsed.filter(move |(identity, _)| identity.role() == role)
}

fn joined(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schema::keys::Key;
    use schema::kinds::metadata::GONE_ANNOTATION;
    use schema::kinds::node::NodeSpec;
    use schema::records::{EtcdMemberReport, NodeRecord};
    use schema::testing::{SnapshotBuilder, at, node_record, object_of};

    use super::*;

    const DAY: i64 = 86_400;
    const BOTH: [&str; 2] = ["d1", "d2"];
    const LOST: &str = "etcd was lost while the authority was rotated: all of its authorities stay trusted until 'minik8s \
                        trust rotate' begins another rotation";

    fn known(number: u8) -> KnownAuthority {
        KnownAuthority { pem: format!("CA{number}"), digest: format!("d{number}") }
    }

    fn digests(all: &[&str]) -> Vec<String> {
        all.iter().map(|digest| (*digest).to_owned()).collect()
    }

    /// Record whose certificate ends after a week.
    fn record(issuer: &str, authorities: &[&str], recipient: Option<&str>) -> IdentityRecord {
        IdentityRecord {
            key: String::new(),
            serials: BTreeMap::new(),
            issuer: issuer.to_owned(),
            not_after: at(7 * DAY),
            joined_at: at(0),
            recipient: recipient.map(str::to_owned),
            api: None,
            authorities: digests(authorities),
            etcd_member: None,
            confirmed_roll: None,
        }
    }

    trait Put {
        fn identity(self, name: &str, record: &IdentityRecord) -> Self;
        fn reporting_node(self, name: &str, authorities: &[&str]) -> Self;
        fn gone(self, name: &str) -> Self;
    }

    impl Put for SnapshotBuilder {
        fn identity(self, name: &str, record: &IdentityRecord) -> Self {
            self.put(&Key::Identity(name.to_owned()), record)
        }

        fn reporting_node(self, name: &str, authorities: &[&str]) -> Self {
            let record = NodeRecord { authorities: digests(authorities), ..node_record(name) };
            self.put(&Key::Node(name.to_owned()), &record)
        }

        fn gone(self, name: &str) -> Self {
            let mut object = object_of(name, NodeSpec::default());
            object.metadata.annotations.insert(GONE_ANNOTATION.into(), "true".into());
            self.object(&object)
        }
    }

    /// A reconciler and a node with certificates of `issuer` that trust both, and the record of the second authority.
    fn cluster(issuer: &str) -> SnapshotBuilder {
        let next = AuthorityRecord {
            certificate: "CA2".to_owned(),
            sealed: String::new(),
            recipients: vec!["age1r1".to_owned()],
            created_at: at(0),
        };
        let member = EtcdMemberReport { name: "m1".to_owned(), rolled: 1, issuer: issuer.to_owned() };
        let reconciler = record(issuer, &BOTH, Some("age1r1"));
        SnapshotBuilder::new()
            .put(&Key::Authority("d2".to_owned()), &next)
            .identity("reconciler-r1", &IdentityRecord { etcd_member: Some(member), ..reconciler })
            .identity("node-n1", &record(issuer, &[], None))
            .reporting_node("n1", &BOTH)
    }

    fn spreads(builder: &SnapshotBuilder, roll_is_over: bool) -> RotationStep {
        let (trusted, created) = ([known(1), known(2)], [known(2)]);
        next_step((&trusted, &created), &builder.snapshot, roll_is_over, at(0))
    }

    fn drops(builder: &SnapshotBuilder, now: Timestamp) -> RotationStep {
        let (trusted, created) = ([known(2), known(1)], [known(2)]);
        next_step((&trusted, &created), &builder.snapshot, true, now)
    }

    /// Authorities that are published, or the sentence.
    fn shown(step: RotationStep) -> String {
        match step {
            RotationStep::Rest => "rest".to_owned(),
            RotationStep::Wait(why) => why,
            RotationStep::Publish(next) => next.authorities.join(" "),
        }
    }

    #[test]
    fn the_phase_follows_from_the_list_and_the_records_alone() {
        let (one, two, three) = (known(1), known(2), known(3));
        for (trusted, created, expected) in [
            (vec![&one], vec![], "rest"),
            (vec![&two], vec![&two], "rest"),
            (vec![&one], vec![&two], "CA1 CA2"),
            (vec![&two], vec![&two, &three], "CA2 CA3"),
            (vec![&one, &two], vec![&two], "CA2 CA1"),
            (vec![&one, &two], vec![&two, &three], "CA2 CA1"),
            (vec![&one, &two], vec![&one], "CA1"),
            (vec![], vec![&two], "rest"),
            // etcd was lost.
            (vec![&one, &three], vec![&two], "CA1 CA3 CA2"),
            (vec![&three, &one], vec![], LOST),
            (vec![&one, &two, &three], vec![&two], LOST),
        ] {
            let owned = |all: &[&KnownAuthority]| all.iter().copied().cloned().collect::<Vec<_>>();
            let (trusted, created) = (owned(&trusted), owned(&created));
            let cluster = cluster("d1").snapshot;
            let found = next_step((&trusted, &created), &cluster, true, at(0));
            assert_eq!(shown(found), expected, "{trusted:?} {created:?}");
        }
    }

    #[test]
    fn records_that_would_begin_another_rotation_go_with_the_write() {
        let keeps = |step: RotationStep| match step {
            RotationStep::Publish(next) => next.keeps.into_iter().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let begun = next_step((&[known(1)], &[known(2)]), &cluster("d1").snapshot, true, at(0));
        assert_eq!(keeps(begun), ["d2"]);
        assert_eq!(keeps(spreads(&cluster("d1"), true)), ["d2"]);
        assert_eq!(keeps(drops(&cluster("d2"), at(0))), ["d2"]);
    }

    // Each would fail by an authority that signs what somebody refuses.
    #[test]
    fn the_next_authority_signs_once_all_trust_it_and_whoever_does_not_is_named() {
        let r2 = |authorities: &[&str], recipient| record("d1", authorities, recipient);
        let broken = Key::Identity("node-n9".to_owned());
        for (builder, roll_is_over, waits_for) in [
            (cluster("d1"), false, "the members of etcd"),
            (cluster("d1").reporting_node("n1", &["d1"]), true, "node-n1"),
            (cluster("d1").reporting_node("n2", &[]), true, "node-n2"),
            (cluster("d1").identity("node-n3", &record("d1", &[], None)), true, "node-n3"),
            (cluster("d1").identity("reconciler-r2", &r2(&["d1"], Some("age1r1"))), true, "reconciler-r2"),
            (cluster("d1").identity("reconciler-r2", &r2(&BOTH, Some("age1r2"))), true, "reconciler-r2"),
            (cluster("d1").identity("reconciler-r2", &r2(&BOTH, None)), true, "reconciler-r2"),
            (cluster("d1").garbage(&broken), true, "/minik8s/identities/node-n9"),
            (cluster("d1").garbage(&Key::Node("n9".to_owned())), true, "/minik8s/nodes/n9"),
        ] {
            let found = spreads(&builder, roll_is_over);
            assert!(matches!(&found, RotationStep::Wait(why) if why.contains(waits_for)), "{found:?}");
        }
        let away = cluster("d1").reporting_node("n2", &[]).gone("n2");
        assert_eq!(shown(spreads(&away, true)), "CA2 CA1", "Git says that it will not come back");
    }

    // Each would fail by somebody who can neither connect nor renew any more.
    #[test]
    fn the_former_authority_is_trusted_until_nobody_needs_it() {
        let former_member = EtcdMemberReport { name: "m2".into(), rolled: 1, issuer: "d1".into() };
        let r2 = record("d2", &BOTH, None);
        let r2 = IdentityRecord { etcd_member: Some(former_member), ..r2 };
        let old = record("d1", &BOTH, None);
        let year = 365 * DAY;
        for (builder, now, waits_for) in [
            (cluster("d1"), 0, "node-n1; reconciler-r1"),
            (cluster("d2").identity("node-n2", &old), 7 * DAY + year - 1, "node-n2"),
            (cluster("d2").identity("reconciler-r2", &old), 9 * year, "reconciler-r2"),
            (cluster("d2").identity("reconciler-r2", &r2), 0, "reconciler-r2"),
            (cluster("d2").identity("user-ada", &old), 7 * DAY - 1, "user-ada, whose file ends at"),
            (cluster("d2").reporting_node("n5", &BOTH), 0, "node-n5, whose certificate is not known"),
            (cluster("d2").garbage(&Key::Identity("node-n9".to_owned())), 0, "node-n9"),
        ] {
            let found = drops(&builder, at(now));
            assert!(matches!(&found, RotationStep::Wait(why) if why.contains(waits_for)), "{found:?}");
        }
        for (builder, now) in [
            (cluster("d2"), 0),
            (cluster("d2").identity("node-n2", &old), 7 * DAY + year),
            (cluster("d2").identity("node-n2", &old).gone("n2"), 0),
            (cluster("d2").identity("user-ada", &old), 7 * DAY),
        ] {
            assert_eq!(shown(drops(&builder, at(now))), "CA2");
        }
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let names: Vec<String> = (0..10).map(|number| format!("node-n{number}")).collect();
        assert!(joined(&names).ends_with("; node-n7; and 2 more"), "{}", joined(&names));
    }
}
