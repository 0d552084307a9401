//! Dns: a host and its paths, each to services and functions, through the gateway of every node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub(crate) mod backend;
mod descriptor;
mod dialect;
mod validate;

use super::pod::PortReference;
pub use backend::{DnsBackend, Share, Sticky};

/// Which paths of which host lead where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsSpec {
    /// The host name.
    pub host: String,
    /// Its paths; the longest that fits wins.
    pub paths: Vec<DnsPath>,
}

/// One path of a host.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsPath {
    /// Begins with `/`; matches itself and everything below it.
    pub path: String,
    /// Where it leads. This or `backends`.
    pub service: Option<ServiceReference>,
    /// Services and functions that share its requests by weight and header; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<DnsBackend>,
    /// Keeps clients at one of the `backends`; by default each request goes its own way.
    pub sticky: Option<Sticky>,
    /// What takes the place of `path` in the request; nothing is changed when absent.
    pub rewrite: Option<String>,
}

/// A port of a service in the same namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ServiceReference {
    /// Name of the service.
    pub name: String,
    /// Its port, by number or name.
    pub port: PortReference,
}

/// `/a/` matches what `/a` matches.
fn without_final_slash(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}
