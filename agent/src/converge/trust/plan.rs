//! Decides when the node's certificate is renewed, and what of the cluster's trust changes. Pure: the time is an
//! argument.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schema::control::Plan;
use schema::trust::KeyFingerprint;

use crate::cluster::ClusterAddresses;

/// Time after a renewal in which there is none for the age of the new certificate: an authority that is about to end
/// signs for no longer.
const AGED_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// Time after a renewal in which there is none for a reason that it should have removed: an etcd of the user's knows
/// this node only once its users are made by hand.
pub(super) const UNCURED_AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// Longest wait after a renewal that failed.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(300);

/// Observed state of the trust loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub(super) own: OwnTrust,
    pub(super) record: RecordFacts,
    /// End of the last renewal by this process.
    pub(super) renewed_at: Option<Timestamp>,
    /// Time before which there is no renewal, after one that failed.
    pub(super) retry_at: Option<Timestamp>,
}

/// Credentials and addresses of this node.
#[derive(Debug, Clone)]
pub(super) struct OwnTrust {
    /// Time at which two thirds of the certificate's validity are over.
    pub(super) renew_at: Timestamp,
    /// End of the certificate's validity.
    pub(super) not_after: Timestamp,
    /// Trusted authorities, PEM.
    pub(super) authorities: Vec<String>,
    pub(super) revoked: BTreeMap<KeyFingerprint, Timestamp>,
    pub(super) known: ClusterAddresses,
}

/// Facts about the record of the cluster's trust.
#[derive(Debug, Clone)]
pub(super) enum RecordFacts {
    /// etcd refuses this node.
    Denied,
    /// There is no record, or it can't be read at present.
    Unknown,
    /// The record.
    Known(ClusterTrust),
}

/// The cluster's trust, as recorded in etcd.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterTrust {
    /// Authorities, the one that signs first.
    pub(super) authorities: Vec<RecordedAuthority>,
    pub(super) revoked: BTreeMap<KeyFingerprint, Timestamp>,
    pub(super) addresses: ClusterAddresses,
}

/// An authority of the record.
#[derive(Debug, Clone)]
pub(super) struct RecordedAuthority {
    pub(super) pem: String,
    /// True if it has signed the node's certificate.
    pub(super) has_signed: bool,
}

/// Reason to renew the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RenewReason {
    /// The certificate has ended.
    Expired,
    /// Two thirds of its validity are over.
    Aged,
    /// etcd does not know this node, or not all that it may do.
    Denied,
    /// Another authority signs now.
    NewAuthority,
}

impl fmt::Display for RenewReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "it has ended",
            Self::Aged => "two thirds of its validity are over",
            Self::Denied => "etcd refuses this node",
            Self::NewAuthority => "another authority signs now",
        })
    }
}

/// Changes of the cluster's trust to put in force; `None` where nothing changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TrustChanges {
    /// Trusted authorities, PEM.
    pub(super) authorities: Option<Vec<String>>,
    pub(super) revoked: Option<BTreeMap<KeyFingerprint, Timestamp>>,
    pub(super) addresses: Option<ClusterAddresses>,
}

/// Plan of the trust loop: first the changes, then the renewal.
#[derive(Debug, PartialEq, Eq)]
pub struct TrustPlan {
    pub(super) apply: Option<TrustChanges>,
    pub(super) renew: Option<RenewReason>,
    /// Time of a renewal that waits.
    pub(super) renew_at: Option<Timestamp>,
}

impl Plan for TrustPlan {
    fn is_empty(&self) -> bool {
        self.apply.is_none() && self.renew.is_none()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.renew_at
    }
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> TrustPlan {
    let apply = match &observed.record {
        RecordFacts::Known(cluster) => changes(&observed.own, cluster, now),
        RecordFacts::Denied | RecordFacts::Unknown => None,
    };
    let reason = renew_reason(observed, now);
    let due_at = reason.map(|reason| due_at(observed, reason, now));
    match due_at.filter(|at| *at > now) {
        Some(at) => TrustPlan { apply, renew: None, renew_at: Some(at) },
        None => TrustPlan { apply, renew: reason, renew_at: None },
    }
}

/// Returns true if the certificate has ended.
pub(super) fn has_ended(not_after: Timestamp, now: Timestamp) -> bool {
    not_after <= now
}

fn renew_reason(observed: &Observed, now: Timestamp) -> Option<RenewReason> {
    let OwnTrust { renew_at, not_after, .. } = &observed.own;
    match &observed.record {
        _ if has_ended(*not_after, now) => Some(RenewReason::Expired),
        _ if *renew_at <= now => Some(RenewReason::Aged),
        RecordFacts::Denied => Some(RenewReason::Denied),
        RecordFacts::Known(cluster) if cluster.authorities.first().is_some_and(|first| !first.has_signed) => {
            Some(RenewReason::NewAuthority)
        }
        RecordFacts::Known(_) | RecordFacts::Unknown => None,
    }
}

/// Returns the earliest time of a renewal; one that is over if it is due.
fn due_at(observed: &Observed, reason: RenewReason, now: Timestamp) -> Timestamp {
    let pause = match reason {
        RenewReason::Expired | RenewReason::Aged => AGED_AGAIN,
        RenewReason::Denied | RenewReason::NewAuthority => UNCURED_AGAIN,
    };
    // Later times are those of a clock that was set back since.
    let after_success = observed.renewed_at.filter(|at| *at <= now).map(|at| at + pause);
    let after_failure = observed.retry_at.filter(|at| *at <= now + RETRY_MAX);
    after_success.max(after_failure).unwrap_or(now)
}

/// Returns the changes from the node's own trust to the cluster's. A revoked key stays so for as long as it would be of
/// use, even if etcd lost the record.
fn changes(own: &OwnTrust, cluster: &ClusterTrust, now: Timestamp) -> Option<TrustChanges> {
    let pems = cluster.authorities.iter().map(|authority| authority.pem.clone()).collect::<Vec<_>>();
    // Without the one that signed its certificate the node could show it to nobody: it renews first.
    let keeps_own = cluster.authorities.iter().any(|authority| authority.has_signed);
    let mut revoked = own.revoked.clone();
    revoked.retain(|_, until| *until > now);
    revoked.extend(cluster.revoked.clone());
    let addresses = cluster.addresses.or(&own.known);
    let changes = TrustChanges {
        authorities: (keeps_own && pems != own.authorities).then_some(pems),
        revoked: (revoked != own.revoked).then_some(revoked),
        addresses: (addresses != own.known).then_some(addresses),
    };
    (changes != TrustChanges::default()).then_some(changes)
}
