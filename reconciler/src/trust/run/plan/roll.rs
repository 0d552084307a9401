//! Decides when etcd's members are restarted, and which one is next.
//!
//! A mistake here stops etcd, or leaves a member that still trusts what it should not. Invariants:
//! - One reconciler has the turn at a time. It keeps it until it reports that its member has been restarted in this very
//!   roll: a turn that was taken away from a machine that is slow would take down two members.
//! - The turn is given only while every listed member answers, and a member that restarts is listed.
//! - A roll is over only once each listed member has been restarted in it. A member that no reconciler reports holds it
//!   up, and is named.
//! - A number only grows, also if the record was lost: nobody takes an old report for the end of a new roll.
//! - All of it is in etcd: another leader goes on where the former one stopped.

use std::collections::BTreeMap;

use schema::records::{EtcdMemberReport, IdentityRecord, Roll, TrustRecord};
use schema::snapshot::Snapshot;
use schema::trust::Identity;

use crate::trust::etcd_users::has_user;

/// A member of etcd as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::trust::run) struct ObservedMember {
    /// Name; empty before its first start.
    pub(in crate::trust::run) name: String,
    /// Reason why it does not answer; `None` also if nobody needed to ask.
    pub(in crate::trust::run) error: Option<String>,
}

/// Members of etcd, or the reason why they are not known.
pub(in crate::trust::run) type ObservedMembers = Result<Vec<ObservedMember>, String>;

/// Next step of a roll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RollStep {
    /// Each member has been restarted in it.
    Over,
    /// A sentence about what it waits for.
    Wait(String),
    /// The turn goes to this reconciler.
    Give(String),
}

/// Reconcilers with a member of etcd, each with its report.
pub(super) type Reports<'a> = BTreeMap<&'a str, &'a EtcdMemberReport>;

/// Returns the reports of all reconcilers. An etcd that nobody reports a member of is the user's.
pub(super) fn reports(snapshot: &Snapshot) -> Reports<'_> {
    let all = snapshot.identities.iter();
    all.filter_map(|(name, row)| Some((name.as_str(), row.value.etcd_member.as_ref()?))).collect()
}

/// Returns true if the members' health is of interest: a roll is not over, or something waits for its end.
pub(in crate::trust::run) fn needs_health(snapshot: &Snapshot) -> bool {
    let Some(record) = snapshot.trust.get(&()).map(|row| &row.value) else { return false };
    let is_rotating = record.authorities.len() > 1;
    let is_open = |roll: &Roll| reports(snapshot).values().any(|report| report.rolled < roll.number);
    record.roll.as_ref().is_some_and(|roll| is_rotating || roll.turn.is_some() || is_open(roll))
}

/// Returns the roll of a new record of trust: the former one, or a new one if members of etcd must forget or learn
/// something. Whoever has the turn keeps it, and restarts its member again.
pub(super) fn raised(
    former: Option<&TrustRecord>,
    wanted: &TrustRecord,
    snapshot: &Snapshot,
) -> Option<Roll> {
    let roll = former.and_then(|former| former.roll.clone());
    let Some(why) = reason(former, wanted) else { return roll };
    let number = 1 + roll.as_ref().map_or(0, |roll| roll.number).max(newest_report(snapshot));
    Some(Roll { number, turn: roll.and_then(|roll| roll.turn), why })
}

/// Returns why members of etcd must be restarted.
fn reason(former: Option<&TrustRecord>, wanted: &TrustRecord) -> Option<String> {
    let Some(former) = former else {
        // An etcd that has no record yet has no watches to cut, but it may have been started before it knew them all.
        return (wanted.authorities.len() > 1).then(|| "to read the authorities".to_owned());
    };
    let is_same = former.authorities.len() == wanted.authorities.len()
        && former.authorities.iter().all(|authority| wanted.authorities.contains(authority));
    if !is_same {
        return Some("to read the new list of authorities".to_owned());
    }
    let has_watches = |name: &String| name.parse::<Identity>().is_ok_and(|identity| has_user(&identity));
    let new = wanted.revoked.iter().filter(|(key, _)| !former.revoked.contains_key(*key));
    let owners: Vec<&str> =
        new.map(|(_, key)| &key.identity).filter(|name| has_watches(name)).map(String::as_str).collect();
    (!owners.is_empty())
        .then(|| format!("to cut the watches of {}, whose key was revoked", owners.join(", ")))
}

/// Number of the newest roll of which anybody has reported.
fn newest_report(snapshot: &Snapshot) -> u64 {
    let newest = |record: &IdentityRecord| {
        record.confirmed_roll.max(record.etcd_member.as_ref().map(|report| report.rolled)).unwrap_or(0)
    };
    snapshot.identities.values().map(|row| newest(&row.value)).max().unwrap_or(0)
}

/// Decides on the next step of a roll of the cluster's own members.
pub(super) fn next_step(roll: &Roll, reports: &Reports<'_>, members: &ObservedMembers) -> RollStep {
    let has_left = |report: &EtcdMemberReport| {
        members.as_ref().is_ok_and(|members| members.iter().all(|member| member.name != report.name))
    };
    let has_it = |name: &&String| {
        let report = reports.get(name.as_str());
        report.is_some_and(|report| report.rolled < roll.number && !has_left(report))
    };
    if let Some(name) = roll.turn.as_ref().filter(has_it) {
        return waiting(roll, &format!("{name} restarts its member"));
    }
    let members = match members {
        Ok(members) => members,
        Err(why) => return waiting(roll, &format!("the members cannot be listed: {why}")),
    };
    let reporter = |member: &ObservedMember| reports.iter().find(|(_, report)| report.name == member.name);
    if let Some(member) = members.iter().find(|member| reporter(member).is_none()) {
        let (name, what) =
            (shown(member), "start that on its machine, or remove it with 'etcdctl member remove'");
        return waiting(roll, &format!("no reconciler reports the member {name}: {what}"));
    }
    let due = members.iter().filter_map(reporter).find(|(_, report)| report.rolled < roll.number);
    let Some((name, _)) = due else { return RollStep::Over };
    match members.iter().find_map(|member| Some((member, member.error.as_ref()?))) {
        Some((member, why)) => waiting(roll, &format!("the member {} does not answer: {why}", shown(member))),
        None => RollStep::Give((*name).to_owned()),
    }
}

fn waiting(roll: &Roll, what: &str) -> RollStep {
    RollStep::Wait(format!("etcd restarts member by member, {}: {what}", roll.why))
}

fn shown(member: &ObservedMember) -> &str {
    if member.name.is_empty() { "that has not started yet" } else { &member.name }
}

/// Decides on the next step of a roll of an etcd of the user's: a person restarts its members.
pub(super) fn next_step_by_hand(roll: &Roll, snapshot: &Snapshot) -> RollStep {
    match newest_report(snapshot) >= roll.number {
        true => RollStep::Over,
        false => RollStep::Wait(format!(
            "copy authorities.pem of <state-dir>/reconciler/pki to the machines of etcd, and restart its members one by one, {}; \
             then run 'minik8s trust etcd-restarted'",
            roll.why
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schema::keys::Key;
    use schema::records::RevokedKey;
    use schema::testing::{SnapshotBuilder, at};

    use super::*;

    fn report(name: &str, rolled: u64) -> EtcdMemberReport {
        EtcdMemberReport { name: name.to_owned(), rolled, issuer: "d1".to_owned() }
    }

    fn seen(members: &[(&str, bool)]) -> ObservedMembers {
        let member = |(name, answers): &(&str, bool)| ObservedMember {
            name: (*name).to_owned(),
            error: (!answers).then(|| "refused".to_owned()),
        };
        Ok(members.iter().map(member).collect())
    }

    fn roll(turn: Option<&str>) -> Roll {
        Roll { number: 2, turn: turn.map(str::to_owned), why: "to read".to_owned() }
    }

    const ALL: [(&str, bool); 3] = [("m1", true), ("m2", true), ("m3", true)];

    /// Step of a roll with number 2 for members that were restarted in these ones.
    fn step(turn: Option<&str>, rolled: [u64; 3], members: &ObservedMembers) -> RollStep {
        let all = [report("m1", rolled[0]), report("m2", rolled[1]), report("m3", rolled[2])];
        let reports = ["reconciler-r1", "reconciler-r2", "reconciler-r3"].into_iter().zip(&all).collect();
        next_step(&roll(turn), &reports, members)
    }

    fn waits_for(step: &RollStep, what: &str) -> bool {
        matches!(step, RollStep::Wait(why) if why.contains(what))
    }

    #[test]
    fn one_after_the_other_has_its_turn_until_all_were_restarted() {
        let give = |name: &str| RollStep::Give(format!("reconciler-{name}"));
        for (turn, rolled, expected) in [
            (None, [1, 1, 1], give("r1")),
            (Some("reconciler-r1"), [2, 1, 1], give("r2")),
            (Some("reconciler-r2"), [2, 2, 0], give("r3")),
            (Some("reconciler-r3"), [2, 2, 2], RollStep::Over),
            (None, [2, 3, 2], RollStep::Over),
            (Some("reconciler-gone"), [2, 1, 1], give("r2")),
        ] {
            assert_eq!(step(turn, rolled, &seen(&ALL)), expected, "{turn:?} {rolled:?}");
        }
    }

    #[test]
    fn nobody_else_has_the_turn_while_a_member_restarts_or_is_dead() {
        let restarting = step(Some("reconciler-r1"), [1, 1, 1], &seen(&ALL));
        assert!(waits_for(&restarting, "reconciler-r1 restarts"), "{restarting:?}");
        let dead = seen(&[("m1", true), ("m2", true), ("m3", false)]);
        for (turn, rolled) in [(None, [1, 1, 1]), (Some("reconciler-r1"), [2, 1, 1]), (None, [2, 2, 1])] {
            let found = step(turn, rolled, &dead);
            assert!(waits_for(&found, "m3 does not answer: refused"), "{found:?}");
        }
        let unknown = step(None, [1, 1, 1], &Err("no quorum".to_owned()));
        assert!(waits_for(&unknown, "no quorum"), "{unknown:?}");
    }

    // Would fail by the end of a roll in which a member still trusts a former authority.
    #[test]
    fn a_member_that_nobody_reports_holds_the_end_up() {
        for name in ["m4", ""] {
            let members = seen(&[("m1", true), ("m2", true), ("m3", true), (name, true)]);
            let found = step(None, [2, 2, 2], &members);
            assert!(waits_for(&found, "no reconciler reports"), "{found:?}");
        }
        let left = seen(&[("m1", true), ("m2", true)]);
        for turn in [None, Some("reconciler-r3")] {
            assert_eq!(step(turn, [2, 2, 1], &left), RollStep::Over, "it is no member any more");
        }
    }

    fn record(authorities: &[&str], revoked: &[(&str, &str)], roll: Option<Roll>) -> TrustRecord {
        let entry = |(key, identity): &(&str, &str)| {
            ((*key).to_owned(), RevokedKey { identity: (*identity).to_owned(), until: at(100) })
        };
        TrustRecord {
            authorities: authorities.iter().map(|pem| (*pem).to_owned()).collect(),
            revoked: revoked.iter().map(entry).collect(),
            roll,
            ..TrustRecord::default()
        }
    }

    fn identity(reports: Option<EtcdMemberReport>, confirmed: Option<u64>) -> IdentityRecord {
        IdentityRecord {
            key: String::new(),
            serials: BTreeMap::new(),
            issuer: String::new(),
            not_after: at(0),
            joined_at: at(0),
            recipient: None,
            api: None,
            authorities: Vec::new(),
            etcd_member: reports,
            confirmed_roll: confirmed,
        }
    }

    #[test]
    fn a_roll_begins_with_a_removed_machine_and_with_another_list_of_authorities() {
        let nobody = Snapshot::default();
        let former = record(&["A", "B"], &[("k1", "node-n1")], Some(roll(Some("reconciler-r1"))));
        let number = |wanted: &TrustRecord| raised(Some(&former), wanted, &nobody).unwrap().number;
        for (authorities, revoked, expected) in [
            (&["A", "B"][..], &[("k1", "node-n1")][..], 2),
            (&["B", "A"], &[], 2),
            (&["A", "B"], &[("k2", "user-ada"), ("k3", "unknown")], 2),
            (&["A", "B"], &[("k1", "node-n1"), ("k2", "node-n1")], 3),
            (&["A", "B"], &[("k2", "reconciler-r2")], 3),
            (&["A"], &[], 3),
            (&["A", "C"], &[], 3),
        ] {
            assert_eq!(number(&record(authorities, revoked, None)), expected, "{authorities:?} {revoked:?}");
        }
        let next = raised(Some(&former), &record(&["A"], &[], None), &nobody).unwrap();
        assert_eq!(next.turn.as_deref(), Some("reconciler-r1"), "its member may be down");
    }

    #[test]
    fn a_lost_record_begins_no_roll_that_old_reports_would_end() {
        let key = Key::Identity("reconciler-r1".to_owned());
        let builder = SnapshotBuilder::new().put(&key, &identity(Some(report("m1", 7)), None));
        let first = |authorities: &[&str]| raised(None, &record(authorities, &[], None), &builder.snapshot);
        assert_eq!(first(&["A"]), None);
        assert_eq!(first(&["A", "B"]).unwrap().number, 8);
    }

    #[test]
    fn the_members_of_a_users_etcd_are_restarted_by_hand_and_confirmed() {
        let key = Key::Identity("reconciler-r1".to_owned());
        let with = |confirmed| SnapshotBuilder::new().put(&key, &identity(None, confirmed)).snapshot;
        for (confirmed, is_over) in [(None, false), (Some(1), false), (Some(2), true)] {
            let found = next_step_by_hand(&roll(None), &with(confirmed));
            assert_eq!(found == RollStep::Over, is_over, "{found:?}");
            assert!(is_over || waits_for(&found, "minik8s trust etcd-restarted"), "{found:?}");
        }
        let names: BTreeSet<_> = reports(&with(Some(2))).into_keys().map(str::to_owned).collect();
        assert!(names.is_empty());
    }
}
