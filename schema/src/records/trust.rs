//! Records of who belongs to the cluster: join tokens, signed certificates, and what all must trust.

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
    /// Serial number of its newest certificate, in hex.
    pub serial: String,
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
}

/// `trust`: what every daemon must know of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustRecord {
    /// Trusted authorities (PEM), the one that signs first.
    pub authorities: Vec<String>,
    /// Revoked keys by fingerprint, as long as they would be of use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revoked: BTreeMap<String, RevokedKey>,
    /// Client addresses of etcd's members, as these publish them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub etcd: Vec<String>,
    /// URLs of the reconcilers' APIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reconcilers: Vec<String>,
}

/// A revoked key, and with it all of its certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevokedKey {
    /// Whose it was.
    pub identity: String,
    /// Time until which it stays on the list: a year after the end of its newest certificate, when none of its
    /// certificates can be renewed any more.
    pub until: Timestamp,
}
