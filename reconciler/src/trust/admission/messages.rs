//! The API's requests to admit and list: their paths, bodies and errors.

use jiff::Timestamp;
use schema::codec::CodecError;
use schema::store::StoreError;
use schema::trust::{Identity, KeyFingerprint, TrustError};
use serde::{Deserialize, Serialize};

use super::plan::Refusal;

/// Body of `POST /v1/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TokenRequest {
    /// Name that the token admits, `node-web-2`.
    pub(crate) identity: String,
    /// Validity; an hour by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u32>,
}

/// Answer of `POST /v1/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenAnswer {
    /// The token, `ID.SECRET.PIN`. It is not stored.
    pub(crate) token: String,
    /// End of its validity.
    pub(crate) expires_at: Timestamp,
    /// URLs at which a machine may join.
    pub(crate) reconcilers: Vec<String>,
}

/// Body of `POST /v1/users`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UserRequest {
    /// Name without a prefix, `ada`.
    pub(crate) name: String,
    /// Signing request of the person's key (PEM).
    pub(crate) signing_request: String,
    /// Validity of the certificate; 30 days by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lifetime_seconds: Option<u32>,
}

/// Item of `GET /v1/identities`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdentityItem {
    /// Name, `node-web-2`.
    pub(crate) identity: String,
    /// Fingerprint of its key.
    pub(crate) key: KeyFingerprint,
    /// End of its newest certificate.
    pub(crate) not_after: Timestamp,
    /// Time at which it joined.
    pub(crate) joined_at: Timestamp,
    /// age recipient of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recipient: Option<String>,
}

/// Answer of `POST /v1/trust/rotate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RotationAnswer {
    /// Digest of the next authority.
    pub(crate) authority: String,
    /// Names of the people whose files know only the present one.
    pub(crate) users: Vec<String>,
}

/// Answer of `POST /v1/identities/<identity>/remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemovedIdentity {
    /// Name of the member of etcd that was removed with its reconciler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_member: Option<String>,
}

/// Failure to admit or remove somebody, or to begin a rotation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdmissionError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request makes no sense, whoever sends it.
    #[error("{0}")]
    Invalid(String),
    #[error("nobody has the name {0}")]
    Unknown(Identity),
    #[error("a rotation of the authority is under way")]
    RotationUnderWay,
    /// The node has a heartbeat. That of an agent that was just stopped ends soon.
    #[error("an agent of node {0} is alive")]
    Alive(String),
    #[error("the key of {identity} is revoked, but its member of etcd is not removed: {source}")]
    Member {
        identity: Identity,
        #[source]
        source: StoreError,
    },
    #[error("the reconciler is starting: it has not read etcd yet")]
    Starting,
    #[error("this reconciler {0}")]
    Excluded(&'static str),
    #[error("the certificate of {0} was renewed a moment ago")]
    TooOften(Identity),
    #[error("{0} has too many certificates that have not ended")]
    TooMany(Identity),
    #[error("other reconcilers keep changing the same records")]
    Busy,
    #[error("{key}: {source}")]
    Record {
        key: String,
        #[source]
        source: CodecError,
    },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns true for requests that change who belongs to the cluster, and who vouches for that.
pub(crate) fn admits_or_removes(path: &str) -> bool {
    let is_below =
        |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    ["/v1/tokens", "/v1/users", "/v1/trust"].into_iter().any(is_below) || path.starts_with("/v1/identities/")
}
