//! Decides which keys are revoked, whose identity the leader removes, which ones it restores after etcd was lost, and when
//! this machine's own node has a new key.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use schema::codec::{CodecError, encode};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::{EventType, IdentityRecord, RevokedKey};
use schema::snapshot::{Snapshot, VersionedValue};
use schema::store::events::EventDraft;
use schema::store::{Guard, Op};
use schema::trust::{Identity, KeyFingerprint};

use super::observed::Observed;
use crate::guarded_writes::WriteGroup;
use crate::trust::revocation::{in_force, published_until, revoke};
use crate::trust::setup::RefusedSerials;

/// Owner of a revoked key of which only the disk of a reconciler knows, because etcd was lost.
const UNKNOWN: &str = "unknown";

/// Revoked keys.
#[derive(Debug)]
pub(super) struct Revoked {
    /// Keys that this reconciler refuses, each with the time until which it does.
    pub(super) kept: BTreeMap<KeyFingerprint, Timestamp>,
    /// Keys of which all must know.
    pub(super) published: BTreeMap<KeyFingerprint, RevokedKey>,
}

/// Removal of an identity, or of a key that another one takes the place of.
#[derive(Debug)]
pub(in crate::trust::run) struct Removal {
    pub(in crate::trust::run) writes: WriteGroup,
    pub(in crate::trust::run) event: EventDraft,
}

/// Returns all revoked keys that would still be of use.
pub(super) fn revoked_keys(seen: &Observed, now: Timestamp) -> Revoked {
    let record = seen.snapshot.trust.get(&()).map(|record| record.value.revoked.clone());
    let mut published = record.unwrap_or_default();
    let mut kept: BTreeMap<_, _> =
        published.iter().map(|(key, revoked)| (key.clone(), revoked.until)).collect();
    kept.extend(seen.own.revoked.clone());
    for (key, until) in &seen.own.revoked {
        let unknown = || RevokedKey { identity: UNKNOWN.to_owned(), until: *until };
        published.entry(key.clone()).or_insert_with(unknown);
    }
    for (identity, row) in &seen.snapshot.revoked {
        for (key, until) in &row.value.keys {
            kept.insert(key.clone(), *until);
            let until = published_until(identity, *until);
            published.insert(key.clone(), RevokedKey { identity: identity.clone(), until });
        }
    }
    kept.retain(|_, until| *until > now);
    published.retain(|_, revoked| revoked.until > now);
    Revoked { kept, published }
}

/// Returns the certificates that this machine's member of etcd must refuse, if it refuses others. Those of before stay
/// until they have ended, also if etcd has lost their record.
pub(super) fn refused(seen: &Observed, now: Timestamp) -> Option<RefusedSerials> {
    let known = &seen.own.member.as_ref()?.refused;
    let mut wanted = in_force(known, now);
    for row in seen.snapshot.revoked.values() {
        wanted.extend(in_force(&row.value.serials, now));
    }
    (wanted != *known).then_some(wanted)
}

/// Returns the removals of nodes that Git declares gone, or whose key is not the one that Git names, whether they are alive
/// or not. One whose record would be too large is an error.
pub(super) fn removals(snapshot: &Snapshot, now: Timestamp) -> Vec<Result<Removal, (Key, CodecError)>> {
    let removal = |(name, record): (&String, &Arc<VersionedValue<IdentityRecord>>)| {
        let identity = name.parse::<Identity>().ok()?;
        let node = identity.node()?;
        let why = objection(snapshot, node, &record.value.key)?;
        let found = snapshot.revoked.get(name);
        let row = revoke(&identity, found.map(|found| &found.value), &record.value, now);
        let (key, own) = (Key::RevokedIdentity(name.clone()), Key::Identity(name.clone()));
        let value = match encode(&row) {
            Ok(value) => value,
            Err(error) => return Some(Err((key, error))),
        };
        let object = NamespacedName::new("", node);
        let event =
            EventDraft::about(EventType::Normal, Kind::Node, &object, "IdentityRemoved", why.to_owned());
        let delete = (Guard::ModRevision(own.to_string(), record.mod_revision), Op::delete(own));
        let writes = vec![(guard(&key, found), Op::put(key, value)), delete];
        Some(Ok(Removal { writes, event }))
    };
    snapshot.identities.iter().filter_map(removal).collect()
}

/// Returns true if the recorded node of this name has an address of this machine, `own`, or no other machine can have one.
pub(in crate::trust::run) fn is_here(node: &Identity, snapshot: &Snapshot, own: &[String]) -> bool {
    let is_local = |text: &String| {
        text == "localhost" || text.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let found = node.node().and_then(|name| snapshot.nodes.get(name));
    let addresses = found.map(|found| &found.value.addresses);
    own.iter().all(is_local)
        || addresses
            .is_none_or(|addresses| addresses.iter().any(|address| own.contains(&address.to_string())))
}

/// Returns the new record of this machine's own node, if it has another key than the recorded one: the machine has lost its
/// disk, or was a part of another cluster, and `up` has signed a new key. Whoever had the name later keeps it.
pub(super) fn takeover(seen: &Observed, revoked: &Revoked, now: Timestamp) -> Option<Removal> {
    let local = seen.own.node.as_ref()?;
    let (name, node) = (local.identity.to_string(), local.identity.node()?);
    let found = seen.snapshot.identities.get(&name).filter(|found| found.value.key != local.key)?;
    let is_barred =
        revoked.kept.contains_key(&local.key) || objection(&seen.snapshot, node, &local.key).is_some();
    // Certificates know whole seconds, so one of this second may be newer.
    let is_older = local.signed_at.as_second() < found.value.joined_at.as_second();
    if is_barred || !local.is_here || is_older {
        return None;
    }
    let row = seen.snapshot.revoked.get(&name);
    let revoked = revoke(&local.identity, row.map(|row| &row.value), &found.value, now);
    let record = IdentityRecord {
        key: local.key.clone(),
        serials: [(local.serial.clone(), local.not_after)].into(),
        issuer: local.issuer.clone(),
        not_after: local.not_after,
        joined_at: now,
        recipient: None,
        api: None,
        authorities: Vec::new(),
        etcd_member: None,
        confirmed_roll: None,
    };
    let (own, of_revoked) = (Key::Identity(name.clone()), Key::RevokedIdentity(name));
    let object = NamespacedName::new("", local.identity.to_string());
    let message = format!(
        "{} has signed its node's new key {}; the former key {} is revoked",
        seen.own.identity, local.key, found.value.key
    );
    Some(Removal {
        event: EventDraft::about(EventType::Normal, "Identity", &object, "Joined", message),
        writes: vec![
            (guard(&of_revoked, row), Op::put(of_revoked, encode(&revoked).ok()?)),
            (Guard::ModRevision(own.to_string(), found.mod_revision), Op::put(own, encode(&record).ok()?)),
        ],
    })
}

/// Returns why Git does not admit this key of a node; `None` if it does.
fn objection(snapshot: &Snapshot, node: &str, key: &str) -> Option<&'static str> {
    if snapshot.is_gone(node) {
        return Some(
            "Git marks the node as gone: its key is revoked, and it may not join until the annotation is removed",
        );
    }
    let wanted = snapshot.node_spec(node)?.identity.as_deref()?;
    (wanted != key).then_some("the Node object names another key than the node's, which is revoked")
}

/// Returns the writes that restore the records of identities that a former etcd knew: without them, reconcilers and nodes
/// have no user.
pub(super) fn restored(seen: &Observed, revoked: &Revoked) -> Vec<WriteGroup> {
    let is_admitted = |name: &str, key: &str| {
        let identity = name.parse::<Identity>().ok();
        let node = identity.as_ref().and_then(Identity::node);
        node.is_none_or(|node| objection(&seen.snapshot, node, key).is_none())
    };
    let known = seen
        .lost
        .iter()
        .filter(|(name, record)| !revoked.kept.contains_key(&record.key) && is_admitted(name, &record.key));
    let write = |(name, record): &(String, IdentityRecord)| {
        let key = Key::Identity(name.clone());
        Some(vec![(Guard::Absent(key.to_string()), Op::put(key, encode(record).ok()?))])
    };
    known.filter_map(write).collect()
}

/// Guard on the version of a key that the snapshot has.
pub(super) fn guard<T>(key: &Key, found: Option<&Arc<VersionedValue<T>>>) -> Guard {
    match found {
        Some(found) => Guard::ModRevision(key.to_string(), found.mod_revision),
        None => Guard::Absent(key.to_string()),
    }
}
