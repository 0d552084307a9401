//! Input of the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use schema::records::IdentityRecord;
use schema::snapshot::Snapshot;
use schema::store::etcd::AuthState;
use schema::trust::{Identity, KeyFingerprint, Serial};

use super::roll::ObservedMembers;
use crate::trust::setup::RefusedSerials;

/// This reconciler's own identity, its certificates, and what it trusts.
#[derive(Debug, Clone)]
pub(in crate::trust::run) struct OwnIdentity {
    pub(in crate::trust::run) identity: Identity,
    pub(in crate::trust::run) key: KeyFingerprint,
    pub(in crate::trust::run) serial: Serial,
    /// Digest of the authority that signed the certificate.
    pub(in crate::trust::run) issuer: String,
    /// That authority (PEM).
    pub(in crate::trust::run) signer: String,
    pub(in crate::trust::run) not_after: Timestamp,
    /// Time from which on the certificate is renewed.
    pub(in crate::trust::run) renew_at: Timestamp,
    /// This machine's member of etcd, if the cluster's own etcd has one here.
    pub(in crate::trust::run) member: Option<ObservedOwnMember>,
    /// Authority that signs from now on (PEM).
    pub(in crate::trust::run) authority: String,
    pub(in crate::trust::run) authority_ends_at: Timestamp,
    /// Begin of the last tenth of its validity.
    pub(in crate::trust::run) authority_ends_soon_at: Timestamp,
    /// Trusted authorities (PEM).
    pub(in crate::trust::run) trusted: Vec<String>,
    /// This machine's own node, if it has one.
    pub(in crate::trust::run) node: Option<LocalNode>,
    pub(in crate::trust::run) revoked: BTreeMap<KeyFingerprint, Timestamp>,
    /// URL of the API.
    pub(in crate::trust::run) api: Option<String>,
    /// age recipient.
    pub(in crate::trust::run) recipient: Option<String>,
}

/// This machine's member of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::trust::run) struct ObservedOwnMember {
    pub(in crate::trust::run) name: String,
    /// Digest of the authority that signed its certificate; empty for one that is not trusted.
    pub(in crate::trust::run) issuer: String,
    /// Time from which on its certificate is renewed.
    pub(in crate::trust::run) renew_at: Timestamp,
    /// Serial numbers of the certificates that it refuses, each with the end of its certificate.
    pub(in crate::trust::run) refused: RefusedSerials,
    /// Number of the newest roll in which this process has restarted it, or that was over before it joined.
    pub(in crate::trust::run) rolled: u64,
}

/// The node on this machine, as its certificate on disk says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::trust::run) struct LocalNode {
    pub(in crate::trust::run) identity: Identity,
    pub(in crate::trust::run) key: KeyFingerprint,
    pub(in crate::trust::run) serial: Serial,
    /// Digest of the authority that signed the certificate.
    pub(in crate::trust::run) issuer: String,
    /// Time at which the certificate was signed.
    pub(in crate::trust::run) signed_at: Timestamp,
    pub(in crate::trust::run) not_after: Timestamp,
    /// Set if the recorded node of this name was this machine's when this process started.
    pub(in crate::trust::run) is_here: bool,
}

/// Users of etcd, as far as they were read.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::trust::run) enum ObservedUsers {
    /// They were checked not long ago, or this reconciler does not lead.
    NotDue,
    /// etcd does not let this reconciler manage users, and why.
    Denied(String),
    /// They could not be read, and why.
    Failed(String),
    /// Users and roles but those of `verified`.
    Found(AuthState),
}

/// Input of the plan.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    /// Identities that a former etcd knew and this one does not.
    pub(in crate::trust::run) lost: Vec<(String, IdentityRecord)>,
    pub(in crate::trust::run) snapshot: Arc<Snapshot>,
    pub(in crate::trust::run) leads: bool,
    pub(in crate::trust::run) own: OwnIdentity,
    /// Addresses of etcd for clients: those that its members publish, or else the configured ones.
    pub(in crate::trust::run) etcd: Vec<String>,
    /// Members of etcd and whether they answer, if that is of interest.
    pub(in crate::trust::run) members: ObservedMembers,
    /// Set if this reconciler was started with the cluster's own etcd.
    pub(in crate::trust::run) owns_etcd: bool,
    /// Digests of all authorities in the records (PEM), and of the own one.
    pub(in crate::trust::run) digests: BTreeMap<String, String>,
    pub(in crate::trust::run) users: ObservedUsers,
    /// Identities that have a user and a record of which the snapshot does not know yet.
    pub(in crate::trust::run) recorded: BTreeSet<Identity>,
    /// Identities whose users were as they should be.
    pub(in crate::trust::run) verified: BTreeSet<Identity>,
    /// Set if authentication is to be switched on.
    pub(in crate::trust::run) enables_auth: bool,
    /// Reason of etcd for not letting this reconciler manage users, when it last tried.
    pub(in crate::trust::run) denied: Option<String>,
}
