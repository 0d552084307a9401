//! Dns: a host whose paths lead to services and functions, through the gateway of every node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub(crate) mod backend;
mod descriptor;
mod dialect;
mod validate;

use super::pod::PortReference;
pub use backend::{DnsBackend, Share, Sticky};

/// A host and the targets of its paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsSpec {
    /// Host name.
    pub host: String,
    /// Paths of the host; the longest match wins.
    pub paths: Vec<DnsPath>,
}

/// A path of a host.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsPath {
    /// Path that begins with `/`; matches itself and everything below it.
    pub path: String,
    /// Service that receives the requests. Either this or `backends`.
    pub service: Option<ServiceReference>,
    /// Services and functions that share the requests by weight and header; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<DnsBackend>,
    /// Keeps each client on one of the `backends`; by default requests are distributed independently.
    pub sticky: Option<Sticky>,
    /// Replacement for `path` in the request; nothing is replaced if absent.
    pub rewrite: Option<String>,
}

/// A port of a service in the same namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ServiceReference {
    /// Name of the service.
    pub name: String,
    /// Port of the service, by number or name.
    pub port: PortReference,
}

/// Removes final slashes, because `/a/` matches the same as `/a`.
fn without_final_slash(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}
