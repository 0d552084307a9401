//! Who may call a function from outside of the cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::pod::SecretKeyRef;

/// Callers from outside show a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct FunctionAuth {
    /// Where the token is.
    pub token_from: TokenSource,
}

/// Where a token is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct TokenSource {
    /// A key of a secret, encrypted for every node that is to be called.
    pub secret_key_ref: SecretKeyRef,
}
