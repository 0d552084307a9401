//! Time for which a revoked key stays on each list. Pure.
//!
//! In `revoked/` and on the disks of reconcilers it stays as long as it could be renewed: a year after the end of its newest
//! certificate. The serial numbers of its certificates, by which etcd refuses them, stay until an hour after their end:
//! clocks differ. `trust`, which every daemon reads and whose size is bounded, has a node's key only until that end: from then
//! on each handshake refuses the certificate anyway.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::records::{IdentityRecord, RevokedIdentity};
use schema::trust::{Identity, RENEWABLE_DAYS, Role, Serial};

/// Time after its end for which a certificate counts as one that etcd may still take: clocks differ by less.
const ENDED_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Shortest time in `trust`, so that all learn of it, and etcd's members cut the watches of one whose certificate has ended.
const PUBLISHED_MIN: SignedDuration = SignedDuration::from_hours(24);

/// Returns the record of an identity whose key is revoked, without keys that could not be renewed any more.
pub(super) fn revoke(
    identity: &Identity,
    row: Option<&RevokedIdentity>,
    former: &IdentityRecord,
    now: Timestamp,
) -> RevokedIdentity {
    let mut keys = row.map(|row| row.keys.clone()).unwrap_or_default();
    keys.retain(|_, until| *until > now);
    let mut serials = row.map(|row| row.serials.clone()).unwrap_or_default();
    serials.extend(former.serials.clone());
    let end = former.not_after.max(later(now, PUBLISHED_MIN));
    let until = match identity.role() {
        Role::Node | Role::Reconciler => renewable_until(end),
        // Nobody renews theirs.
        Role::User | Role::Etcd => end,
    };
    keys.insert(former.key.clone(), until);
    let etcd_member = former.etcd_member.as_ref().map(|member| member.name.clone());
    RevokedIdentity { keys, serials: in_force(&serials, now), etcd_member }
}

/// Returns the serial numbers without those of certificates that ended more than an hour ago, each with its end.
pub(super) fn in_force(serials: &BTreeMap<Serial, Timestamp>, now: Timestamp) -> BTreeMap<Serial, Timestamp> {
    let is_in_force = |end: Timestamp| later(end, ENDED_FOR) > now;
    serials.iter().filter(|(_, end)| is_in_force(**end)).map(|(serial, end)| (serial.clone(), *end)).collect()
}

/// Returns the time until which a key that is revoked until `until` is in `trust`. A reconciler signs its own certificates.
pub(super) fn published_until(identity: &str, until: Timestamp) -> Timestamp {
    match identity.parse::<Identity>().map(|identity| identity.role()) {
        Ok(Role::Node) => until.checked_sub(renewable()).unwrap_or(Timestamp::MIN),
        _ => until,
    }
}

/// Returns the time until which a certificate with this end can be renewed.
pub(super) fn renewable_until(end: Timestamp) -> Timestamp {
    later(end, renewable())
}

fn renewable() -> SignedDuration {
    SignedDuration::from_hours(24 * i64::from(RENEWABLE_DAYS))
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use schema::records::EtcdMemberReport;
    use schema::testing::at;

    use super::*;

    const DAY: i64 = 24 * 3600;

    fn record(key: &str, end: i64) -> IdentityRecord {
        IdentityRecord {
            key: key.to_owned(),
            serials: [(format!("of-{key}"), at(end))].into(),
            issuer: "ca".to_owned(),
            not_after: at(end),
            joined_at: at(0),
            recipient: None,
            api: None,
            authorities: Vec::new(),
            etcd_member: None,
            confirmed_roll: None,
        }
    }

    #[test]
    fn a_revoked_key_stays_on_the_list_while_it_could_be_renewed() {
        let node: Identity = "node-n1".parse().unwrap();
        let first = revoke(&node, None, &record("a", 2 * DAY), at(1));
        assert_eq!(first.keys, [("a".to_owned(), renewable_until(at(2 * DAY)))].into());
        let both = revoke(&node, Some(&first), &record("b", 3 * DAY), at(2));
        assert_eq!(both.keys.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(both.serials, [("of-a".to_owned(), at(2 * DAY)), ("of-b".to_owned(), at(3 * DAY))].into());
        let late = revoke(&node, Some(&both), &record("c", 4 * DAY), renewable_until(at(2 * DAY)));
        assert_eq!(late.keys.keys().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn a_serial_number_stays_on_the_list_until_an_hour_after_its_end() {
        let node: Identity = "node-n1".parse().unwrap();
        let first = revoke(&node, None, &record("a", 2 * DAY), at(1));
        for (now, is_kept) in [(2 * DAY + 3599, true), (2 * DAY + 3600, false)] {
            let next = revoke(&node, Some(&first), &record("b", 9 * DAY), at(now));
            assert_eq!(next.serials.contains_key("of-a"), is_kept, "{now}");
            assert!(next.serials.contains_key("of-b"));
        }
    }

    // Would fail with a record of trust that fills up with the nodes of a year.
    #[test]
    fn all_know_the_key_of_a_node_until_its_certificate_ends_and_for_a_day_at_least() {
        let until = |name: &str, end: i64| {
            let keys = revoke(&name.parse().unwrap(), None, &record("a", end), at(0)).keys;
            (keys["a"], published_until(name, keys["a"]))
        };
        let year = renewable_until(at(2 * DAY));
        assert_eq!(until("node-n1", 2 * DAY), (year, at(2 * DAY)));
        assert_eq!(until("node-n1", 0), (renewable_until(at(DAY)), at(DAY)));
        assert_eq!(until("user-ada", 2 * DAY), (at(2 * DAY), at(2 * DAY)));
        assert_eq!(until("reconciler-r1", 2 * DAY), (year, year), "it signs its own");
    }

    #[test]
    fn the_member_of_etcd_is_that_of_the_record() {
        let report = EtcdMemberReport { name: "minik8s".to_owned(), rolled: 0, issuer: "ca".to_owned() };
        let former = IdentityRecord { etcd_member: Some(report), ..record("a", DAY) };
        let revoked = revoke(&"reconciler-r1".parse().unwrap(), None, &former, at(0));
        assert_eq!(revoked.etcd_member.as_deref(), Some("minik8s"));
    }
}
