//! Dns: a host whose paths lead to services and functions, through the gateway of every node.

mod descriptor;
mod validate;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::pod::PortReference;
use crate::codec::one;

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
    /// Path that begins with `/`; matches itself and everything below it, by segments. Requests are compared decoded;
    /// several slashes count as one, and dot segments are refused.
    pub path: String,
    /// Service that receives the requests. Either this or `backends`.
    pub service: Option<ServiceReference>,
    /// Services and functions that share the requests by weight and header; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<DnsBackend>,
    /// Keeps each client on one of the `backends`; by default requests are distributed independently.
    pub sticky: Option<StickyKey>,
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

// Targets of a path: one service, or several backends that share its requests.

/// Maximum number of backends of a path.
pub(crate) const BACKENDS_MAX: usize = 16;
/// Maximum weight of a backend.
pub(crate) const WEIGHT_MAX: u32 = 1000;

/// A backend that shares the requests of a path with others.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DnsBackend {
    /// Name of a service in the same namespace, with `port`. Either this or `function`.
    pub service: Option<String>,
    /// Name of a function in the same namespace: the request body becomes the call, and the answer the response.
    pub function: Option<String>,
    /// Port of the service, by number or name.
    pub port: Option<PortReference>,
    /// Share of the requests, in proportion to other backends with the same `headers`; 0 means no requests.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(range(max = 1000))]
    pub weight: u32,
    /// Headers that requests must have, by name and exact value. Such requests never go to backends without headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// Client affinity: requests with the same value go to the same backend while the weights stay unchanged. Exactly
/// one field must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct StickyKey {
    /// Name of the header that holds the value.
    pub header: Option<String>,
    /// Name of the cookie that holds the value.
    pub cookie: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn is_one(weight: &u32) -> bool {
    *weight == 1
}

/// A backend for display.
#[derive(Debug, Clone)]
pub struct BackendShare<'a> {
    /// Target of the requests: `service web:80`.
    pub target: String,
    /// Weight of the backend.
    pub weight: u32,
    /// Headers that requests must have.
    pub headers: &'a BTreeMap<String, String>,
}

impl BackendShare<'_> {
    /// Describes the shares in words: `service web:80 90%, service next:80 10%, service next:80 with x-canary: yes`.
    pub fn in_words(shares: &[Self]) -> String {
        let words = shares.iter().map(|share| {
            let group = shares.iter().filter(|other| other.headers == share.headers);
            let (count, total) = group.fold((0, 0), |(count, total), one| (count + 1, total + one.weight));
            let mut words = share.target.clone();
            if count > 1 || share.weight == 0 {
                words.push_str(&format!(" {}%", percent(share.weight, total)));
            }
            let headers: Vec<_> =
                share.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            if !headers.is_empty() {
                words.push_str(&format!(" with {}", headers.join(" and ")));
            }
            words
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Formats a percentage to a tenth, without a needless `.0`.
fn percent(weight: u32, total: u32) -> String {
    let tenths = (u64::from(weight) * 1000 + u64::from(total) / 2) / u64::from(total.max(1));
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        tenth => format!("{}.{tenth}", tenths / 10),
    }
}

impl DnsPath {
    /// Describes the targets of the path in words.
    pub fn in_words(&self) -> String {
        let service = |name: &str, port: &PortReference| match port {
            PortReference::Number(number) => format!("service {name}:{number}"),
            PortReference::Name(port) => format!("service {name}:{port}"),
        };
        if let Some(only) = &self.service {
            return service(&only.name, &only.port);
        }
        let shares = self.backends.iter().map(|backend| {
            let to = match (&backend.service, &backend.port, &backend.function) {
                (Some(name), Some(port), _) => service(name, port),
                (_, _, Some(name)) => format!("function {name}"),
                (name, _, _) => format!("service {}", name.as_deref().unwrap_or_default()),
            };
            BackendShare { target: to, weight: backend.weight, headers: &backend.headers }
        });
        let mut words = BackendShare::in_words(&shares.collect::<Vec<_>>());
        match &self.sticky {
            Some(StickyKey { header: Some(name), .. }) => {
                words.push_str(&format!(", sticky by header {name}"));
            }
            Some(StickyKey { cookie: Some(name), .. }) => {
                words.push_str(&format!(", sticky by cookie {name}"));
            }
            _ => {}
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_among_backends_with_the_same_headers() {
        let (none, canary) = (BTreeMap::new(), BTreeMap::from([("x-canary".to_owned(), "yes".to_owned())]));
        let share = |to: &str, weight, headers| BackendShare { target: to.to_owned(), weight, headers };
        let all = [share("a", 2, &none), share("b", 1, &none), share("b", 1, &canary)];
        assert_eq!(BackendShare::in_words(&all), "a 66.7%, b 33.3%, b with x-canary: yes");
        assert_eq!(BackendShare::in_words(&[share("a", 1, &none), share("b", 0, &none)]), "a 100%, b 0%");
        assert_eq!(BackendShare::in_words(&all[..1]), "a");
    }
}
