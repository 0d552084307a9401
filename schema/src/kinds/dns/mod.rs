//! Dns: a host and its paths, each to a service, through the gateway of every node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;
mod dialect;
mod status;
mod validate;

use super::pod::PortReference;
pub use status::{DnsStatus, UnroutedPath};

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsPath {
    /// Begins with `/`; matches itself and everything below it.
    pub path: String,
    /// Where it leads.
    pub service: ServiceReference,
    /// What takes the place of `path` in the request; nothing is changed when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
