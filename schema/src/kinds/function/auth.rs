//! Authentication of callers from outside of the cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::pod::SecretKeyRef;

/// Token authentication for callers from outside of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct FunctionAuth {
    /// Source of the token.
    pub token_from: TokenSource,
}

/// Source of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct TokenSource {
    /// Key of a secret that is encrypted for every node that accepts calls.
    pub secret_key_ref: SecretKeyRef,
}
