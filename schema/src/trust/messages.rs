//! Requests of a machine that joins or renews its certificate, and the answers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/join`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinRequest {
    /// Id of the token.
    pub token: String,
    /// Secret of the token.
    pub secret: String,
    /// Name that the machine means to have, `node-web-2`: that of the token.
    pub identity: String,
    /// Signing request of its key (PEM).
    pub signing_request: String,
    /// Its age recipient, to which secrets are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// Addresses and names under which a reconciler is reached; empty for a node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("JoinRequest");
        shown.field("token", &self.token).field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Body of `POST /v1/renew`. The signing request is signed by the key of the certificate, which may have expired, so it
/// needs no other proof.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    /// Certificate to renew (PEM).
    pub certificate: String,
    /// Signing request of the same key (PEM).
    pub signing_request: String,
}

/// Answer to both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinAnswer {
    /// The certificate (PEM).
    pub certificate: String,
    /// Authorities to trust (PEM), one or two.
    pub authorities: String,
    /// Addresses of etcd.
    pub etcd: Vec<String>,
    /// Addresses of the reconcilers' APIs.
    pub reconcilers: Vec<String>,
    /// For a reconciler: certificate and key of the authority (PEM), encrypted to its recipient (age, armored).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_authority: Option<String>,
}
