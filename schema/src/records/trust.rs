//! Records of who belongs to the cluster: join tokens, signed certificates, what all must trust, and the restarts of etcd's
//! members that make them trust it, too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `joins/<id>`: a join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRecord {
    /// Name that it admits, `node-web-2`.
    pub identity: String,
    /// SHA-256 of its secret, in hex.
    pub secret_hash: String,
    /// Time until which it is valid.
    pub expires_at: Timestamp,
    /// Time at which it was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_at: Option<Timestamp>,
}

/// `identities/<identity>`: the newest certificate of a node, a reconciler or a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRecord {
    /// Fingerprint of its key, `sha256:…`.
    pub key: String,
    /// Serial numbers, in hex, of its certificates that have not ended, each with its end.
    pub serials: BTreeMap<String, Timestamp>,
    /// Digest of the authority that signed it.
    pub issuer: String,
    /// End of its newest certificate.
    pub not_after: Timestamp,
    /// Time at which it joined.
    pub joined_at: Timestamp,
    /// Its age recipient, to which secrets may be encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// Of a reconciler: URL of its API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Of a reconciler: digests of the authorities that it trusts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// Of a reconciler whose machine has a member of the cluster's own etcd: that member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_member: Option<EtcdMemberReport>,
    /// Of a reconciler: number of the newest roll of which a person has confirmed here that all members of etcd were
    /// restarted, where etcd is not the cluster's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_roll: Option<u64>,
}

/// A member of etcd, reported by the reconciler of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberReport {
    /// Name of the member.
    pub name: String,
    /// Number of the newest roll in which it was restarted.
    pub rolled: u64,
    /// Digest of the authority that signed its certificate.
    pub issuer: String,
}

/// `authorities/<digest>`: an authority that signs, or is about to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityRecord {
    /// Its certificate (PEM).
    pub certificate: String,
    /// Certificate and key (PEM), encrypted to `recipients` (age, armored).
    pub sealed: String,
    /// age recipients of the reconcilers that can open it.
    pub recipients: Vec<String>,
    /// Time at which it was created.
    pub created_at: Timestamp,
}

/// Restart of etcd's members one by one: they read trusted authorities only when they start, and a removed identity keeps
/// its open watches until then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Roll {
    /// Number of the roll. It is over once each member has been restarted in it.
    pub number: u64,
    /// Reconciler that may restart its member now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// Reason of the newest roll.
    pub why: String,
}

/// `revoked/<identity>`: keys that an identity has no longer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevokedIdentity {
    /// Revoked keys by fingerprint, each with the time until which it stays revoked: as long as it could be renewed.
    pub keys: BTreeMap<String, Timestamp>,
    /// Serial numbers, in hex, of their certificates that have not ended, each with its end: etcd knows no keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub serials: BTreeMap<String, Timestamp>,
    /// Of a reconciler: its member of etcd when it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_member: Option<String>,
}

/// `trust`: what every daemon must know of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustRecord {
    /// Trusted authorities (PEM), the one that signs first.
    pub authorities: Vec<String>,
    /// Revoked keys by fingerprint, as long as one of their certificates is valid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revoked: BTreeMap<String, RevokedKey>,
    /// Client addresses of etcd's members, as these publish them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub etcd: Vec<String>,
    /// URLs of the reconcilers' APIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reconcilers: Vec<String>,
    /// The newest roll of etcd's members; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roll: Option<Roll>,
}

/// A revoked key, and with it all of its certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevokedKey {
    /// Whose it was.
    pub identity: String,
    /// Time until which it stays on the list.
    pub until: Timestamp,
}
