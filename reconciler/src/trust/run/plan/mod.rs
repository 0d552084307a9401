//! Decides what this reconciler renews, writes and trusts, and as leader whose keys are revoked, who has a user of etcd,
//! which authorities the cluster trusts (`rotation.rs`) and when etcd's members restart (`roll.rs`). Pure.
//!
//! Invariants besides theirs:
//! - A reconciler reports only what is in force: a list that it is about to apply counts from the next run on.
//! - The record of trust is written only over the one that it was decided on.
//! - A member of etcd is restarted only with the turn, and only once this reconciler trusts what the record says, and the
//!   member refuses what was revoked: it gets the same list, and whoever held a watch open must not come back.
//! - The turn is given only once etcd's users are as they should be: whoever was removed must not log in again.

mod observed;
mod removal;
pub(in crate::trust::run) mod roll;
mod rotation;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::{CodecError, encode};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{
    AuthorityRecord, EtcdMemberReport, EventType, IdentityRecord, RevokedKey, Roll, TrustRecord,
};
use schema::snapshot::{Snapshot, VersionedValue};
use schema::store::events::EventDraft;
use schema::store::{Guard, Op};
use schema::trust::{Identity, KeyFingerprint, Role};

pub(super) use self::observed::{LocalNode, Observed, ObservedOwnMember, ObservedUsers, OwnIdentity};
pub(super) use self::removal::{Removal, is_here};
use self::removal::{Revoked, guard, refused, removals, restored, revoked_keys, takeover};
use self::roll::RollStep;
use self::rotation::{KnownAuthority, RotationStep};
use crate::guarded_writes::WriteGroup;
use crate::trust::etcd_users::{self, PlannedUserStep, WantedUsers, has_user};
use crate::trust::revocation::in_force;
use crate::trust::setup::{RefusedSerials, RemovedError};

/// Kind of the object of events about trust.
pub(super) const TRUST: &str = "Trust";
/// Time between looks at the members of etcd while one restarts, or none may.
const ROLL_PAUSE: SignedDuration = SignedDuration::from_secs(3);
/// Time until the next run after a change that this reconciler has yet to report.
const SOON: SignedDuration = SignedDuration::from_secs(1);

/// Authorities and revoked keys that count from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NextTrust {
    /// Authorities (PEM).
    pub(super) authorities: Vec<String>,
    pub(super) revoked: BTreeMap<KeyFingerprint, Timestamp>,
}

/// Next authority, as it is sealed to this reconciler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Adoption {
    /// PEM.
    pub(super) certificate: String,
    pub(super) sealed: String,
}

/// A sealed authority that some reconciler cannot open yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resealing {
    pub(super) digest: String,
    pub(super) guard: Guard,
    pub(super) record: AuthorityRecord,
    /// Recipients of all reconcilers.
    pub(super) recipients: BTreeSet<String>,
}

/// Restart of this machine's member of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Restart {
    /// Number of the roll.
    pub(super) number: u64,
    pub(super) why: String,
}

/// New value of `trust`, with the writes and the event that belong to it.
#[derive(Debug)]
pub(super) struct RecordWrite {
    pub(super) value: Vec<u8>,
    /// Revision of the record that it takes the place of; `None` if there is none that can be read.
    pub(super) base: Option<i64>,
    /// Deletions of records of authorities.
    pub(super) drops: WriteGroup,
    pub(super) event: Option<EventDraft>,
}

/// A problem that a person should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrustProblem {
    /// CamelCase word for the reason.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Decision of a run.
#[derive(Debug, Default)]
pub(crate) struct TrustPlan {
    /// Set if this reconciler was removed from the cluster.
    pub(super) is_removed: bool,
    /// Set if a certificate of this machine is past two thirds of its validity.
    pub(super) renews: bool,
    /// Change of what is trusted.
    pub(super) trust: Option<NextTrust>,
    /// Certificates that this machine's member of etcd refuses from now on, if they change.
    pub(super) refused: Option<RefusedSerials>,
    /// The own record.
    pub(super) own_record: Option<(Guard, Op)>,
    /// The new key of this machine's own node.
    pub(super) takeover: Option<Removal>,
    /// Identities that the leader removes, each with its keys.
    pub(super) removals: Vec<Removal>,
    /// Records that the leader restores: those of identities which an etcd that was lost knew.
    pub(super) restored: Vec<WriteGroup>,
    /// New `trust` that the leader writes, if it changes.
    pub(super) record: Option<RecordWrite>,
    /// Set if another authority signs from now on.
    pub(super) adoption: Option<Adoption>,
    /// Set if a reconciler cannot open an authority that this one can.
    pub(super) resealing: Option<Resealing>,
    /// Set if this machine's member of etcd has its turn.
    pub(super) restart: Option<Restart>,
    /// Steps of the leader to the wanted users of etcd.
    pub(super) users: Vec<PlannedUserStep>,
    pub(super) problems: Vec<TrustProblem>,
    /// Sentences about what is under way.
    pub(super) notes: Vec<String>,
    again_at: Option<Timestamp>,
    /// Set while members of etcd restart one after the other.
    is_rolling: bool,
}

impl schema::control::Plan for TrustPlan {
    fn is_empty(&self) -> bool {
        !self.renews
            && self.trust.is_none()
            && self.refused.is_none()
            && self.own_record.is_none()
            && self.takeover.is_none()
            && self.removals.is_empty()
            && self.restored.is_empty()
            && self.record.is_none()
            && self.adoption.is_none()
            && self.resealing.is_none()
            && self.restart.is_none()
            && self.users.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// Decides on the next steps of this reconciler's trust.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> TrustPlan {
    let own = &seen.own;
    let mut plan = TrustPlan::default();
    plan.renew(own, seen.digests.get(&own.authority), now);
    if !seen.snapshot.synced {
        plan.schedule(now);
        return plan;
    }
    let revoked = revoked_keys(seen, now);
    let row = seen.snapshot.trust.get(&());
    let record = row.map(|row| &row.value);
    let is_foreign = record.is_some_and(|record| !record.authorities.contains(&own.authority));
    if is_foreign {
        plan.problem(
            "ForeignAuthority",
            "this reconciler signs with an authority that is not the cluster's: stop it, remove \
             <state-dir>/reconciler/pki, and let it join the cluster (`minik8s token create --reconciler NAME` on another \
             one prints the command)",
        );
    }
    let next = next_trust(own, record.filter(|_| !is_foreign), &revoked);
    plan.is_removed = revoked.kept.contains_key(&own.key);
    plan.trust = (next.authorities != own.trusted || next.revoked != own.revoked).then_some(next);
    if plan.is_removed {
        plan.problem("ReconcilerRemoved", RemovedError.to_string());
        if let Some(row) = row.filter(|_| seen.leads && !is_foreign) {
            plan.publish_revoked(seen, row, revoked.published);
        }
        return plan;
    }
    if own.authority_ends_soon_at <= now {
        plan.problem(
            "AuthorityEnds",
            format!(
                "the cluster's authority ends at {:.0}, and with it all certificates: run `minik8s trust rotate` at the \
                 socket of a reconciler",
                own.authority_ends_at
            ),
        );
    }
    plan.refused = refused(seen, now);
    if !is_foreign {
        plan.keep_own_record(seen, now);
        plan.takeover = takeover(seen, &revoked, now);
        plan.warn_of_namesake(seen);
    }
    if let Some(record) = record.filter(|_| !is_foreign) {
        plan.take_part(seen, record);
    }
    if seen.leads && !is_foreign {
        plan.remove(&seen.snapshot, now);
        plan.restored = restored(seen, &revoked);
        plan.manage_users(seen);
        plan.update_record(seen, row, revoked.published, now);
    } else if let Some(record) = record.filter(|_| !is_foreign) {
        plan.note_progress(seen, record, now);
    }
    if let Some(why) = &seen.denied {
        plan.problem(
            "EtcdUsersNotAllowed",
            format!(
                "etcd does not let this reconciler manage users ({why}): run the commands that `minik8s trust etcd-users` \
                 prints"
            ),
        );
    }
    plan.schedule(now);
    plan
}

/// Returns the identities of the cluster that have a user of etcd, this reconciler among them.
pub(super) fn identities(snapshot: &Snapshot, own: &Identity) -> BTreeSet<Identity> {
    let recorded = snapshot.identities.keys().filter_map(|identity| identity.parse::<Identity>().ok());
    recorded.filter(has_user).chain([own.clone()]).collect()
}

/// Returns what to trust: the own authority, those of the record, and the signer of the own certificate, without which it
/// would be of no use. Without a record the authorities stay as they are.
fn next_trust(own: &OwnIdentity, record: Option<&TrustRecord>, revoked: &Revoked) -> NextTrust {
    let mut authorities = Vec::new();
    let known = record.map_or(&own.trusted, |record| &record.authorities);
    for authority in [&own.authority].into_iter().chain(known).chain([&own.signer]) {
        if !authorities.contains(authority) {
            authorities.push(authority.clone());
        }
    }
    // The order is of no importance for what is trusted.
    let is_same = authorities.len() == own.trusted.len()
        && authorities.iter().all(|authority| own.trusted.contains(authority));
    if is_same {
        authorities.clone_from(&own.trusted);
    }
    NextTrust { authorities, revoked: revoked.kept.clone() }
}

/// Number of the newest roll in which a member was restarted, as its reconciler has reported.
fn rolled_before(record: Option<&IdentityRecord>) -> u64 {
    record.and_then(|record| record.etcd_member.as_ref()).map_or(0, |member| member.rolled)
}

/// Returns the recipients of all reconcilers that have one.
fn recipients(snapshot: &Snapshot) -> BTreeSet<String> {
    let reconcilers = snapshot.identities.iter().filter(|(name, _)| is_reconciler(name));
    reconcilers.filter_map(|(_, row)| row.value.recipient.clone()).collect()
}

fn is_reconciler(name: &str) -> bool {
    name.parse::<Identity>().is_ok_and(|identity| identity.role() == Role::Reconciler)
}

fn roll_step(seen: &Observed, roll: &Roll) -> RollStep {
    match is_by_hand(seen) {
        true => roll::next_step_by_hand(roll, &seen.snapshot),
        false => roll::next_step(roll, &roll::reports(&seen.snapshot), &seen.members),
    }
}

/// Returns true if etcd is the user's. It is the cluster's own if any reconciler reports a member.
fn is_by_hand(seen: &Observed) -> bool {
    !seen.owns_etcd && roll::reports(&seen.snapshot).is_empty()
}

fn rotation_step(seen: &Observed, trusted: &[String], roll_is_over: bool, now: Timestamp) -> RotationStep {
    let known =
        |pem: &String| Some(KnownAuthority { pem: pem.clone(), digest: seen.digests.get(pem)?.clone() });
    let listed: Vec<KnownAuthority> = trusted.iter().filter_map(known).collect();
    let rows = seen.snapshot.authorities.iter();
    let created = rows
        .filter_map(|(digest, row)| known(&row.value.certificate).filter(|known| known.digest == *digest));
    let created: Vec<KnownAuthority> = created.collect();
    match listed.len() == trusted.len() {
        true => rotation::next_step((&listed, &created), &seen.snapshot, roll_is_over, now),
        // One cannot be read.
        false => RotationStep::Rest,
    }
}

/// Returns the record of trust as it is to be, with the authorities of the former one. If etcd was lost, all that this
/// reconciler trusts are in it: a rotation may have been under way.
fn wanted_record(
    seen: &Observed,
    former: Option<&TrustRecord>,
    revoked: BTreeMap<KeyFingerprint, RevokedKey>,
) -> TrustRecord {
    let own = &seen.own;
    let name = own.identity.to_string();
    let others = seen.snapshot.identities.iter().filter(|(other, _)| is_reconciler(other) && **other != name);
    let apis = others.filter_map(|(_, record)| record.value.api.clone());
    let reconcilers: BTreeSet<String> = apis.chain(own.api.clone()).collect();
    let etcd: BTreeSet<String> = seen.etcd.iter().cloned().collect();
    let lost = || -> Vec<String> {
        let others = own.trusted.iter().filter(|other| **other != own.authority);
        [&own.authority].into_iter().chain(others).cloned().collect()
    };
    TrustRecord {
        authorities: former.map_or_else(lost, |former| former.authorities.clone()),
        revoked,
        etcd: etcd.into_iter().collect(),
        reconcilers: reconcilers.into_iter().collect(),
        roll: None,
    }
}

fn drop_authority(digest: &str, mod_revision: i64) -> (Guard, Op) {
    let key = Key::Authority(digest.to_owned());
    (Guard::ModRevision(key.to_string(), mod_revision), Op::delete(key))
}

/// Returns an event about the trust between machines.
pub(super) fn about_trust(reason: &str, message: String) -> EventDraft {
    let object = NamespacedName::new("", "trust");
    EventDraft::about(EventType::Normal, TRUST, &object, reason, message)
}

impl TrustPlan {
    /// Renews certificates past two thirds of their validity, and those of a former authority.
    fn renew(&mut self, own: &OwnIdentity, authority: Option<&String>, now: Timestamp) {
        let times =
            || [Some(own.renew_at), own.member.as_ref().map(|member| member.renew_at)].into_iter().flatten();
        let is_former = own.signer != own.authority;
        let is_former_of_etcd =
            own.member.as_ref().is_some_and(|member| authority.is_some_and(|own| member.issuer != *own));
        self.renews = is_former || is_former_of_etcd || times().any(|at| at <= now);
        self.again_at = times().filter(|at| *at > now).min();
    }

    /// Takes this reconciler's part in a rotation and in a roll.
    fn take_part(&mut self, seen: &Observed, record: &TrustRecord) {
        let (own, authorities) = (&seen.own, &seen.snapshot.authorities);
        let digest_of = |pem: &String| seen.digests.get(pem);
        let opens = |record: &AuthorityRecord| {
            own.recipient.as_ref().is_some_and(|recipient| record.recipients.contains(recipient))
        };
        // Only one that is trusted here already.
        let signer = record.authorities.first().filter(|first| **first != own.authority);
        if let Some(certificate) = signer.filter(|first| own.trusted.contains(first)) {
            let row = digest_of(certificate).and_then(|digest| authorities.get(digest));
            let (certificate, row) = (certificate.clone(), row.filter(|row| opens(&row.value)));
            match row {
                Some(row) => self.adoption = Some(Adoption { certificate, sealed: row.value.sealed.clone() }),
                None => self.problem(
                    "AuthorityNotOpened",
                    "another authority signs by now, and this reconciler has not got its key: it signs with the former \
                     one until another reconciler has encrypted the key to it",
                ),
            }
        }
        let wanted = recipients(&seen.snapshot);
        self.resealing = authorities.iter().find_map(|(digest, row)| {
            let is_missing = wanted.iter().any(|recipient| !row.value.recipients.contains(recipient));
            (is_missing && opens(&row.value)).then(|| Resealing {
                digest: digest.clone(),
                guard: Guard::ModRevision(Key::Authority(digest.clone()).to_string(), row.mod_revision),
                record: row.value.clone(),
                recipients: wanted.clone(),
            })
        });
        self.restart = self.own_restart(seen, record.roll.as_ref());
    }

    fn own_restart(&self, seen: &Observed, roll: Option<&Roll>) -> Option<Restart> {
        let (own, roll) = (&seen.own, roll?);
        let name = own.identity.to_string();
        let reported = seen.snapshot.identities.get(&name).map(|row| &row.value);
        let rolled = own.member.as_ref()?.rolled.max(rolled_before(reported));
        let has_turn = roll.turn.as_ref() == Some(&name) && rolled < roll.number;
        // With what it trusts and refuses now the member would read the former lists.
        (has_turn && self.trust.is_none() && self.refused.is_none())
            .then(|| Restart { number: roll.number, why: roll.why.clone() })
    }

    /// Runs again soon after what the next report depends on, and while members of etcd restart.
    fn schedule(&mut self, now: Timestamp) {
        let is_more = self.trust.is_some()
            || self.renews
            || self.adoption.is_some()
            || self.restart.is_some()
            || self.refused.is_some();
        let soon = is_more.then_some(now + SOON).or_else(|| self.is_rolling.then(|| now + ROLL_PAUSE));
        self.again_at = soon.into_iter().chain(self.again_at).min();
    }

    fn problem(&mut self, reason: &'static str, message: impl Into<String>) {
        self.problems.push(TrustProblem { reason, message: message.into() });
    }

    fn too_large(&mut self, key: &Key, error: &CodecError) {
        self.problem("TrustNotWritten", format!("{key} cannot be written: {error}"));
    }

    /// Keeps the own record. One with another key is that of another machine.
    fn keep_own_record(&mut self, seen: &Observed, now: Timestamp) {
        let own = &seen.own;
        let name = own.identity.to_string();
        let found = seen.snapshot.identities.get(&name);
        let former = found.map(|found| &found.value);
        if former.is_some_and(|former| former.key != own.key) {
            let message = format!(
                "another machine is {name}: give this one another --name, or let it join with a new token"
            );
            return self.problem("NameTaken", message);
        }
        let wanted = IdentityRecord {
            key: own.key.clone(),
            serials: {
                let former = former.map(|former| in_force(&former.serials, now)).unwrap_or_default();
                former.into_iter().chain([(own.serial.clone(), own.not_after)]).collect()
            },
            issuer: own.issuer.clone(),
            not_after: own.not_after,
            joined_at: former.map_or(now, |former| former.joined_at),
            recipient: own.recipient.clone().or_else(|| former?.recipient.clone()),
            api: own.api.clone(),
            authorities: own.trusted.iter().filter_map(|pem| seen.digests.get(pem).cloned()).collect(),
            etcd_member: own.member.as_ref().map(|member| EtcdMemberReport {
                name: member.name.clone(),
                rolled: member.rolled.max(rolled_before(former)),
                issuer: member.issuer.clone(),
            }),
            confirmed_roll: former.and_then(|former| former.confirmed_roll),
        };
        if former == Some(&wanted) {
            return;
        }
        let key = Key::Identity(name);
        match encode(&wanted) {
            Ok(value) => self.own_record = Some((guard(&key, found), Op::put(key, value))),
            Err(error) => self.too_large(&key, &error),
        }
    }

    /// Warns if another machine has the name of this one's node.
    fn warn_of_namesake(&mut self, seen: &Observed) {
        let Some(node) = seen.own.node.as_ref().filter(|node| !node.is_here) else { return };
        let found = seen.snapshot.identities.get(&node.identity.to_string());
        if found.is_some_and(|found| found.value.key != node.key) {
            let message = format!("another machine is {}: give this one another --node", node.identity);
            self.problem("NameTaken", message);
        }
    }

    /// Removes nodes, and revokes their keys until none of their certificates can be renewed any more.
    fn remove(&mut self, snapshot: &Snapshot, now: Timestamp) {
        for removal in removals(snapshot, now) {
            match removal {
                Ok(removal) => self.removals.push(removal),
                Err((key, error)) => self.too_large(&key, &error),
            }
        }
    }

    /// Has all know the revoked keys, and nothing else: the own one is among them, and another reconciler does the rest.
    fn publish_revoked(
        &mut self,
        seen: &Observed,
        row: &Arc<VersionedValue<TrustRecord>>,
        revoked: BTreeMap<KeyFingerprint, RevokedKey>,
    ) {
        let mut wanted = TrustRecord { revoked, ..row.value.clone() };
        wanted.roll = roll::raised(Some(&row.value), &wanted, &seen.snapshot);
        let base = Some(row.mod_revision);
        let write = RecordWrite { value: Vec::new(), base, drops: WriteGroup::new(), event: None };
        self.write_record(Some(&row.value), &wanted, write);
    }

    /// Writes what every daemon must know, if it changed. The list of authorities and the roll go one step at most.
    fn update_record(
        &mut self,
        seen: &Observed,
        row: Option<&Arc<VersionedValue<TrustRecord>>>,
        revoked: BTreeMap<KeyFingerprint, RevokedKey>,
        now: Timestamp,
    ) {
        let former = row.map(|row| &row.value);
        let roll_step = former.and_then(|former| former.roll.as_ref()).map(|roll| roll_step(seen, roll));
        let mut wanted = wanted_record(seen, former, revoked);
        let mut write = RecordWrite {
            value: Vec::new(),
            base: row.map(|row| row.mod_revision),
            drops: WriteGroup::new(),
            event: None,
        };
        let is_over = roll_step == Some(RollStep::Over);
        match rotation_step(seen, &wanted.authorities, is_over, now) {
            RotationStep::Rest => {}
            RotationStep::Wait(why) => self.notes.push(why),
            RotationStep::Publish(next) => {
                wanted.authorities = next.authorities;
                let rows = seen.snapshot.authorities.iter();
                let dropped = rows.filter(|(digest, _)| !next.keeps.contains(*digest));
                write.drops = dropped.map(|(digest, row)| drop_authority(digest, row.mod_revision)).collect();
                write.event = next.event.map(|(reason, message)| about_trust(reason, message));
            }
        }
        wanted.roll = roll::raised(former, &wanted, &seen.snapshot);
        let is_raised = wanted.roll != former.and_then(|former| former.roll.clone());
        if let (Some(roll), Some(step), false) = (&mut wanted.roll, roll_step, is_raised) {
            self.go_on(roll, step, seen);
        }
        self.write_record(former, &wanted, write);
    }

    fn write_record(&mut self, former: Option<&TrustRecord>, wanted: &TrustRecord, write: RecordWrite) {
        if former == Some(wanted) {
            return;
        }
        match encode(wanted) {
            Ok(value) => self.record = Some(RecordWrite { value, ..write }),
            Err(error) => self.too_large(&Key::Trust, &error),
        }
    }

    /// Puts the next step of a roll into it.
    fn go_on(&mut self, roll: &mut Roll, step: RollStep, seen: &Observed) {
        self.is_rolling = step != RollStep::Over;
        match step {
            RollStep::Over => roll.turn = None,
            RollStep::Wait(why) => self.notes.push(why),
            RollStep::Give(name) if self.users_are_settled(seen) => roll.turn = Some(name),
            RollStep::Give(_) => {
                self.notes
                    .push("etcd restarts member by member once its users are as they should be".to_owned());
            }
        }
    }

    /// Notes what the leader waits for, as far as a follower knows.
    fn note_progress(&mut self, seen: &Observed, record: &TrustRecord, now: Timestamp) {
        if let RotationStep::Wait(why) = rotation_step(seen, &record.authorities, true, now) {
            self.notes.push(why);
        }
        let roll = record.roll.as_ref().filter(|roll| roll.turn.is_some() || is_by_hand(seen));
        if let Some(RollStep::Wait(why)) = roll.map(|roll| roll_step(seen, roll)) {
            self.notes.push(why);
        }
    }

    /// Returns true if nobody who was removed can log in to etcd again.
    fn users_are_settled(&self, seen: &Observed) -> bool {
        let is_checked = matches!(seen.users, ObservedUsers::NotDue | ObservedUsers::Found(_));
        is_checked && self.users.is_empty() && self.removals.is_empty() && seen.denied.is_none()
    }

    fn manage_users(&mut self, seen: &Observed) {
        let ObservedUsers::Found(found) = &seen.users else { return };
        let mut all = identities(&seen.snapshot, &seen.own.identity);
        all.extend(seen.recorded.iter().cloned());
        let removed = seen.snapshot.revoked.keys().filter_map(|identity| identity.parse::<Identity>().ok());
        let wanted = WantedUsers {
            removed: removed.filter(|identity| !all.contains(identity)).collect(),
            identities: all.into_iter().filter(|identity| !seen.verified.contains(identity)).collect(),
            enables_auth: seen.enables_auth,
        };
        self.users = etcd_users::plan(&wanted, found);
    }
}
